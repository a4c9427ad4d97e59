"""`holdfast sessions export | clean | rehydrate | erase | hold`, and `holdfast audit`."""

import asyncio
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from holdfast.api.models import AuditRecord, Items
from holdfast.cli.archive import Force
from holdfast.cli.options import (
    AsJson,
    Cursor,
    Limit,
    MediaUrl,
    ServerUrl,
    SessionId,
    StoreUrl,
    connected,
)
from holdfast.cli.sessions import app as sessions
from holdfast.cli.terminal import (
    TextTable,
    echo,
    new_console,
    one_line,
    print_counts,
    print_json,
    progress_bar,
    record,
    time_text,
)
from holdfast.errors import ArchiveFailed, BadInput, NotFound

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.api.retention import CleanResult, EraseResult, RehydrateResult


@sessions.command()
def export(
    session_id: SessionId,
    file: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="File to write to. Default: standard output.")
    ] = None,
    compress: Annotated[bool, typer.Option("--gzip", help="Compress the archive.")] = False,
    store: StoreUrl = None,
    url: ServerUrl = None,
    media: MediaUrl = None,
) -> None:
    """Write an archive of a session to a file or standard output.

    The archive is a snapshot. The session may be running. The file written with --to is readable only by its owner.

    Examples:
        holdfast sessions export s1 --to talk.ndjson
        holdfast sessions export s1 --gzip > talk.ndjson.gz
    """

    async def write(pieces: "AsyncGenerator[bytes, None]", target: IO[bytes]) -> None:
        with progress_bar("exporting", as_bytes=True, shown=file is not None) as advance:
            async for piece in pieces:
                target.write(piece)
                advance(len(piece))
        target.flush()

    async def work(target: IO[bytes]) -> None:
        async with connected(store, url, media) as client:
            await write((await client.session(session_id)).archive(gzip=compress), target)

    from holdfast.client.files import replaced_file

    try:
        with nullcontext(sys.stdout.buffer) if file is None else replaced_file(file) as target:
            asyncio.run(work(target))
    except OSError as error:  # of standard output
        raise ArchiveFailed(problem=str(error)) from error


@sessions.command()
def clean(
    session_id: SessionId,
    idle_days: Annotated[
        float, typer.Option(min=0, metavar="DAYS", help="Only if the session was idle for this long.")
    ] = 7.0,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Override the pending, cursor and idle checks. Running sessions are never cleaned.",
        ),
    ] = False,
    archive: Annotated[
        bool, typer.Option("--archive", help="First store a verified archive in the media store.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask for confirmation before deleting without an archive.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted, and change nothing.")
    ] = False,
    store: StoreUrl = None,
    url: ServerUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete the content of a session.

    An archive can restore it. Without --archive, the command prompts for confirmation; in a script, pass --yes.

    Examples:
        holdfast sessions clean s1 --archive
        holdfast sessions clean s1 --idle-days 30 --dry-run
    """

    async def work(*, dry_run: bool) -> "CleanResult":
        async with connected(store, url, media) as client:
            session = await client.session(session_id)
            with progress_bar("cleaning", shown=not (as_json or dry_run)):
                return await session.clean(
                    idle_days=idle_days, force=force, archive="media" if archive else None, dry_run=dry_run
                )

    if not (archive or yes or dry_run):
        _confirm_clean(asyncio.run(work(dry_run=True)))
    sentence = f"{'Would delete' if dry_run else 'Deleted'} {{total}} rows of session {{session_id}}."
    print_counts(record(asyncio.run(work(dry_run=dry_run))), "deleted", as_json, sentence)


def _confirm_clean(state: "CleanResult") -> None:
    """Prompt for confirmation before deleting content without an archive in the store. Without a terminal, raise `BadInput`."""
    total = sum(state.deleted.values())
    if state.archive is not None or not total:
        return
    fact = f"Session {state.session_id} has {total} rows, and the store has no archive of it."
    if not sys.stdin.isatty():
        raise BadInput(
            problem=f"{fact} Pass --archive to store one, or --yes to delete the rows without one."
            " Then only an exported archive can restore them"
        )
    echo(f"{fact} Only an archive that you have exported can restore them.", err=True)
    typer.confirm("Delete the rows?", abort=True, err=True)


@sessions.command()
def rehydrate(
    session_id: SessionId,
    file: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Archive file. Default: the archive in the media store."),
    ] = None,
    force: Force = False,
    store: StoreUrl = None,
    url: ServerUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Restore a cleaned session from its archive, exactly as it was.

    Examples:
        holdfast sessions rehydrate s1
        holdfast sessions rehydrate s1 --from talk.ndjson
    """
    if file is not None and not file.is_file():
        raise NotFound(what="file", id=str(file))

    async def work() -> "RehydrateResult":
        async with connected(store, url, media) as client:
            session = await client.session(session_id)
            with progress_bar("rehydrating", shown=not as_json):
                return await session.rehydrate(file, force=force)

    result = record(asyncio.run(work()))
    print_counts(result, "restored", as_json, "Restored session {session_id}: {total} records.")


@sessions.command()
def erase(
    session_id: SessionId,
    children: Annotated[
        bool,
        typer.Option(
            "--children", help="Also erase the sessions of its delegate runs, if they have the same owner."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    store: StoreUrl = None,
    url: ServerUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Erase a session permanently.

    Deletes its content, archive and media. A tombstone and an audit entry remain.

    Examples:
        holdfast sessions erase s1
        holdfast sessions erase s1 --children --yes
    """
    if not yes:
        typer.confirm(f"Erase session {session_id} permanently?", abort=True, err=True)

    async def work() -> "EraseResult":
        async with connected(store, url, media) as client:
            return await (await client.session(session_id)).erase(children=children)

    result = record(asyncio.run(work()))
    print_counts(result, "deleted", as_json, "Erased session {session_id}: {total} rows.")


@sessions.command()
def hold(
    session_id: SessionId,
    on: Annotated[bool, typer.Option("--on/--off", help="Put the session on hold, or lift the hold.")] = True,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Put a session on hold, or lift the hold.

    A session on hold cannot be cleaned or erased, by policy or by hand.

    Examples:
        holdfast sessions hold s1
        holdfast sessions hold s1 --off
    """

    async def work() -> None:
        async with connected(store, url) as client:
            await (await client.session(session_id)).update(hold=on)

    asyncio.run(work())
    if as_json:
        print_json({"session_id": session_id, "hold": on})
    else:
        echo(f"Session {session_id} is {'on hold' if on else 'not on hold'}.")


def audit(
    session: Annotated[str | None, typer.Option(help="Only entries of this session.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """List the audit log, newest first.

    The log names the actor of each clean, rehydration, erasure, import and hold.

    Examples:
        holdfast audit --session s1
    """

    async def work() -> Items[AuditRecord]:
        async with connected(store, url) as client:
            params = {"session_id": session, "cursor": cursor, "limit": limit}
            return await client.transport.call(Items[AuditRecord], "GET", "/api/audit", params=params)

    page = asyncio.run(work())
    if as_json:
        print_json({"entries": [record(entry) for entry in page.items], "next_cursor": page.next_cursor})
        return
    table = TextTable("session", "at", "actor", "action", "detail")
    for entry in page.items:
        table.add_row(
            one_line(entry.session_id),
            time_text(entry.at),
            one_line(entry.actor),
            one_line(entry.action),
            one_line(json.dumps(entry.detail)),
        )
    new_console().print(table)
