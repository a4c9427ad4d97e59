"""What the sweep stands on: what may be due is found in order, and one holder at a time does it."""

import asyncio

import pytest

from holdfast.errors import BadCursor, BadInput
from holdfast.store import Store
from holdfast.types import Batch, SubmissionChange
from tests.builders import held_session


async def ids(store: Store, by: str, agent: str | None, limit: int = 2, older_than: float = 0) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.due(by, agent=agent, older_than=older_than, cursor=cursor, limit=limit)  # pyright: ignore[reportArgumentType]
        found += [item.session_id for item in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return found


async def test_agents_are_named_once(store: Store):
    assert await store.agents() == []
    for agent in ("b", "a", "b", "a", "c"):
        await store.create_session(agent=agent, owner="o")
    assert await store.agents() == ["a", "b", "c"]


async def test_what_may_be_due_is_listed_in_order(store: Store):
    made = [await store.create_session(agent="a", owner="o", metadata='{"n": 1}') for _ in range(5)]
    await store.create_session(agent="b", owner="o")
    first, held, third, active, last = [session.id for session in made]
    await store.update_session(held, hold=True)
    await store.submit(active, "message")
    assert await ids(store, "idle", "a") == [first, third, last, active]
    assert await ids(store, "age", "a") == [first, third, active, last]
    assert await ids(store, "cleaned", "a") == []
    assert await ids(store, "idle", "a", older_than=3600) == []
    assert await ids(store, "age", "a", older_than=float("inf")) == []
    (found, *_) = (await store.due("idle", agent="a", older_than=0)).items
    assert (found.agent, found.status, found.metadata) == ("a", "idle", '{"n": 1}')
    assert found.created_at == made[0].created_at <= found.now
    lease = await store.acquire(first, await store.join("h", ttl=60))
    await store.begin_cleaning(lease, idle=0)
    assert first in await ids(store, "idle", "a"), "what was begun is found again"
    await store.finish_cleaning(lease, actor="t")
    assert await ids(store, "idle", "a") == [third, last, active]
    assert await ids(store, "cleaned", "a") == [first]
    for wrong in ({"older_than": -1.0}, {"older_than": float("nan")}, {"older_than": 0.0, "limit": 0}):
        with pytest.raises(BadInput):
            await store.due("idle", agent="a", **wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput):
        await store.due("soon", agent="a", older_than=0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadCursor):
        await store.due("idle", agent="a", older_than=0, cursor="x")


async def test_submissions_that_ended_are_dropped(store: Store):
    lease, _ = await held_session(store)
    ended = [await store.submit(lease.session_id, "message") for _ in range(3)]
    queued = await store.submit(lease.session_id, "message")
    changes = [SubmissionChange(id=submission.id, state="done") for submission in ended]
    await store.write(lease, Batch(submissions=changes))
    found: list[str | None] = []
    page = await store.due("submissions", older_than=0, limit=2)
    while page.next_cursor is not None:
        found += [item.submission_id for item in page.items]
        page = await store.due("submissions", older_than=0, limit=2, cursor=page.next_cursor)
    found += [item.submission_id for item in page.items]
    assert found == [submission.id for submission in ended]
    assert (await store.due("submissions", older_than=60)).items == []
    everything = [queued.id, *(submission.id for submission in ended)]
    await store.update_session(lease.session_id, hold=True)
    assert (await store.due("submissions", older_than=0)).items == []
    assert await store.drop_submissions(everything) == 0, "a hold is looked at again"
    await store.update_session(lease.session_id, hold=False)
    assert await store.drop_submissions(everything) == 3
    assert [s.id for s in (await store.submissions(lease.session_id)).items] == [queued.id]


async def test_one_holder_at_a_time_has_a_duty(store: Store):
    assert await store.duty("sweep") is None
    one, two = await store.join("one", ttl=60), await store.join("two", ttl=60)
    assert await store.take_duty("sweep", one)
    assert await store.take_duty("sweep", one), "again is the same"
    assert not await store.take_duty("sweep", two)
    await store.leave_duty("sweep", two, detail='{"by": "two"}')
    duty = await store.duty("sweep")
    assert duty is not None
    assert (duty.holder, duty.done_at, duty.detail) == ("one", None, "{}")
    await store.leave_duty("sweep", one, detail='{"by": "one"}')
    duty = await store.duty("sweep")
    assert duty is not None
    assert (duty.holder, duty.detail) == (None, '{"by": "one"}')
    assert not await store.take_duty("sweep", two, every=60), "it was done a moment ago"
    assert await store.take_duty("sweep", two)
    await store.leave_duty("sweep", two)
    assert await store.take_duty("sweep", one)
    await store.leave(one)
    assert await store.take_duty("sweep", two), "its holder is gone"


async def test_of_many_only_one_takes_a_duty(store: Store):
    holders = [await store.join(f"h{n}") for n in range(8)]
    taken = await asyncio.gather(*(store.take_duty("sweep", holder) for holder in holders))
    assert sum(taken) == 1
