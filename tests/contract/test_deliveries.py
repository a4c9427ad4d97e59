"""Notices are written with their events, and become deliveries for the subscriptions that match, in order for each session."""

import asyncio

import pytest

from holdfast.errors import BadInput, Conflict, NotFound
from holdfast.ids import new_id
from holdfast.store import Store
from holdfast.subscriptions import (
    MOST_SUBSCRIPTIONS,
    Attempt,
    Delivery,
    NoticeKind,
    Subscription,
    SubscriptionTerms,
)
from holdfast.types import Batch, NewEvent, SubmissionChange

SECRET = "whsec_" + "A" * 32
URL = "https://example.com/hook"


async def subscribe(
    store: Store,
    *kinds: NoticeKind,
    owner: str = "ada",
    everyone: bool = False,
    agents: tuple[str, ...] = (),
    sessions: tuple[str, ...] = (),
) -> Subscription:
    given = SubscriptionTerms(
        url=URL, kinds=kinds or ("waiting", "done", "failed", "given_up"), agents=agents, sessions=sessions
    )
    return await store.create_subscription(given, owner=owner, actor=owner, secret=SECRET, everyone=everyone)


async def question(store: Store, session_id: str, times: int = 1) -> None:
    """Write events that a notice announces."""
    holder = await store.join("worker", ttl=60)
    lease = await store.acquire(session_id, holder)
    for _ in range(times):
        event = NewEvent(kind="approval_requested", payload='{"calls": []}')
        await store.write(lease, Batch(events=[NewEvent(kind="note"), event]))
    await store.leave(holder)


async def match(store: Store) -> None:
    while await store.match_notices(limit=3):
        pass
    assert not await store.has_notices()


async def pending(store: Store, subscription: Subscription) -> list[Delivery]:
    return sorted(
        (await store.deliveries(subscription.id)).items, key=lambda each: (each.session_id, each.seq)
    )


async def claimed(store: Store, subscription: Subscription, claim: str) -> list[Delivery]:
    work = await store.claim_deliveries(subscription.id, claim, limit=10)
    assert work is not None
    return work[1]


@pytest.fixture
async def session(store: Store) -> str:
    await store.create_session(agent="scribe", id="s", owner="ada")
    return "s"


async def test_an_event_is_delivered_to_the_subscriptions_that_match(store: Store, session: str):
    fits = await subscribe(store, "waiting")
    for_all = await subscribe(store, "waiting", owner="root", everyone=True)
    of_agent = await subscribe(store, "waiting", agents=("scribe", "other"), sessions=("s",))
    others = [
        await subscribe(store, "done"),
        await subscribe(store, "waiting", owner="bob"),
        await subscribe(store, "waiting", agents=("other",)),
        await subscribe(store, "waiting", sessions=("t",)),
    ]
    await question(store, session)
    assert await store.has_notices()
    await match(store)
    for each in (fits, for_all, of_agent):
        (delivery,) = await pending(store, each)
        assert (delivery.session_id, delivery.seq, delivery.kind, delivery.state) == (
            session,
            2,
            "waiting",
            "pending",
        )
    for each in others:
        assert await pending(store, each) == []
    assert set(await store.due_subscriptions()) == {fits.id, for_all.id, of_agent.id}


async def test_without_a_subscription_nothing_is_kept_and_a_new_one_begins_with_new_events(
    store: Store, session: str
):
    await question(store, session)
    first = await subscribe(store)
    await question(store, session)
    later = await subscribe(store)
    await match(store)
    assert [each.seq for each in await pending(store, first)] == [4]
    assert await pending(store, later) == []


async def test_a_reminder_of_a_question_is_announced_like_the_question(store: Store, session: str):
    subscription = await subscribe(store, "waiting")
    holder = await store.join("worker", ttl=60)
    lease = await store.acquire(session, holder)
    await store.write(lease, Batch(events=[NewEvent(kind="approval_reminder", payload='{"number": 1}')]))
    await match(store)
    (delivery,) = await pending(store, subscription)
    assert (delivery.kind, delivery.seq) == ("waiting", 1)


async def test_only_the_ends_of_turns_are_announced(store: Store, session: str):
    subscription = await subscribe(store)
    holder = await store.join("worker", ttl=60)
    ends = ("done", "failed", "dead", "done")
    for number, state in enumerate(ends):
        kind = "message" if number < 3 else "interrupt"
        await store.submit(session, kind=kind, payload="{}", id=f"q{number}")
        lease = await store.acquire(session, holder)
        taken = await store.take(lease, max_attempts=5)
        assert taken is not None
        change = SubmissionChange(id=taken.id, state=state, reason=None if state == "done" else "because")
        await store.write(lease, Batch(submissions=[change], status="idle"))
        await store.release(lease)
    await match(store)
    assert [each.kind for each in await pending(store, subscription)] == ["done", "failed", "given_up"]


