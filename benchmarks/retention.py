"""Retention: the sweep among many sessions, and a large session out of the store and back.

The sweep cleans 1,000 due sessions among 100,000, and 1,000 among 1,000, in turns. The others are as they are in a store that
has been swept for long: active lately, of agents that no policy names, or cleaned before. A session of 1 GB is exported to a
file, cleaned and brought back, beside a plain copy of the same rows by the engine itself: `INSERT … SELECT` into the same
tables elsewhere, committed. Export and rehydrate also check, digest and parse every row, which a copy does not.
"""

import argparse
import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.media import resident
from benchmarks.report import Report, progress, side_by_side
from holdfast.config import load_settings
from holdfast.ids import new_id
from holdfast.media import open_media
from holdfast.retention import clean, rehydrate, sweep, write_archive
from holdfast.store import Store, open_store
from holdfast.store.sql.lookups import stored_columns
from holdfast.tables import NUMBERED, TABLES, Table
from tests.servers import postgres

DAY_US = 86_400 * 1_000_000
POLICIES = [
    {"name": "held", "agent": "held", "hold": True},
    {"name": "swept", "agent": "swept", "idle_days": 30, "max_age_days": 365, "action": "clean"},
]
SESSION_COLUMNS = "id, agent, owner, title, title_folded, status, hold, metadata, created_at, active_at"
HEAD_COLUMNS = "session_id, number, agent, epoch, seq, writes, written"
EVENT_COLUMNS = "session, seq, kind, at, payload"
NUMBERS = count(10**9)
"""Numbers of sessions that the store does not give."""
MESSAGE_COLUMNS = "session, segment, position, body"


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    sessions: int
    due: int
    blocks: int
    megabytes: int


FULL = Scale(sessions=100_000, due=1000, blocks=2, megabytes=1024)
QUICK = Scale(sessions=5000, due=100, blocks=1, megabytes=64)


