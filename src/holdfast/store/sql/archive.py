"""A session's rows out of the store, from one consistent cut, and back into it, all or nothing."""

import json
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any

from holdfast.errors import (
    BadArchive,
    Conflict,
    NotCleaned,
    SessionCleaned,
    SessionErased,
    SessionExists,
    SessionNotFound,
)
from holdfast.ids import check_id, check_uuid, new_id
from holdfast.store.hub import READY, inbox
from holdfast.store.sql.core import SqlCore, Tx, lease_lost, sql
from holdfast.store.sql.library import Dialect, Statement, optional, statement_names
from holdfast.store.sql.shell import imported_command
from holdfast.store.sql.tables import BY_NAME, SESSION, Table
from holdfast.types import Command, Json, Lease, Output

PAGE_ROWS = 500
PAGE_BYTES = 1024 * 1024
"""A page of an export ends with the row that reaches one of these."""

Imported = Mapping[str, Any]


@cache
def page_text(table: Table, *, bounded: bool = False, after: bool = False) -> str:
    """Return the statement that reads a table's rows of a session in order.

    `bounded`, it returns as many as a page may have, counting bytes without fetching them; `after` a given key.
    """
    columns, key = ", ".join(table.names), ", ".join(table.key)
    where = "session_id = :session_id"
    if after:
        where += f" AND ({key}) > ({', '.join(f':after_{column}' for column in table.key)})"
    rows = f"FROM {table.name} WHERE {where} ORDER BY {key}"
    if not bounded:
        return f"SELECT {columns} {rows}"
    sizes = [f"coalesce(octet_length({column.name}), 0)" for column in table.columns if column.is_text]
    return (
        f"SELECT {columns} FROM (SELECT *, sum(bytes) OVER (ORDER BY {key}) - bytes AS before"  # noqa: S608
        f" FROM (SELECT {columns}, {' + '.join(sizes)} AS bytes {rows} LIMIT {PAGE_ROWS}) AS rows) AS page"
        f" WHERE before < {PAGE_BYTES} ORDER BY {key}"
    )


@cache
def _insert_text(table: Table, dialect: Dialect) -> str:
    columns = ", ".join(table.names)
    if dialect == "sqlite":
        values = ", ".join(f":{column}" for column in table.names)
        return f"INSERT INTO {table.name} ({columns}) VALUES ({values})"  # noqa: S608
    kinds = ", ".join(f"{column.name} {'text' if column.is_text else 'bigint'}" for column in table.columns)
    return (
        f"INSERT INTO {table.name} ({columns}) SELECT {columns}"  # noqa: S608
        f" FROM json_to_recordset(CAST(:rows AS json)) AS r({kinds})"
    )


@cache
def _taken_text(table: Table, dialect: Dialect) -> str:
    ids = "json_each(:ids)" if dialect == "sqlite" else "json_array_elements_text(CAST(:ids AS json))"
    column = table.unique
    return f"SELECT {column} AS id FROM {table.name} WHERE {column} IN (SELECT value FROM {ids}) LIMIT 1"  # noqa: S608


@cache
def _of_a_session() -> list[str]:
    """Return the invariants that can be asked of one session."""
    return sorted(n for n in statement_names() if n.startswith("check_") and "session_id" in optional(n))


