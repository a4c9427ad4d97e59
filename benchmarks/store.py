"""The speed of the store on every engine, side by side with the raw drivers: each claim is a bar that must hold.

Ratios come from small blocks that alternate between the two sides; the median of the blocks' ratios counts, so that
whatever else happens on the machine hits both. Run it as `python -m benchmarks.store`.
"""

import argparse
import asyncio
import json
import os
import random
import sqlite3
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeAlias

import asyncpg
from pymongo import AsyncMongoClient

from benchmarks.report import Report, progress, seconds, side_by_side
from holdfast.ids import new_id
from holdfast.store import Store, open_store
from holdfast.store.sql import library
from holdfast.types import Batch, Holder, Lease, NewEvent, SubmissionChange, Work
from tests.servers import Mongo, Postgres, mongo, mongod, postgres

Row: TypeAlias = tuple[object, ...]
Insert: TypeAlias = Callable[[Row], Awaitable[object]]

PAYLOAD = json.dumps({"text": "A payload of about two hundred bytes. ".ljust(188, "x")})
EVENT = NewEvent(kind="note", payload=PAYLOAD)
ONE_EVENT = Batch(events=[EVENT])
COLUMNS = ("session_id", "seq", "kind", "run_id", "step", "at", "payload", "segment", "position")
STORED = ", ".join({"session_id": "session", "run_id": "run"}.get(column, column) for column in COLUMNS)
"""The same in a table of a SQL engine, which has the session's number."""

ENGINES = ("sqlite", "postgres", "mongodb")
LATENCIES: dict[str, tuple[float | None, float | None]] = {
    "sqlite": (2, 30),
    "postgres": (2, 5),
    "mongodb": (None, None),  # its server may be anywhere from native to emulated: only ratios are claimed
}
"""The most that a commit may take to a watcher, in milliseconds: in the same process, and in another one."""
LARGE_BATCH = 1000
LONG_ENOUGH = 3600.0
"""Seconds a holder lives: renewing is not what is measured here."""
EARLY = 100
"""The number of the event against which a late one is compared."""
FRESH_SESSIONS = 10
FEW_IDLE = 100
READY = 8
WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything is done."""

    blocks: int = 40
    writes: int = 500  # in a block: so many that SQLite's checkpoints fall into every one of them
    sessions: int = 64
    writes_each: int = 10
    latencies: int = 1000
    long_session: int = 100_000
    pages: int = 30
    many_idle: int = 100_000


FULL = Scale()
SLOW = Scale(blocks=12, writes=60, latencies=200, long_session=20_000, pages=10, many_idle=20_000)
"""Full, for an engine whose server may run in an emulator, at a hundredth of the speed."""
QUICK = Scale(blocks=6, writes=100, latencies=60, long_session=5_000, many_idle=5_000)


class Engine(ABC):
    """Makes fresh databases, and reaches into them past the store."""

    name: str

    @abstractmethod
    async def new_url(self) -> str:
        """Return the URL of a new, empty store."""

    @abstractmethod
    async def raw(self, url: str, stack: AsyncExitStack) -> Insert:
        """Return what inserts a row and commits, with the driver alone, into a table of the shape of `events`."""

    @abstractmethod
    async def add_idle_sessions(self, url: str, ids: Sequence[str]) -> None:
        """Add sessions to an open store, with the rows that `create_session` makes, but all at once."""


class Sqlite(Engine):
    """Files in a folder."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def new_url(self) -> str:
        """Name a file."""
        return f"sqlite:///{self._folder}/{new_id()}.db"

    async def raw(self, url: str, stack: AsyncExitStack) -> Insert:
        """Use the standard library's driver with its own handling of transactions, and the store's pragmas."""
        # A file of its own: two writers on one file would be a different measurement.
        connection = sqlite3.connect(_path(url) + ".raw")
        stack.callback(connection.close)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(_create_events())
        statement = f"INSERT INTO events ({STORED}) VALUES ({', '.join('?' * len(COLUMNS))})"

        async def insert(row: Row) -> None:
            connection.execute(statement, (1, *row[1:]))
            connection.commit()

        return insert

    async def add_idle_sessions(self, url: str, ids: Sequence[str]) -> None:
        """Insert them in one transaction."""
        connection = sqlite3.connect(_path(url))
        try:
            for table, columns, rows in _idle_rows(ids):
                values = ", ".join("?" * len(columns))
                connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})", rows)
            connection.commit()
        finally:
            connection.close()


