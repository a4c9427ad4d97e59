"""Schedules: each tick submits once, and what prevents it is recorded."""

import asyncio
import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest

from holdfast.errors import BadId, BadInput, BadText, Conflict, NotFound, SessionCleaned, SessionNotFound
from holdfast.media import open_media
from holdfast.retention import clean, erase
from holdfast.schedules import Schedule, ScheduleTerms
from holdfast.store import Store
from holdfast.store import schedules as module
from holdfast.types import Batch, Submission, SubmissionChange
from tests.builders import new_session

MINUTE = timedelta(minutes=1)
TERMS = ScheduleTerms(cron="0 9 * * MON-FRI", timezone="Europe/Berlin", text="Write the report.")


async def scheduled(store: Store, session_id: str | None = None, **terms: Any) -> Schedule:
    agent = "scribe" if session_id is None else None
    return await store.create_schedule(
        replace(TERMS, **terms), owner="ada", agent=agent, session_id=session_id, actor="ada"
    )


async def make_due(store: Store, schedule: Schedule, ago: timedelta = MINUTE) -> tuple[Schedule, datetime]:
    """Move the next tick to the past; return the schedule as a worker reads it, and that tick."""
    current = await store.schedule(schedule.id)
    tick = (await store.now() - ago).replace(microsecond=0)
    await store.miss_tick(current, tick=tick, next_at=tick, problem="a test")
    upcoming, _ = await store.upcoming_schedules(limit=100)
    (due,) = [each for each in upcoming if each.id == schedule.id]
    return due, tick


async def fire(store: Store, schedule: Schedule, ago: timedelta = MINUTE) -> Submission | None:
    due, tick = await make_due(store, schedule, ago)
    return await store.fire_schedule(due, tick=tick, next_at=await store.now() + timedelta(days=1))


async def end_turn(store: Store, submission: Submission, state: str = "done") -> None:
    holder = await store.join("worker", ttl=60)
    lease = await store.acquire(submission.session_id, holder)
    taken = await store.take(lease, id=submission.id)
    assert taken is not None
    change = SubmissionChange(id=taken.id, state=state, reason="why")  # pyright: ignore[reportArgumentType]
    await store.write(lease, Batch(submissions=[change], status="idle", release=True))
    await store.leave(holder)


async def test_a_schedule_has_its_next_tick(store: Store):
    schedule = await scheduled(store)
    assert schedule == await store.schedule(schedule.id)
    assert (schedule.owner, schedule.agent, schedule.paused, schedule.problem) == (
        "ada",
        "scribe",
        False,
        None,
    )
    assert schedule.next_at is not None
    assert schedule.next_at > await store.now()
    upcoming, now = await store.upcoming_schedules()
    assert [each.id for each in upcoming] == [schedule.id]
    assert upcoming[0].text == ""
    assert abs(now - await store.now()) < MINUTE
    (entry,) = (await store.audit_log()).items
    assert (entry.actor, entry.action) == ("ada", "create schedule")
    assert json.loads(entry.detail) == {"schedule": schedule.id}


async def test_a_tick_creates_a_session_with_its_submission(store: Store):
    schedule = await scheduled(store, title="Daily report")
    sent = await fire(store, schedule)
    assert sent is not None
    after = await store.schedule(schedule.id)
    assert after.last_at is not None
    name = f"{after.last_at:%Y%m%dT%H%M%SZ}"
    session = await store.session(f"{schedule.id}-{name}")
    assert (session.id, session.owner, session.agent) == (sent.session_id, "ada", "scribe")
    assert (session.title, session.status, session.waiting_for) == ("Daily report", "queued", "worker")
    assert json.loads(session.metadata) == {"schedule": schedule.id}
    assert json.loads(sent.payload) == {"text": "Write the report."}
    assert sent.idempotency_key == f"schedule:{schedule.id}/{name}"
    (queued,) = await store.events(session.id)
    assert json.loads(queued.payload)["schedule"] == schedule.id
    assert (after.last_session_id, after.last_submission_id) == (session.id, sent.id)
    assert (after.last_state, after.problem) == ("queued", None)
    assert after.next_at is not None
    assert after.next_at > await store.now()


