"""The speed of the store on both engines, measured side by side with the raw drivers: each claim is a bar that must hold.

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
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

import asyncpg

from benchmarks.report import Report, progress
from holdfast.ids import new_id
from holdfast.store import Store, open_store
from holdfast.store.sql import library
from holdfast.types import Batch, Holder, Lease, NewEvent, SubmissionChange
from tests.servers import Postgres, postgres

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

PAYLOAD = json.dumps({"text": "A payload of about two hundred bytes. ".ljust(188, "x")})
ONE_EVENT = Batch(events=[NewEvent(kind="note", payload=PAYLOAD)])
COLUMNS = ("session_id", "seq", "kind", "run_id", "step", "at", "payload", "segment", "position")
LONG_ENOUGH = 3600.0
"""Seconds a holder lives: renewing is not what is measured here."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything is done."""

    blocks: int
    writes: int
    sessions: int
    writes_each: int
    latencies: int
    long_session: int
    pages: int
    idle_many: int
    claim_blocks: int


FULL = Scale(
    blocks=30,
    writes=500,
    sessions=64,
    writes_each=10,
    latencies=400,
    long_session=100_000,
    pages=50,
    idle_many=100_000,
    claim_blocks=60,
)
QUICK = Scale(
    blocks=5,
    writes=100,
    sessions=64,
    writes_each=4,
    latencies=60,
    long_session=5_000,
    pages=20,
    idle_many=5_000,
    claim_blocks=10,
)
FEW_IDLE = 100
READY = 8
EARLY = 100
"""The number of the event against which a late one is compared."""
FRESH_SESSIONS = 10
WARM_UP = 20


class Raw(ABC):
    """The driver alone, on one connection: one row into a table like `events`, one commit, and again."""

    def __init__(self) -> None:
        self._session_id = new_id()
        self._numbers = count(1)

    def row(self) -> tuple[object, ...]:
        """Return what the store would write for the next event."""
        at = time.time_ns() // 1000
        return self._session_id, next(self._numbers), "note", None, None, at, PAYLOAD, None, None

    @abstractmethod
    async def insert(self, rows: int) -> None:
        """Insert as many rows and commit each."""


class RawSqlite(Raw):
    """The standard library's driver, with its own handling of transactions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._connection = connection

    async def insert(self, rows: int) -> None:
        statement = f"INSERT INTO events ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
        for _ in range(rows):
            self._connection.execute(statement, self.row())
            self._connection.commit()


class RawPostgres(Raw):
    """asyncpg, where a statement outside of a transaction commits by itself."""

    def __init__(self, connection: "Connection") -> None:
        super().__init__()
        self._connection = connection

    async def insert(self, rows: int) -> None:
        values = ", ".join(f"${n}" for n in range(1, len(COLUMNS) + 1))
        statement = f"INSERT INTO raw.events ({', '.join(COLUMNS)}) VALUES ({values})"
        for _ in range(rows):
            await self._connection.execute(statement, *self.row())


class Engine(ABC):
    """Makes fresh databases, and reaches into them past the store."""

    name: str

    @abstractmethod
    async def new_url(self) -> str:
        """Return the URL of a new, empty store."""

    @abstractmethod
    async def raw(self, url: str, stack: AsyncExitStack) -> Raw:
        """Return the driver to compare an open store with, on the same disk or server."""

    @abstractmethod
    async def add_idle_sessions(self, url: str, ids: Sequence[str]) -> None:
        """Add sessions to an open store, exactly as `create_session` does but all at once."""


class Sqlite(Engine):
    """Files in a folder."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def new_url(self) -> str:
        return f"sqlite:///{self._folder}/{new_id()}.db"

    async def raw(self, url: str, stack: AsyncExitStack) -> Raw:
        # A file of its own: a second writer on the store's file would be a different measurement.
        connection = sqlite3.connect(_path(url) + ".raw")
        stack.callback(connection.close)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(_create_events())
        return RawSqlite(connection)

    async def add_idle_sessions(self, url: str, ids: Sequence[str]) -> None:
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
        name = f"bench_{next(self._numbers)}"
        async with _connected(self._server.url()) as connection:
            await connection.execute(f"CREATE DATABASE {name}")
        return self._server.url(name)

    async def raw(self, url: str, stack: AsyncExitStack) -> Raw:
        connection = await stack.enter_async_context(_connected(url))
        await connection.execute("CREATE SCHEMA raw")
        await connection.execute("CREATE TABLE raw.events (LIKE holdfast.events INCLUDING ALL)")
        return RawPostgres(connection)

    async def add_idle_sessions(self, url: str, ids: Sequence[str]) -> None:
        async with _connected(url) as connection:
            for table, columns, rows in _idle_rows(ids):
                await connection.copy_records_to_table(
                    table, records=rows, columns=columns, schema_name="holdfast"
                )
            # Autovacuum would do this within a minute; then it does not do it in the middle of a block.
            await connection.execute("VACUUM ANALYZE")