class Postgresql(Engine):
    """Databases on one server."""

    name = "postgres"

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._numbers = count(1)

    async def new_url(self) -> str:
        """Create a database."""
        return await self._server.create_database(f"bench_{next(self._numbers)}")

    async def raw(self, url: str, stack: AsyncExitStack) -> Insert:
        """Use asyncpg, where a statement outside of a transaction commits by itself."""
        connection = await stack.enter_async_context(_connected(url))
        await connection.execute("CREATE SCHEMA raw")
        await connection.execute("CREATE TABLE raw.events (LIKE holdfast.events INCLUDING ALL)")
        values = ", ".join(f"${n}" for n in range(1, len(COLUMNS) + 1))
        statement = f"INSERT INTO raw.events ({STORED}) VALUES ({values})"
        return lambda row: connection.execute(statement, 1, *row[1:])

    async def add_idle_sessions(self, url: str, ids: Sequence[str]) -> None:
        """Copy them in."""
        async with _connected(url) as connection:
            for table, columns, rows in _idle_rows(ids):
                await connection.copy_records_to_table(
                    table, records=rows, columns=columns, schema_name="holdfast"
                )
            # As autovacuum would within a minute; then it does not do so in the middle of a block.
            await connection.execute("VACUUM ANALYZE")


class Mongodb(Engine):
    """Databases on one server, a replica set of one."""

    name = "mongodb"

    def __init__(self, server: Mongo) -> None:
        self._server = server
        self._numbers = count(1)

    async def new_url(self) -> str:
        """Name a database."""
        return self._server.url(f"bench_{next(self._numbers)}")

    async def raw(self, url: str, stack: AsyncExitStack) -> Insert:
        """Use PyMongo, with the store's write concern and our `_id`."""
        options: dict[str, Any] = {"w": "majority", "journal": True}
        client = await stack.enter_async_context(AsyncMongoClient[dict[str, Any]](url, **options))
        events = client.get_default_database()["raw_events"]

        async def insert(row: Row) -> None:
            given = dict(zip(COLUMNS, row, strict=True))
            document = {name: value for name, value in given.items() if value is not None}
            await events.insert_one({"_id": {name: given[name] for name in COLUMNS[:2]}, **document})

        return insert

    async def add_idle_sessions(self, url: str, ids: Sequence[str]) -> None:
        """Insert them in large batches."""
        async with AsyncMongoClient[dict[str, Any]](url) as client:
            for table, columns, rows in _idle_rows(ids):
                documents = [
                    {"_id": row[0], **dict(zip(columns, row, strict=True)), "agent": "agent"} for row in rows
                ]
                for start in range(0, len(documents), 10_000):
                    await client.get_default_database()[table].insert_many(documents[start : start + 10_000])


def _path(url: str) -> str:
    return url.removeprefix("sqlite:///")


def _create_events() -> str:
    """Return the statement that makes our `events` table, from the migration that makes it."""
    statements = (s for _, _, text in library.migrations() for s in library.split(text, "sqlite"))
    return next(s for s in statements if s.startswith("CREATE TABLE events"))


def _idle_rows(ids: Sequence[str]) -> list[tuple[str, list[str], list[Row]]]:
    now = time.time_ns() // 1000
    session = {"agent": "agent", "owner": "owner", "title": "", "title_folded": "", "status": "idle"}
    session |= {"hold": 0, "metadata": "{}", "created_at": now, "active_at": now}
    head = {"agent": "agent", "epoch": 0, "seq": 0, "writes": 0, "written": 0}
    return [
        ("sessions", ["id", *session], [(id_, *session.values()) for id_ in ids]),
        (
            "heads",
            ["session_id", "number", *head],
            [(id_, n, *head.values()) for n, id_ in enumerate(ids, 10**9)],
        ),
    ]


@asynccontextmanager
async def _connected(url: str) -> AsyncGenerator[Any, None]:
    connect: Any = asyncpg.connect  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    connection = await connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@contextmanager
