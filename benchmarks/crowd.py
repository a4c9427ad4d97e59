"""A million sessions and ten million events in one store: what each operation costs at 10,000, at 100,000 and at a million.

There is a store of each size, and their operations take turns.
One session is recorded through the store and its rows are then copied by SQL under new ids, because a million sessions would take hours
to record. Each owner has a hundred sessions, one in a hundred waits for a person, and one in a hundred has been idle for a year.
`--plot FILE` draws it. `--quick` stops at 20,000.
"""

import argparse
import asyncio
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg

from benchmarks.growth import FLAT, Growth, Operation, picture, timed
from benchmarks.media import resident
from benchmarks.report import Report, progress
from holdfast.ids import new_id
from holdfast.store import Store, open_store
from holdfast.types import Batch, Checkpoint, Effect, Message, NewEvent, Run, Segment, SubmissionChange
from tests.servers import postgres

SIZES = (10_000, 100_000, 1_000_000)
QUICK = (5_000, 20_000)
AT_ONCE = 50_000
ROUNDS = 5
YEAR_US = 365 * 86_400 * 1_000_000
NUMBERED = {"run_id", "id"}
"""Columns whose values are unique across sessions."""
NUMBERS_FROM = 10**9
"""The number of the first copy of a session."""
TABLES = (
    "sessions",
    "heads",
    "submissions",
    "runs",
    "run_numbers",
    "events",
    "segments",
    "messages",
    "checkpoints",
    "effects",
)


@dataclass
class Database:
    """A database of either engine, as SQL."""

    run: Callable[[str], Awaitable[Any]]
    columns: Callable[[str], Awaitable[list[str]]]
    numbers: str
    """A table `n(n)` of the numbers from {first} to {last}."""
    size: Callable[[], Awaitable[int]]
    settle: tuple[str, ...]
    """Statements that bring it to rest after so many rows."""


async def template(store: Store) -> str:
    """Record a session with one turn, in ten events."""
    session = await store.create_session(agent="idle", owner="bench", title="A talk about the weather")
    await store.submit(session.id, "message", '{"text": "How is the weather?"}')
    holder = await store.join("bench", ttl=3600)
    (work,) = await store.next_work(holder, agents=["idle"])
    assert work.submission is not None
    body = (
        '{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "' + "0123456789" * 20 + '"}]}'
    )
    kinds = (
        "run_started",
        "model_request_started",
        "model_request_completed",
        "tool_call_started",
        "tool_call_completed",
    )
    run = Run(id=new_id(), agent="idle", status="running")
    await store.write(
        work.lease,
        Batch(
            runs=[run],
            segments=[Segment(number=1)],
            messages=[Message(segment=1, position=n, body=body) for n in range(2)],
            events=[
                *(NewEvent(kind="message", run_id=run.id, message=(1, n)) for n in range(2)),
                *(NewEvent(kind=kind, run_id=run.id) for kind in kinds),
            ],
            effects=[Effect(run_id=run.id, call_id="call", tool="look", state="completed", result='"sunny"')],
            checkpoints=[Checkpoint(id=new_id(), segment=1, length=2, kind="settled", run_id=run.id)],
        ),
    )
    done = SubmissionChange(id=work.submission.id, state="done", run_id=run.id)
    await store.write(
        work.lease,
        Batch(runs=[replace(run, status="completed")], submissions=[done], status="idle", release=True),
    )
    return session.id


def value(table: str, column: str) -> str:
    """Return what a column of the copy with the number `n.n` contains."""
    if column == "session" or (table, column) == ("heads", "number"):
        return f"{NUMBERS_FROM} + n.n"
    if column == "session_id" or (table, column) == ("sessions", "id"):
        return "'crowd-' || n.n"
    if column in NUMBERED:
        return f"t.{column} || '-' || n.n"
    match table, column:
        case "sessions", "owner":
            return "'owner-' || (n.n / 100)"
        case "sessions", "status":
            return "CASE WHEN n.n % 100 = 7 THEN 'waiting' ELSE t.status END"
        case "sessions", "active_at" | "created_at":
            return f"t.{column} - CASE WHEN n.n % 100 = 9 THEN {YEAR_US} ELSE 0 END + n.n"
        case "sessions", "title_folded":
            return "t.title_folded || ' ' || n.n"
        case _:
            return f"t.{column}"


