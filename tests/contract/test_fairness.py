"""Claims are fair between owners, in the order of priorities within an owner, and limited per owner and agent."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.store import Store, open_store
from holdfast.store.line import places_of
from holdfast.types import Batch, Holder, SubmissionChange, Work
from tests.builders import brief, until


async def ready(
    store: Store, owner: str, sessions: int = 1, *, agent: str = "bot", **options: Any
) -> list[str]:
    """Create sessions with one message each."""
    ids: list[str] = []
    for _ in range(sessions):
        session = await store.create_session(agent=agent, owner=owner)
        await store.submit(session.id, "message", '{"text": "hello"}', **options)
        ids.append(session.id)
    return ids


async def end(store: Store, work: Work) -> None:
    assert work.submission is not None
    done = SubmissionChange(id=work.submission.id, state="done")
    await store.write(work.lease, Batch(submissions=[done], status="idle", release=True))


async def serve(store: Store, holder: Holder, turns: int, *, agents: list[str] | None = None) -> list[str]:
    """Run one session after the other, and return their owners."""
    owners: list[str] = []
    for _ in range(turns):
        for work in await store.next_work(holder, agents=agents):
            owners.append(work.session.owner)
            await end(store, work)
    return owners


async def one(store: Store, holder: Holder) -> Work:
    (work,) = await store.next_work(holder)
    return work


async def test_owners_take_turns(store: Store):
    holder = await store.join("test", ttl=60)
    await ready(store, "busy", 6)
    await ready(store, "calm", 3)
    await ready(store, "late", 1)
    assert await serve(store, holder, 6) == ["busy", "calm", "late", "busy", "calm", "busy"]
    assert await serve(store, holder, 20) == ["calm", "busy", "busy", "busy"]
    assert await store.ready_in(holder) is None
    assert await store.check() == []


async def test_a_new_owner_is_next(store: Store):
    holder = await store.join("test", ttl=60)
    await ready(store, "busy", 12)
    assert await serve(store, holder, 3) == ["busy"] * 3
    await ready(store, "new")
    assert await serve(store, holder, 2) == ["new", "busy"]
    await ready(store, "first")
    await ready(store, "second")
    assert await serve(store, holder, 3) == ["first", "second", "busy"]


async def test_an_owner_with_one_session_at_a_time_does_not_starve_the_others(store: Store):
    """Also if each of them is ready before the next claim."""
    holder = await store.join("test", ttl=60)
    await ready(store, "busy", 8)
    await serve(store, holder, 1)
    owners: list[str] = []
    for _ in range(4):
        await ready(store, "steady")
        owners += await serve(store, holder, 1)
        await ready(store, "steady")
        owners += await serve(store, holder, 1)
    assert Counter(owners) == {"busy": 4, "steady": 4}
    assert "steady steady steady" not in " ".join(owners)


async def test_agents_take_turns(store: Store):
    holder = await store.join("test", ttl=60)
    await ready(store, "busy", 6, agent="first")
    await ready(store, "busy", 2, agent="second")
    agents: list[str] = []
    for _ in range(4):
        (work,) = await store.next_work(holder, agents=["first", "second", "unused"])
        agents.append(work.session.agent)
    assert Counter(agents) == {"first": 2, "second": 2}


async def test_two_workers_share_one_line(store: Store):
    holders = [await store.join(name, ttl=60) for name in ("one", "two")]
    await ready(store, "busy", 24)
    await ready(store, "calm", 6)
    first = await serve(store, holders[0], 2)
    owners = [*first]

    async def work(holder: Holder) -> None:
        for _ in range(5):
            owners.extend(await serve(store, holder, 1))

    await asyncio.gather(*(work(holder) for holder in holders))
    assert Counter(owners)["calm"] >= len(owners) / 2 - 2
    for holder in holders:
        await serve(store, holder, 30)
    assert await store.check() == []
    assert all(session.pending == 0 for session in (await store.sessions(limit=100)).items)


async def test_a_session_that_a_dead_holder_left_is_in_line_again(store: Store):
    holder = await store.join("test", ttl=60)
    await ready(store, "busy", 6)
    (lost,) = await ready(store, "calm")
    mortal = await store.join("mortal", ttl=brief(store))
    works = [await one(store, mortal), await one(store, mortal)]
    assert [work.session.owner for work in works] == ["busy", "calm"]

    async def freed() -> bool:
        return lost in await store.reclaim()

    await until(freed)
    assert "calm" in await serve(store, holder, 3)
    assert await store.check() == []


async def test_sleepers_line_up_when_they_are_due(store: Store):
    holder = await store.join("test", ttl=60)
    at = await store.now() + timedelta(seconds=4)
    await ready(store, "asleep", 2, deliver_at=at)
    await ready(store, "tomorrow", 3, deliver_at=at + timedelta(days=1))
    await ready(store, "busy", 8)
    assert await serve(store, holder, 2) == ["busy"] * 2

    async def due() -> bool:
        return await store.now() > at

    await until(due)
    assert await serve(store, holder, 4) == ["asleep", "busy", "asleep", "busy"]
    assert await serve(store, holder, 10) == ["busy"] * 4
    assert 80_000 < (await store.ready_in(holder, agents=["bot"]) or 0) < 90_000
    assert await store.check() == []


async def test_a_released_session_with_more_work_waits_its_turn(store: Store):
    holder = await store.join("test", ttl=60)
    await ready(store, "busy", 4)
    await serve(store, holder, 1)
    (session_id,) = await ready(store, "long")
    for _ in range(3):
        await store.submit(session_id, "message", '{"text": "more"}')
    assert await serve(store, holder, 6) == ["long", "busy", "long", "busy", "long", "busy"]


async def test_more_sessions_than_are_placed_at_once(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.store.line.PLACED_AT_ONCE", 3)
    holder = await store.join("test", ttl=60)
    await ready(store, "busy", 10)
    await ready(store, "calm")
    assert await serve(store, holder, 2) == ["busy", "calm"]


async def test_priorities_order_the_sessions_of_an_owner(store: Store):
    holder = await store.join("test", ttl=60)
    (low,) = await ready(store, "you", priority="low")
    normal = await ready(store, "you", 2)
    high = await ready(store, "you", 2, priority="high")
    works = [await one(store, holder) for _ in range(5)]
    assert [work.session.id for work in works] == [*high, *normal, low]
    assert works[0].submission is not None
    assert works[0].submission.priority == "high"
    assert (await store.submissions(low)).items[0].priority == "low"


async def test_a_priority_does_not_enlarge_the_share_of_an_owner(store: Store):
    holder = await store.join("test", ttl=60)
    await ready(store, "calm", 4)
    await ready(store, "loud", 4, priority="low")
    await serve(store, holder, 2)
    await ready(store, "loud", 6, priority="high")
    owners = await serve(store, holder, 6)
    assert Counter(owners) == {"calm": 3, "loud": 3}
    assert await serve(store, holder, 20) == ["loud"] * 6


async def test_a_session_has_the_highest_priority_of_its_submissions(store: Store):
    holder = await store.join("test", ttl=60)
    first = await ready(store, "you", 2)
    (mixed,) = await ready(store, "you", priority="low")
    sent = await store.submit(mixed, "message", '{"text": "now"}', priority="high")
    work = await one(store, holder)
    assert work.session.id == mixed
    assert work.submission is not None
    assert (work.submission.priority, work.submission.id == sent.id) == (
        "low",
        False,
    )  # in the order of its queue
    await store.release(work.lease)
    assert (await one(store, holder)).session.id == mixed
    assert [(await one(store, holder)).session.id for _ in first] == first


async def wait_for_a_person(store: Store, work: Work) -> None:
    assert work.submission is not None
    waits = SubmissionChange(id=work.submission.id, state="waiting", reason="approval")
    await store.write(work.lease, Batch(submissions=[waits], status="waiting", release=True))


async def answer(store: Store, session_id: str) -> None:
    await store.submit(session_id, "approval", "{}", lane="control")


async def test_a_turn_has_its_priority_also_after_it_has_waited(store: Store):
    holder = await store.join("test", ttl=60)
    (session_id,) = await ready(store, "you", priority="high")
    await wait_for_a_person(store, await one(store, holder))
    await ready(store, "you", 2)
    await answer(store, session_id)
    assert (await one(store, holder)).session.id == session_id


async def test_messages_behind_a_turn_that_waits_count_for_its_priority(store: Store):
    """Those that arrive while it runs and while it waits."""
    holder = await store.join("test", ttl=60)
    sessions = await ready(store, "you", 2)
    works = [await one(store, holder), await one(store, holder)]
    await store.submit(sessions[0], "message", '{"text": "now"}', priority="high")
    for work in works:
        await wait_for_a_person(store, work)
    await store.submit(sessions[1], "message", '{"text": "now"}', priority="high")
    await ready(store, "you", 2)
    for session_id in sessions:
        await answer(store, session_id)
    assert [(await one(store, holder)).session.id for _ in sessions] == sessions


async def test_an_idle_session_has_the_priority_of_its_next_message(store: Store):
    holder = await store.join("test", ttl=60)
    (session_id,) = await ready(store, "you", priority="high")
    await end(store, await one(store, holder))
    await store.submit(session_id, "message", '{"text": "later"}', priority="low")
    normal = await ready(store, "you", 2)
    assert [(await one(store, holder)).session.id for _ in range(3)] == [*normal, session_id]


async def test_an_unknown_priority_is_refused(store: Store):
    session = await store.create_session(agent="bot", owner="you")
    with pytest.raises(BadInput, match="'urgent' is not a valid priority; use one of low, normal, high"):
        await store.submit(session.id, "message", priority="urgent")  # pyright: ignore[reportArgumentType]


Limited = Callable[..., Any]


@pytest.fixture
def limited(store: Store) -> Limited:
    """Opens the store with limits."""

    @asynccontextmanager
    async def opened(**limits: int) -> AsyncGenerator[Store, None]:
        async with open_store(store.url, settings=store.settings.model_copy(update=limits)) as other:
            yield other

    return opened


async def test_an_owner_runs_as_many_sessions_as_allowed(store: Store, limited: Limited):
    async with limited(max_running_per_owner=2) as one_store:
        holder = await one_store.join("test", ttl=60)
        ids = await ready(one_store, "busy", 6)
        works = await one_store.next_work(holder, limit=8)
        assert [work.session.id for work in works] == ids[:2]
        assert await one_store.next_work(holder, limit=8) == []
        waiting = await one_store.session(ids[2])
        assert (waiting.status, waiting.waiting_for) == ("queued", "worker")  # the holder serves no agent
        await one_store.join("serves", ttl=60, agents=["bot"])
        assert (await one_store.session(ids[2])).waiting_for == "limit"
        calm = await ready(one_store, "calm")
        assert [work.session.id for work in await one_store.next_work(holder, limit=8)] == calm
        await end(one_store, works[0])
        assert [work.session.id for work in await one_store.next_work(holder, limit=8)] == [ids[2]]
        await one_store.release(
            works[1].lease
        )  # without an end: it is ready again, and waits behind the others
        assert len(await one_store.next_work(holder, limit=8)) == 1
        assert await one_store.check() == []


async def test_priorities_count_under_a_limit(store: Store, limited: Limited):
    async with limited(max_running_per_owner=1) as one_store:
        holder = await one_store.join("test", ttl=60)
        normal = await ready(one_store, "you", 3)
        (work,) = await one_store.next_work(holder, limit=8)
        high = await ready(one_store, "you", priority="high")
        assert await one_store.next_work(holder, limit=8) == []
        order: list[str] = []
        for _ in range(3):
            await end(one_store, work)
            (work,) = await one_store.next_work(holder, limit=8)
            order.append(work.session.id)
        assert order == [*high, *normal[1:]]


async def test_an_agent_runs_as_many_sessions_as_allowed(store: Store, limited: Limited):
    async with limited(max_running_per_agent=2) as one_store:
        holder = await one_store.join("test", ttl=60)
        await ready(one_store, "busy", 4, agent="slow")
        await ready(one_store, "calm", 1, agent="quick")
        works = await one_store.next_work(holder, limit=8, agents=["slow", "quick"])
        assert Counter(work.session.agent for work in works) == {"slow": 2, "quick": 1}
        assert await one_store.next_work(holder, limit=8, agents=["slow", "quick"]) == []
        await end(one_store, next(work for work in works if work.session.agent == "slow"))
        assert len(await one_store.next_work(holder, limit=8, agents=["slow", "quick"])) == 1


async def test_workers_that_claim_at_once_do_not_exceed_a_limit(store: Store, limited: Limited):
    async with limited(max_running_per_owner=3) as a, limited(max_running_per_owner=3) as b:
        await ready(a, "busy", 12)
        await ready(a, "calm", 2)
        stores = [a, b, a, b]
        holders = [await each.join("test", ttl=60) for each in (a, b)] * 2
        claims = [each.next_work(holder, limit=2) for each, holder in zip(stores, holders, strict=True)]
        works = [work for claimed in await asyncio.gather(*claims) for work in claimed]
        for each, holder in zip(stores, holders, strict=True):
            works += await each.next_work(holder, limit=8)
        assert Counter(work.session.owner for work in works) == {"busy": 3, "calm": 2}


async def test_sessions_of_a_dead_holder_stop_counting(store: Store, limited: Limited):
    async with limited(max_running_per_owner=1) as one_store:
        ids = await ready(one_store, "busy", 2)
        mortal = await one_store.join("mortal", ttl=brief(store))
        assert [work.session.id for work in await one_store.next_work(mortal, limit=8)] == ids[:1]
        holder = await one_store.join("test", ttl=60)

        async def freed() -> bool:
            assert await one_store.next_work(holder, limit=8) == []
            return bool(await one_store.reclaim())

        await until(freed)
        assert len(await one_store.next_work(holder, limit=8)) == 1


async def test_a_session_that_was_acquired_does_not_count(store: Store, limited: Limited):
    """Such as that of a delegate, which runs in the turn above. Also if a worker claimed it before."""
    async with limited(max_running_per_owner=1) as one_store:
        holder = await one_store.join("test", ttl=60)
        (session_id,) = await ready(one_store, "you")
        await end(one_store, await one(one_store, holder))
        await one_store.acquire(session_id, holder)
        await ready(one_store, "you", 2)
        assert len(await one_store.next_work(holder, limit=8)) == 1


@pytest.mark.processes
async def test_without_the_limit_all_continue(store: Store, limited: Limited):
    async with limited(max_running_per_owner=1) as one_store:
        holder = await one_store.join("test", ttl=60)
        await ready(one_store, "busy", 5)
        assert len(await one_store.next_work(holder, limit=8)) == 1
        assert await one_store.next_work(holder, limit=8) == []
    holder = await store.join("without", ttl=60)
    assert len(await store.next_work(holder, limit=8)) == 4


def test_places():
    def row(owner: str, **facts: int | None) -> dict[str, Any]:
        unset = {"lowest": None, "highest": None, "latest": None}
        return {
            "session_id": owner,
            "agent": "bot",
            "owner": owner.rstrip("2"),
            "now": 1000,
            **unset,
            **facts,
        }

    assert places_of([row("a"), row("a2"), row("b")]) == {"a": 1001, "a2": 1002, "b": 1001}
    line = {"lowest": 20, "highest": 60}
    assert places_of([row("new", **line)]) == {"new": 19}
    assert places_of([row("new", lowest=19, highest=60)]) == {"new": 19}
    assert places_of([row("old", latest=8, **line)]) == {"old": 19}
    assert places_of([row("a", latest=40, **line)]) == {"a": 42}
    assert places_of([row("a", latest=9999, **line)]) == {"a": 62}