def open_engine(name: str) -> Generator[Engine, None, None]:
    """Make fresh databases of this engine for the duration of the block."""
    if name == "sqlite":
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            yield Sqlite(Path(folder))
    elif name == "mongodb":
        with mongo() as server:
            yield Mongodb(server)
    else:
        with postgres() as server:
            yield Postgresql(server)


async def _new_lease(store: Store, holder: Holder, *, events: int = 0) -> Lease:
    """Return the lease of a new session that has as many events."""
    session = await store.create_session(agent="agent", owner="owner")
    lease = await store.acquire(session.id, holder)
    for written in range(0, events, LARGE_BATCH):
        await store.write(lease, Batch(events=[EVENT] * min(events - written, LARGE_BATCH)))
    return lease


async def _write(store: Store, leases: Sequence[Lease], writes: int) -> None:
    """Write single events to one session after the other."""
    for lease in leases:
        for _ in range(writes):
            await store.write(lease, ONE_EVENT)


async def _write_at_once(store: Store, leases: Sequence[Lease], writes: int) -> None:
    """Write single events to all sessions at the same time."""
    async with asyncio.TaskGroup() as group:
        for lease in leases:
            group.create_task(_write(store, [lease], writes))


async def _insert(insert: Insert, session_id: str, numbers: "count[int]", rows: int) -> None:
    """Do with the driver what the store does with the same events: one row, one commit."""
    for _ in range(rows):
        at = time.time_ns() // 1000
        await insert((session_id, next(numbers), EVENT.kind, None, None, at, PAYLOAD, None, None))


async def _writes(report: Report, engine: Engine, scale: Scale) -> None:
    """Measure one writer, then many at once, each against the driver that inserts and commits row by row."""
    url = await engine.new_url()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(url))
        insert = await engine.raw(url, stack)
        holder = await store.join("bench", ttl=LONG_ENOUGH)
        lease, *leases = [await _new_lease(store, holder) for _ in range(1 + scale.sessions)]
        numbers = count(1)

        async def raw() -> float:
            return await seconds(_insert(insert, lease.session_id, numbers, scale.writes), scale.writes)

        async def one() -> float:
            return await seconds(_write(store, [lease], scale.writes), scale.writes)

        async def many() -> float:
            work = _write_at_once(store, leases, scale.writes_each)
            return await seconds(work, len(leases) * scale.writes_each)

        duel = await side_by_side(raw, one, blocks=scale.blocks)
        report.add(
            f"{engine.name}: writes/s of 1 session, store / raw driver",
            duel.ratio,
            at_least=0.5 if engine.name == "sqlite" else 0.4,
            detail=duel.rates("raw", "store"),
        )
        duel = await side_by_side(raw, many, blocks=scale.blocks)
        report.add(
            f"{engine.name}: writes/s of {len(leases)} sessions, store / raw driver",
            duel.ratio,
            at_least=None if engine.name == "mongodb" else 2,
            detail=duel.rates("raw", "store"),
        )


@dataclass(frozen=True, slots=True)
class Sent:
    """The number of an event, when `write` was called with it and when it returned, in nanoseconds."""

    seq: int
    asked: int
    returned: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """The time an event bears, and when a watcher had it, in nanoseconds."""

    at: int
    arrived: int


async def _paced_writes(store: Store, lease: Lease, events: int) -> list[Sent]:
    """Write so far apart that each event travels alone; at random, so as not to march in step with a poll."""
    pause = random.Random(1)
    sent: list[Sent] = []
    for _ in range(events):
        await asyncio.sleep(pause.uniform(0.005, 0.015))
        asked = time.time_ns()
        seq = await store.write(lease, ONE_EVENT)
        sent.append(Sent(seq, asked, time.time_ns()))
    return sent


async def _arrivals(
    store: Store, session_id: str, last: int, began: Callable[[], None]
) -> dict[int, Arrival]:
    """Watch a session up to its event number `last`. Says when the first one is there."""
    arrivals: dict[int, Arrival] = {}
    async with aclosing(store.watch(session_id)) as events:
        async for event in events:
            arrived = time.time_ns()
            at = round(event.at.timestamp() * 1_000_000) * 1000
            arrivals[event.seq] = Arrival(at, arrived)
            if event.seq == 1:
                began()
            if event.seq == last:
                break
    return arrivals