async def test_a_message_that_is_given_up_is_announced(store: Store, session: str):
    subscription = await subscribe(store, "given_up")
    await store.submit(session, kind="message", payload="{}")
    holder = await store.join("worker", ttl=60)
    lease = await store.acquire(session, holder)
    assert await store.take(lease, max_attempts=0) is None
    await match(store)
    (delivery,) = await pending(store, subscription)
    assert delivery.kind == "given_up"


async def test_a_dead_worker_is_announced_to_operators(store: Store):
    operator = await subscribe(store, "worker_lost", owner="root", everyone=True)
    owner = await subscribe(store, "worker_lost")
    await store.join("web-3", ttl=0.001, agents=["scribe"])
    await store.join("shell", ttl=0.001)
    async with asyncio.timeout(20):
        while await store.holders():
            await store.reclaim()
    await match(store)
    (delivery,) = await pending(store, operator)
    assert (delivery.kind, delivery.detail, delivery.session_id) == ("worker_lost", "web-3", "")
    assert await pending(store, owner) == []


async def test_deliveries_of_a_session_are_sent_one_after_the_other(store: Store, session: str):
    await store.create_session(agent="scribe", id="t", owner="ada")
    subscription = await subscribe(store)
    await question(store, session, times=3)
    await question(store, "t")
    await match(store)
    due = await claimed(store, subscription, "c1")
    assert {(each.session_id, each.seq) for each in due} == {("s", 2), ("t", 2)}
    one = next(each for each in due if each.session_id == "s")
    two = next(each for each in due if each.session_id == "t")
    retried = Attempt(delivery=one, arrived=False, result="500", retry_in=3600)
    arrived = Attempt(delivery=two, arrived=True, result="204")
    assert await store.record_attempts(subscription, "c1", [retried, arrived], limit=10) == []
    assert [each.state for each in await pending(store, subscription)] == ["pending"] * 3 + ["delivered"]
    await question(store, "t")
    await match(store)
    assert await store.due_subscriptions() == [], "it continues when the first delivery is due again"


async def test_the_next_delivery_follows_one_that_ended(store: Store, session: str):
    subscription = await subscribe(store)
    await question(store, session, times=2)
    await match(store)
    (first,) = await claimed(store, subscription, "c1")
    lost = Attempt(delivery=first, arrived=False, result="500")
    (second,) = await store.record_attempts(subscription, "c1", [lost], limit=10)
    assert (first.seq, second.seq) == (2, 4)
    assert (
        await store.record_attempts(
            subscription, "c1", [Attempt(delivery=second, arrived=True, result="200")], limit=10
        )
        == []
    )
    found = await pending(store, subscription)
    assert [(each.state, each.attempts, each.result) for each in found] == [
        ("undeliverable", 1, "500"),
        ("delivered", 1, "200"),
    ]
    assert await store.due_subscriptions() == []


async def test_a_delivery_that_is_added_while_others_are_sent_is_sent_as_well(store: Store, session: str):
    subscription = await subscribe(store)
    await question(store, session)
    await match(store)
    (first,) = await claimed(store, subscription, "c1")
    await question(store, session)
    await match(store)
    done = Attempt(delivery=first, arrived=True, result="200")
    (second,) = await store.record_attempts(subscription, "c1", [done], limit=10)
    assert second.seq == 4
    stopped = Attempt(delivery=second, arrived=True, result="200")
    await question(store, session)
    await match(store)
    assert await store.record_attempts(subscription, "c1", [stopped], limit=0) == []
    assert await store.due_subscriptions() == [subscription.id]


async def test_a_claim_excludes_other_workers_and_a_replaced_one_records_nothing(
    store: Store, session: str, monkeypatch: pytest.MonkeyPatch
):
    subscription = await subscribe(store)
    await question(store, session)
    await match(store)
    monkeypatch.setattr("holdfast.store.deliveries._LEASE_US", 0)
    (delivery,) = await claimed(store, subscription, "paused")
    monkeypatch.setattr("holdfast.store.deliveries._LEASE_US", 60_000_000)
    (again,) = await claimed(store, subscription, "other")
    assert again.id == delivery.id, "a worker that sleeps for a minute loses its claim"
    assert await store.claim_deliveries(subscription.id, "third", limit=10) is None
    late = Attempt(delivery=delivery, arrived=False, result="late")
    assert await store.record_attempts(subscription, "paused", [late], limit=10) == []
    (unchanged,) = await pending(store, subscription)
    assert (unchanged.state, unchanged.attempts) == ("pending", 0)
    done = Attempt(delivery=again, arrived=True, result="200")
    await store.record_attempts(subscription, "other", [done], limit=10)
    (ended,) = await pending(store, subscription)
    assert ended.state == "delivered"