async def multiply(database: Database, session_id: str, first: int, last: int) -> None:
    """Copy a session under the numbers from `first` up to but not including `last`."""
    for start in range(first, last, AT_ONCE):
        numbers = database.numbers.format(first=start, last=min(start + AT_ONCE, last) - 1)
        for table in TABLES:
            columns = await database.columns(table)
            values = ", ".join(value(table, column) for column in columns)
            of = f"t.{'id' if table == 'sessions' else 'session_id'} = '{session_id}'"
            if "session" in columns:
                of = f"t.session = (SELECT number FROM heads WHERE session_id = '{session_id}')"
            await database.run(
                f"WITH RECURSIVE {numbers} INSERT INTO {table} ({', '.join(columns)})"
                f" SELECT {values} FROM {table} t CROSS JOIN n WHERE {of}"
            )
        progress(f"  {min(start + AT_ONCE, last):,} of {last:,}")


async def operations(store: Store) -> dict[str, Operation]:
    """Return what is timed. Each works on what there is of it at every size."""
    holder = await store.join("bench", ttl=7200)
    ready = (await store.create_session(agent="busy", owner="bench")).id
    lease = await store.acquire((await store.create_session(agent="held", owner="bench")).id, holder)

    async def create() -> None:
        session = await store.create_session(agent="idle", owner="bench")
        await store.submit(session.id, "message", "{}")

    async def claim() -> None:
        await store.submit(ready, "message", "{}")
        (work,) = await store.next_work(holder, agents=["busy"])
        await store.release(work.lease)

    async def page(**options: Any) -> None:
        found = await store.sessions(limit=50, **options)
        assert found.items

    async def due() -> None:
        found = await store.due("idle", agent="idle", older_than=100 * 86_400, limit=10)
        assert found.items

    return {
        "create a session and submit": create,
        "submit, claim, release": claim,
        "write an event": lambda: store.write(lease, Batch(events=[NewEvent(kind="tick")])),
        "list the first 50": page,
        "list an owner's": lambda: page(owner="owner-5"),
        "search an owner's": lambda: page(owner="owner-5", search="weather 5"),
        "search all, frequent": lambda: page(search="weather"),
        "list those that wait": lambda: page(status="waiting"),
        "find 10 due by policy": due,
        "free dead holders": store.reclaim,
        "read a session": lambda: store.session("crowd-500"),
        "read its events": lambda: store.events("crowd-500"),
        "list the last runs": lambda: store.find_runs(limit=50),
        "list interrupted runs": lambda: store.find_runs(interrupted=True, limit=50),
    }