async def _latency(report: Report, engine: Engine, scale: Scale) -> None:
    """Measure from commit to a watcher that has the event, in the same process and in another one.

    The clock starts with the time the event bears. The database takes it when it makes the row, inside of the
    transaction, so that commit and sync come after it: what is measured is never less than from commit to watcher.
    All processes, and the server, are on one machine and read the same clock.
    """
    url = await engine.new_url()
    events = WARM_UP + scale.latencies
    async with open_store(url) as store:
        holder = await store.join("bench", ttl=LONG_ENOUGH)
        lease = await _new_lease(store, holder, events=1)
        watching = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            here = group.create_task(_arrivals(store, lease.session_id, 1 + events, watching.set))
            await watching.wait()
            sent = await _paced_writes(store, lease, events)
        here_limit, there_limit = LATENCIES[engine.name]
        _add_latency(report, f"{engine.name}: commit to watcher", sent, here.result(), at_most=here_limit)

        lease = await _new_lease(store, holder, events=1)
        async with _watcher(url, lease.session_id, 1 + events) as lines:
            await lines.readline()
            sent = await _paced_writes(store, lease, events)
            found: list[list[int]] = json.loads(await lines.readline())
        there = {seq: Arrival(at, arrived) for seq, at, arrived in found}
        name = f"{engine.name}: commit to watcher in another process"
        _add_latency(report, name, sent, there, at_most=there_limit)


def _add_latency(
    report: Report, name: str, sent: Sequence[Sent], arrivals: dict[int, Arrival], *, at_most: float | None
) -> None:
    pairs = [(one, arrivals[one.seq]) for one in sent[WARM_UP:]]
    latencies = [(there.arrived - there.at) / 1e6 for _, there in pairs]
    asked = median((there.arrived - one.asked) / 1e6 for one, there in pairs)
    returned = median((there.arrived - one.returned) / 1e6 for one, there in pairs)
    detail = f"{asked:.2f} ms since write was called, {returned:.2f} ms since it returned"
    report.add(f"{name}, p50", median(latencies), "ms", at_most=at_most, detail=detail)
    report.add(f"{name}, p99", quantiles(latencies, n=100)[98], "ms")


