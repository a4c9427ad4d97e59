"""Budgets: sums that count towards limits, added with the step; a step that asks a model is refused once one is used up."""

import asyncio
from typing import Any

import pytest

from holdfast.budgets import Account, Budget, Limits
from holdfast.errors import BadInput, BudgetReached
from holdfast.store import Store
from holdfast.types import Batch, NewEvent, SubmissionChange
from holdfast.usage import Usage

ONE = Usage(
    agent="scribe", model="m", requests=1, input_tokens=10, output_tokens=2, cost_nanos=5, working_us=7
)


async def write(store: Store, session_id: str, batch: Batch) -> int:
    holder = await store.join("worker", ttl=60)
    lease = await store.acquire(session_id, holder)
    try:
        return await store.write(lease, batch)
    finally:
        await store.leave(holder)


async def spent(store: Store, *accounts: Account) -> list[tuple[int, ...]]:
    """Return the sums of accounts, by asking for none."""
    found: list[tuple[int, ...]] = []
    for account in accounts:
        session = await store.session("s")
        rows = await store._session_budgets(session, [], account.turn)  # pyright: ignore[reportPrivateUsage]
        found.append(rows[1][account.key].spent)
    return found


async def test_a_batch_counts_towards_its_accounts_and_one_that_asks_is_refused(store: Store):
    await store.create_session(agent="scribe", id="s", owner="ada")
    account = Account(per="owner", name="ada", daily=True, most=(2, None, None, None))
    event = NewEvent(kind="note")
    seq = await write(store, "s", Batch(events=[event], usage=[ONE], accounts=[account], asks=True))
    assert await spent(store, account) == [(1, 12, 5, 7)]
    with pytest.raises(BudgetReached) as caught:
        await write(store, "s", Batch(events=[event], usage=[ONE], accounts=[account], asks=True))
    assert "owner ada per day is used up: 2 requests of 2 requests" in str(caught.value)
    assert await spent(store, account) == [(1, 12, 5, 7)], "a refused batch changes nothing"
    assert await write(store, "s", Batch(events=[event], usage=[ONE], accounts=[account])) == seq + 1
    with pytest.raises(BudgetReached):
        await write(store, "s", Batch(events=[event], accounts=[account], asks=True))
    assert (await store.session("s")).seq == seq + 1


async def test_a_refused_batch_does_not_affect_its_chain_or_others(store: Store):
    for name in ("s", "t"):
        await store.create_session(agent="scribe", id=name, owner="ada")
    holder = await store.join("worker", ttl=60)
    leases = [await store.acquire(name, holder) for name in ("s", "t")]
    none = Account(per="session", name="s", most=(0, None, None, None))
    refused = Batch(events=[NewEvent(kind="note")], accounts=[none], asks=True)
    other = Batch(events=[NewEvent(kind="note")])
    results = await asyncio.gather(
        store.write(leases[0], refused), store.write(leases[1], other), return_exceptions=True
    )
    assert isinstance(results[0], BudgetReached)
    assert results[1] == 1
    refused.asks = False
    assert await store.write(leases[0], refused) == 1


async def test_sums_of_a_turn_begin_again_and_those_of_a_session_do_not(store: Store):
    await store.create_session(agent="scribe", id="s", owner="ada")
    session = Account(per="session", name="s")
    for turn, expected in (("one", 1), ("one", 2), ("two", 1)):
        account = Account(per="turn", name="s", turn=turn)
        await write(store, "s", Batch(usage=[ONE], accounts=[account, session]))
        assert (await spent(store, account))[0][0] == expected
    assert (await spent(store, session))[0][0] == 3


async def test_a_new_budget_begins_with_what_was_used(store: Store):
    await store.create_session(agent="scribe", id="s", owner="ada")
    await write(store, "s", Batch(usage=[ONE, Usage(agent="scribe", model="n", requests=4)]))
    budgets = [
        Budget(per=per, daily=daily, requests=5)
        for per in ("session", "owner", "agent", "store")
        for daily in (False, True)
    ]
    session = await store.session("s")
    accounts, reached = await store.open_budgets(session, [*budgets, Budget(per="turn", cost=1)], turn="one")
    assert isinstance(reached, BudgetReached)
    assert [sums[0] for sums in await spent(store, *accounts)] == [5] * 6 + [5, 5, 0]
    again, _ = await store.open_budgets(session, budgets, turn="one")
    assert [sums[0] for sums in await spent(store, *again)] == [5] * 8


async def test_the_strictest_applies_and_that_of_an_administrator_replaces_it(store: Store):
    session = await store.create_session(agent="scribe", id="s", owner="ada")
    given = [
        Budget(per="session", requests=3),
        Budget(per="session", requests=1, tokens=100),
        Budget(per="session", requests=0, agent="other"),
    ]
    ((account,), reached) = await store.open_budgets(session, given, turn="one")
    assert (account.most, reached) == ((1, 100, None, None), None)
    await write(store, "s", Batch(usage=[ONE], accounts=[account]))
    assert (await store.open_budgets(session, given, turn="one"))[1] is not None
    await store.set_budget("session", "s", Limits(requests=2), actor="root")
    ((account,), reached) = await store.open_budgets(session, given, turn="one")
    assert reached is None
    with pytest.raises(BudgetReached, match="2 requests of 2 requests"):
        await write(store, "s", Batch(usage=[ONE], accounts=[account], asks=True))
    await store.set_budget("session", "s", Limits(), actor="root")
    assert (await store.open_budgets(session, given, turn="one"))[1] is not None
    entries = await store.audit_log(session_id="s")
    assert [entry.action for entry in entries.items].count("set_budget") == 2


