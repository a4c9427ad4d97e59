"""Sessions that a policy with `notice_days` will clean or erase are announced, once for each time at which they would be due."""

import json
from typing import Any

import pytest

from holdfast.config import load_settings
from holdfast.errors import BadSettings
from holdfast.store import Store
from holdfast.subscriptions import Delivery, Subscription, SubscriptionTerms
from holdfast.types import Batch, NewEvent
from tests.conftest import Engine
from tests.retention.test_sweep import governed, swept

SOON: dict[str, Any] = {"name": "soon", "agent": "a", "idle_days": 1, "notice_days": 2, "action": "clean"}


async def subscribe(store: Store) -> Subscription:
    terms = SubscriptionTerms(url="https://example.com", kinds=("retention_due",))
    return await store.create_subscription(terms, owner="ada", actor="ada", secret="s")


async def announced(store: Store, subscription: Subscription) -> list[Delivery]:
    await swept(store)
    while await store.match_notices():
        pass
    found = (await store.deliveries(subscription.id)).items
    return sorted(found, key=lambda each: (each.session_id, each.id))


async def active(store: Store, session_id: str) -> None:
    holder = await store.join("worker", ttl=60)
    lease = await store.acquire(session_id, holder)
    await store.write(lease, Batch(events=[NewEvent(kind="note")], status="idle"))
    await store.leave(holder)


async def test_a_session_is_announced_once_before_it_is_due(engine: Engine):
    async with governed(
        engine, SOON, {"agent": "late", "idle_days": 30, "notice_days": 2, "action": "erase"}
    ) as store:
        subscription = await subscribe(store)
        for name, agent in (("s", "a"), ("t", "a"), ("far", "late"), ("none", "unmatched"), ("held", "a")):
            await store.create_session(agent=agent, id=name, owner="ada")
        await store.update_session("held", hold=True)
        first, second = await announced(store, subscription)
        assert [first.session_id, second.session_id] == ["s", "t"]
        facts = json.loads(str(first.detail))
        assert (facts["policy"], facts["action"], first.kind) == ("soon", "clean", "retention_due")
        assert len(await announced(store, subscription)) == 2, "the next sweep does not announce them again"
        await active(store, "t")
        again = await announced(store, subscription)
        assert [each.session_id for each in again] == ["s", "t", "t"], "it is due at another time now"


async def test_nothing_is_announced_that_is_kept_or_due_already(engine: Engine):
    keep = SOON | {"keep_last_runs": 1, "max_age_days": 1e-9}
    async with governed(engine, keep) as store:
        subscription = await subscribe(store)
        await store.create_session(agent="a", id="s", owner="ada")
        assert await announced(store, subscription) == []
        assert (await store.session("s")).status == "cleaned"


def test_a_policy_that_holds_has_no_notice(engine: Engine):
    with pytest.raises(BadSettings, match="notice_days"):
        load_settings(store=engine.url, retention=[{"agent": "a", "hold": True, "notice_days": 2}])