async def test_a_session_without_a_title_gets_the_first_line(store: Store):
    sent = await fire(store, await scheduled(store, text="Tidy up\nand report"))
    assert sent is not None
    assert (await store.session(sent.session_id)).title == "Tidy up"


async def test_a_tick_submits_to_its_session(store: Store):
    session_id = await new_session(store)
    schedule = await scheduled(store, session_id)
    assert schedule.agent == "scribe"
    sent = await fire(store, schedule)
    assert sent is not None
    assert (sent.session_id, sent.state, sent.kind) == (session_id, "queued", "message")


async def test_of_several_processes_one_fires(store: Store):
    for session_id in (None, await new_session(store)):
        schedule = await scheduled(store, session_id)
        due, tick = await make_due(store, schedule)
        next_at = await store.now() + timedelta(days=1)
        fired = await asyncio.gather(
            *(store.fire_schedule(due, tick=tick, next_at=next_at) for _ in range(8))
        )
        (sent,) = [each for each in fired if each is not None]
        assert [each.id for each in (await store.submissions(sent.session_id)).items] == [sent.id]
        assert await store.fire_schedule(due, tick=tick, next_at=next_at) is None
        after = await store.schedule(schedule.id)
        assert (after.last_submission_id, after.problem) == (sent.id, None)


async def test_a_tick_does_not_fire_early(store: Store):
    schedule = await scheduled(store)
    assert schedule.next_at is not None
    upcoming, _ = await store.upcoming_schedules()
    assert await store.fire_schedule(upcoming[0], tick=schedule.next_at, next_at=schedule.next_at) is None
    assert await store.schedule(schedule.id) == schedule
    assert (await store.sessions()).items == []


async def test_a_tick_is_recognized_if_the_clock_goes_back(store: Store):
    schedule = await scheduled(store, overlap="queue")
    due, tick = await make_due(store, schedule)
    sent = await store.fire_schedule(due, tick=tick, next_at=tick)
    again, _ = await store.upcoming_schedules()
    repeated = await store.fire_schedule(again[0], tick=tick, next_at=tick + timedelta(days=1))
    assert sent is not None
    assert repeated is not None
    assert repeated.id == sent.id
    assert len((await store.submissions(sent.session_id)).items) == 1


@pytest.mark.parametrize("named", [True, False])
async def test_skip_waits_for_the_turn_before(store: Store, named: bool):
    schedule = await scheduled(store, await new_session(store) if named else None)
    first = await fire(store, schedule, 2 * MINUTE)
    assert first is not None
    assert await fire(store, schedule) is None
    skipped = await store.schedule(schedule.id)
    assert (skipped.last_submission_id, skipped.paused) == (first.id, False)
    assert skipped.problem is not None
    assert "the turn of the previous tick had not ended" in skipped.problem
    await end_turn(store, first, "failed")
    failed = await store.schedule(schedule.id)
    assert (failed.last_state, failed.last_reason) == ("failed", "why")
    sent = await fire(store, schedule, timedelta(seconds=30))
    assert sent is not None
    assert (await store.schedule(schedule.id)).problem is None


async def test_queue_lines_up(store: Store):
    session_id = await new_session(store)
    schedule = await scheduled(store, session_id, overlap="queue")
    sent = [await fire(store, schedule, number * MINUTE) for number in (3, 2, 1)]
    assert [each.id for each in (await store.submissions(session_id)).items] == [
        each.id for each in sent if each is not None
    ]


