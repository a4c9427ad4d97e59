"""Usage: sums per session, day, agent and model that are added with the step, and that remain without the session."""

import asyncio
from dataclasses import asdict, replace
from datetime import UTC, date, timedelta
from typing import Any

import pytest

from holdfast.errors import BadCursor, BadInput, LeaseLost
from holdfast.media import open_media
from holdfast.retention import clean, erase
from holdfast.store import Store
from holdfast.types import Batch, NewEvent
from holdfast.usage import USAGE_SUMS, Usage, UsageFilter, UsageOf

ONE = Usage(
    agent="scribe",
    model="m",
    requests=1,
    unpriced=1,
    input_tokens=10,
    output_tokens=2,
    cache_read_tokens=3,
    cache_write_tokens=4,
    cost_nanos=5,
    tool_calls=6,
    working_us=7,
)


async def use(store: Store, session_id: str, *usage: Usage) -> None:
    holder = await store.join("worker", ttl=60)
    lease = await store.acquire(session_id, holder)
    await store.write(lease, Batch(events=[NewEvent(kind="note")], usage=usage))
    await store.leave(holder)


def sums(usage: UsageOf | Usage) -> list[int]:
    values = asdict(usage)
    return [values[name] for name in USAGE_SUMS]


async def test_usage_adds_up(store: Store):
    await store.create_session(agent="scribe", id="s", owner="ada")
    await use(store, "s", ONE)
    await use(store, "s", ONE, Usage(agent="scribe", model="n", requests=1, cost_nanos=2**40))
    before = (await store.now()).astimezone(UTC).date()
    page = await store.usage(["day", "owner", "agent", "model", "session_id"])
    assert page.next_cursor is None
    first, second = page.items
    assert (first.owner, first.agent, first.model, first.session_id) == ("ada", "scribe", "m", "s")
    assert first.day in {before, before - timedelta(days=1)}
    assert sums(first) == [2, 2, 20, 4, 6, 8, 10, 12, 14] == sums(ONE + ONE)
    assert (second.model, second.requests, second.cost_nanos) == ("n", 1, 2**40)
    (total,) = (await store.usage()).items
    assert (total.requests, total.cost_nanos, total.day, total.owner) == (3, 10 + 2**40, None, None)


async def test_usage_is_filtered_and_paged(store: Store):
    for number, owner in enumerate(("ada", "bob", "ada")):
        await store.create_session(agent="scribe", id=f"s{number}", owner=owner)
        await use(store, f"s{number}", ONE, Usage(agent="other", model="m", requests=number))
    by_owner = {each.owner: each.requests for each in (await store.usage(["owner"])).items}
    assert by_owner == {"ada": 4, "bob": 2}
    today = (await store.now()).astimezone(UTC).date()
    for where, requests in (
        (UsageFilter(owner="ada"), 4),
        (UsageFilter(agent="scribe"), 3),
        (UsageFilter(session_id="s2"), 3),
        (UsageFilter(model="n"), 0),
        (UsageFilter(first=today - timedelta(days=1), last=today + timedelta(days=1)), 6),
        (UsageFilter(first=today + timedelta(days=2)), 0),
        (UsageFilter(last=today - timedelta(days=2)), 0),
        (UsageFilter(first=date(1, 1, 1), last=date(9999, 12, 31)), 6),
    ):
        assert sum(each.requests for each in (await store.usage((), where)).items) == requests, where
    found: list[tuple[str | None, str | None]] = []
    cursor: str | None = None
    while True:
        page = await store.usage(["session_id", "agent"], cursor=cursor, limit=4)
        found += [(each.agent, each.session_id) for each in page.items]
        if (cursor := page.next_cursor) is None:
            break
    assert found == [(agent, f"s{number}") for agent in ("other", "scribe") for number in range(3)]


async def test_usage_remains_without_its_session(store: Store):
    for name in ("cleaned", "erased"):
        await store.create_session(agent="scribe", id=name, owner="ada")
        await use(store, name, ONE)
    media = open_media(store=store)
    await clean(store, media, "cleaned", actor="you", idle_days=0)
    await erase(store, media, "erased", actor="you", idle_days=0)
    found = (await store.usage(["session_id"])).items
    assert [(each.session_id, sums(each)) for each in found] == [
        ("cleaned", sums(ONE)),
        ("erased", sums(ONE)),
    ]


async def test_usage_of_a_refused_write_is_not_counted(store: Store):
    await store.create_session(agent="scribe", id="s", owner="you")
    holder = await store.join("worker", ttl=60)
    lease = await store.acquire("s", holder)
    await store.release(lease)
    with pytest.raises(LeaseLost):
        await store.write(lease, Batch(usage=[ONE]))
    with pytest.raises(BadInput, match="same usage twice"):
        await store.write(await store.acquire("s", holder), Batch(usage=[ONE, ONE]))
    assert (await store.usage()).items == []


async def test_sessions_count_at_the_same_time(store: Store):
    async def count(session_id: str) -> None:
        await store.create_session(agent="scribe", id=session_id, owner="you")
        holder = await store.join("worker", ttl=60)
        lease = await store.acquire(session_id, holder)
        for _ in range(5):
            await store.write(lease, Batch(usage=[ONE]))

    await asyncio.gather(*(count(f"s{number}") for number in range(8)))
    (total,) = (await store.usage()).items
    assert total.requests == 40


async def test_old_usage_is_dropped(store: Store):
    for number in range(3):
        await store.create_session(agent="scribe", id=f"s{number}", owner="you")
        await use(store, f"s{number}", ONE)
    page = await store.shared_rows("usage")
    old = [{**row, "day": row["day"] - 10, "session_id": f"old{n}"} for n, row in enumerate(page)]
    await store.add_shared_rows("usage", old)
    assert await store.drop_usage(11) == 0
    assert await store.drop_usage(9, limit=2) == 2
    assert await store.drop_usage(9, limit=2) == 1
    assert [each.session_id for each in (await store.usage(["session_id"])).items] == ["s0", "s1", "s2"]


async def test_bad_values_are_refused(store: Store):
    with pytest.raises(BadInput, match="value for by"):
        await store.usage(["month"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="is after the last day"):
        await store.usage((), UsageFilter(first=date(2026, 2, 1), last=date(2026, 1, 1)))
    with pytest.raises(BadCursor):
        await store.usage(cursor="x")
    with pytest.raises(BadInput):
        await store.usage(limit=0)


async def test_a_page_continues_after_its_last_group(store: Store):
    """Also if groups before it are new."""
    for name in "bcd":
        await store.create_session(agent="scribe", id=name, owner="you")
        await use(store, name, ONE)
    page = await store.usage(["day", "session_id"], limit=2)
    await store.create_session(agent="scribe", id="a", owner="you")
    await use(store, "a", ONE)
    rest = await store.usage(["day", "session_id"], limit=2, cursor=page.next_cursor)
    assert [each.session_id for each in (*page.items, *rest.items)] == ["b", "c", "d"]
    with pytest.raises(BadCursor):
        await store.usage(["owner"], cursor=page.next_cursor)


@pytest.mark.parametrize("number", [-1, 10**15 + 1, 1.5, True, float("inf")])
async def test_numbers_that_cannot_be_right_are_refused(store: Store, number: Any):
    await store.create_session(agent="scribe", id="s", owner="you")
    with pytest.raises(BadInput, match="numbers of usage"):
        await use(store, "s", replace(ONE, input_tokens=number))
