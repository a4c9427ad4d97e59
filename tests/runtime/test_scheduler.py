"""A worker fires due schedules, and makes up for missed ticks as they want."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Store, agent, open_store
from holdfast.config import load_settings
from holdfast.errors import TooMuchStored
from holdfast.media import open_media
from holdfast.retention import erase
from holdfast.runtime.scheduler import fire_due, plan
from holdfast.schedules import Schedule, ScheduleTerms
from holdfast.types import Submission
from tests.builders import new_session, until
from tests.conftest import Engine
from tests.contract.test_schedules import make_due, scheduled
from tests.runtime.agents import ended, working

NOW = datetime(2026, 5, 4, 12, 0, 30, tzinfo=UTC)


def terms(**given: Any) -> Schedule:
    row: dict[str, Any] = dict.fromkeys(Schedule.__dataclass_fields__)
    row |= {"cron": "*/10 * * * *", "timezone": "UTC", "text": "x", "catch_up": "once", "catch_up_limit": 3}
    return Schedule(**row | given)


def at(hour: int, minute: int) -> datetime:
    return datetime(2026, 5, 4, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("catch_up", "due_at", "expected"),
    [
        ("once", at(12, 0), (at(12, 0), at(12, 10))),
        ("once", at(9, 0), (at(9, 0), at(12, 10))),
        ("all", at(12, 0), (at(12, 0), at(12, 10))),
        ("all", at(11, 50), (at(11, 50), at(12, 0))),
        ("all", at(9, 0), (at(11, 40), at(11, 50))),
        ("none", at(12, 0), (at(12, 0), at(12, 10))),
        ("none", at(11, 50), (None, at(12, 0))),
        ("none", at(9, 0), (None, at(12, 0))),
    ],
)
def test_the_plan_for_a_tick(catch_up: str, due_at: datetime, expected: tuple[Any, ...]):
    assert plan(terms(catch_up=catch_up), due_at, NOW) == expected


def test_a_plan_after_years_without_a_worker_takes_no_time():
    due_at = NOW - timedelta(days=3000)
    for catch_up in ("once", "all", "none"):
        assert plan(terms(cron="* * * * *", catch_up=catch_up), due_at, NOW)[1] >= NOW - timedelta(minutes=3)


async def submissions(store: Store) -> list[Submission]:
    found = [
        submission
        for session in (await store.sessions()).items
        for submission in (await store.submissions(session.id)).items
    ]
    return sorted(found, key=lambda each: each.created_at)


@pytest.mark.parametrize(("catch_up", "expected"), [("once", {1}), ("all", {3, 4}), ("none", {0, 1})])
async def test_missed_ticks(store: Store, catch_up: str, expected: set[int]):
    """If a minute begins meanwhile, there is one more."""
    schedule = await scheduled(store, cron="* * * * *", catch_up=catch_up, catch_up_limit=3, overlap="queue")
    await make_due(store, schedule, timedelta(hours=1))
    assert 0 < await fire_due(store) <= 60
    sent = await submissions(store)
    assert len(sent) in expected
    after = await store.schedule(schedule.id)
    assert after.next_at is not None
    assert after.next_at > await store.now()
    if not sent:
        assert after.problem is not None
        assert after.problem.startswith("missed the tick at")


@pytest.mark.parametrize("overlap", ["skip", "interrupt"])
async def test_all_missed_ticks_queue_whatever_the_overlap(store: Store, overlap: str):
    half_an_hour_ago = ((await store.now()).minute + 30) % 60
    schedule = await scheduled(
        store, cron=f"{half_an_hour_ago} * * * *", catch_up="all", catch_up_limit=3, overlap=overlap
    )
    await make_due(store, schedule, timedelta(hours=9))
    await fire_due(store)
    assert [each.kind for each in await submissions(store)] == ["message"] * 3


async def test_a_schedule_in_an_unknown_zone_is_paused(store: Store):
    schedule = await scheduled(store)
    (row,) = await store.shared_rows("schedules")
    await store.delete_schedule(schedule.id, actor="ada")
    await store.add_shared_rows("schedules", [row | {"timezone": "Mars/Olympus"}])
    other = await scheduled(store)
    await make_due(store, schedule)
    await make_due(store, other)
    await fire_due(store)
    paused = await store.schedule(schedule.id)
    assert paused.paused
    assert paused.problem is not None
    assert "Mars/Olympus" in paused.problem
    assert (await store.schedule(other.id)).last_state == "queued"


async def test_a_tick_of_a_full_owner_submits_nothing(engine: Engine):
    settings = load_settings(store=engine.url, max_stored_bytes_per_owner=1)
    async with open_store(settings=settings) as store:
        schedule = await scheduled(store)
        session_id = await new_session(store)
        await store.submit(session_id, "message", '{"text": "hello"}')
        await store.measure(session_id)
        await make_due(store, schedule)
        await fire_due(store)
        refused = await store.schedule(schedule.id)
        assert refused.last_submission_id is None
        assert not refused.paused
        assert refused.problem is not None
        assert refused.problem.startswith("'ada' has ")
        assert session_id in refused.problem
        with pytest.raises(TooMuchStored):
            await store.run_schedule(schedule.id, actor="ada")
        await erase(store, open_media(store=store), session_id, actor="ada")
        await make_due(store, schedule)
        await fire_due(store)
        assert (await store.schedule(schedule.id)).last_state == "queued"


async def test_a_worker_fires_and_runs(store: Store):
    @agent("scribe")
    async def scribe(turn: Any) -> str:
        return f"did: {turn.text}"

    schedule = await store.create_schedule(
        ScheduleTerms(cron="0 0 1 1 *", text="go"), owner="ada", agent="scribe", actor="ada"
    )
    async with working(store, scribe):
        _, tick = await make_due(store, schedule, timedelta(seconds=-2))

        async def is_sent() -> bool:
            return bool(await submissions(store))

        await until(is_sent)
        (sent,) = await submissions(store)
        assert tick <= sent.created_at < tick + timedelta(seconds=5)
        assert (await ended(store, sent)).state == "done"
    after = await store.schedule(schedule.id)
    assert (after.last_state, after.last_at) == ("done", tick)


@pytest.mark.parametrize("named", [True, False])
async def test_an_interrupted_turn_makes_room_for_the_next_tick(store: Store, named: bool):
    @agent("scribe")
    async def scribe(turn: Any) -> str:
        if turn.text == "stay":
            await asyncio.Event().wait()
        return "done"

    session_id = await new_session(store) if named else None
    schedule = await scheduled(store, session_id, text="stay", overlap="interrupt")
    async with working(store, scribe):
        first = await store.run_schedule(schedule.id, actor="ada")

        async def is_running() -> bool:
            return (await store.submission(first.id)).state == "claimed"

        await until(is_running)
        await store.change_schedule(schedule.id, {"text": "go"}, actor="ada")
        await make_due(store, schedule)

        async def has_fired() -> bool:
            return (await store.schedule(schedule.id)).last_submission_id != first.id

        await until(has_fired)
        stopped = await ended(store, first)
        assert (stopped.state, stopped.reason) == ("failed", "interrupted")
        second = (await store.schedule(schedule.id)).last_submission_id
        assert second is not None
        assert (await ended(store, await store.submission(second))).state == "done"


async def test_a_worker_fires_schedules_of_agents_that_it_does_not_serve(store: Store):
    @agent("another")
    async def another(turn: Any) -> str:
        return str(turn)

    schedule = await scheduled(store)
    async with working(store, another):
        await make_due(store, schedule)

        async def is_sent() -> bool:
            return bool(await submissions(store))

        await until(is_sent)
    (session,) = (await store.sessions()).items
    assert (session.status, session.waiting_for) == ("queued", "worker")
    assert json.loads(session.metadata) == {"schedule": schedule.id}
