"""What sleeping sessions and their timers cost: a claim beside 100,000 sleepers, and how late a timer fires.

The stores with few and with many sleepers take turns. `--quick` does little of everything.
"""

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from statistics import median

from benchmarks.peers import ROOT
from benchmarks.report import Report, progress, side_by_side
from benchmarks.runtime import APP, WORKERS, submissions_per_second
from holdfast import Turn
from holdfast import agent as function_agent
from holdfast.runtime import Worker
from holdfast.store import Store, open_store
from holdfast.types import Batch, SubmissionChange
from tests.builders import until
from tests.promises.workers import worker
from tests.servers import mongo, mongod, postgres

NewUrl = Callable[[], Awaitable[str]]
_APART_SECONDS = 0.25
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Scale:
    """How many of everything."""

    sleepers: int
    claims: int
    timers: int
    due: int
    asleep: int


FULL = Scale(sleepers=100_000, claims=40, timers=120, due=1000, asleep=1000)
QUICK = Scale(sleepers=2000, claims=10, timers=12, due=60, asleep=100)
FEW = 100


@function_agent("bench")
async def napper(turn: Turn) -> str:
    """Sleep for an hour."""
    await turn.sleep(hours=1)
    return "awake"


async def _put_to_sleep(store: Store, sessions: int) -> None:
    """Create sessions with a message for next year."""
    at = await store.now() + timedelta(days=365)

    async def create(numbers: "range") -> None:
        for number in numbers:
            session = await store.create_session(agent="bench", owner="bench", id=f"asleep-{number}")
            await store.submit(session.id, "message", "{}", deliver_at=at)

    together = 200
    await asyncio.gather(*(create(range(first, sessions, together)) for first in range(together)))


