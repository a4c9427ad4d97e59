"""Promise 11, under fire: a thousand timers and two hundred signals while workers and the database are killed.

An eighth of them are due by default, all with `--kills` or `--long`.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.errors import StoreBusy, StoreUnavailable
from holdfast.store import Store, open_store
from holdfast.types import Event
from tests.conftest import ONLY_WITH_MONGOD
from tests.promises.fleet import fleet
from tests.servers import EMULATED, Mongo, Postgres, mongo, postgres

T = TypeVar("T")
pytestmark = [pytest.mark.processes, pytest.mark.thorough, pytest.mark.timeout(900)]
_AWAY = (StoreUnavailable, StoreBusy)


class Drill:
    """The clients: they submit and signal until they are acknowledged, and know what is due when."""

    def __init__(self, store: Store, *, scale: int, seconds: float) -> None:
        self.late = {f"late-{n}": random.uniform(1, seconds) for n in range(50 * scale)}
        """The sessions that get a message for later, with its delay."""
        self.sleeps = {
            f"sleep-{n}": [random.uniform(0.1, seconds / 3) for _ in range(3)] for n in range(25 * scale)
        }
        """The sessions whose turn sleeps, with the seconds of each sleep."""
        self.signals = {f"signal-{n}": ["one", "two"] for n in range(int(12.5 * scale))}
        self.due: dict[str, datetime] = {}
        self._store = store
        self._seconds = seconds

    async def run(self) -> None:
        """Submit everything, send the signals over the time of the drill, and wait until every turn has ended."""
        plans: dict[str, dict[str, Any]] = {name: {} for name in self.late}
        plans |= {name: {"sleeps": sleeps} for name, sleeps in self.sleeps.items()}
        plans |= {name: {"signals": names} for name, names in self.signals.items()}
        together = asyncio.Semaphore(16)
        async with asyncio.TaskGroup() as group:
            for name, plan in plans.items():
                group.create_task(self._submit(together, name, plan))
            for name, signals in self.signals.items():
                for number, what in enumerate(signals):
                    group.create_task(self._signal(together, name, what, number))

    async def _submit(self, together: asyncio.Semaphore, name: str, plan: dict[str, Any]) -> None:
        store = self._store
        async with together:
            await _until_acknowledged(
                lambda: store.create_session(agent="sleeper", owner="you", id=name, exist_ok=True)
            )
            at: datetime | None = None
            if name in self.late:
                at = self.due[name] = await _until_acknowledged(store.now) + timedelta(
                    seconds=self.late[name]
                )
            body = json.dumps({"text": json.dumps(plan)})
            await _until_acknowledged(
                lambda: store.submit(name, "message", body, idempotency_key="go", deliver_at=at)
            )

    async def _signal(self, together: asyncio.Semaphore, name: str, what: str, number: int) -> None:
        """Send a signal at any time, also before its session waits for it, and then once more."""
        await asyncio.sleep(random.uniform(0, self._seconds))
        body = json.dumps({"name": what, "data": f"{name} {number}"})
        async with together:
            await _until_acknowledged(
                lambda: self._store.create_session(agent="sleeper", owner="you", id=name, exist_ok=True)
            )
            for _ in range(2):
                await _until_acknowledged(
                    lambda: self._store.submit(name, "signal", body, lane="control", idempotency_key=what)
                )

    async def over(self) -> None:
        """Wait until no session has anything pending."""
        for name in (*self.late, *self.sleeps, *self.signals):
            while (await _until_acknowledged(lambda name=name: self._store.session(name))).pending:
                await asyncio.sleep(0.1)


async def _until_acknowledged(call: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await call()
        except _AWAY:
            await asyncio.sleep(0.05)


async def _restart(server: "Postgres | Mongo", seconds: float) -> None:
    """Kill the database at a third and at two thirds of the time."""
    for _ in range(2):
        await asyncio.sleep(seconds / 3)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)


@pytest.mark.parametrize(
    "kind",
    ["sqlite", "postgres", pytest.param("mongodb", marks=ONLY_WITH_MONGOD)],
)
async def test_each_timer_and_signal_counts_once_whatever_is_killed(
    kind: str, tmp_path: Path, long: bool, request: pytest.FixtureRequest
):
    whole = long or request.config.getoption("--kills")
    scale, seconds = (8, 30.0) if whole and not (kind == "mongodb" and EMULATED) else (1, 8.0)
    async with AsyncExitStack() as stack:
        server: Postgres | Mongo | None = None
        url = f"sqlite:///{tmp_path}/store.db"
        if kind == "postgres":
            server = stack.enter_context(postgres())
            url = server.url()
        elif kind == "mongodb":
            server = stack.enter_context(mongo())
            url = server.url()
        store = await stack.enter_async_context(open_store(url))
        drill = Drill(store, scale=scale, seconds=seconds)
        calm = asyncio.Event()
        async with fleet(url, "tests.promises.timer_agents:sleeper", calm) as kills:
            restarting = asyncio.create_task(_restart(server, seconds)) if server else None
            await drill.run()
            if restarting is not None:
                await restarting
            await asyncio.sleep(seconds / 2)
            # MongoDB keeps the locks of a killed process's transaction for up to a minute: nothing would end while kills continue.
            calm.set()
            await drill.over()
        assert kills["workers"] >= seconds / 2
        ended: Counter[str] = Counter()
        given_up: list[str] = []
        for name in (*drill.late, *drill.sleeps, *drill.signals):
            if await _is_given_up(store, name):
                given_up.append(name)
            else:
                await _judge(store, drill, name, ended)
        whole = (*drill.late, *drill.sleeps, *drill.signals)
        assert len(given_up) <= len(whole) // 20, given_up
        wanted = sum(name not in given_up for name in drill.late)
        assert ended["timers"] == wanted + 3 * sum(name not in given_up for name in drill.sleeps)
        assert ended["signals"] == 2 * sum(name not in given_up for name in drill.signals)
        assert await store.check() == []


async def _is_given_up(store: Store, name: str) -> bool:
    """Return whether the turn of a session was given up, after five attempts whose workers were killed."""
    (turn,) = (s for s in (await store.submissions(name)).items if s.kind == "message")
    if turn.state != "dead":
        return False
    events = await store.events(name, limit=1000)
    starts = [event for event in events if event.kind == "submission_started" and turn.id in event.payload]
    return len(starts) >= 5


async def _judge(store: Store, drill: Drill, name: str, ended: Counter[str]) -> None:
    """Check that each timer of a session fired once and not before its time, and that each signal was received once."""
    events = await store.events(name, limit=1000)
    facts = {event.seq: json.loads(event.payload) for event in events}
    turn = [s for s in (await store.submissions(name)).items if s.kind == "message"]
    assert [(s.state, s.reason) for s in turn] == [("done", None)], name
    done = [e for e in events if e.kind == "submission_done" and facts[e.seq]["submission_id"] == turn[0].id]
    assert len(done) == 1, name
    if name in drill.late:
        started = [event.at for event in _of(events, facts, "submission_started", turn[0].id)]
        assert min(started) >= drill.due[name], (name, started)
        ended["timers"] += 1
        return
    waits = [facts[event.seq] for event in events if event.kind == "wait_ended"]
    times = Counter(wait["call_id"] for wait in waits)
    assert set(times.values()) == {1}, (name, waits)
    for event in events:
        wait = facts[event.seq]
        if event.kind == "wait_ended" and wait["ended_by"] == "time":
            assert event.at >= datetime.fromisoformat(wait["until"]), (name, wait)
            ended["timers"] += 1
        elif event.kind == "wait_ended":
            ended["signals"] += 1
    if name in drill.signals:
        answer = next(event.message or "" for event in reversed(events) if event.message)
        assert f'[\\"{name} 0\\", \\"{name} 1\\"]' in answer, (name, answer)
        assert await store.records(name, "signal") == []


def _of(events: list[Event], facts: dict[int, dict[str, Any]], kind: str, submission_id: str) -> list[Event]:
    return [e for e in events if e.kind == kind and facts[e.seq]["submission_id"] == submission_id]