@asynccontextmanager
async def _watcher(url: str, session_id: str, last: int) -> AsyncGenerator[asyncio.StreamReader, None]:
    """Run a process that watches a session, and hand out the lines it prints."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.store", "--watch", url, session_id, str(last)),
        cwd=Path(__file__).parents[1],
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    assert child.stdout is not None
    try:
        yield child.stdout
        await asyncio.wait_for(child.wait(), 10)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def _watch(url: str, session_id: str, last: int) -> None:
    """Be that process: say when the watch has begun, and in the end when each event was there."""
    async with open_store(url, upgrade=False) as store:
        arrivals = await _arrivals(store, session_id, last, lambda: print("watching", flush=True))
    print(json.dumps([[seq, one.at, one.arrived] for seq, one in arrivals.items()]), flush=True)


async def _long_session(report: Report, engine: Engine, scale: Scale) -> None:
    """Measure a write to, and the last page of, a session that is long already against one that is short."""
    async with open_store(await engine.new_url()) as store:
        holder = await store.join("bench", ttl=LONG_ENOUGH)
        progress(f"  growing a session to {scale.long_session:,} events")
        long = await _new_lease(store, holder, events=scale.long_session)
        fresh: list[Lease] = []
        writes = EARLY // 5
        operations = FRESH_SESSIONS * writes

        async def begin_sessions() -> None:
            events = EARLY - writes // 2
            fresh[:] = [await _new_lease(store, holder, events=events) for _ in range(FRESH_SESSIONS)]

        async def late() -> float:
            return await seconds(_write(store, [long], operations), operations)

        async def early() -> float:
            return await seconds(_write(store, fresh, writes), operations)

        duel = await side_by_side(late, early, blocks=scale.blocks, prepare=begin_sessions)
        report.add(
            f"{engine.name}: cost of writing event {scale.long_session:,} / event {EARLY}",
            duel.ratio,
            at_most=1.3,
            detail=duel.times("late", "early"),
        )
        duel = await side_by_side(
            partial(_last_page, store, long.session_id, scale.pages),
            partial(_last_page, store, fresh[0].session_id, scale.pages),
            blocks=scale.blocks,
        )
        report.add(
            f"{engine.name}: cost of reading the last {EARLY} events of {scale.long_session:,} / of {EARLY}",
            duel.ratio,
            at_most=1.3,
            detail=duel.times("late", "early"),
        )


async def _last_page(store: Store, session_id: str, times: int) -> float:
    last = (await store.session(session_id)).seq

    async def read() -> None:
        for _ in range(times):
            await store.events(session_id, after=last - EARLY, limit=EARLY)

    return await seconds(read(), times)


class Queue:
    """A store with idle sessions, of which a few at a time are made ready, claimed and worked off."""

    def __init__(self, store: Store, holder: Holder, ids: Sequence[str]) -> None:
        self._store = store
        self._holder = holder
        self._ids = ids
        self._choice = random.Random(1)
        self._claimed: list[Work] = []

    async def make_ready(self) -> None:
        """Finish what was claimed, then submit to a few sessions, wherever in the store they are."""
        for work in self._claimed:
            assert work.submission is not None
            done = SubmissionChange(id=work.submission.id, state="done")
            await self._store.write(work.lease, Batch(submissions=[done]))
            await self._store.release(work.lease)
        for session_id in self._choice.sample(self._ids, READY):
            await self._store.submit(session_id, "prompt", PAYLOAD)

    async def claim_all(self) -> float:
        """Return the seconds that claiming one of the ready sessions takes."""
        return await seconds(self._claim_all(), READY)

    async def _claim_all(self) -> None:
        self._claimed = [w for _ in range(READY) for w in await self._store.next_work(self._holder)]
        assert len(self._claimed) == READY


async def _claims(report: Report, engine: Engine, scale: Scale) -> None:
    """Measure how the next session to work on is found among many that are idle, against among few."""
    async with AsyncExitStack() as stack:

        async def queue_among(idle: int) -> Queue:
            url = await engine.new_url()
            store = await stack.enter_async_context(open_store(url))
            ids = [new_id() for _ in range(idle)]
            await engine.add_idle_sessions(url, ids)
            return Queue(store, await store.join("bench", ttl=LONG_ENOUGH), ids)

        progress(f"  adding {scale.many_idle:,} idle sessions")
        many, few = await queue_among(scale.many_idle), await queue_among(FEW_IDLE)

        async def make_ready() -> None:
            await many.make_ready()
            await few.make_ready()

        duel = await side_by_side(many.claim_all, few.claim_all, blocks=2 * scale.blocks, prepare=make_ready)
        report.add(
            f"{engine.name}: cost of a claim among {scale.many_idle:,} idle sessions / among {FEW_IDLE}",
            duel.ratio,
            at_most=1.5,
            detail=duel.times("many", "few"),
        )


def _sync_seconds() -> float:
    """Return what making a small write durable costs here, which is what all of this stands on."""
    with tempfile.TemporaryFile(prefix="holdfast-bench-") as file:

        def sync() -> float:
            file.write(PAYLOAD.encode())
            file.flush()
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            return time.perf_counter() - started

        return median(sync() for _ in range(50))


async def _measure(engines: Sequence[str], *, quick: bool) -> int:
    report = Report("store")
    report.add("fdatasync of a small write where the databases are", _sync_seconds() * 1e6, "us")
    for name in engines:
        scale = QUICK if quick else SLOW if name == "mongodb" else FULL
        with open_engine(name) as engine:
            for topic in (_writes, _latency, _long_session, _claims):
                progress(f"{name}: {topic.__name__.strip('_').replace('_', ' ')}")
                await topic(report, engine, scale)
    return report.finish()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="do little of everything: to see that it runs")
    parser.add_argument("--engine", choices=ENGINES, help="measure this engine only")
    parser.add_argument("--watch", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.watch:
        url, session_id, last = given.watch
        asyncio.run(_watch(url, session_id, int(last)))
        return 0
    engines = [given.engine] if given.engine else [name for name in ENGINES if name != "mongodb" or mongod()]
    if "mongodb" not in engines and not given.engine:
        progress("MongoDB is left out: there is no mongod on the path")
    return asyncio.run(_measure(engines, quick=given.quick))


if __name__ == "__main__":
    sys.exit(main())