class Archives(SqlCore):
    """The transactions of archive.sql, and those that are the same for every table."""

    _dialect: Dialect

    @abstractmethod
    def _snapshot(self, session_id: str) -> AsyncGenerator[tuple[str, Sequence[Mapping[str, object]]], None]:
        """Yield the session, then the rows of each table, in pages of a bounded size, all as of one moment."""

    async def export_rows(
        self, session_id: str
    ) -> AsyncGenerator[tuple[str, Sequence[Mapping[str, object]]], None]:
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
    ) -> dict[str, int]:
        audit = (new_id(), actor, action or ("import" if lease is None else "rehydrate"), detail)
        tries = count(1)
        return await self._transact(
            lambda: self._import(session_id, rows, lease, source, audit, next(tries) > 1),
            repeatable=lease is not None,  # then it can tell that it was there before
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
    ) -> Tx[dict[str, int]]:
        if isinstance(source, Lease):
            yield from self._fence(source, 0)
        elif source is not None:
            yield from self._refuse_cleaned(source)
        rows = make()
        kind, session = next(rows)
        if kind != SESSION.name or session["id"] != session_id:
            raise BadArchive(problem=f"it does not begin with session {session_id}")
        if (yield sql("tombstone", session_id=session_id)):
            raise SessionErased(id=session_id)
        values = {**session, "title_folded": session["title"].casefold()}
        if lease is None:
            if not (yield Statement("import_session", values)):
                raise SessionExists(id=session_id)
            yield sql("import_head", id=session_id, agent=session["agent"], seq=session["seq"])
        elif (yield from self._rehydrate(lease, values, again)):
            return {}
        counts: dict[str, int] = {}
        for table, batch in _batches(rows):
            yield from self._insert(table, batch)
            counts[table.name] = counts.get(table.name, 0) + len(batch)
        yield sql("requeue_claimed", session_id=session_id)
        yield sql("imported_commands_lost", session_id=session_id)
        control_only = True if session["status"] == "waiting" else None
        yield sql("ready_if_work", session_id=session_id, control_only=control_only)
        for name in _of_a_session():
            for broken in (yield sql(name, session_id=session_id, limit=1)):
                raise BadArchive(problem=f"it does not fit together: {broken['detail']}"[:300])
        audit_id, actor, action, detail = audit
        yield sql("add_audit", id=audit_id, actor=actor, action=action, session_id=session_id, detail=detail)
        return counts

    def _rehydrate(self, lease: Lease, session: Imported, again: bool) -> Tx[bool]:
        """Make the cleaned session what it was; true if that was done before, and only the answer got lost."""
        yield from self._fence(lease, 0)
        (now,) = yield sql("standing", session_id=lease.session_id)
        if now["status"] != "cleaned":
            if again:
                return True
            raise NotCleaned(id=lease.session_id, status=now["status"])
        for name in ("agent", "owner", "created_at"):
            if now[name] != session[name]:
                raise BadArchive(problem=f"the session's {name} is {now[name]!r}, and its {session[name]!r}")
        if now["seq"] != session["seq"]:
            raise BadArchive(
                problem=f"it was made at event {session['seq']} of the session, which had {now['seq']} when it was cleaned"
            )
        yield Statement("rehydrate_session", session)
        return False

    def _insert(self, table: Table, batch: list[Imported]) -> Tx[None]:
        """Add rows. An id that another session has is named; the engine finds everything else."""
        if table.unique is not None:
            ids = [row[table.unique] for row in batch]
            text = _taken_text(table, self._dialect)
            for row in (yield Statement(table.name, {"ids": json.dumps(ids)}, text=text)):
                raise Conflict(problem=f"{table.name} has {row['id']} already, in another session")
        if table.name == "blob_references":
            for row in batch:
                if not (yield sql("lock_stored", sha256=row["sha256"])):
                    raise Conflict(problem=f"media+sha256://{row['sha256']} is not stored")
        text = _insert_text(table, self._dialect)
        if self._dialect == "postgres":
            yield Statement(table.name, {"rows": json.dumps(batch, ensure_ascii=False)}, text=text)
            return
        for row in batch:
            yield Statement(table.name, row, text=text)

    async def import_commands(self, commands: Sequence[tuple[Command, Sequence[Output]]]) -> list[str]:
        return await self._transact(lambda: self._import_commands(commands), repeatable=True, long=True)

    def _import_commands(self, commands: Sequence[tuple[Command, Sequence[Output]]]) -> Tx[list[str]]:
        owners: dict[str, str] = {}
        for session_id in sorted({c.session_id for c, _ in commands if c.session_id is not None}):
            yield from self._refuse_cleaned(session_id)
            (session,) = yield sql("standing", session_id=session_id)
            owners[session_id] = session["owner"]
        rows: list[tuple[str, Imported]] = []
        for command, outputs in commands:
            key = check_uuid(command.id, "command")
            if (yield sql("commands", id=key, limit=1)):
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

    async def keep_archive(self, lease: Lease, sha256: str) -> None:
        await self._transact(
            lambda: self._keep_archive(lease, sha256), repeatable=True, changes=(lease.session_id,)
        )

    def _keep_archive(self, lease: Lease, sha256: str) -> Tx[None]:
        yield from self._fence(lease, 0)
        if not (yield sql("lock_stored", sha256=check_id(sha256, "SHA-256"))):
            raise Conflict(problem=f"the archive media+sha256://{sha256} is not stored")
        if not (yield sql("keep_archive", session_id=lease.session_id, archive=sha256)):
            raise lease_lost(lease, "the session is not being cleaned")


def _batches(rows: Iterator[tuple[str, Imported]]) -> Iterator[tuple[Table, list[Imported]]]:
    """Group rows of the same table, a bounded number and size at a time."""
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
