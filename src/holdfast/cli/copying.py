"""`holdfast copy` copies a whole store into another one."""

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.options import AsJson, MediaUrl, actor, chosen_store
from holdfast.cli.terminal import echo, print_json, progress_bar

if TYPE_CHECKING:
    from holdfast.retention import Copied


def copy(
    source: Annotated[str, typer.Argument(help="URL of the store to copy.")],
    target: Annotated[
        str, typer.Argument(help="URL of the store to copy to. It may contain other sessions.")
    ],
    undo: Annotated[
        bool,
        typer.Option("--undo", help="Reopen sessions that were marked as moved and are not in the target."),
    ] = False,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Copy all sessions of a store into another store.

    Stop the workers and API servers of the source first. Sessions with open submissions, such as those that wait for an
    approval, are marked as moved in the source and continue only in the target. You may stop the command and run it again.
    --media is the media store of the target. Exits with 1 if something is missing from the target or differs there.

    Examples:
        holdfast copy sqlite:///holdfast.db postgresql://localhost/holdfast
        holdfast copy sqlite:///holdfast.db postgresql://localhost/holdfast --undo
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
            echo(f"Reopened {len(reopened)} sessions in the source.")
        return
    done = asyncio.run(work())
    if as_json:
        print_json(asdict(done))
    else:
        echo(
            f"Copied {done.copied} sessions, {done.cleaned} of them cleaned. {done.already_present} were already present."
        )
        echo(f"{len(done.moved)} of them had open submissions and continue only in the target.")
        for name, count in done.records.items():
            echo(f"{name:<16}{count}")
        for problem in done.failed:
            echo(f"not copied: {problem}", err=True)
    raise typer.Exit(ExitCode.FAILED if done.failed else ExitCode.OK)
