"""`holdfast media`: what is stored as media, whether it is sound, and deleting what no session refers to."""

import asyncio
import json
import sys
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from holdfast.cli.options import AsJson, StoreUrl, chosen_store
from holdfast.cli.terminal import echo, new_console, one_line, safe
from holdfast.errors import HoldfastError
from holdfast.types import Blob

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from holdfast.media import MediaStore

app = typer.Typer(help="Look after media: large content, stored once.", no_args_is_help=True)
MediaUrl = Annotated[
    str | None,
    typer.Option(
        "--media", help="The media store's URL; else HOLDFAST_MEDIA, else holdfast.toml.", show_default=False
    ),
]
_PAGE = 200
_KIB = 1024


@app.command("list")
def list_(store: StoreUrl = None, media: MediaUrl = None, as_json: AsJson = False) -> None:
    """List what is stored, in the order in which it was first put, and how many sessions refer to each."""

    async def work() -> list[Blob]:
        async with _opened(store, media) as opened:
            return await _all(opened)

    blobs = asyncio.run(work())
    if as_json:
        echo(json.dumps({"media": [_plain(blob) for blob in blobs]}))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("uri", "size", "sessions", "put last", "media type", "file name"):
        table.add_column(name, no_wrap=True, justify="right" if name in {"size", "sessions"} else "left")
    for blob in blobs:
        name = one_line(blob.file_name)
        row = (blob.uri, _size(blob.size), str(blob.references), _time(blob), safe(blob.media_type), name)
        table.add_row(*row)
    new_console(limited=sys.stdout.isatty()).print(table)


@app.command()
def show(
    uri: Annotated[str, typer.Argument(help="The URI, media+sha256://…, or just the digest.")],
    store: StoreUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what is known of some content, and which sessions refer to it."""
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
    console = new_console(limited=sys.stdout.isatty())
    for name, value in facts.items():
        said = ", ".join(value) if isinstance(value, list) else "" if value is None else str(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        console.print(Text(f"{name.replace('_', ' '):<12} {safe(said)}"), soft_wrap=True)


@app.command()
def gc(
    grace: Annotated[
        float | None,
        typer.Option("--grace", help="Seconds since the last put; else HOLDFAST_MEDIA_GRACE_SECONDS.", min=0),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    store: StoreUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete what no session refers to; exit 1 if some of it could not be deleted. May be stopped and run again."""
    from holdfast.media import Collection, collect

    async def work() -> Collection:
        async with _opened(store, media) as opened:
            with _progress("collecting", None, shown=not as_json) as advance:
                return await collect(opened, grace=grace, dry_run=dry_run, progress=lambda _: advance())

    done = asyncio.run(work())
    if as_json:
        echo(json.dumps(asdict(done)))
    else:
        verb = "would be" if dry_run else "is" if done.blobs == 1 else "are"
        echo(f"{done.blobs} of the blobs, {_size(done.bytes)}, {verb} gone.")
        for problem in done.failed:
            echo(f"not deleted: {problem}", err=True)
    raise typer.Exit(1 if done.failed else 0)


@app.command()
def move(
    to: Annotated[str, typer.Option(help="The URL of the media store to move to.")],
    session: Annotated[str | None, typer.Option(help="Move the media of this session only.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Move media to another media store, also while workers run; exit 1 if some of it could not be moved.

    Set HOLDFAST_MEDIA to the new URL first. The content is verified by its digest at the new location before the old bytes are deleted. The
    command may be stopped and run again.
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
        echo(f"{done.blobs} blobs, {_size(done.bytes)}, are moved to {to}.")
        for problem in done.failed:
            echo(f"not moved: {problem}", err=True)
    raise typer.Exit(1 if done.failed else 0)


@app.command()
def verify(store: StoreUrl = None, media: MediaUrl = None, as_json: AsJson = False) -> None:
    """Read everything and compare it with its digest; exit 1 if something is damaged or gone. Changes nothing."""

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
                        if await _is_listed(opened, blob):  # it may have been collected meanwhile
                            problems.append(f"{error}")
                    advance()
        return len(blobs), problems

    count, problems = asyncio.run(work())
    if as_json:
        echo(json.dumps({"verified": count, "problems": problems}))
    else:
        for problem in problems:
            echo(f"broken: {problem}")
        echo(f"{count - len(problems)} of {count} are sound.")
    raise typer.Exit(1 if problems else 0)


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
    """Show a bar on a terminal; elsewhere nothing."""
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


def _size(count: float) -> str:
    if count < _KIB:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB"):
        count /= _KIB
        if count < _KIB:
            return f"{count:.1f} {unit}"
    return f"{count / _KIB:.1f} GiB"
