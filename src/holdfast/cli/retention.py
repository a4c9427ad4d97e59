"""`holdfast archive`, `holdfast audit`, and what ends sessions: export, clean, rehydrate, erase, hold."""

import asyncio
import sys
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from getpass import getuser
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.text import Text

from holdfast.cli.options import AsJson, ServerUrl, StoreUrl, chosen_server, chosen_sessions, chosen_store
from holdfast.cli.sessions import SessionId
from holdfast.cli.sessions import app as sessions
from holdfast.cli.terminal import echo, new_console, new_table, one_line, print_json, progress_bar, time_text
from holdfast.config import load_settings
from holdfast.errors import ArchiveFailed, BadInput
from holdfast.store import Store
from holdfast.types import AuditEntry, Page

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from holdfast.cli.remote import Remote
    from holdfast.media import MediaStore
    from holdfast.retention import Archive

app = typer.Typer(help="Look at archives of sessions, and bring sessions in from them.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(help="The archive, plain or compressed.")]
MediaUrl = Annotated[str | None, typer.Option("--media", help="The media store's URL; else HOLDFAST_MEDIA.")]


@app.command()
def verify(file: File, as_json: AsJson = False) -> None:
    """Read a whole archive and check everything in it, without a store."""
    archive = _verified(file)
    if as_json:
        print_json({"session_id": archive.session_id, "sha256": archive.sha256, "counts": archive.counts})
        return
    echo(
        f"Sound: session {archive.session_id}, {sum(archive.counts.values())} records, SHA-256 {archive.sha256}"
    )
    echo(
        "The digest is that of all records before the last line, uncompressed, which the last line repeats. It differs from the digest of the file."
    )


@app.command()
def show(file: File, as_json: AsJson = False) -> None:
    """Show what an archive holds, after checking it."""
    archive = _verified(file)
    if as_json:
        print_json(asdict(archive))
        return
    console = new_console()
    session = archive.session
    lines = {
        "session": archive.session_id,
        "title": session["title"],
        "agent": session["agent"],
        "owner": session["owner"],
        "status": session["status"],
        "version": str(archive.version),
        "sha256": archive.sha256,
        "media bytes": str(archive.blob_bytes),
        **{name: str(count) for name, count in archive.counts.items() if name != "session"},
    }
    for name, value in lines.items():
        console.print(Text(f"{name:<16}").append_text(one_line(value)), soft_wrap=True)


@app.command()
def build(
    lines: Annotated[Path, typer.Argument(help="The JSON lines; - for standard input.", allow_dash=True)],
    to: Annotated[Path, typer.Option("--to", help="Where the archive goes.")],
    as_json: AsJson = False,
) -> None:
    """Build an archive from messages, states and metadata in JSON lines, for `archive import`, without a store."""
    from holdfast.importers.build import build_archive

    partial = to.with_name(f"{to.name}.partial")
    try:
        with (
            sys.stdin.buffer if str(lines) == "-" else lines.open("rb") as given,
            partial.open("wb") as target,
        ):
            target.writelines(build_archive(given, source=str(lines)))
        archive = _verified(partial)
        partial.replace(to)
    except OSError as error:
        raise ArchiveFailed(problem=str(error)) from error
    finally:
        partial.unlink(missing_ok=True)
    result = {"session_id": archive.session_id, "sha256": archive.sha256, "counts": archive.counts}
    if as_json:
        print_json(result)
    else:
        echo(f"Built: session {archive.session_id}, {sum(archive.counts.values())} records, in {to}")


Force = Annotated[
    bool,
    typer.Option(
        help="Accept an archive with another title, metadata or cursors than the session had when it was cleaned."
    ),
]


@app.command("import")
def import_(
    file: File,
    force: Force = False,
    store: StoreUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Bring the session of an archive into a store that does not have it, under the same ids."""

    async def work() -> dict[str, object]:
        from holdfast.retention import import_archive

        async with opened_media(store, media) as opened:
            with _watched(file, "importing", shown=not as_json) as archive:
                restored = await import_archive(opened.store, opened, archive, actor=actor(), force=force)
                return asdict(restored)

    _say(asyncio.run(work()), "restored", as_json, "Session {session_id} is here: {total} records.")


@sessions.command()
def export(
    session_id: SessionId,
    file: Annotated[
        Path | None, typer.Option("--to", help="Where the archive goes; else standard output.")
    ] = None,
    compress: Annotated[bool, typer.Option("--gzip", help="Compress it.")] = False,
    store: StoreUrl = None,
    url: ServerUrl = None,
    media: MediaUrl = None,
) -> None:
    """Write the archive of a session, as it is at this moment, also while it runs."""
    partial = None if file is None else file.with_name(f"{file.name}.partial")

    async def write(pieces: "AsyncGenerator[bytes, None]") -> None:
        target = sys.stdout.buffer if partial is None else partial.open("wb")
        try:
            with progress_bar("exporting", as_bytes=True, shown=partial is not None) as advance:
                async for piece in pieces:
                    target.write(piece)
                    advance(len(piece))
            target.flush()
        finally:
            if partial is not None:
                target.close()

    async def work() -> None:
        if (server := _server(store, url, media)) is not None:
            async with server:
                await write(server.archive(session_id, gzip=compress))
            return
        from holdfast.retention import write_archive

        async with opened_media(store, media) as opened:
            await write(write_archive(opened.store, opened, session_id, compress=compress))

    try:
        asyncio.run(work())
        if partial is not None and file is not None:
            partial.replace(file)
    except OSError as error:
        raise ArchiveFailed(problem=str(error)) from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


@sessions.command()
def clean(
    session_id: SessionId,
    idle_days: Annotated[float, typer.Option(min=0, help="How long it must have been idle.")] = 7.0,
    force: Annotated[
        bool,
        typer.Option(
            help="Override the pending, cursor and idle checks. Running sessions are never cleaned."
        ),
    ] = False,
    archive: Annotated[bool, typer.Option(help="Keep a verified archive in the media store.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before a deletion without an archive.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    store: StoreUrl = None,
    url: ServerUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete what a session contains; it can be brought back from an archive. Without --archive it asks first."""
    kept: Literal["media"] | None = "media" if archive else None

    async def work(*, dry_run: bool) -> dict[str, Any]:
        if (server := _server(store, url, media)) is not None:
            async with server:
                how = {"idle_days": idle_days, "force": force, "archive": kept, "dry_run": dry_run}
                return await server.clean(session_id, **how)
        from holdfast.retention import clean

        async with opened_media(store, media) as opened:
            total = sum((await opened.store.content_counts(session_id)).values())
            with progress_bar("cleaning", total, shown=not (as_json or dry_run)) as advance:
                done = 0

                def progress(now: int) -> None:
                    nonlocal done
                    advance(now - done)
                    done = now

                cleaned = await clean(
                    opened.store,
                    opened,
                    session_id,
                    actor=actor(),
                    idle_days=idle_days,
                    force=force,
                    archive=kept,
                    dry_run=dry_run,
                    progress=progress,
                )
            return asdict(cleaned)

    if not (archive or yes or dry_run):
        _confirm_clean(asyncio.run(work(dry_run=True)))
    words = "{total} rows of session {session_id} " + ("would be deleted." if dry_run else "are deleted.")
    _say(asyncio.run(work(dry_run=dry_run)), "deleted", as_json, words)


def _confirm_clean(state: dict[str, Any]) -> None:
    """Ask before content is deleted of which the store has no archive; without a terminal, refuse."""
    total = sum(state["deleted"].values())
    if state["archive"] is not None or not total:
        return
    fact = f"Session {state['session_id']} has {total} rows, and the store has no archive of it."
    if not sys.stdin.isatty():
        raise BadInput(
            problem=f"{fact} Give --archive to keep one, or --yes to delete them without one; an archive"
            " that you have exported can bring them back"
        )
    echo(f"{fact} Only an archive that you have exported can bring them back.", err=True)
    typer.confirm("Delete them?", abort=True, err=True)


@sessions.command()
def rehydrate(
    session_id: SessionId,
    file: Annotated[
        Path | None, typer.Option("--from", help="The archive; else the one that was stored.")
    ] = None,
    force: Force = False,
    store: StoreUrl = None,
    url: ServerUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Bring a cleaned session back, exactly as it was."""

    async def work() -> dict[str, object]:
        if (server := _server(store, url, media)) is not None:
            async with server:
                with progress_bar("rehydrating", shown=not as_json):
                    return await server.rehydrate(session_id, file, force=force)
        from holdfast.retention import rehydrate

        async with opened_media(store, media) as opened:
            if file is None:
                with progress_bar("rehydrating", shown=not as_json):
                    restored = await rehydrate(opened.store, opened, session_id, actor=actor(), force=force)
                    return asdict(restored)
            with _watched(file, "rehydrating", shown=not as_json) as archive:
                restored = await rehydrate(
                    opened.store, opened, session_id, archive, actor=actor(), force=force
                )
                return asdict(restored)

    _say(asyncio.run(work()), "restored", as_json, "Session {session_id} is back: {total} records.")


@sessions.command()
def erase(
    session_id: SessionId,
    children: Annotated[
        bool, typer.Option(help="Also the sessions of its delegate runs, if they have the same owner.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: StoreUrl = None,
    url: ServerUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete a session for good: content, archive, media. A tombstone and an audit entry remain."""
    if not yes:
        typer.confirm(f"Erase session {session_id} for good?", abort=True, err=True)

    async def work() -> dict[str, object]:
        if (server := _server(store, url, media)) is not None:
            async with server:
                return await server.erase(session_id, children=children)
        from holdfast.retention import erase

        async with opened_media(store, media) as opened:
            return asdict(await erase(opened.store, opened, session_id, actor=actor(), children=children))

    _say(asyncio.run(work()), "deleted", as_json, "Session {session_id} is erased: {total} rows are gone.")


@sessions.command()
def hold(
    session_id: SessionId,
    on: Annotated[bool, typer.Option("--on/--off", help="Put it on hold, or lift the hold.")] = True,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Keep retention away from a session, whatever policies and people say."""

    async def work() -> None:
        async with chosen_sessions(store, url) as opened:
            if isinstance(opened, Store):
                await opened.update_session(session_id, hold=on, actor=actor())
            else:
                await opened.hold(session_id, on)

    asyncio.run(work())
    if as_json:
        print_json({"session_id": session_id, "hold": on})
    else:
        echo(f"Session {session_id} is {'on hold' if on else 'not on hold'}.")


def audit(
    session: Annotated[str | None, typer.Option(help="Only entries of this session.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Where the page before ended.")] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """List who cleaned, rehydrated, erased or held what, newest first."""

    async def work() -> Page[AuditEntry]:
        async with chosen_sessions(store, url) as opened:
            return await opened.audit_log(session_id=session, cursor=cursor, limit=limit)

    page = asyncio.run(work())
    if as_json:
        print_json({"entries": [asdict(entry) for entry in page.items], "next_cursor": page.next_cursor})
        return
    table = new_table("session", "at", "actor", "action", "detail")
    for entry in page.items:
        table.add_row(
            one_line(entry.session_id),
            time_text(entry.at),
            one_line(entry.actor),
            one_line(entry.action),
            one_line(entry.detail),
        )
    new_console().print(table)


def _server(store: str | None, url: str | None, media: str | None) -> "Remote | None":
    """Return the server that the options or the settings name, if they name one."""
    server = chosen_server(store, url)
    if server is not None and media is not None:
        raise BadInput(problem="--media is for a store; a server has its own media store")
    return server


@asynccontextmanager
async def opened_media(store: str | None, media: str | None) -> "AsyncGenerator[MediaStore, None]":
    """Open the media store that the options name, on the store that they name."""
    from holdfast.media import open_media

    async with chosen_store(store) as opened:
        yield open_media(media, store=opened)


def _verified(file: Path) -> "Archive":
    from holdfast.retention import verify_archive
    from holdfast.retention.archive import longest_line

    with _open(file) as archive:
        return verify_archive(archive, longest=longest_line(load_settings().max_payload_bytes))


def _open(file: Path) -> IO[bytes]:
    try:
        return file.open("rb")
    except OSError as error:
        raise ArchiveFailed(problem=str(error)) from error


class _Watched:
    """A file that tells how much of it is read."""

    def __init__(self, file: IO[bytes], advance: "Callable[[int], None]") -> None:
        self._file = file
        self._advance = advance
        self.seek = file.seek

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._advance(len(data))
        return data


@contextmanager
def _watched(file: Path, what: str, *, shown: bool) -> "Generator[IO[bytes], None, None]":
    """Open an archive and show how far it is read: once to verify it, once for its media, once for its rows."""
    with (
        _open(file) as archive,
        progress_bar(what, 3 * file.stat().st_size, shown=shown, as_bytes=True) as advance,
    ):
        yield cast("IO[bytes]", _Watched(archive, advance))


def actor() -> str:
    """Return who is at the command line."""
    try:
        return f"cli:{getuser()}"
    except (OSError, KeyError):  # nobody by that number
        return "cli"


def _say(result: dict[str, object], counted: str, as_json: bool, words: str) -> None:
    if as_json:
        print_json(result)
        return
    counts: dict[str, int] = result[counted]  # pyright: ignore[reportAssignmentType]
    echo(words.format(session_id=result["session_id"], total=sum(counts.values())))
    for name, count in counts.items():
        echo(f"{name:<16}{count}")
    if result.get("archive"):
        echo(f"{'archive':<16}{result['archive']}")
