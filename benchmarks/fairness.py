"""What fair claims give and cost: the wait beside an owner with 10,000 messages, and a claim among 10,000 owners.

The stores with few and with many owners take turns. `--quick` does little of everything.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from random import uniform
from statistics import median

from benchmarks.report import Report, progress, side_by_side
from benchmarks.time import NewUrl, engines_to_measure
from holdfast import Turn
from holdfast import agent as function_agent
from holdfast.runtime import Worker
from holdfast.store import Store, open_store
from holdfast.types import Batch, SubmissionChange

TURN_SECONDS = 0.5
_TOGETHER = 100
_BEFORE = 200
"""How many claims bring a line to its usual state: all sessions have places, and some were served."""
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Scale:
    """How many of everything."""

    messages: int
    waits: int
    owners: int
    claims: int


FULL = Scale(messages=10_000, waits=9, owners=10_000, claims=40)
QUICK = Scale(messages=300, waits=3, owners=300, claims=10)
FEW = 10


@function_agent("bench")
async def slow(turn: Turn) -> str:
    """Take as long as a turn does."""
    del turn
    await asyncio.sleep(TURN_SECONDS)
    return "done"


async def _queue(store: Store, sessions: int, owners: int) -> None:
    """Create sessions with a message each."""

    async def create(numbers: range) -> None:
        for number in numbers:
            session = await store.create_session(agent="bench", owner=f"owner-{number % owners}")
            await store.submit(session.id, "message", '{"text": "hello"}')

    await asyncio.gather(*(create(range(first, sessions, _TOGETHER)) for first in range(_TOGETHER)))


async def _wait(store: Store) -> float:
    """Return the seconds from the submission of a new owner to the start of its turn, by the clock of the database."""
    session = await store.create_session(agent="bench", owner=f"new-{next(_numbers)}")
    sent = await store.submit(session.id, "message", '{"text": "hello"}')
    async for event in store.watch(session.id):
        if event.kind == "submission_started":
            return (event.at - sent.created_at).total_seconds()
    raise AssertionError


async def _turns(store: Store) -> list[float]:
    """Return how many seconds the turns took that have ended."""
    sessions = (await store.sessions(owner="owner-0", limit=100)).items  # those that were active last
    sent = [(await store.submissions(session.id)).items[0] for session in sessions]
    return [(s.ended_at - s.started_at).total_seconds() for s in sent if s.ended_at and s.started_at]


@asynccontextmanager
async def _serving(store: Store) -> AsyncGenerator[None, None]:
    """Serve one session at a time: with more, a place is free sooner."""
    worker = Worker(store, slow, concurrency=1, grace=0)
    serving = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await serving


async def _waits(report: Report, name: str, new_url: NewUrl, scale: Scale) -> None:
    async with open_store(await new_url()) as store, _serving(store):
        alone: list[float] = []
        for _ in range(scale.waits):
            alone.append(await _wait(store))
            await asyncio.sleep(TURN_SECONDS * 1.2)
    async with open_store(await new_url()) as store:
        progress(f"  {name}: {scale.messages:,} messages of one owner")
        await _queue(store, scale.messages, 1)
        async with _serving(store):
            await asyncio.sleep(TURN_SECONDS * 3)
            beside: list[float] = []
            for _ in range(scale.waits):
                beside.append(await _wait(store))
                await asyncio.sleep(TURN_SECONDS * uniform(1.2, 2.2))
        turn = max(await _turns(store))
    report.add(
        f"{name}: wait beside an owner with {scale.messages:,} messages / a turn of that and twice the wait alone",
        max(beside) / (turn + 2 * max(alone)),
        at_most=1,
        detail=f"median {median(beside):.3f} s, longest {max(beside):.3f} s; alone {max(alone):.3f} s; a turn {turn:.3f} s",
    )


class Claims:
    """Claims a session in a line in which many owners wait, and puts another one of its owner at its end."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def prepare(self, sessions: int, owners: int) -> None:
        """Fill the store, join it, and line up."""
        await _queue(self._store, sessions, owners)
        self._holder = await self._store.join("bench", ttl=7200)
        for _ in range(_BEFORE):
            await self.one()

    async def one(self) -> float:
        """Return the seconds of a claim. What goes before and after it is not measured."""
        store = self._store
        began = time.perf_counter()
        (work,) = await store.next_work(self._holder, agents=["bench"])
        took = time.perf_counter() - began
        assert work.submission is not None
        done = SubmissionChange(id=work.submission.id, state="done")
        await store.submit(work.session.id, "message", '{"text": "hello"}')
        await store.write(work.lease, Batch(submissions=[done], status="idle", release=True))
        return took


async def _claims(report: Report, name: str, new_url: NewUrl, scale: Scale) -> None:
    async with open_store(await new_url()) as few, open_store(await new_url()) as many:
        sides = Claims(many), Claims(few)
        for side, owners in zip(sides, (scale.owners, FEW), strict=True):
            progress(f"  {name}: {scale.owners:,} sessions of {owners:,} owners")
            await side.prepare(scale.owners, owners)
        duel = await side_by_side(sides[0].one, sides[1].one, blocks=scale.claims)
        report.add(
            f"{name}: a claim among {scale.owners:,} owners / among {FEW}",
            median(duel.first) / median(duel.second),
            at_most=1.3,
            detail=duel.times("many", "few"),
        )


async def measure(scale: Scale, only: str | None) -> int:
    report = Report("fairness")
    async with engines_to_measure() as engines:
        for name, new_url in engines.items():
            if only in {None, name}:
                progress(name)
                await _waits(report, name, new_url, scale)
                await _claims(report, name, new_url, scale)
    return report.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="do little of everything: to see that it runs")
    parser.add_argument("--engine", choices=["sqlite", "postgres", "mongodb"], help="measure only this one")
    options = parser.parse_args()
    sys.exit(asyncio.run(measure(QUICK if options.quick else FULL, options.engine)))