def _path(url: str) -> str:
    return url.removeprefix("sqlite:///")


def _create_events() -> str:
    """Return the statement that makes our `events` table, from the migration that makes it."""
    statements = (s for _, _, text in library.migrations() for s in library.split(text, "sqlite"))
    return next(s for s in statements if s.startswith("CREATE TABLE events"))


def _idle_rows(
    ids: Sequence[str],
) -> list[tuple[str, tuple[str, ...], list[tuple[object, ...]]]]:
    now = time.time_ns() // 1000
    sessions: list[tuple[object, ...]] = [
        (id, "agent", "owner", "", "", "idle", 0, "{}", now + n, now + n) for n, id in enumerate(ids)
    ]
    heads: list[tuple[object, ...]] = [(id, 0, 0, 0, 0) for id in ids]
    texts = ("id", "agent", "owner", "title", "title_folded", "status", "hold", "metadata")
    return [
        ("sessions", (*texts, "created_at", "active_at"), sessions),
        ("heads", ("session_id", "epoch", "seq", "writes", "written"), heads),
    ]


@asynccontextmanager
async def _connected(url: str) -> "AsyncGenerator[Connection, None]":
    connection: Connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@contextmanager
def _engine(name: str) -> Generator[Engine, None, None]:
    if name == "sqlite":
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            yield Sqlite(Path(folder))
    else:
        with postgres() as server:
            yield Postgresql(server)


@dataclass(frozen=True, slots=True)
class Duel:
    """Two sides, block by block: the seconds that one operation took."""

    first: list[float]
    second: list[float]

    @property
    def ratio(self) -> float:
        """How many times as long as the second the first one took."""
        return median(a / b for a, b in zip(self.first, self.second, strict=True))

    def rates(self, first: str, second: str) -> str:
        return f"{first} {1 / median(self.first):,.0f}/s, {second} {1 / median(self.second):,.0f}/s"

    def times(self, first: str, second: str) -> str:
        return f"{first} {median(self.first) * 1e6:,.0f} µs, {second} {median(self.second) * 1e6:,.0f} µs"


async def _nothing() -> None:
    pass


async def _side_by_side(
    first: Callable[[], Awaitable[float]],
    second: Callable[[], Awaitable[float]],
    *,
    blocks: int,
    prepare: Callable[[], Awaitable[None]] = _nothing,
) -> Duel:
    """Run both in turns. What `prepare` does before each turn is not measured; the first turn only warms up."""
    duel = Duel([], [])
    sides = [(first, duel.first), (second, duel.second)]
    for _ in range(blocks + 1):
        await prepare()
        for side, seconds in sides:
            seconds.append(await side())
        sides.reverse()  # whoever goes second inherits the other's caches and checkpoints
    del duel.first[0], duel.second[0]
    return duel


async def _each(action: Callable[[], Awaitable[object]], times: int) -> float:
    """Return the seconds one of so many takes."""
    started = time.perf_counter()
    for _ in range(times):
        await action()
    return (time.perf_counter() - started) / times


async def _new_lease(store: Store, holder: Holder, *, events: int = 0) -> Lease:
    """Return the lease of a new session that has as many events."""
    session = await store.create_session(agent="agent", owner="owner")
    lease = await store.acquire(session.id, holder)
    while events > 0:
        await store.write(lease, Batch(events=ONE_EVENT.events * min(events, 1000)))
        events -= 1000
    return lease


async def _writes(report: Report, engine: Engine, scale: Scale) -> None:
    """One writer, then many at once, each against the driver that inserts and commits row by row."""
    url = await engine.new_url()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(url))
        raw = await engine.raw(url, stack)
        holder = await store.join("bench", ttl=LONG_ENOUGH)
        lease, *leases = [await _new_lease(store, holder) for _ in range(1 + scale.sessions)]
        at_once = scale.sessions * scale.writes_each

        async def raw_inserts() -> float:
            started = time.perf_counter()
            await raw.insert(scale.writes)
            return (time.perf_counter() - started) / scale.writes

        async def sequential() -> float:
            return await _each(lambda: store.write(lease, ONE_EVENT), scale.writes)

        async def concurrent() -> float:
            started = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for one in leases:
                    group.create_task(_write_some(store, one, scale.writes_each))
            return (time.perf_counter() - started) / at_once

        duel = await _side_by_side(raw_inserts, sequential, blocks=scale.blocks)
        report.add(
            f"{engine.name}: sequential writes/s, store / raw driver",
            duel.ratio,
            at_least=0.5 if engine.name == "sqlite" else 0.4,
            detail=duel.rates("raw", "store"),
        )
        duel = await _side_by_side(raw_inserts, concurrent, blocks=scale.blocks)
        report.add(
            f"{engine.name}: writes/s of {scale.sessions} sessions, store / raw driver",
            duel.ratio,
            at_least=2,
            detail=duel.rates("raw", "store"),
        )