@contextmanager
def one_processor() -> Generator[None, None, None]:
    """Keep all threads of this process on one processor, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    usable = os.sched_getaffinity(0)
    threads = [int(thread.name) for thread in Path("/proc/self/task").iterdir()]
    for thread in threads:
        os.sched_setaffinity(thread, {min(usable)})
    try:
        yield
    finally:
        for thread in threads:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, usable)


@dataclass(frozen=True)
class Crowd:
    """A store with so many sessions."""

    size: int
    store: Store
    database: Database
    timing: dict[str, Operation]


async def gather(size: int, store: Store, database: Database) -> Crowd:
    """Fill a store."""
    session_id = await template(store)
    timing = await operations(store)
    await multiply(database, session_id, 0, size)
    for statement in database.settle:
        await database.run(statement)
    return Crowd(size, store, database, timing)


async def compare(engine: str, crowds: list[Crowd], report: Report) -> Growth:
    """Time everything in all stores by turns, so that other load on the machine affects them alike.

    Meanwhile this process is on one processor: with two, a call takes half as long again if its thread happens to be on the other one.
    """
    growth = Growth("sessions", sizes=[crowd.size for crowd in crowds])
    with one_processor():
        for name in crowds[0].timing:
            found: list[list[float]] = [[] for _ in crowds]
            for _ in range(ROUNDS):
                for crowd, times in zip(crowds, found, strict=True):
                    times.append(await timed(crowd.timing[name]))
            growth.times[name] = [median(times) for times in found]
            progress(f"  {name}: " + " · ".join(f"{took:.2f}" for took in growth.times[name]) + " ms")
    checks: list[float] = []
    for crowd in crowds:
        progress(f"  checking {crowd.size:,} sessions")
        before, began = resident(), time.perf_counter()
        violations = await crowd.store.check()
        checks.append(time.perf_counter() - began)
        assert violations == [], violations
        growth.memory.append(resident() - before)
    smallest, largest = crowds[0], crowds[-1]
    steps = f"at {largest.size:,} sessions / at {smallest.size:,}"
    for name, times in growth.times.items():
        detail = " · ".join(f"{took:.2f}" for took in times) + " ms"
        report.add(f"{engine}: {name}, {steps}", times[-1] / times[0], at_most=FLAT, detail=detail)
    per_session = [took / crowd.size for took, crowd in zip(checks, crowds, strict=True)]
    detail = " · ".join(f"{took:.1f}" for took in checks) + " s"
    report.add(
        f"{engine}: check every invariant, per session, {steps}",
        per_session[-1] / per_session[0],
        detail=detail,
    )
    report.add(f"{engine}: memory gained by a check", growth.memory[-1], "MB", at_most=100)
    stored = await largest.database.size()
    report.add(f"{engine}: bytes stored per session", stored / largest.size, "bytes")
    return growth


async def sqlite_database(file: Path, stack: AsyncExitStack) -> Database:
    """Return the SQL side of a SQLite file."""
    connection = sqlite3.connect(file, isolation_level=None)
    stack.callback(connection.close)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -500000")

    async def run(text: str) -> None:
        connection.execute(text)

    async def columns(table: str) -> list[str]:
        return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]

    async def size() -> int:
        return file.stat().st_size

    numbers = "n(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM n WHERE n < {last})"
    return Database(run, columns, numbers, size, ("PRAGMA wal_checkpoint(TRUNCATE)",))


async def postgres_database(url: str, stack: AsyncExitStack) -> Database:
    """Return the SQL side of a PostgreSQL database."""
    connection = await asyncpg.connect(
        url, server_settings={"search_path": "holdfast", "synchronous_commit": "off"}
    )
    stack.push_async_callback(connection.close)

    async def columns(table: str) -> list[str]:
        rows = await connection.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'holdfast' AND table_name = $1",
            table,
        )
        return [row[0] for row in rows]

    async def size() -> int:
        return await connection.fetchval("SELECT pg_database_size(current_database())")

    numbers = "n(n) AS (SELECT generate_series({first}, {last}))"
    return Database(connection.execute, columns, numbers, size, ("VACUUM ANALYZE", "CHECKPOINT"))


async def measure(engines: list[str], sizes: tuple[int, ...], plot: Path | None) -> int:
    """Let a store of each engine grow."""
    report = Report("crowd")
    drawn: list[tuple[str, Growth]] = []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-crowd-")))
        for engine in engines:
            crowds: list[Crowd] = []
            server = (
                stack.enter_context(postgres(options=["max_wal_size=8GB"])) if engine == "postgres" else None
            )
            for size in sizes:
                progress(f"{engine}: {size:,} sessions")
                if server is None:
                    file = folder / f"{size}.db"
                    store = await stack.enter_async_context(open_store(f"sqlite:///{file}"))
                    database = await sqlite_database(file, stack)
                else:
                    url = await server.create_database(f"crowd_{size}")
                    store = await stack.enter_async_context(open_store(url))
                    database = await postgres_database(url, stack)
                crowds.append(await gather(size, store, database))
            drawn.append((engine, await compare(engine, crowds, report)))
    if plot is not None:
        plot.write_text(picture(drawn))
    return report.finish()


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd", description=__doc__)
    parser.add_argument("--engine", choices=["sqlite", "postgres"], action="append")
    parser.add_argument("--quick", action="store_true", help="to see that it runs")
    parser.add_argument("--plot", type=Path, help="where to draw it, as SVG")
    given = parser.parse_args()
    return asyncio.run(
        measure(given.engine or ["sqlite", "postgres"], QUICK if given.quick else SIZES, given.plot)
    )


if __name__ == "__main__":
    sys.exit(main())
