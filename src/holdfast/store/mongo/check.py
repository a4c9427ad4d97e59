"""Check the invariants on MongoDB: copy the rows, without their content, into a temporary SQLite database and run check.sql there.

Each invariant is thus written only once. The copy needs about a hundred bytes of temporary disk space per row.
"""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from holdfast.store.mongo.documents import Documents, MongoRow
from holdfast.store.mongo.retention import of_session
from holdfast.store.sql.check import invariants
from holdfast.store.transactions import Progress
from holdfast.tables import KEYS, NUMBERED

_PAGE = 5000

_COPIED: Final = {
    "sessions": "id agent owner status cleaned_at archive",
    "tombstones": "session_id",
    "holders": "id",
    "heads": "session_id agent owner seq holder ready_at priority place last_place claimed",
    "submissions": "session_id position id state lane ended_at deliver_at priority",
    "schedules": "id session_id paused next_at",
    "stored_bytes": "session_id owner bytes",
    "runs": "session_id id",
    "events": "session_id seq segment position",
    "drafts": "session_id",
    "segments": "session_id number parent start",
    "messages": "session_id segment position",
    "checkpoints": "session_id seq id segment length",
    "effects": "session_id call_id segment position",
    "cursors": "session_id consumer seq",
    "states": "session_id",
    "named_states": "session_id",
    "records": "session_id key seq",
    "credentials": "session_id",
    "commands": "id session_id owner state exit_code outputs ended_at purged_at",
    "outputs": "command_id number session_id owner",
    "blob_references": "session_id sha256",
    "blobs": "sha256 state",
}
"""The columns that check.sql reads. References are copied before the media that they refer to."""

_NUMBERS: Final = {"heads": "number", **dict.fromkeys(NUMBERED, "session")}
"""The columns in which the SQL engines have the number of a session. Here it is the id."""


async def violations(
    db: Documents, *, limit: int, session_id: str | None = None, progress: Progress | None = None
) -> list[MongoRow]:
    """Find violations of the invariants, in all sessions or in one."""
    report = progress or _ignore
    now = await db.now()
    with closing(sqlite3.connect("", check_same_thread=False)) as copy:
        copy.row_factory = sqlite3.Row
        copy.create_function("now_us", 0, lambda: now)
        for number, (table, text) in enumerate(_COPIED.items(), 1):
            report(f"copy of {table.replace('_', ' ')}", number, _steps())
            columns = text.split()
            copy.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            if table in _NUMBERS:
                copy.execute(f"ALTER TABLE {table} ADD COLUMN {_NUMBERS[table]} AS (session_id)")
            insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
            for where in [{}] if session_id is None else _of(table, session_id, copy):
                async for rows in _rows(db, table, where, columns):
                    await asyncio.to_thread(copy.executemany, insert, rows)
        return await asyncio.to_thread(_broken, copy, session_id, limit, report)


def _steps() -> int:
    """Return the number of steps of a check of all sessions: the tables to copy, the invariants, and the pieces."""
    return len(_COPIED) + len(invariants("sqlite", of_session=False)) + 1


def _ignore(name: str, number: int, total: int) -> None:
    del name, number, total


def _of(table: str, session_id: str, copy: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return the filters for the rows of one session, and for the media that it refers to."""
    if table != "blobs":
        return [{"_id": session_id} if table == "sessions" else of_session(table, session_id)]
    digests = [row["sha256"] for row in copy.execute("SELECT sha256 FROM blob_references")]
    return [{"sha256": {"$in": digests[n : n + _PAGE]}} for n in range(0, len(digests), _PAGE)]


async def _rows(
    db: Documents, table: str, where: Mapping[str, Any], columns: Sequence[str]
) -> AsyncGenerator[list[list[Any]], None]:
    rows: list[list[Any]] = []
    async for row in db[table].find(where, columns, session=db.session, batch_size=_PAGE):
        rows.append([row[column] for column in columns])
        if len(rows) >= _PAGE:
            yield rows
            rows = []
    yield rows


def _broken(copy: sqlite3.Connection, session_id: str | None, limit: int, report: Progress) -> list[MongoRow]:
    for table, text in _COPIED.items():
        key = [column for column in KEYS[table] if column in text.split()] or ["sha256"]
        copy.execute(f"CREATE INDEX {table}_key ON {table} ({', '.join(key)})")
        if table in _NUMBERS:
            number = [_NUMBERS[table], *(column for column in key if column != "session_id")]
            copy.execute(f"CREATE INDEX {table}_number ON {table} ({', '.join(number)})")
    params = {"session_id": session_id, "limit": limit}
    rows: list[MongoRow] = []
    for number, (name, text) in enumerate(invariants("sqlite", of_session=session_id is not None), 1):
        report(name, len(_COPIED) + number, _steps())
        rows += [MongoRow(row, invariant=name) for row in copy.execute(text, params)]
    return rows


async def loose_pieces(db: Documents, *, limit: int, progress: Progress | None = None) -> list[MongoRow]:
    """Find pieces of long texts that no row refers to. Only this engine has these.

    The pieces are read in order, one text after the other, without their content.
    """
    (progress or _ignore)("piece has row", _steps(), _steps())
    loose: list[MongoRow] = []
    seen: Any = None
    async with db["pieces"].find({}, ["table", "row"], sort=[("_id", 1)], session=db.session) as pieces:
        async for piece in pieces:
            of, table, key = piece["_id"]["of"], piece["table"], piece["row"]
            if of == seen:
                continue
            seen = of
            row = await db[table].find_one({"_id": key}, ["pieces"], session=db.session)
            if row is None or of not in (row["pieces"] or {}).values():
                session_id = key if isinstance(key, str) else key.get("session_id", "none")
                loose.append(MongoRow(session_id=session_id, detail=f"no row refers to a piece of {table}"))
                if len(loose) == limit:
                    break
    return loose
