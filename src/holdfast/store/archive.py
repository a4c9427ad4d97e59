"""Export a session's rows from one snapshot, and import them atomically."""

import hmac
import json
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from holdfast.commands import Command, Output
from holdfast.errors import (
    BadArchive,
    Conflict,
    MediaCollected,
    NotCleaned,
    SessionCleaned,
    SessionErased,
    SessionExists,
    SessionNotFound,
)
from holdfast.ids import check_id, check_uuid, new_id
from holdfast.store.hub import READY, inbox
from holdfast.store.rows import Rows
from holdfast.store.shell import imported_command
from holdfast.store.stored_bytes import StoredBytesMethods, record_bytes
from holdfast.store.transactions import Statement, Tx, op
from holdfast.tables import BY_NAME, SESSION, Table
from holdfast.types import SUSPENDED, Json, Lease

PAGE_ROWS = 500
PAGE_BYTES = 1024 * 1024
"""A page of an export ends with the row that reaches one of these limits."""

Imported = Mapping[str, Any]
_EVENT = ("seq", "kind", "run_id", "step", "at", "payload", "message")
_CURSORS = 10_000


class ArchiveMethods(StoredBytesMethods):
    """The transactions of archive.sql, and those that are the same for every table."""

    @abstractmethod
    def _snapshot(self, session_id: str) -> AsyncGenerator[tuple[str, Sequence[Mapping[str, object]]], None]:
        """Yield the session, then the rows of each table, in bounded pages, from one snapshot."""

    async def export_rows(
        self, session_id: str
    ) -> AsyncGenerator[tuple[str, Sequence[Mapping[str, object]]], None]:
        """Yield the session, then all its rows table by table, in bounded pages, from one snapshot.

        Raises `SessionNotFound` or `SessionCleaned`. Close the generator if you do not read it to its end.
        """
        pages = self._snapshot(check_id(session_id, "session id"))
        try:
            async for table, rows in pages:
                if table == SESSION.name:
                    if not rows:
                        raise SessionNotFound(id=session_id)
                    if rows[0]["status"] == "cleaned":
                        raise SessionCleaned(id=session_id)
                yield table, rows
        finally:
            await pages.aclose()

    async def import_rows(
        self,
        session_id: str,
        rows: Callable[[], Iterator[tuple[str, Mapping[str, Any]]]],
        *,
        lease: Lease | None = None,
        source: Lease | str | None = None,
        action: str | None = None,
        actor: str,
        detail: Json = "{}",
        force: bool = False,
    ) -> dict[str, int]:
        """Import the rows of `export_rows` in one transaction, with an audit entry; return counts by table.

        `source` is the session that the rows were read from, as its id or its lease. Nothing is imported if that lease was lost, or
        the session was cleaned or erased, meanwhile. The `action` of the audit entry is by default `rehydrate` with a lease and
        `import` without one.

        With a `lease` the session must be cleaned, else it raises `NotCleaned`, and the rows must be those that it had then, else
        `BadArchive`. `force` accepts a different title, metadata and cursors. Without a lease the session must not exist, else it raises
        `SessionExists`. `rows` may be called more than once. `Conflict` names an id that another session has. Referenced media
        must be stored. Raises `SessionErased`.
        """
        audit = (new_id(), actor, action or ("import" if lease is None else "rehydrate"), detail)
        tries = count(1)
        return await self._transact(
            lambda: self._import(session_id, rows, lease, source, audit, next(tries) > 1, force),
            repeatable=lease is not None,  # a repetition finds the session already restored
            changes=(session_id, inbox(session_id), READY),
            long=True,
        )

    def _import(
        self,
        session_id: str,
        make: Callable[[], Iterator[tuple[str, Imported]]],
        lease: Lease | None,
        source: Lease | str | None,
        audit: tuple[str, str, str, str],
        again: bool,
        force: bool,
    ) -> Tx[dict[str, int]]:
        if isinstance(source, Lease):
            yield from self._fence(source, 0)
        elif source is not None:
            yield from self._refuse_cleaned(source)
        rows = make()
        kind, session = next(rows)
        if kind != SESSION.name or session["id"] != session_id:
            raise BadArchive(problem=f"it does not start with session {session_id}")
        if (yield op("tombstone", session_id=session_id)):
            raise SessionErased(id=session_id)
        values = {**session, "title_folded": session["title"].casefold(), "archived": source is None or None}
        before: dict[str, str] | None = None
        if lease is None:
            if not (yield Statement("import_session", values)):
                raise SessionExists(id=session_id)
            yield op(
                "import_head",
                id=session_id,
                agent=session["agent"],
                owner=session["owner"],
                seq=session["seq"],
            )
        else:
            done, before = yield from self._rehydrate(lease, values, again)
            if done:
                return {}
        counts: dict[str, int] = {}
        for table, batch in _batches(rows):
            yield from self._insert(table, batch)
            counts[table.name] = counts.get(table.name, 0) + len(batch)
        if before is not None and not force:
            _refuse_older(before, (yield from fingerprint(session_id, session["seq"])))
        yield op("requeue_claimed", session_id=session_id)
        yield op("imported_commands_lost", session_id=session_id)
        control_only = True if session["status"] in SUSPENDED else None
        yield op("ready_if_work", session_id=session_id, control_only=control_only)
        for broken in (yield from self._violations(session_id=session_id, limit=1)):
            raise BadArchive(problem=f"its rows are inconsistent: {broken.detail}"[:300])
        if self.settings.max_stored_bytes_per_owner is not None:
            yield from record_bytes(session_id, (yield from self._size(session_id)), session["seq"])
        audit_id, actor, action, detail = audit
        yield op("add_audit", id=audit_id, actor=actor, action=action, session_id=session_id, detail=detail)
        return counts

    def _rehydrate(
        self, lease: Lease, session: Imported, again: bool
    ) -> Tx[tuple[bool, dict[str, str] | None]]:
        """Restore the cleaned session, and return its fingerprint from before the clean, if it has one.

        The first value is true if an earlier attempt already did this and its response was lost.
        """
        yield from self._fence(lease, 0)
        (now,) = yield op("retention_state", session_id=lease.session_id)
        if now["status"] != "cleaned":
            if again:
                return True, None
            raise NotCleaned(id=lease.session_id, status=now["status"])
        for name in ("agent", "owner", "created_at"):
            if now[name] != session[name]:
                raise BadArchive(
                    problem=f"its {name} is {session[name]!r}, but that of the session is {now[name]!r}"
                )
        if now["seq"] != session["seq"]:
            raise BadArchive(
                problem=f"it was made at event {session['seq']} of the session, which had {now['seq']} events when it was cleaned"
            )
        yield Statement("rehydrate_session", session)
        return False, None if now["fingerprint"] is None else json.loads(now["fingerprint"])

    def _insert(self, table: Table, batch: list[Imported]) -> Tx[None]:
        """Add rows. Raise `Conflict` for an id that another session has; the engine detects other conflicts."""
        if table.unique is not None:
            for row in (yield from self._taken_ids(table, [row[table.unique] for row in batch])):
                raise Conflict(problem=f"{row['id']} already exists in {table.name}, in another session")
        if table.name == "blob_references":
            for row in batch:
                if not (yield op("lock_stored", sha256=row["sha256"])):
                    raise MediaCollected(uris=f"media+sha256://{row['sha256']}")
        yield from self._add_rows(table, batch)

    @abstractmethod
    def _taken_ids(self, table: Table, ids: Sequence[str]) -> Tx[Rows]:
        """Return one of these ids that the table already has, if any."""

    @abstractmethod
    def _add_rows(self, table: Table, rows: Sequence[Imported], *, exist_ok: bool = False) -> Tx[None]:
        """Add rows to a table unchanged. With `exist_ok`, skip those whose key exists."""

    async def import_commands(self, commands: Sequence[tuple[Command, Sequence[Output]]]) -> list[str]:
        """Add commands that ended elsewhere, with their outputs, in one transaction.

        Existing commands are left unchanged. Returns the ids of the new ones. Raises `Conflict` if the id of an output is
        taken, and `SessionNotFound` or `SessionCleaned` for the session of a command.
        """
        return await self._transact(lambda: self._import_commands(commands), repeatable=True, long=True)

    def _import_commands(self, commands: Sequence[tuple[Command, Sequence[Output]]]) -> Tx[list[str]]:
        owners: dict[str, str] = {}
        for session_id in sorted({c.session_id for c, _ in commands if c.session_id is not None}):
            yield from self._refuse_cleaned(session_id)
            (session,) = yield op("retention_state", session_id=session_id)
            owners[session_id] = session["owner"]
        rows: list[tuple[str, Imported]] = []
        for command, outputs in commands:
            key = check_uuid(command.id, "command")
            if (yield op("commands", id=key, limit=1)):
                continue
            owner = owners.get(command.session_id or "", command.owner)
            row, written = imported_command(replace(command, id=key, owner=owner), outputs)
            for text in (
                row["command"],
                row["cwd"],
                *(o[name] for o in written for name in ("stdout", "stderr")),
            ):
                self._check_size(text or "", "command")
            rows += [("commands", row), *(("outputs", output) for output in written)]
        rows.sort(key=lambda row: row[0])
        for table, batch in _batches(iter(rows)):
            yield from self._insert(table, batch)
        return [row["id"] for name, row in rows if name == "commands"]