async def test_many_workers_match_each_notice_once(store: Store, session: str):
    subscription = await subscribe(store)
    for name in ("t", "u"):
        await store.create_session(agent="scribe", id=name, owner="ada")
    await asyncio.gather(*(question(store, name, times=5) for name in ("s", "t", "u")))

    async def work() -> None:
        while await store.has_notices():
            await store.match_notices(limit=4)

    await asyncio.gather(work(), work(), work())
    found = await pending(store, subscription)
    assert [(each.session_id, each.seq) for each in found] == [
        (name, seq) for name in ("s", "t", "u") for seq in (2, 4, 6, 8, 10)
    ]
    assert [each.seq for each in found if each.due_at is not None] == [2, 2, 2]


async def test_a_paused_subscription_sends_nothing_and_continues_when_resumed(store: Store, session: str):
    subscription = await subscribe(store)
    await question(store, session)
    await match(store)
    paused = await store.change_subscription(subscription.id, paused=True, actor="ada")
    assert paused.paused
    assert await store.due_subscriptions() == []
    await question(store, session)
    await match(store)
    assert len(await pending(store, subscription)) == 1, "events while it is paused are not announced"
    assert not (await store.change_subscription(subscription.id, paused=False, actor="ada")).paused
    assert [each.seq for each in await claimed(store, subscription, "c1")] == [2]


async def test_a_receiver_that_is_gone_pauses_its_subscription(store: Store, session: str):
    subscription = await subscribe(store)
    await store.create_session(agent="scribe", id="t", owner="ada")
    for about in (session, "t"):
        await question(store, about)
    await match(store)
    first, second = await claimed(store, subscription, "c1")
    gone = Attempt(delivery=first, arrived=False, result="410 Gone", retry_in=5)
    arrived = Attempt(delivery=second, arrived=True, result="status 200")  # just before
    await store.record_attempts(subscription, "c1", [gone, arrived], limit=10, gone=gone.result)
    found = await store.subscription(subscription.id)
    assert (found.paused, found.problem) == (True, "410 Gone")
    assert await store.due_subscriptions() == []


async def test_a_delivery_that_ended_is_sent_again_on_request(store: Store, session: str):
    subscription = await subscribe(store)
    await question(store, session)
    await match(store)
    (delivery,) = await claimed(store, subscription, "c1")
    lost = Attempt(delivery=delivery, arrived=False, result="500")
    await store.record_attempts(subscription, "c1", [lost], limit=10)
    again = await store.repeat_delivery(subscription.id, delivery.id, actor="ada")
    assert (again.id, again.state, again.attempts) == (delivery.id, "pending", 0)
    assert [each.id for each in await claimed(store, subscription, "c2")] == [delivery.id]
    with pytest.raises(NotFound):
        await store.repeat_delivery(subscription.id, new_id(), actor="ada")
    other = await subscribe(store)
    with pytest.raises(NotFound):
        await store.repeat_delivery(other.id, delivery.id, actor="ada")


async def failed_once(store: Store, subscription: Subscription) -> list[Delivery]:
    """Send the deliveries that are due without success, so that they wait for their next attempts."""
    due = await claimed(store, subscription, "failing")
    attempts = [Attempt(delivery=each, arrived=False, result="500", retry_in=3600) for each in due]
    assert await store.record_attempts(subscription, "failing", attempts, limit=10) == []
    assert await store.due_subscriptions() == []
    return due


async def test_a_pending_delivery_is_sent_now_on_request(store: Store, session: str):
    subscription = await subscribe(store)
    await question(store, session, times=2)
    await match(store)
    (first,) = await failed_once(store, subscription)
    _, second = await pending(store, subscription)
    now = await store.now()
    hurried = await store.repeat_delivery(subscription.id, first.id, actor="ada")
    assert (hurried.id, hurried.state, hurried.attempts, hurried.since) == (
        first.id,
        "pending",
        1,
        first.since,
    )
    assert hurried.due_at is not None
    assert now <= hurried.due_at <= await store.now()
    assert await store.due_subscriptions() == [subscription.id]
    assert [each.id for each in await failed_once(store, subscription)] == [first.id]
    await store.repeat_delivery(subscription.id, second.id, actor="ada")
    (early,) = await claimed(store, subscription, "c1")
    assert early.id == second.id, "it does not wait for the first one"
    arrived = Attempt(delivery=early, arrived=True, result="200")
    assert await store.record_attempts(subscription, "c1", [arrived], limit=10) == []
    assert [(each.state, each.attempts) for each in await pending(store, subscription)] == [
        ("pending", 2),
        ("delivered", 1),
    ]
    repeats = [each for each in (await store.audit_log()).items if each.action == "repeat delivery"]
    assert len(repeats) == 2


