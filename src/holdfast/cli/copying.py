"""`holdfast copy` copies a whole store into another one."""

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import AsJson, chosen_store
from holdfast.cli.retention import MediaUrl, actor
from holdfast.cli.terminal import echo, print_json, progress_bar

if TYPE_CHECKING:
    from holdfast.retention import Copied


def copy(
    source: Annotated[str, typer.Argument(help="The URL of the store to copy.")],
    target: Annotated[
        str, typer.Argument(help="The URL of the store to copy to. It may have other sessions.")
    ],
    undo: Annotated[
        bool, typer.Option("--undo", help="Reopen the sessions that were marked as moved and did not arrive.")
    ] = False,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Copy a whole store into another one, on any engine; exit 1 if something is not in the target, or differs there.

    Stop the workers and API servers of the source first. Sessions with open submissions, such as those that wait for an approval, are marked as
    moved in the source and continue in the target only. The command may be stopped and run again. --media is where the target keeps media.
    """

    async def reopen() -> list[str]:
        from holdfast.retention import undo_copy

        async with chosen_store(source) as opened, chosen_store(target) as other:
            return await undo_copy(opened, other)

    async def work() -> "Copied":
        from holdfast.media import open_media
        from holdfast.retention import copy

        async with chosen_store(source) as opened, chosen_store(target, upgrade=True) as other:
            total = (await opened.schema()).sessions
            with progress_bar("copying", total, shown=not as_json) as advance:
                return await copy(
                    opened,
                    other,
                    actor=actor(),
                    media=open_media(media, store=other),
                    progress=lambda _: advance(1),
                )

    if undo:
        reopened = asyncio.run(reopen())
        if as_json:
            print_json({"reopened": reopened})
        else:
            echo(f"{len(reopened)} sessions are open again in the source.")
        return
    done = asyncio.run(work())
    if as_json:
        print_json(asdict(done))
    else:
        echo(f"{done.copied} sessions are copied, {done.cleaned} cleaned ones; {done.there} were there.")
        echo(f"{len(done.moved)} of them had open submissions and continue in the target only.")
        for name, count in done.records.items():
            echo(f"{name:<16}{count}")
        for problem in done.failed:
            echo(f"not copied: {problem}", err=True)
    raise typer.Exit(1 if done.failed else 0)
