import asyncio

import pytest

from holdfast.errors import BadInput, HolderLost, LeaseLost
from holdfast.store import Store
from holdfast.types import Batch, Checkpoint, Lease, Segment, SubmissionChange, Work
from tests.builders import new_session, ticks, until, within


async def queue(store: Store, sessions: int, each: int = 1) -> list[str]:
    ids = [await new_session(store) for _ in range(sessions)]
    for session_id in ids:
        for number in range(each):
            await store.submit(session_id, "message", f'{{"number": {number}}}')
    return ids


async def kinds(store: Store, session_id: str) -> list[tuple[int, str]]:
    return [(event.seq, event.kind) for event in await store.events(session_id)]


async def end(store: Store, work: Work, **more: object) -> None:
    assert work.submission is not None
    done = [SubmissionChange(id=work.submission.id, state="done")]
    await store.write(work.lease, Batch(submissions=done, status="idle", release=True, **more))  # pyright: ignore[reportArgumentType]


async def test_work_is_what_claim_and_take_give(store: Store):
    (session_id,) = await queue(store, 1, each=2)
    holder = await store.join("test", ttl=60)
    (work,) = await store.next_work(holder)
    assert work.session == await store.session(session_id)
    assert work.session.pending == 2
    assert work.fresh
    assert work.session.holder == "test"
    assert work.submission is not None
    assert work.submission == (await store.submissions(session_id)).items[0]
    assert (work.submission.state, work.submission.attempts) == ("claimed", 1)
    assert (work.lease.epoch, work.lease.seq) == (1, 3)
    assert await kinds(store, session_id) == [
        (1, "submission_queued"),
        (2, "submission_queued"),
        (3, "submission_started"),
    ]
    started = (await store.events(session_id, after=2))[0]
    await store.release(work.lease)
    lease = await store.acquire(session_id, holder)  # for comparison, the other way
    assert await store.take(lease) is not None
    other = (await store.events(session_id, after=3))[0]
    assert other.payload == started.payload.replace('"attempt": 1', '"attempt": 2')
    assert await store.write(lease, ticks()) == 5


async def test_several_at_once_and_no_more_than_asked_for(store: Store):
    ids = await queue(store, 5)
    holder = await store.join("test", ttl=60)
    first = await store.next_work(holder, limit=3)
    second = await store.next_work(holder, limit=3)
    assert [work.session.id for work in (*first, *second)] == ids
    assert [len(first), len(second)] == [3, 2]
    for work in (*first, *second):
        assert await kinds(store, work.session.id) == [(1, "submission_queued"), (2, "submission_started")]
        await end(store, work)
    assert await store.next_work(holder, limit=3) == []
    assert await store.check() == []


async def test_work_is_only_for_those_who_are_alive_and_know_the_agent(store: Store):
    await queue(store, 1)
    holder = await store.join("test", ttl=60)
    assert await store.next_work(holder, agents=["another"]) == []
    assert await store.next_work(holder, agents=[]) == []
    await store.leave(holder)
    with pytest.raises(HolderLost):
        await store.next_work(holder)
    other = await store.join("other", ttl=60)
    (work,) = await store.next_work(other, agents=["scribe", "another"])
    assert work.submission is not None
    assert work.submission.attempts == 1


async def test_while_a_person_is_waited_for_only_the_control_lane_is_work(store: Store):
    (session_id,) = await queue(store, 1, each=2)
    holder = await store.join("test", ttl=60)
    (work,) = await store.next_work(holder)
    assert work.submission is not None
    waiting = SubmissionChange(id=work.submission.id, state="waiting", reason="deploy")
    await store.write(work.lease, Batch(submissions=[waiting], status="waiting", release=True))
    assert await store.next_work(holder) == []
    await store.submit(session_id, "approval", lane="control")
    (work,) = await store.next_work(holder)
    assert work.session.status == "waiting"
    assert work.submission is not None
    assert work.submission.kind == "approval"


async def test_what_was_tried_too_often_is_left_to_take(store: Store):
    (session_id,) = await queue(store, 1)
    holder = await store.join("test", ttl=60)
    for _ in range(2):
        (work,) = await store.next_work(holder, max_attempts=2)
        assert work.submission is not None
        await store.release(work.lease)
    (work,) = await store.next_work(holder, max_attempts=2)
    assert work.submission is None
    assert await store.take(work.lease, max_attempts=2) is None
    assert (await store.submissions(session_id)).items[0].state == "dead"