@pytest.mark.parametrize("named", [True, False])
async def test_interrupt_stops_the_turn_before_and_no_other(store: Store, named: bool):
    schedule = await scheduled(store, await new_session(store) if named else None, overlap="interrupt")
    first = await fire(store, schedule, 2 * MINUTE)
    assert first is not None
    second = await fire(store, schedule)
    assert second is not None
    sent = (await store.submissions(first.session_id)).items
    (stop,) = [each for each in sent if each.kind == "interrupt"]
    assert (json.loads(stop.payload), stop.lane) == ({"submission_id": first.id}, "control")
    assert (second.session_id == first.session_id) == named
    assert second.when_busy == "queue"
    await end_turn(store, second)
    assert await fire(store, schedule, timedelta(seconds=30)) is not None
    stops = [each for each in (await store.submissions(second.session_id)).items if each.kind == "interrupt"]
    assert len(stops) == (1 if named else 0)


async def test_a_session_that_refuses_is_recorded(store: Store):
    session_id = await new_session(store)
    schedule = await scheduled(store, session_id)
    await clean(store, open_media(store=store), session_id, actor="ada", idle_days=0)
    assert await fire(store, schedule) is None
    refused = await store.schedule(schedule.id)
    assert refused.problem is not None
    assert f"Session {session_id} was cleaned" in refused.problem
    assert not refused.paused
    assert refused.next_at is not None
    assert refused.next_at > await store.now()


async def test_a_full_session_is_recorded(store: Store):
    session_id = await new_session(store)
    schedule = await scheduled(store, session_id, overlap="queue")
    with patch.object(store, "_max_pending", 1):
        assert await fire(store, schedule, 2 * MINUTE) is not None
        assert await fire(store, schedule) is None
    problem = (await store.schedule(schedule.id)).problem
    assert problem is not None
    assert "has 1 pending submissions; the limit is 1" in problem


async def test_a_session_of_another_framework_is_refused(store: Store):
    foreign = await new_session(store, agent="adk", metadata='{"framework": "adk"}')
    with pytest.raises(Conflict, match="is stored by adk"):
        await scheduled(store, foreign)
    later = await new_session(store)
    schedule = await scheduled(store, later)
    await store.update_session(later, metadata='{"framework": "scribe"}')
    assert await fire(store, schedule) is None
    problem = (await store.schedule(schedule.id)).problem
    assert problem is not None
    assert "is stored by scribe" in problem


async def test_an_erasure_deletes_the_schedules_of_the_session(store: Store):
    session_id, other = await new_session(store), await new_session(store)
    schedule, kept = await scheduled(store, session_id), await scheduled(store, other)
    due, tick = await make_due(store, schedule)
    await erase(store, open_media(store=store), session_id, actor="eve")
    with pytest.raises(NotFound):
        await store.schedule(schedule.id)
    assert await store.fire_schedule(due, tick=tick, next_at=tick) is None
    assert (await store.schedule(kept.id)).id == kept.id
    entries = (await store.audit_log(session_id=session_id)).items
    (deleted,) = [entry for entry in entries if entry.action == "delete schedule"]
    assert (deleted.actor, json.loads(deleted.detail)["schedules"]) == ("eve", [schedule.id])


async def test_a_schedule_whose_session_is_gone_is_paused(store: Store):
    """A copy of a store may contain the schedule without its session."""
    schedule = await scheduled(store, await new_session(store))
    (row,) = await store.shared_rows("schedules")
    await store.delete_schedule(schedule.id, actor="ada")
    await store.add_shared_rows("schedules", [row | {"session_id": "nowhere"}])
    assert await fire(store, schedule) is None
    paused = await store.schedule(schedule.id)
    assert (paused.paused, paused.next_at) == (True, None)
    assert paused.problem == "There is no session nowhere."
    assert (await store.audit_log()).items[0].actor == "schedules"
    assert (await store.upcoming_schedules())[0] == []


