"""Promise 11: each tick of a schedule submits once, never early, and is not lost, whatever is killed."""

import asyncio
import random
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from signal import SIGKILL

import pytest

from holdfast.schedules import Schedule, ScheduleTerms
from holdfast.store import Store, open_store
from holdfast.types import Submission
from tests.builders import until
from tests.conftest import Engine
from tests.contract.test_schedules import make_due
from tests.promises.workers import WorkerProcess, worker

pytestmark = [pytest.mark.processes, pytest.mark.thorough, pytest.mark.timeout(900)]

SCHEDULES = 50
WORKERS = 3
SHORT = {"lease_ttl_seconds": 2, "lease_renew_seconds": 0.5}
MINUTE = timedelta(minutes=1)
AGENT = "tests.promises.scheduled_agents:quick"


async def schedules_with_near_ticks(store: Store, chance: random.Random) -> dict[str, datetime]:
    """Create schedules for one session each, and for new ones; return the first tick of each. Another follows each minute."""
    terms = ScheduleTerms(cron="* * * * *", text="tick", overlap="queue", catch_up="all", catch_up_limit=100)
    first: dict[str, datetime] = {}
    for number in range(SCHEDULES):
        session_id = None
        if number % 2:
            session_id = (await store.create_session(agent="quick", owner="ada")).id
        schedule = await store.create_schedule(
            terms, owner="ada", agent=None if session_id else "quick", session_id=session_id, actor="ada"
        )
        _, first[schedule.id] = await make_due(store, schedule, timedelta(seconds=-chance.randint(4, 20)))
    return first


async def sent_by(store: Store, schedule: Schedule) -> list[Submission]:
    """Return the submissions of a schedule: those of its session, or of the sessions that it created."""
    sessions = [schedule.session_id] if schedule.session_id else []
    cursor: str | None = None
    while not schedule.session_id:
        page = await store.sessions(cursor=cursor, limit=1000)
        sessions += [each.id for each in page.items if each.id.startswith(f"{schedule.id}-")]
        cursor = page.next_cursor
        if cursor is None:
            break
    return [each for found in sessions for each in (await store.submissions(found, limit=1000)).items]


def tick_of(submission: Submission) -> datetime:
    assert submission.idempotency_key is not None
    name = submission.idempotency_key.rpartition("/")[2]
    return datetime.strptime(name, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)


async def keep_killing(url: str, chance: random.Random, stop: asyncio.Event) -> int:
    """Kill one of the workers about every second, and start another one, until told to stop."""
    kills = 0
    async with AsyncExitStack() as stack:

        async def start() -> WorkerProcess:
            return await stack.enter_async_context(worker(url, app=AGENT, **SHORT))  # pyright: ignore[reportArgumentType]

        running = list(await asyncio.gather(*(start() for _ in range(WORKERS))))
        while not stop.is_set():
            # A MongoDB server keeps the locks of a killed process's transaction for a minute: more kills would leave no schedule free.
            await asyncio.sleep(chance.uniform(0.5, 1.5) * (4 if url.startswith("mongodb") else 1))
            running.pop(chance.randrange(len(running))).signal(SIGKILL)
            kills += 1
            running.append(await start())
    return kills


async def test_each_tick_submits_once(engine: Engine, request: pytest.FixtureRequest, long: bool):
    seed = request.config.option.seed
    chance = random.Random(seed)
    stop = asyncio.Event()
    async with open_store(engine.url) as store:
        first = await schedules_with_near_ticks(store, chance)
        killing = asyncio.create_task(keep_killing(engine.url, chance, stop))
        wanted = max(first.values()).replace(second=0) + (5 if long else 1) * MINUTE

        async def are_past() -> bool:
            await asyncio.sleep(0.2)  # the workers need the processor
            found = (await store.schedules(limit=SCHEDULES)).items
            return all(each.last_at is not None and each.last_at >= wanted for each in found)

        try:
            await until(are_past, 800)
        finally:
            stop.set()
            kills = await killing
        assert kills >= (3 if engine.name == "mongodb" else 10)  # its server may run in an emulator
        late = timedelta()
        for schedule_id, first_tick in first.items():
            schedule = await store.schedule(schedule_id)
            assert schedule.problem is None, (seed, schedule)
            assert schedule.last_at is not None
            sent = await sent_by(store, schedule)
            expected = [first_tick]
            while expected[-1] < schedule.last_at:
                expected.append(expected[-1].replace(second=0) + MINUTE)
            assert sorted(tick_of(each) for each in sent) == expected, (seed, schedule)
            for each in sent:
                assert each.created_at >= tick_of(each), (seed, each)
                late = max(late, each.created_at - tick_of(each))
        assert late < (3 * MINUTE if engine.name == "mongodb" else MINUTE), (seed, late)
        assert await store.check() == []