async def _write_some(store: Store, lease: Lease, writes: int) -> None:
    for _ in range(writes):
        await store.write(lease, ONE_EVENT)


@dataclass(frozen=True, slots=True)
class Sent:
    """One event on its way: its number, when the store was asked to write it and when it said that it had."""

    seq: int
    asked: int
    returned: int


async def _paced_writes(store: Store, lease: Lease, events: int) -> list[Sent]:
    """Write so far apart that each event travels alone; at random, so as not to march in step with a poll."""
    pause = random.Random(1)
    sent: list[Sent] = []
    for _ in range(events):
        await asyncio.sleep(pause.uniform(0.005, 0.015))
        asked = time.monotonic_ns()
        seq = await store.write(lease, ONE_EVENT)
        sent.append(Sent(seq, asked, time.monotonic_ns()))
    return sent


async def _arrivals(store: Store, session_id: str, last: int, began: Callable[[], None]) -> dict[int, int]:
    """Return when a watcher had each event. The clock is CLOCK_MONOTONIC, which all processes of a machine share."""
    arrived: dict[int, int] = {}
    async with aclosing(store.watch(session_id)) as events:
        async for event in events:
            arrived[event.seq] = time.monotonic_ns()
            if event.seq == 1:
                began()
            if event.seq == last:
                break
    return arrived


async def _latency(report: Report, engine: Engine, scale: Scale) -> None:
    """From a write to a watcher that has the event, in the same process and in another one.

    The bar is on the time since just before `write` was called. It includes the write and its commit, so it is never
    less than commit to watcher. The time since `write` returned is shown beside it: a watcher may well be earlier.
    """
    url = await engine.new_url()
    events = WARM_UP + scale.latencies
    async with open_store(url) as store:
        holder = await store.join("bench", ttl=LONG_ENOUGH)
        lease = await _new_lease(store, holder, events=1)
        watching = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            arrived = group.create_task(_arrivals(store, lease.session_id, 1 + events, watching.set))
            await watching.wait()
            sent = await _paced_writes(store, lease, events)
        _add_latency(report, f"{engine.name}: write to watcher", sent, arrived.result(), at_most=2)

        lease = await _new_lease(store, holder, events=1)
        async with _watcher(url, lease.session_id, 1 + events) as lines:
            assert await lines.readline() == b"watching\n", "the watching process has failed"
            sent = await _paced_writes(store, lease, events)
            elsewhere = {int(seq): at for seq, at in json.loads(await lines.readline()).items()}
        limit = 30 if engine.name == "sqlite" else 5
        _add_latency(
            report, f"{engine.name}: write to watcher in another process", sent, elsewhere, at_most=limit
        )


def _add_latency(
    report: Report, name: str, sent: list[Sent], arrived: dict[int, int], *, at_most: float
) -> None:
    measured = sent[WARM_UP:]
    since_asked = [(arrived[one.seq] - one.asked) / 1e6 for one in measured]
    since_returned = median((arrived[one.seq] - one.returned) / 1e6 for one in measured)
    writing = median((one.returned - one.asked) / 1e6 for one in measured)
    detail = f"of which the write took {writing:.2f} ms; {since_returned:.2f} ms after it returned"
    report.add(f"{name}, p50", median(since_asked), "ms", at_most=at_most, detail=detail)
    report.add(f"{name}, p99", quantiles(since_asked, n=100)[98], "ms")


@asynccontextmanager
async def _watcher(url: str, session_id: str, last: int) -> AsyncGenerator[asyncio.StreamReader, None]:
    """Run a process that watches a session, and give back the lines it prints."""
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
    """Be that process."""
    async with open_store(url, upgrade=False) as store:
        arrived = await _arrivals(store, session_id, last, lambda: print("watching", flush=True))
    print(json.dumps(arrived), flush=True)


