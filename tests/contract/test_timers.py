"""Submissions for later, and turns that wait until a time: rows with a time, by the clock of the database."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from holdfast.errors import BadInput, TurnInProgress
from holdfast.store import Store
from holdfast.types import Batch, Lease, Run, SubmissionChange, Work
from tests.builders import brief, held_session, new_session, until

SOON = timedelta(seconds=1)
EAST, WEST = timezone(timedelta(hours=14)), timezone(-timedelta(hours=14))


async def later(store: Store, session_id: str, delay: timedelta = SOON) -> datetime:
    at = await store.now() + delay
    await store.submit(session_id, "message", '{"text": "later"}', deliver_at=at)
    return at


async def wait_for(store: Store, lease: Lease, submission_id: str, at: datetime | None) -> None:
    """End a turn as waiting, until a time or an answer."""
    waits = SubmissionChange(id=submission_id, state="waiting", reason="timer", deliver_at=at)
    await store.write(lease, Batch(submissions=[waits], status="waiting", waiting_for="sleep", release=True))


async def sleeping(store: Store, delay: timedelta | None = SOON) -> tuple[str, Work, datetime | None]:
    session_id = await new_session(store)
    await store.submit(session_id, "message", '{"text": "now"}')
    holder = await store.join("first", ttl=60)
    (work,) = await store.next_work(holder)
    assert work.submission is not None
    at = None if delay is None else await store.now() + delay
    await wait_for(store, work.lease, work.submission.id, at)
    return session_id, work, at


async def test_a_submission_for_later_is_taken_then_and_not_before(store: Store):
    session_id = await new_session(store)
    at = await later(store, session_id)
    session = await store.session(session_id)
    assert (session.status, session.waiting_for, session.pending) == ("queued", "timer", 1)
    holder = await store.join("test", ttl=60)
    assert await store.next_work(holder) == []
    assert 0 < (await store.ready_in(holder) or 0) <= SOON.total_seconds()
    works: list[Work] = []

    async def claimed() -> bool:
        works.extend(await store.next_work(holder))
        return bool(works)

    await until(claimed)
    (work,) = works
    assert work.submission is not None
    assert work.submission.deliver_at == at
    assert work.submission.started_at is not None
    assert work.submission.started_at >= at
    assert await store.ready_in(holder) is None
    assert await store.check() == []


async def test_a_submission_for_now_overtakes_one_for_later(store: Store):
    session_id = await new_session(store)
    await later(store, session_id, timedelta(hours=1))
    now = await store.submit(session_id, "message", '{"text": "now"}')
    holder = await store.join("test", ttl=60)
    assert await store.ready_in(holder) == 0
    (work,) = await store.next_work(holder)
    assert work.submission is not None
    assert work.submission.id == now.id
    assert await store.take(work.lease) is None
    done = SubmissionChange(id=now.id, state="done")
    await store.write(work.lease, Batch(submissions=[done], status="idle", release=True))
    assert 3000 < (await store.ready_in(holder) or 0) <= 3600
    assert (await store.session(session_id)).waiting_for == "timer"
    assert await store.check() == []


async def test_a_message_for_later_does_not_hide_that_a_session_failed(store: Store):
    lease, _ = await held_session(store)
    session_id = lease.session_id
    await store.write(lease, Batch(status="failed", error="out of stock", release=True))
    at = await later(store, session_id)
    failed = await store.session(session_id)
    assert (failed.status, failed.error, failed.pending) == ("failed", "out of stock", 1)
    assert [each.id for each in (await store.sessions(status="failed")).items] == [session_id]
    assert (await store.sessions(status="queued")).items == []

    async def is_due() -> bool:
        return await store.now() >= at

    await until(is_due)
    assert (await store.session(session_id)).status == "queued"


async def test_a_session_with_a_message_for_later_is_not_busy(store: Store):
    session_id = await new_session(store)
    await later(store, session_id, timedelta(hours=1))
    await store.submit(session_id, "message", '{"text": "now"}', when_busy="reject")
    with pytest.raises(TurnInProgress, match=r"open submissions: 1\)"):
        await store.submit(session_id, "message", '{"text": "too"}', when_busy="reject")


@pytest.mark.parametrize("delay", [timedelta(days=-365), timedelta(0)])
async def test_a_time_in_the_past_is_now(store: Store, delay: timedelta):
    session_id = await new_session(store)
    await later(store, session_id, delay)
    (work,) = await store.next_work(await store.join("test", ttl=60))
    assert work.session.id == session_id


@pytest.mark.parametrize(
    "at", [datetime(1969, 12, 31, tzinfo=UTC), datetime.min.replace(tzinfo=EAST)], ids=str
)
async def test_a_time_before_1970_is_now(store: Store, at: datetime):
    session_id = await new_session(store)
    late = await store.submit(session_id, "message", '{"text": "late"}', deliver_at=at)
    (work,) = await store.next_work(await store.join("test", ttl=60))
    assert work.submission is not None
    assert work.submission.id == late.id


async def test_times_that_are_refused(store: Store):
    session_id = await new_session(store)
    with pytest.raises(BadInput, match="deliver_at has no time zone"):
        await store.submit(session_id, "message", deliver_at=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(BadInput, match="more than ten years ahead"):
        await store.submit(session_id, "message", deliver_at=datetime(2100, 1, 1, tzinfo=UTC))
    with pytest.raises(BadInput, match="more than ten years ahead"):
        await store.submit(session_id, "message", deliver_at=datetime.max.replace(tzinfo=WEST))
    assert (await store.submissions(session_id)).items == []


async def test_a_waiting_turn_continues_at_its_time(store: Store):
    session_id, _, at = await sleeping(store)
    session = await store.session(session_id)
    assert (session.status, session.waiting_for) == ("waiting", "sleep")
    holder = await store.join("second", ttl=60)
    assert await store.next_work(holder) == []
    assert await store.check() == []
    await asyncio.sleep(await store.ready_in(holder) or 0)
    (work,) = await store.next_work(holder)
    assert work.submission is not None
    assert work.submission.started_at is not None
    assert at is not None
    assert work.submission.started_at >= at
    assert (work.submission.state, work.submission.attempts) == ("claimed", 1)
    assert work.submission.reason is None, "it does not wait any more"
    assert work.session.status == "queued"
    assert (await store.session(session_id)).waiting_for is None
    assert await store.check() == []


async def test_a_waiting_turn_without_a_time_does_not_continue(store: Store):
    await sleeping(store, None)
    holder = await store.join("second", ttl=60)
    assert await store.ready_in(holder) is None
    assert await store.next_work(holder) == []


async def test_messages_wait_behind_a_turn_that_sleeps(store: Store):
    session_id, _, _ = await sleeping(store, timedelta(hours=1))
    await store.submit(session_id, "message", '{"text": "next"}')
    holder = await store.join("second", ttl=60)
    assert await store.next_work(holder) == []
    await store.submit(session_id, "interrupt", lane="control")
    (work,) = await store.next_work(holder)
    assert work.submission is not None
    assert work.submission.kind == "interrupt"


@pytest.mark.parametrize("through", ["a claim", "take"])
async def test_a_message_for_later_does_not_overtake_a_turn_that_was_interrupted(store: Store, through: str):
    session_id = await new_session(store)
    await later(store, session_id, SOON)
    turn = await store.submit(session_id, "message", '{"text": "now"}')
    holder = await store.join("first", ttl=60)
    (work,) = await store.next_work(holder)
    assert work.submission is not None
    assert work.submission.id == turn.id
    run = Run(id="begun", agent="scribe", status="running")
    begun = SubmissionChange(id=turn.id, state="claimed", run_id=run.id)
    await store.write(work.lease, Batch(runs=[run], submissions=[begun], status="running"))
    interrupted = SubmissionChange(id=turn.id, state="queued", run_id=run.id)
    await asyncio.sleep(SOON.total_seconds())
    if through == "take":
        await store.write(work.lease, Batch(submissions=[interrupted]))
        next_one = await store.take(work.lease)
        assert next_one is not None
        assert next_one.id == turn.id
        return
    await store.write(work.lease, Batch(submissions=[interrupted], status="idle", release=True))
    (work,) = await store.next_work(holder)
    assert work.submission is not None
    assert work.submission.id == turn.id
    done = SubmissionChange(id=turn.id, state="done", run_id=run.id)
    await store.write(work.lease, Batch(submissions=[done], status="idle", release=True))
    (work,) = await store.next_work(holder)
    assert work.submission is not None
    assert work.submission.payload == '{"text": "later"}'


async def test_an_answer_removes_the_time(store: Store):
    session_id, first, _ = await sleeping(store, timedelta(hours=1))
    assert first.submission is not None
    await store.submit(session_id, "approval", lane="control")
    holder = await store.join("second", ttl=60)
    (work,) = await store.next_work(holder)
    assert work.submission is not None
    changes = [
        SubmissionChange(id=work.submission.id, state="done"),
        SubmissionChange(id=first.submission.id, state="queued"),
    ]
    await store.write(work.lease, Batch(submissions=changes, status="idle", release=True))
    (work,) = await store.next_work(holder)
    assert work.submission is not None
    assert (work.submission.id, work.submission.deliver_at) == (first.submission.id, None)


async def test_a_turn_that_continued_survives_its_worker(store: Store):
    session_id, first, _ = await sleeping(store)
    await asyncio.sleep(SOON.total_seconds())
    dying = await store.join("dying", ttl=brief(store))
    assert await store.next_work(dying)
    heir = await store.join("heir", ttl=60)

    async def freed() -> bool:
        return session_id in await store.reclaim()

    await until(freed)
    (work,) = await store.next_work(heir)
    assert work.submission is not None
    assert first.submission is not None
    assert (work.submission.id, work.submission.attempts) == (first.submission.id, 2)
    assert await store.check() == []


async def test_sleepers_do_not_count_as_ready(store: Store):
    await later(store, await new_session(store), timedelta(hours=1))
    assert await store.ready_agents() == {}
    assert (await store.schema()).queue_wait == 0


async def test_a_waiting_turn_shows_when_it_continues(store: Store):
    session_id, _, at = await sleeping(store, timedelta(hours=1))
    (waiting,) = (await store.submissions(session_id)).items
    assert (waiting.state, waiting.deliver_at) == ("waiting", at)