async def test_no_two_get_the_same_work(store: Store):
    ids = await queue(store, 24)
    holders = [await store.join(f"worker {n}", ttl=60) for n in range(4)]
    found: list[str] = []

    async def drain(number: int) -> None:
        while works := await store.next_work(holders[number], limit=3):
            for work in works:
                found.append(work.session.id)
                await end(store, work)

    await asyncio.gather(*map(drain, range(4)))
    assert sorted(found) == sorted(ids)
    assert await store.check() == []


async def test_cancelled_while_it_looks_for_work_it_holds_nothing_in_secret(store: Store):
    (session_id,) = await queue(store, 1)
    holder = await store.join("test", ttl=60)
    for turns in range(12):
        looking = asyncio.create_task(store.next_work(holder, max_attempts=100))
        for _ in range(turns):
            await asyncio.sleep(0)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        if not looking.cancelled():
            for work in looking.result():
                await store.release(work.lease)

        async def free() -> bool:
            return (await store.session(session_id)).holder is None

        await until(free)
    (work,) = await store.next_work(holder, max_attempts=100)
    assert work.submission is not None


async def test_a_write_that_lets_go_lets_go(store: Store):
    (session_id,) = await queue(store, 1)
    holder = await store.join("test", ttl=60)
    (work,) = await store.next_work(holder)
    history = {"segments": [Segment(number=1)], "checkpoints": [Checkpoint(id="c", segment=1, length=0)]}
    await end(store, work, events=ticks().events, **history)
    assert work.lease.released
    assert work.lease.lost
    session = await store.session(session_id)
    assert (session.status, session.holder, session.pending) == ("idle", None, 0)
    assert await store.next_work(holder) == []
    with pytest.raises(LeaseLost):
        await store.write(work.lease, ticks())
    await store.release(work.lease)  # harmless
    await store.submit(session_id, "message")
    assert [work.fresh for work in await store.next_work(holder)] == [False]


async def test_a_session_that_is_let_go_with_work_left_is_ready(store: Store):
    (session_id,) = await queue(store, 1, each=2)
    holder = await store.join("test", ttl=60)
    (work,) = await store.next_work(holder)
    assert await store.take(work.lease, id=(await store.submissions(session_id)).items[1].id) is not None
    with store.ready_bell() as bell:
        await end(store, work)
        await bell.wait(10)
        (work,) = await store.next_work(holder)
    assert work.submission is not None
    assert (work.submission.payload, work.submission.attempts) == ('{"number": 1}', 2)


async def test_whoever_lets_go_says_how_the_session_stands(store: Store):
    await queue(store, 1)
    holder = await store.join("test", ttl=60)
    (work,) = await store.next_work(holder)
    for status in (None, "running"):
        with pytest.raises(BadInput, match="other than running"):
            await store.write(work.lease, Batch(status=status, release=True))
    assert not work.lease.lost


async def test_a_refused_write_does_not_let_go(store: Store):
    (session_id,) = await queue(store, 1)
    holder = await store.join("test", ttl=60)
    (work,) = await store.next_work(holder)
    stale = Lease(session_id=session_id, epoch=work.lease.epoch - 1, holder=holder.id)
    with pytest.raises(LeaseLost):
        await store.write(stale, Batch(status="idle", release=True))
    assert not stale.released
    assert (await store.session(session_id)).holder == "test"


async def test_submitting_while_others_let_go_leaves_nothing_behind(store: Store):
    """Whoever submits sees the session held or free; either way somebody hears of it."""
    (session_id,) = await queue(store, 1)
    holder = await store.join("test", ttl=60)
    done = 0

    async def submit() -> None:
        for _ in range(40):
            await store.submit(session_id, "message")

    async def work_off() -> None:
        nonlocal done
        while done < 41:
            for work in await store.next_work(holder):
                await end(store, work)
                done += 1

    async with within(store, 60):
        await asyncio.gather(submit(), work_off())
    assert (await store.session(session_id)).pending == 0