class Database(ABC):
    """A database to fill behind the store's back, which is quicker than through the door."""

    name: str
    url: str

    @abstractmethod
    async def insert(self, table: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
        """Add rows and commit."""

    @abstractmethod
    async def copy(self, session_id: str) -> float:
        """Copy all rows of a session to the same tables elsewhere and return how many seconds that took."""

    @abstractmethod
    async def settle(self) -> None:
        """Let the engine know what is in its tables."""


class Sqlite(Database):
    """A file, copied into another."""

    name = "sqlite"

    def __init__(self, file: Path) -> None:
        self.file = file
        self.url = f"sqlite:///{file}"

    async def insert(self, table: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
        """Add rows and commit."""
        marks = ", ".join("?" * len(columns.split(",")))
        connection = sqlite3.connect(self.file)
        with connection:
            connection.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)
        connection.close()

    async def copy(self, session_id: str) -> float:
        """Copy all rows of a session and return how many seconds that took."""
        other = self.file.with_suffix(".copy")
        async with open_store(f"sqlite:///{other}"):
            pass  # the same tables, indexes and settings
        try:
            return await asyncio.to_thread(self._copy, session_id, other)
        finally:
            for leftover in other.parent.glob(f"{other.name}*"):
                if leftover.is_file():
                    leftover.unlink()

    def _copy(self, session_id: str, other: Path) -> float:
        connection = sqlite3.connect(other, isolation_level=None)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("ATTACH ? AS source", (str(self.file),))
        started = time.perf_counter()
        connection.execute("BEGIN")
        for table in TABLES:
            columns = ", ".join(name for name, _ in stored_columns(table))
            connection.execute(
                f"INSERT INTO main.{table.name} ({columns}) SELECT {columns} FROM source.{table.name}"
                f" WHERE {of_session(table, 'source.heads', '?')}",
                (session_id,),
            )
        connection.execute("COMMIT")
        took = time.perf_counter() - started
        connection.close()
        return took

    async def settle(self) -> None:
        """Do nothing: there are no statistics that it would need."""


class Postgresql(Database):
    """A database, copied into another schema of itself."""

    name = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url

    async def _connect(self) -> Any:
        return await asyncpg.connect(self.url, server_settings={"search_path": "holdfast"})

    async def insert(self, table: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
        """Add rows and commit."""
        connection = await self._connect()
        await connection.copy_records_to_table(
            table, records=rows, columns=[column.strip() for column in columns.split(",")]
        )
        await connection.close()

    async def copy(self, session_id: str) -> float:
        """Copy all rows of a session and return how many seconds that took."""
        connection = await self._connect()
        await connection.execute("DROP SCHEMA IF EXISTS elsewhere CASCADE; CREATE SCHEMA elsewhere")
        for table in TABLES:
            await connection.execute(f"CREATE TABLE elsewhere.{table.name} (LIKE {table.name} INCLUDING ALL)")
        started = time.perf_counter()
        async with connection.transaction():
            for table in TABLES:
                columns = ", ".join(name for name, _ in stored_columns(table))
                await connection.execute(
                    f"INSERT INTO elsewhere.{table.name} ({columns}) SELECT {columns} FROM {table.name}"
                    f" WHERE {of_session(table, 'heads', '$1')}",
                    session_id,
                )
        took = time.perf_counter() - started
        await connection.execute("DROP SCHEMA elsewhere CASCADE")
        await connection.close()
        return took

    async def settle(self) -> None:
        """Do what autovacuum would have done by now."""
        connection = await self._connect()
        await connection.execute("VACUUM ANALYZE")
        await connection.close()


def now_us() -> int:
    return time.time_ns() // 1000


def of_session(table: Table, heads: str, parameter: str) -> str:
    """Return the condition for a session's rows of a table."""
    if table.name not in NUMBERED:
        return f"session_id = {parameter}"
    return f"session = (SELECT number FROM {heads} WHERE session_id = {parameter})"


async def add_sessions(
    database: Database, count: int, *, agent: str, days: float, status: str = "idle", events: int = 0
) -> None:
    """Add sessions that were active so many days ago, with some events and messages each."""
    ids = [new_id() for _ in range(count)]
    at = now_us() - round(days * DAY_US)
    rows = [(i, agent, "owner", "title", "title", status, 0, "{}", at - n, at + n) for n, i in enumerate(ids)]
    await database.insert("sessions", SESSION_COLUMNS, rows)
    numbered = list(zip(NUMBERS, ids, strict=False))
    await database.insert(
        "heads", HEAD_COLUMNS, [(i, number, agent, 1, events, 0, 0) for number, i in numbered]
    )
    if not events:
        return
    payload, body = json.dumps({"text": "x" * 200}), json.dumps("y" * 500)
    numbers = range(1, events + 1)
    await database.insert(
        "events", EVENT_COLUMNS, [(i, seq, "message", at, payload) for i, _ in numbered for seq in numbers]
    )
    await database.insert("segments", "session, number, start", [(i, 1, 0) for i, _ in numbered])
    await database.insert(
        "messages", MESSAGE_COLUMNS, [(i, 1, seq - 1, body) for i, _ in numbered for seq in numbers]
    )


async def sweeps(report: Report, few: Database, many: Database, scale: Scale) -> None:
    """Compare a sweep of what is due among as many with one among all."""
    stores: dict[Database, Store] = {}
    for database in (few, many):
        settings = load_settings(store=database.url, retention=POLICIES)
        stores[database] = await open_store(settings=settings).open()
    others = scale.sessions - scale.due
    progress(f"{few.name}: {others:,} sessions that are not due")
    for agent, days, status in (("swept", 1, "idle"), ("unnamed", 99, "idle"), ("swept", 99, "cleaned")):
        await add_sessions(many, others // 3, agent=agent, days=days, status=status)

    async def prepare() -> None:
        for database in (few, many):
            await add_sessions(database, scale.due, agent="swept", days=60, events=10)
            await database.settle()

    def among(database: Database) -> Callable[[], Awaitable[float]]:
        async def work() -> float:
            store = stores[database]
            started = time.perf_counter()
            done = await sweep(store, open_media(store=store), actor="benchmark")
            assert done is not None
            assert done.outcomes == {"cleaned": scale.due}
            return time.perf_counter() - started

        return work

    duel = await side_by_side(among(many), among(few), blocks=scale.blocks, prepare=prepare)
    each = [1000 * sorted(side)[len(side) // 2] / scale.due for side in (duel.first, duel.second)]
    report.add(
        f"{few.name}: sweep of {scale.due:,} due among {scale.sessions:,}, against among {scale.due:,}",
        duel.ratio,
        at_most=1.3,
        detail=f"{each[0]:.2f} ms and {each[1]:.2f} ms a session",
    )

    def idle(database: Database) -> Callable[[], Awaitable[float]]:
        async def work() -> float:
            store = stores[database]
            started = time.perf_counter()
            await sweep(store, open_media(store=store), actor="benchmark")
            return time.perf_counter() - started

        return work

    duel = await side_by_side(idle(many), idle(few), blocks=20)
    report.add(
        f"{few.name}: sweep with nothing due among {scale.sessions:,}, against among {scale.due:,}",
        duel.ratio,
        at_most=1.3,
        detail=duel.times("many", "few"),
    )
    for store in stores.values():
        await store.close()


async def add_large_session(database: Database, megabytes: int) -> str:
    """Add a session of messages of 10 KB, and an event for each."""
    session_id, number = new_id(), next(NUMBERS)
    count = megabytes * 100
    at = now_us()
    await database.insert(
        "sessions", SESSION_COLUMNS, [(session_id, "a", "o", "t", "t", "idle", 0, "{}", at, at)]
    )
    await database.insert("heads", HEAD_COLUMNS, [(session_id, number, "a", 1, count, 0, 0)])
    await database.insert("segments", "session, number, start", [(number, 1, 0)])
    for start in range(0, count, 5000):
        numbers = range(start, min(start + 5000, count))
        bodies = [json.dumps({"text": os.urandom(5200).hex(), "n": n}) for n in numbers]
        await database.insert(
            "messages",
            MESSAGE_COLUMNS,
            [(number, 1, n, body) for n, body in zip(numbers, bodies, strict=True)],
        )
        await database.insert(
            "events",
            f"{EVENT_COLUMNS}, segment, position",
            [(number, n + 1, "message", at, "{}", 1, n) for n in numbers],
        )
    await database.settle()
    return session_id


async def move(url: str, session_id: str, action: str, file: Path) -> None:
    """Export to a file, clean, or rehydrate from it; print the seconds it took and how far memory rose."""
    async with open_store(url) as store:
        media = open_media(store=store)
        await store.session(session_id)
        idle = highest = resident()
        done = asyncio.Event()

        async def watch() -> None:
            nonlocal highest
            while not done.is_set():
                highest = max(highest, resident())
                await asyncio.sleep(0.05)

        watching = asyncio.create_task(watch())
        started = time.perf_counter()
        if action == "export":
            with file.open("wb") as target:
                async for piece in write_archive(store, media, session_id):
                    target.write(piece)
                target.flush()
                os.fsync(target.fileno())
        elif action == "clean":
            await clean(store, media, session_id, actor="benchmark", force=True)
        else:
            with file.open("rb") as archive:
                await rehydrate(store, media, session_id, archive, actor="benchmark")
        took = time.perf_counter() - started
        done.set()
        await watching
        print(took, highest - idle)


def moved(url: str, session_id: str, action: str, file: Path) -> tuple[float, float]:
    """Measure that in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.retention", "move", url, session_id, action, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    took, risen = done.stdout.split()
    return float(took), float(risen)


async def there_and_back(report: Report, database: Database, folder: Path, scale: Scale) -> None:
    """Compare export and rehydration of a large session with a plain copy of its rows."""
    async with open_store(database.url):
        pass
    progress(f"{database.name}: a session of {scale.megabytes} MB")
    session_id = await add_large_session(database, scale.megabytes)
    file = folder / f"{database.name}.ndjson"
    copies = [await database.copy(session_id)]
    results: dict[str, tuple[float, float]] = {}
    for action in ("export", "clean", "rehydrate"):
        results[action] = await asyncio.to_thread(moved, database.url, session_id, action, file)
    copies.append(await database.copy(session_id))
    copy = min(copies)
    size = file.stat().st_size / 1e6
    for action, least in (("export", 0.5), ("rehydrate", 0.2)):
        took, risen = results[action]
        report.add(
            f"{database.name}: {action} of {scale.megabytes:,} MB, share of a plain copy",
            copy / took,
            at_least=least,
            detail=f"{size / took:,.0f} MB/s, a copy {size / copy:,.0f} MB/s",
        )
        report.add(f"{database.name}: memory above idle during the {action}", risen, "MB", at_most=64)
    report.add(f"{database.name}: clean of {scale.megabytes:,} MB", results["clean"][0], "s")
    file.unlink()


async def main(engines: list[str], scale: Scale) -> int:
    report = Report("retention")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "sqlite" in engines:
            await sweeps(report, Sqlite(folder / "few.db"), Sqlite(folder / "many.db"), scale)
            await there_and_back(report, Sqlite(folder / "large.db"), folder, scale)
        if "postgres" in engines:
            with postgres() as server:
                few, many, large = [
                    Postgresql(await server.create_database(name)) for name in ("few", "many", "large")
                ]
                await sweeps(report, few, many, scale)
                await there_and_back(report, large, folder, scale)
    return report.finish()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["sqlite", "postgres"], action="append")
    parser.add_argument("--quick", action="store_true", help="do little of everything: to see that it runs")
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == ["move"]:
        asyncio.run(move(sys.argv[2], sys.argv[3], sys.argv[4], Path(sys.argv[5])))
    else:
        given = _parse()
        sys.exit(asyncio.run(main(given.engine or ["sqlite", "postgres"], QUICK if given.quick else FULL)))
