"""The primary of a MongoDB replica set is killed under load, and the others elect a new one, again and again."""

import asyncio
import json
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.errors import HolderLost, LeaseLost, SessionBusy, StoreBusy, StoreUnavailable
from holdfast.leases import hold_lease
from holdfast.store import Store, open_store
from holdfast.types import Batch, Event, NewEvent, Submission
from tests.builders import until
from tests.conftest import ONLY_WITH_MONGOD
from tests.promises.workers import worker
from tests.replica_set import ReplicaSet, replica_set
from tests.runtime.agents import reread
from tests.servers import EMULATED

pytestmark = [pytest.mark.processes, pytest.mark.thorough, pytest.mark.timeout(1500), *ONLY_WITH_MONGOD]
T = TypeVar("T")

_ELECTIONS = 1 if EMULATED else 3
_SESSIONS = 3 if EMULATED else 12
_CALLS = 3
_PATIENCE_SECONDS = 300 if EMULATED else 60
_AWAY = (StoreUnavailable, StoreBusy)
"""What a client may be told during an election."""


class Load:
    """The clients of a store: they submit, write and read, and note what was acknowledged and what they saw."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.accepted: dict[str, Submission] = {}
        """By the name of the file that the tool of its turn writes to."""
        self.ended: set[str] = set()
        self.written: dict[int, int] = {}
        """Every number that was acknowledged, with the number of its event."""
        self.seen: defaultdict[str, list[Event]] = defaultdict(list)
        self.refused: Counter[str] = Counter()
        self.stopping = asyncio.Event()
        self._store = store
        self._folder = folder

    async def submit(self, session_id: str) -> None:
        """Submit one turn after the other."""
        for number in count():
            if self.stopping.is_set():
                return
            await self.turn(session_id, f"{session_id}-{number}")

    async def turn(self, session_id: str, name: str) -> None:
        """Submit a turn under the same key until it is acknowledged, and wait until it was seen to end."""
        body = json.dumps({"text": f"work {_CALLS} {self._folder / name}"})
        submission = self.accepted[name] = await self._until_answered(
            lambda: self._store.submit(session_id, "message", body, idempotency_key=name)
        )
        # Once it is acknowledged, no read may miss it.
        await self._until_answered(lambda: reread(self._store, submission))
        await _until(lambda: submission.id in self.ended)

    async def write(self, session_id: str) -> None:
        """Write numbers. One that is not acknowledged is not written again: it may be there."""
        numbers = count()
        while not self.stopping.is_set():
            try:
                async with hold_lease(self._store, session_id) as lease:
                    while not self.stopping.is_set():
                        number = next(numbers)
                        events = [NewEvent(kind="tick", payload=json.dumps(number))]
                        seq = self.written[number] = await self._store.write(lease, Batch(events=events))
                        found = await self._until_answered(
                            lambda seq=seq: self._store.events(session_id, after=seq - 1)
                        )
                        assert [event.seq for event in found] == [seq]
            except (*_AWAY, SessionBusy, LeaseLost, HolderLost) as error:
                self.refused[type(error).__name__] += 1
                await asyncio.sleep(0.1)

    async def read(self, session_id: str) -> None:
        """Follow a session, and continue after the last event whenever the store was away."""
        seen = self.seen[session_id]
        while True:
            try:
                async for event in self._store.watch(session_id, after=len(seen)):
                    seen.append(event)
                    if event.kind in {"submission_done", "submission_failed"}:
                        self.ended.add(json.loads(event.payload)["submission_id"])
            except _AWAY as error:
                self.refused[type(error).__name__] += 1
                await asyncio.sleep(0.1)

    async def _until_answered(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        while True:
            try:
                return await call()
            except _AWAY as error:
                self.refused[type(error).__name__] += 1
                await asyncio.sleep(0.1)


async def test_an_election_of_mongodb_loses_nothing_and_repeats_nothing(tmp_path: Path):
    async with AsyncExitStack() as stack:
        members = stack.enter_context(replica_set())
        store = await stack.enter_async_context(open_store(members.url()))
        workers = [
            await stack.enter_async_context(worker(members.url(), "--name", f"worker-{n}", hold=0.3))
            for n in (1, 2)
        ]
        load = Load(store, tmp_path)
        probes = [f"probe-{n}" for n in range(_ELECTIONS)]
        sessions = [f"s{n}" for n in range(_SESSIONS)]
        everything = ["numbers", *probes, *sessions]
        for session_id in everything:
            await store.create_session(agent="agent", owner="you", id=session_id)

        async with asyncio.TaskGroup() as group:  # it fails as soon as one of the clients does
            reading = [group.create_task(load.read(session_id)) for session_id in everything]
            busy = [group.create_task(load.submit(session_id)) for session_id in sessions]
            busy.append(group.create_task(load.write("numbers")))
            for probe in probes:
                await _kill_the_primary(members, load, probe)
            load.stopping.set()
            await asyncio.gather(*busy)
            for task in reading:
                task.cancel()

        for each in workers:
            each.signal(signal.SIGTERM)
        assert [await each.ended(_PATIENCE_SECONDS) for each in workers] == [0, 0]
        print(
            f"{len(load.accepted)} turns, {len(load.written)} writes, {dict(load.refused)}", file=sys.stderr
        )
        await _judge(store, load, tmp_path)
        assert await store.check() == []


async def _kill_the_primary(members: ReplicaSet, load: Load, probe: str) -> None:
    """Kill it while turns run and writes are under way; return when it follows the new one."""
    turns, writes = len(load.ended) + _SESSIONS, len(load.written) + 10
    await _until(lambda: len(load.ended) >= turns and len(load.written) >= writes)
    killed = time.monotonic()
    dead = await asyncio.to_thread(members.kill_primary)
    await asyncio.to_thread(members.elected)
    elected = time.monotonic()
    await load.turn(probe, probe)
    print(
        f"{probe}: elected after {elected - killed:.1f} s; then workers had ended a new turn after"
        f" {time.monotonic() - elected:.1f} s",
        file=sys.stderr,
    )
    await asyncio.to_thread(members.rejoin, dead)


async def _judge(store: Store, load: Load, folder: Path) -> None:
    """Compare the store and the files of the tools with what was acknowledged and seen."""
    found = {session_id: await _events(store, session_id) for session_id in load.seen}
    for session_id, seen in load.seen.items():
        assert seen == found[session_id][: len(seen)]
        submissions = (await store.submissions(session_id, limit=1000)).items
        accepted = {s.id for s in load.accepted.values() if s.session_id == session_id}
        assert {s.id: s.state for s in submissions} == dict.fromkeys(accepted, "done")
        ends = [
            json.loads(event.payload)["submission_id"]
            for event in found[session_id]
            if event.kind == "submission_done"
        ]
        assert sorted(ends) == sorted(accepted)

    ticks = {event.seq: json.loads(event.payload) for event in found["numbers"] if event.kind == "tick"}
    assert list(ticks.values()) == sorted(set(ticks.values()))
    assert {number: ticks.get(seq) for number, seq in load.written.items()} == {n: n for n in load.written}

    unknown = 0
    for name, submission in load.accepted.items():
        file = folder / name
        calls = [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []
        assert len(calls) == len(set(calls)), (name, calls)
        unknown += _CALLS - len(calls)
        if len(calls) < _CALLS:  # cut off between the record of the call and the call: it is not repeated
            told = "\n".join(event.message or "" for event in found[submission.session_id])
            assert "it is unknown whether it took effect" in told
    print(f"{unknown} calls were cut off before they took effect", file=sys.stderr)


async def _events(store: Store, session_id: str) -> list[Event]:
    found: list[Event] = []
    while page := await store.events(session_id, after=len(found), limit=1000):
        found += page
    return found


async def _until(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await until(holds, seconds=_PATIENCE_SECONDS)