async def test_a_resumed_subscription_sends_what_is_pending_now(store: Store, session: str):
    await store.create_session(agent="scribe", id="t", owner="ada")
    subscription = await subscribe(store)
    await question(store, session, times=2)
    await question(store, "t")
    await match(store)
    await failed_once(store, subscription)
    await store.change_subscription(subscription.id, content=True, actor="ada")
    assert await claimed(store, subscription, "c1") == [], "another change sends nothing early"
    await store.change_subscription(subscription.id, paused=True, actor="ada")
    await store.change_subscription(subscription.id, paused=False, actor="ada")
    assert await store.due_subscriptions() == [subscription.id]
    due = await claimed(store, subscription, "c2")
    assert {(each.session_id, each.seq, each.attempts) for each in due} == {("s", 2, 1), ("t", 2, 1)}


async def test_terms_are_checked_changed_and_listed(store: Store):
    subscription = await subscribe(store, "done", "done", agents=("a", "a"))
    assert (subscription.kinds, subscription.agents) == (("done",), ("a",))
    changed = await store.change_subscription(
        subscription.id, kinds=("failed",), content=True, url="https://example.org", actor="ada"
    )
    assert (changed.kinds, changed.content, changed.url, changed.agents) == (
        ("failed",),
        True,
        "https://example.org",
        ("a",),
    )
    with pytest.raises(BadInput):
        await store.change_subscription(subscription.id, kinds=(), actor="ada")
    with pytest.raises(BadInput):
        await store.change_subscription(subscription.id, kinds=("never",), actor="ada")
    with pytest.raises(BadInput):
        await store.change_subscription(subscription.id, agents=tuple(map(str, range(101))), actor="ada")
    bobs = await subscribe(store, owner="bob")
    assert [each.id for each in (await store.subscriptions()).items] == [subscription.id, bobs.id]
    assert [each.id for each in (await store.subscriptions(owner="bob")).items] == [bobs.id]
    first = await store.subscriptions(limit=1)
    assert [each.id for each in (await store.subscriptions(cursor=first.next_cursor)).items] == [bobs.id]
    actions = [entry.action for entry in (await store.audit_log()).items]
    assert "create subscription" in actions
    assert "change subscription" in actions


async def test_an_owner_has_a_limited_number_of_subscriptions(store: Store, monkeypatch: pytest.MonkeyPatch):
    assert MOST_SUBSCRIPTIONS == 100
    monkeypatch.setattr("holdfast.store.subscriptions.MOST_SUBSCRIPTIONS", 2)
    await subscribe(store)
    await subscribe(store)
    with pytest.raises(Conflict, match="the limit"):
        await subscribe(store)
    await subscribe(store, owner="bob")


async def test_a_new_secret_leaves_the_previous_one_for_a_day(store: Store):
    subscription = await subscribe(store)
    new = "whsec_" + "B" * 32
    rotated = await store.rotate_secret(subscription.id, new, actor="ada")
    assert (rotated.secret, rotated.previous_secret) == (new, SECRET)
    assert rotated.previous_until is not None
    left = rotated.previous_until - await store.now()
    assert 23 * 3600 < left.total_seconds() <= 24 * 3600


async def test_a_deleted_subscription_leaves_no_deliveries(store: Store, session: str):
    subscription = await subscribe(store)
    await question(store, session, times=2)
    await match(store)
    await store.delete_subscription(subscription.id, actor="ada")
    with pytest.raises(NotFound):
        await store.subscription(subscription.id)
    assert await pending(store, subscription) == []
    assert await store.due_subscriptions() == []


async def test_old_deliveries_are_deleted(store: Store, session: str):
    subscription = await subscribe(store)
    await question(store, session, times=2)
    await match(store)
    (first,) = await claimed(store, subscription, "c1")
    await store.record_attempts(
        subscription, "c1", [Attempt(delivery=first, arrived=True, result="200")], limit=0
    )
    assert await store.drop_deliveries() == 0
    assert await store.drop_deliveries(days=0) == 1
    assert [each.state for each in await pending(store, subscription)] == ["pending"]