async def _long_session(report: Report, engine: Engine, scale: Scale) -> None:
    """The cost of a write to, and a page of, a session that is long already, against one that is short."""
    async with open_store(await engine.new_url()) as store:
        holder = await store.join("bench", ttl=LONG_ENOUGH)
        progress(f"  growing a session to {scale.long_session:,} events")
        long = await _new_lease(store, holder, events=scale.long_session)
        fresh: list[Lease] = []
        writes = EARLY // 5

        async def start_fresh_sessions() -> None:
            fresh[:] = [
                await _new_lease(store, holder, events=EARLY - writes // 2) for _ in range(FRESH_SESSIONS)
            ]

        async def late() -> float:
            return await _each(lambda: store.write(long, ONE_EVENT), writes * FRESH_SESSIONS)

        async def early() -> float:
            seconds = [await _each(lambda: store.write(lease, ONE_EVENT), writes) for lease in fresh]  # noqa: B023
            return sum(seconds) / len(seconds)

        duel = await _side_by_side(late, early, blocks=scale.blocks, prepare=start_fresh_sessions)
        name = f"event {scale.long_session:,} / event {EARLY}"
        report.add(
            f"{engine.name}: cost of writing {name}",
            duel.ratio,
            at_most=1.3,
            detail=duel.times("late", "early"),
        )
        duel = await _side_by_side(
            lambda: _read_last_page(store, long, scale.pages),
            lambda: _read_last_page(store, fresh[0], scale.pages),
            blocks=scale.blocks,
        )
        report.add(
            f"{engine.name}: cost of the last {EARLY} events of {scale.long_session:,} / of {EARLY}",
            duel.ratio,
            at_most=1.3,
            detail=duel.times("late", "early"),
        )


async def _read_last_page(store: Store, lease: Lease, times: int) -> float:
    last = (await store.session(lease.session_id)).seq
    return await _each(lambda: store.events(lease.session_id, after=last - EARLY, limit=EARLY), times)


class _Queue:
    """A store with many idle sessions, of which a few at a time are made ready, claimed and worked off."""

    def __init__(self, store: Store, holder: Holder, ids: list[str]) -> None:
        self._store = store
        self._holder = holder
        self._ids = ids
        self._choice = random.Random(1)
        self._claimed: list[Lease] = []

    async def make_ready(self) -> None:
        """Finish what was claimed, then submit to a few sessions, wherever in the store they are."""
        for lease in self._claimed:
            submission = await self._store.take(lease)
            assert submission is not None
            done = SubmissionChange(id=submission.id, state="done")
            await self._store.write(lease, Batch(submissions=[done]))
            await self._store.release(lease)
        self._claimed.clear()
        for session_id in self._choice.sample(self._ids, READY):
            await self._store.submit(session_id, "prompt", PAYLOAD)

    async def claim_all(self) -> float:
        """Return the seconds that claiming one of the ready sessions takes."""
        started = time.perf_counter()
        leases = [await self._store.claim(self._holder) for _ in range(READY)]
        seconds = time.perf_counter() - started
        self._claimed = [lease for lease in leases if lease is not None]
        assert len(self._claimed) == READY
        return seconds / READY


async def _claims(report: Report, engine: Engine, scale: Scale) -> None:
    """The cost of finding the next session to work on, among many that are idle and among few."""
    async with AsyncExitStack() as stack:

        async def queue_among(idle: int) -> _Queue:
            url = await engine.new_url()
            store = await stack.enter_async_context(open_store(url))
            ids = [new_id() for _ in range(idle)]
            await engine.add_idle_sessions(url, ids)
            return _Queue(store, await store.join("bench", ttl=LONG_ENOUGH), ids)

        progress(f"  adding {scale.idle_many:,} idle sessions")
        many, few = await queue_among(scale.idle_many), await queue_among(FEW_IDLE)

        async def make_ready() -> None:
            await many.make_ready()
            await few.make_ready()

        duel = await _side_by_side(
            many.claim_all, few.claim_all, blocks=scale.claim_blocks, prepare=make_ready
        )
        report.add(
            f"{engine.name}: cost of a claim among {scale.idle_many:,} idle sessions / among {FEW_IDLE}",
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


async def _measure(engines: Sequence[str], scale: Scale) -> int:
    report = Report("store")
    report.add("fdatasync of a small write in the folder for temporary files", _sync_seconds() * 1e6, "µs")
    for name in engines:
        with _engine(name) as engine:
            for topic in (_writes, _latency, _long_session, _claims):
                progress(f"{name}: {topic.__name__.strip('_').replace('_', ' ')}")
                await topic(report, engine, scale)
    return report.finish()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="do little of everything: to see that it runs")
    parser.add_argument("--engine", choices=["sqlite", "postgres"], help="measure this engine only")
    parser.add_argument("--watch", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.watch:
        url, session_id, last = given.watch
        asyncio.run(_watch(url, session_id, int(last)))
        return 0
    engines = [given.engine] if given.engine else ["sqlite", "postgres"]
    return asyncio.run(_measure(engines, QUICK if given.quick else FULL))


if __name__ == "__main__":
    sys.exit(main())