async def test_pause_resume_and_change(store: Store):
    schedule = await scheduled(store)
    await make_due(store, schedule)
    paused = await store.change_schedule(schedule.id, paused=True, actor="ada")
    assert (paused.paused, paused.next_at, paused.problem) == (True, None, "a test")
    assert (await store.upcoming_schedules())[0] == []
    changed = await store.change_schedule(schedule.id, {"cron": "* * * * *", "text": "new"}, actor="ada")
    assert (changed.cron, changed.text, changed.timezone, changed.next_at) == (
        "* * * * *",
        "new",
        "Europe/Berlin",
        None,
    )
    resumed = await store.change_schedule(schedule.id, paused=False, actor="ada")
    assert (resumed.paused, resumed.problem) == (False, None)
    assert resumed.next_at is not None
    assert timedelta(0) < resumed.next_at - await store.now() <= MINUTE
    same = await store.change_schedule(schedule.id, {"title": "Named"}, actor="ada")
    assert same.next_at == resumed.next_at
    actions = [entry.action for entry in (await store.audit_log()).items]
    assert actions == [
        "change schedule",
        "resume schedule",
        "change schedule",
        "pause schedule",
        "create schedule",
    ]


async def test_changes_at_once_are_all_made(store: Store):
    schedule = await scheduled(store)
    changes: list[dict[str, Any]] = [{"title": "t"}, {"text": "x"}, {"overlap": "queue"}, {"catch_up": "all"}]
    await asyncio.gather(*(store.change_schedule(schedule.id, each, actor="ada") for each in changes))
    after = await store.schedule(schedule.id)
    assert (after.title, after.text, after.overlap, after.catch_up) == ("t", "x", "queue", "all")


async def test_a_change_is_not_undone_by_a_tick(store: Store):
    schedule = await scheduled(store)
    due, tick = await make_due(store, schedule)
    await store.change_schedule(schedule.id, paused=True, actor="ada")
    assert await store.fire_schedule(due, tick=tick, next_at=tick) is None
    await store.miss_tick(due, tick=tick, next_at=tick, problem="late")
    assert (await store.schedule(schedule.id)).paused
    assert (await store.sessions()).items == []


async def test_run_now(store: Store):
    schedule = await scheduled(store)
    await store.change_schedule(schedule.id, paused=True, actor="ada")
    sent = await store.run_schedule(schedule.id, actor="ada")
    assert sent.session_id == f"{schedule.id}-{sent.id}"
    after = await store.schedule(schedule.id)
    assert (after.last_submission_id, after.paused, after.next_at) == (sent.id, True, None)
    with pytest.raises(Conflict, match="has not ended, and `overlap` is skip"):
        await store.run_schedule(schedule.id, actor="ada")
    await store.change_schedule(schedule.id, {"overlap": "queue"}, paused=False, actor="ada")
    before = await store.schedule(schedule.id)
    both = await asyncio.gather(*(store.run_schedule(schedule.id, actor="ada") for _ in range(2)))
    assert len({each.session_id for each in both}) == 2
    assert (await store.schedule(schedule.id)).next_at == before.next_at
    assert (await store.audit_log()).items[0].action == "run schedule"


async def test_delete(store: Store):
    schedule = await scheduled(store)
    sent = await fire(store, schedule)
    assert sent is not None
    await store.delete_schedule(schedule.id, actor="ada")
    with pytest.raises(NotFound, match="There is no schedule"):
        await store.delete_schedule(schedule.id, actor="ada")
    assert (await store.submission(sent.id)).state == "queued"