def _batches(rows: Iterator[tuple[str, Imported]]) -> Iterator[tuple[Table, list[Imported]]]:
    """Group rows of the same table into batches of bounded number and size."""
    batch: list[Imported] = []
    current, size = "", 0
    for name, row in rows:
        if batch and (name != current or len(batch) >= PAGE_ROWS or size >= PAGE_BYTES):
            yield BY_NAME[current], batch
            batch, size = [], 0
        current = name
        batch.append(row)
        size += sum(len(value) for value in row.values() if isinstance(value, str))
    if batch:
        yield BY_NAME[current], batch


def _refuse_older(before: dict[str, str], now: dict[str, str]) -> None:
    """Raise `BadArchive` unless the archive matches the session as it was cleaned."""
    if names := [name for name in before if before[name] != now.get(name)]:
        raise BadArchive(
            problem=f"its {', '.join(names)} {'differs' if len(names) == 1 else 'differ'} from those of the session when it"
            " was cleaned, so the archive is older. Use the latest archive, or have an administrator force this one"
        )


def fingerprint(session_id: str, seq: int) -> Tx[dict[str, str]]:
    """Return keyed digests of the values that change without an event. The key is the last event, which a clean deletes."""
    last = yield op("events", session_id=session_id, after=seq - 1, run_id=None, limit=1)
    key = repr([[row[name] for name in _EVENT] for row in last]).encode()
    (session,) = yield op("export_session", session_id=session_id)
    cursors = yield op("cursors", session_id=session_id, after=None, limit=_CURSORS)
    parts = {
        "title": session["title"],
        "metadata": session["metadata"],
        "cursors": repr([(row["consumer"], row["seq"]) for row in cursors]),
    }
    return {name: hmac.digest(key, text.encode(), "sha256").hex() for name, text in parts.items()}