class Claims:
    """Claims a session with work, in a store with sleepers."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def prepare(self, sleepers: int) -> None:
        """Fill the store, and join it."""
        await _put_to_sleep(self._store, sleepers)
        self._holder = await self._store.join("bench", ttl=7200)
        self._session = (await self._store.create_session(agent="bench", owner="bench")).id

    async def one(self) -> float:
        """Return the seconds of a claim. What goes before and after it is not measured."""
        store = self._store
        await store.submit(self._session, "message", "{}")
        began = time.perf_counter()
        (work,) = await store.next_work(self._holder, agents=["bench"])
        took = time.perf_counter() - began
        assert work.submission is not None
        done = SubmissionChange(id=work.submission.id, state="done")
        await store.write(work.lease, Batch(submissions=[done], status="idle", release=True))
        return took


async def _claims(report: Report, name: str, new_url: NewUrl, scale: Scale) -> None:
    async with open_store(await new_url()) as few, open_store(await new_url()) as many:
        sides = Claims(many), Claims(few)
        for side, sleepers in zip(sides, (scale.sleepers, FEW), strict=True):
            progress(f"  {name}: {sleepers:,} sessions fall asleep")
            await side.prepare(sleepers)
        duel = await side_by_side(sides[0].one, sides[1].one, blocks=scale.claims)
        report.add(
            f"{name}: a claim beside {scale.sleepers:,} sleepers / beside {FEW}",
            median(duel.first) / median(duel.second),
            at_most=1.3,
            detail=duel.times("many", "few"),
        )


async def _lateness(report: Report, name: str, url: str, scale: Scale) -> None:
    """Measure, by the clock of the database, from the time of a message to the start of its turn. The worker is idle before each."""
    async with open_store(url) as store, worker(url, app=APP):
        await _warm_up(store)
        first = await store.now() + timedelta(seconds=1 + scale.timers * 0.02)
        sent = [
            await store.submit(
                (await store.create_session(agent="bench", owner="bench")).id,
                "message",
                json.dumps({"text": "hello"}),
                deliver_at=first + timedelta(seconds=_APART_SECONDS * number),
            )
            for number in range(scale.timers)
        ]
        late: list[float] = []
        for submission in sent:
            async for event in store.watch(submission.session_id):
                if event.kind == "submission_started":
                    assert submission.deliver_at is not None
                    late.append((event.at - submission.deliver_at).total_seconds())
                    break
    assert min(late) >= 0
    limit = None if name == "mongodb" else 0.3
    report.add(
        f"{name}: a timer fires after its time, p99 of {len(late)}",
        sorted(late)[int(len(late) * 0.99)],
        "s",
        at_most=limit,
        detail=f"median {median(late) * 1e3:.0f} ms, none early",
    )


async def _warm_up(store: Store) -> None:
    for _ in range(10):
        session = await store.create_session(agent="bench", owner="bench")
        await store.submit(session.id, "message", json.dumps({"text": "hello"}))
        async for event in store.watch(session.id):
            if event.kind == "submission_done":
                break


async def _crowd(report: Report, new_url: NewUrl, scale: Scale) -> None:
    """Compare turns that are all due in the same second with the same number that is submitted at once."""
    at_once = [await submissions_per_second(await new_url(), scale.due)]
    together = [await _due_together(await new_url(), scale.due) for _ in range(2)]
    at_once.append(await submissions_per_second(await new_url(), scale.due))
    report.add(
        f"{scale.due:,} turns due in the same second: their rate / that of submissions",
        median(together) / median(at_once),
        at_least=0.9,
        detail=f"{median(together):,.0f}/s and {median(at_once):,.0f}/s",
    )


async def _due_together(url: str, jobs: int) -> float:
    async with open_store(url) as store, AsyncExitStack() as stack:
        for _ in range(WORKERS):
            await stack.enter_async_context(worker(url, app=APP))
        await _warm_up(store)
        sessions = [await store.create_session(agent="bench", owner="bench") for _ in range(jobs)]
        at = await store.now() + timedelta(seconds=2 + jobs / 200)
        body = json.dumps({"text": "hello"})
        await asyncio.gather(*(store.submit(s.id, "message", body, deliver_at=at) for s in sessions))
        ends = [await _end(store, session.id) for session in sessions]
        starts = [(await store.submissions(s.id)).items[0].started_at for s in sessions]
        assert all(start is not None and start >= at for start in starts)
        return jobs / (max(ends) - at.timestamp())


async def _end(store: Store, session_id: str) -> float:
    """Return when the turn of a session ended, by the clock of the database."""
    async for event in store.watch(session_id):
        if event.kind == "submission_done":
            return event.at.timestamp()
    raise AssertionError


def _memory(report: Report, scale: Scale) -> None:
    """Measure in a fresh process what a sleeping session leaves in its worker."""
    command = [sys.executable, "-m", "benchmarks.time", "--memory", str(scale.asleep)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    report.add(
        "memory that a sleeping session leaves in a worker",
        float(done.stdout),
        "KB",
        at_most=0.1,
        detail=f"after {scale.asleep:,} sessions, Python's own count",
    )


async def _be_measured(sessions: int) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        async with open_store(f"sqlite:///{folder}/bench.db") as store:
            serving = Worker(store, napper)
            working = asyncio.create_task(serving.run())
            await _sleep_in(store, FEW)
            tracemalloc.start()
            await _sleep_in(store, sessions // 4)
            before = _traced()
            await _sleep_in(store, sessions)
            print(max(0.0, _traced() - before) / sessions / 1024, flush=True)
            serving.stop()
            await working


async def _sleep_in(store: Store, sessions: int) -> None:
    for _ in range(sessions):
        session = (await store.create_session(agent="bench", owner="bench")).id
        await store.submit(session, "message", json.dumps({"text": "sleep"}))

        async def sleeps(session: str = session) -> bool:
            return (await store.session(session)).status == "sleeping"

        await until(sleeps)


def _traced() -> float:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@asynccontextmanager
async def engines_to_measure() -> AsyncGenerator[dict[str, NewUrl], None]:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        postgres() as server,
    ):

        async def new_file() -> str:
            return f"sqlite:///{Path(folder) / str(next(_numbers))}.db"

        engines: dict[str, NewUrl] = {
            "sqlite": new_file,
            "postgres": lambda: server.create_database(f"bench_{next(_numbers)}"),
        }
        if mongod() is None:
            progress("MongoDB is left out: there is no mongod on the path")
            yield engines
            return
        with mongo() as third:

            async def new_database() -> str:
                return third.url(f"bench_{next(_numbers)}")

            yield engines | {"mongodb": new_database}


async def measure(scale: Scale) -> int:
    report = Report("time")
    async with engines_to_measure() as engines:
        for name, new_url in engines.items():
            progress(name)
            await _lateness(report, name, await new_url(), scale)
            await _claims(report, name, new_url, scale)
        progress("crowd")
        await _crowd(report, engines["postgres"], scale)
    _memory(report, scale)
    return report.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="do little of everything: to see that it runs")
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        asyncio.run(_be_measured(options.memory))
    else:
        sys.exit(asyncio.run(measure(QUICK if options.quick else FULL)))