async def test_lists_are_pages_of_one_owner(store: Store):
    own = [(await scheduled(store)).id for _ in range(3)]
    other = await store.create_schedule(TERMS, owner="bob", agent="scribe", actor="bob")
    first = await store.schedules(owner="ada", limit=2)
    second = await store.schedules(owner="ada", limit=2, cursor=first.next_cursor)
    assert [each.id for each in (*first.items, *second.items)] == own
    assert [each.id for each in (await store.schedules()).items] == [*own, other.id]


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ({"cron": "* * * * * *"}, "6 fields"),
        ({"cron": "0 0 30 2 *"}, "no such date"),
        ({"timezone": "Mars/Olympus"}, "unknown time zone"),
        ({"text": ""}, "is empty"),
        ({"text": "ä" * 33_000}, "more than 65536 bytes"),
        ({"title": "x" * 1001}, "more than 1000"),
        ({"overlap": "reject"}, "not a valid overlap"),
        ({"catch_up": "some"}, "not a valid catch_up"),
        ({"catch_up_limit": 0}, "must be 1 to 100, not 0"),
        ({"catch_up_limit": -1}, "must be 1 to 100, not -1"),
        ({"catch_up_limit": 101}, "must be 1 to 100, not 101"),
    ],
)
async def test_terms_that_are_refused(store: Store, terms: dict[str, Any], problem: str):
    with pytest.raises((BadInput, BadText), match=problem):
        await scheduled(store, **terms)
    schedule = await scheduled(store)
    with pytest.raises((BadInput, BadText), match=problem):
        await store.change_schedule(schedule.id, terms, actor="ada")
    assert await store.schedule(schedule.id) == schedule


async def test_targets_that_are_refused(store: Store):
    theirs = await new_session(store, owner="bob")
    for session_id in (theirs, "nowhere"):
        with pytest.raises(SessionNotFound):
            await scheduled(store, session_id)
    cleaned = await new_session(store)
    await clean(store, open_media(store=store), cleaned, actor="ada", idle_days=0)
    with pytest.raises(SessionCleaned):
        await scheduled(store, cleaned)
    for agent, session_id in ((None, None), ("scribe", theirs)):
        with pytest.raises(BadInput, match="either an agent or a session"):
            await store.create_schedule(TERMS, owner="ada", agent=agent, session_id=session_id, actor="ada")


async def test_ids_that_are_refused(store: Store):
    await store.create_schedule(TERMS, owner="ada", agent="scribe", id="daily", actor="ada")
    with pytest.raises(Conflict, match="the schedule id daily is not available"):
        await store.create_schedule(TERMS, owner="bob", agent="scribe", id="daily", actor="bob")
    for bad in ("a b", "x" * 81):
        with pytest.raises(BadId):
            await store.create_schedule(TERMS, owner="ada", agent="scribe", id=bad, actor="ada")


async def test_the_number_of_schedules_is_limited(store: Store):
    with patch.object(module, "MOST_SCHEDULES", 2):
        await scheduled(store)
        await scheduled(store)
        with pytest.raises(Conflict, match="ada has 2 schedules, which is the limit"):
            await scheduled(store)
        await store.create_schedule(TERMS, owner="bob", agent="scribe", actor="bob")


async def test_a_session_of_another_owner_with_the_id_of_a_tick(store: Store):
    schedule = await scheduled(store)
    due, tick = await make_due(store, schedule)
    await new_session(store, owner="bob", id=f"{schedule.id}-{tick:%Y%m%dT%H%M%SZ}")
    assert await store.fire_schedule(due, tick=tick, next_at=tick + timedelta(days=9)) is None
    after = await store.schedule(schedule.id)
    assert not after.paused
    assert after.problem is not None
    assert "There is no session" in after.problem


async def test_a_schedule_that_moved_submits_nothing(store: Store):
    schedule = await scheduled(store)
    due, tick = await make_due(store, schedule)
    await store.move_schedules()
    assert (await store.upcoming_schedules())[0] == []
    assert await store.fire_schedule(due, tick=tick, next_at=tick) is None
    for call in (
        store.run_schedule(schedule.id, actor="ada"),
        store.change_schedule(schedule.id, paused=True, actor="ada"),
    ):
        with pytest.raises(Conflict, match="was moved to another store"):
            await call
    await store.reopen_schedule(schedule.id)
    assert await fire(store, schedule) is not None