async def test_budgets_of_administrators_are_listed(store: Store):
    await store.create_session(agent="scribe", id="s", owner="ada")
    await write(store, "s", Batch(usage=[ONE]))
    for name in ("ada", "bob"):
        await store.set_budget("owner", name, Limits(cost=2, seconds=1.5), daily=True, actor="root")
    await store.set_budget("store", "", Limits(tokens=7), actor="root")
    first = await store.budgets(limit=2)
    rest = await store.budgets(limit=2, cursor=first.next_cursor)
    found = [*first.items, *rest.items]
    assert [(each.per, each.name, each.daily) for each in found] == [
        ("owner", "ada", True),
        ("owner", "bob", True),
        ("store", "", False),
    ]
    assert found[0].most == (None, None, 2_000_000_000, 1_500_000)
    assert [each.spent[0] for each in found] == [1, 0, 1]
    assert [each.name for each in (await store.budgets(per="owner", name="bob")).items] == ["bob"]
    with pytest.raises(BadInput):
        await store.set_budget("planet", "x", Limits(cost=1), actor="root")  # pyright: ignore[reportArgumentType]


async def test_many_processes_count_at_once(store: Store):
    """All of the same owner, so that each write changes the same row."""
    count = 50
    account = Account(per="owner", name="ada", daily=True, most=(count + 20, None, None, None))
    for number in range(count):
        await store.create_session(agent="scribe", id=f"s{number}" if number else "s", owner="ada")
    holder = await store.join("worker", ttl=60)
    names = ["s", *(f"s{number}" for number in range(1, count))]
    leases = [await store.acquire(name, holder) for name in names]
    results: list[Any] = []
    for _ in range(2):
        batches = [Batch(usage=[ONE], accounts=[account], asks=True) for _ in leases]
        results = await asyncio.gather(
            *(store.write(lease, batch) for lease, batch in zip(leases, batches, strict=True)),
            return_exceptions=True,
        )
        assert {type(each) for each in results} <= {int, BudgetReached}
    assert (await spent(store, account))[0][0] == count + 19, "one less than the limit: the next is refused"
    assert sum(isinstance(each, BudgetReached) for each in results) == count - 19


async def test_a_turn_that_waits_for_a_budget_is_woken(store: Store):
    await store.create_session(agent="scribe", id="s", owner="ada")
    await store.submit("s", "message", '{"text": "hello"}')
    holder = await store.join("worker", ttl=60)
    (work,) = await store.next_work(holder)
    assert work.submission is not None
    later = (await store.now()).replace(year=2100)
    change = SubmissionChange(id=work.submission.id, state="waiting", deliver_at=later)
    waits = Batch(
        submissions=[change], status="sleeping", waiting_for="the budget of owner ada per day", release=True
    )
    await store.write(work.lease, waits)
    assert await store.next_work(holder) == []
    assert await store.wake_for_budgets("owner", "bob") == 0
    assert await store.wake_for_budgets("owner", "ada") == 1
    (work,) = await store.next_work(holder)
    assert work.submission is not None
    assert work.submission.state == "claimed"
    assert await store.wake_for_budgets() == 0, "a worker has it"


async def test_a_claim_says_whether_administrators_have_set_budgets(store: Store):
    holder = await store.join("worker", ttl=60)
    for expected in (False, True):
        session = await store.create_session(agent="scribe", owner="ada")
        await store.submit(session.id, "message", '{"text": "hello"}')
        (work,) = await store.next_work(holder)
        assert work.budgeted is expected
        await store.set_budget("owner", "bob", Limits(cost=2), actor="root")


async def test_old_sums_are_dropped_and_limits_stay(store: Store):
    await store.create_session(agent="scribe", id="s", owner="ada")
    await write(store, "s", Batch(usage=[ONE], accounts=[Account(per="session", name="s")]))
    await store.set_budget("owner", "ada", Limits(cost=2), actor="root")
    assert await store.drop_budgets(1) == 0
    assert await store.drop_budgets(-1) == 1
    assert len((await store.budgets()).items) == 1


@pytest.mark.parametrize(
    "given",
    [
        {"per": "owner"},
        {"per": "turn", "cost": -1},
        {"per": "turn", "requests": 1, "daily": True},
        {"per": "owner", "requests": 1, "agent": "scribe"},
        {"per": "planet", "requests": 1},
        {"per": "turn", "requests": 1.5},
        {"per": "turn", "cost": float("nan")},
        {"per": "turn", "request": 1},
    ],
)
def test_bad_budgets_are_refused(given: dict[str, Any]):
    with pytest.raises(ValueError, match=r"1 validation error|limit|daily|agent"):
        Budget.model_validate(given)
