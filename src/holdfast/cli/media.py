"""`holdfast media`: list, verify, move and collect the media of a store."""

import asyncio
import json
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.help import Commands
from holdfast.cli.options import AsJson, MediaUrl, StoreUrl, chosen_store
from holdfast.cli.terminal import TextTable, echo, new_console, one_line, safe
from holdfast.errors import HoldfastError
from holdfast.sentences import size_text
from holdfast.types import Blob

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from holdfast.media import MediaStore

app = Commands("List, verify, move and collect media.")
_PAGE = 200


@app.command("list")
def list_(store: StoreUrl = None, media: MediaUrl = None, as_json: AsJson = False) -> None:
    """List the stored media, oldest first.

    Shows the number of sessions that refer to each.

    Examples:
        holdfast media list
    """

    async def work() -> list[Blob]:
        async with _opened(store, media) as opened:
            return await _all(opened)

    blobs = asyncio.run(work())
    if as_json:
        echo(json.dumps({"media": [_plain(blob) for blob in blobs]}))
        return
    table = TextTable("sha256", "size", "sessions", "last stored", "media type", "file name")
    for blob in blobs:
        name = one_line(blob.file_name)
        row = (
            blob.sha256,
            size_text(blob.size),
            str(blob.references),
            _time(blob),
            safe(blob.media_type),
            name,
        )
        table.add_row(*row)
    new_console().print(table)


@app.command()
def show(
    uri: Annotated[str, typer.Argument(help="URI, media+sha256://…, or SHA-256 digest.")],
    store: StoreUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a blob and the sessions that refer to it.

    Examples:
        holdfast media show media+sha256://9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    """
    from holdfast.media import to_uri

    async def work() -> dict[str, object]:
        async with _opened(store, media) as opened:
            blob = await opened.metadata(uri if "://" in uri else to_uri(uri))
            sessions = [session for session, _ in await opened.store.references(sha256=blob.sha256)]
            archive_of = await opened.store.archived_sessions(blob.sha256)
            present = await opened.exists(blob.uri)
            return {**_plain(blob), "present": present, "sessions": sessions, "archive_of": archive_of}

    facts = asyncio.run(work())
    if as_json:
        echo(json.dumps(facts))
        return
    console = new_console()
    for name, value in facts.items():
        text = ", ".join(value) if isinstance(value, list) else "" if value is None else str(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        console.print(Text(f"{name.replace('_', ' '):<12} {safe(text)}"), soft_wrap=True)


@app.command()
def gc(
    grace: Annotated[
        float | None,
        typer.Option(
            "--grace",
            metavar="SECONDS",
            help="Keep blobs that were stored within this time. Default: HOLDFAST_MEDIA_GRACE_SECONDS.",
            min=0,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be deleted, and change nothing.")
    ] = False,
    store: StoreUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete media that no session refers to.

    You may stop the command and run it again. Exits with 1 if a blob could not be deleted.

    Examples:
        holdfast media gc --dry-run
        holdfast media gc --grace 86400
    """
    from holdfast.media import Collection, collect

    async def work() -> Collection:
        async with _opened(store, media) as opened:
            with _progress("collecting", None, shown=not as_json) as advance:
                return await collect(opened, grace=grace, dry_run=dry_run, progress=lambda _: advance())

    done = asyncio.run(work())
    if as_json:
        echo(json.dumps(asdict(done)))
    else:
        verb = "Would delete" if dry_run else "Deleted"
        echo(f"{verb} {done.blobs} blobs, {size_text(done.bytes)}.")
        for problem in done.failed:
            echo(f"not deleted: {problem}", err=True)
    raise typer.Exit(ExitCode.FAILED if done.failed else ExitCode.OK)


@app.command()
def move(
    to: Annotated[str, typer.Option(metavar="URL", help="URL of the media store to move to.")],
    session: Annotated[str | None, typer.Option(help="Only the media of this session.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Move media to another media store, even while workers run.

    Set HOLDFAST_MEDIA to the new URL first. The content is verified by its digest in the new store before the old bytes are
    deleted. You may stop the command and run it again. Exits with 1 if a blob could not be moved.

    Examples:
        holdfast media move --to s3://bucket/media
        holdfast media move --to disk:///srv/media --session s1
    """
    from holdfast.media import Moved, move
    from holdfast.media.move import to_move

    async def work() -> Moved:
        async with _opened(store, to) as target:
            total = 0
            async for _ in to_move(target, session):
                total += 1
            with _progress("moving", total, shown=not as_json) as advance:
                return await move(target, session_id=session, progress=lambda _: advance())

    done = asyncio.run(work())
    if as_json:
        echo(json.dumps(asdict(done)))
    else:
        echo(f"Moved {done.blobs} blobs, {size_text(done.bytes)}, to {to}.")
        for problem in done.failed:
            echo(f"not moved: {problem}", err=True)
    raise typer.Exit(ExitCode.FAILED if done.failed else ExitCode.OK)


@app.command()
def verify(store: StoreUrl = None, media: MediaUrl = None, as_json: AsJson = False) -> None:
    """Read all media and compare it with its digests.

    Changes nothing. Exits with 1 if a blob is damaged or missing.

    Examples:
        holdfast media verify
    """

    async def work() -> tuple[int, list[str]]:
        problems: list[str] = []
        async with _opened(store, media) as opened:
            blobs = await _all(opened)
            with _progress("verifying", len(blobs), shown=not as_json) as advance:
                for blob in blobs:
                    try:
                        async with opened.open(blob.uri) as chunks:
                            async for _ in chunks:
                                pass
                    except HoldfastError as error:
                        if await _is_listed(opened, blob):  # unless it was collected meanwhile
                            problems.append(f"{error}")
                    advance()
        return len(blobs), problems

    count, problems = asyncio.run(work())
    if as_json:
        echo(json.dumps({"verified": count, "problems": problems}))
    else:
        for problem in problems:
            echo(f"damaged: {problem}")
        echo(f"{count - len(problems)} of {count} blobs are intact.")
    raise typer.Exit(ExitCode.FAILED if problems else ExitCode.OK)


@asynccontextmanager
async def _opened(store: str | None, media: str | None) -> "AsyncGenerator[MediaStore, None]":
    from holdfast.media import open_media

    async with chosen_store(store) as opened:
        yield open_media(media, store=opened)


async def _all(media: "MediaStore") -> list[Blob]:
    page = await media.list(limit=_PAGE)
    blobs = list(page.items)
    while page.next_cursor is not None:
        page = await media.list(cursor=page.next_cursor, limit=_PAGE)
        blobs += page.items
    return blobs


async def _is_listed(media: "MediaStore", blob: Blob) -> bool:
    try:
        return (await media.metadata(blob.uri)).id == blob.id
    except HoldfastError:
        return False


@contextmanager
def _progress(what: str, total: int | None, *, shown: bool) -> "Generator[Callable[[], None], None, None]":
    """Show a progress bar on a terminal, and nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, disable=not (shown and console.is_terminal), transient=True
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def _plain(blob: Blob) -> dict[str, object]:
    facts = asdict(blob)
    facts["at"] = None if blob.at is None else blob.at.isoformat()
    return {"uri": blob.uri, **facts}


def _time(blob: Blob) -> str:
    return "" if blob.at is None else f"{blob.at:%Y-%m-%d %H:%M:%S}Z"
