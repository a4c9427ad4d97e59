"""A worker's duty delivers notices to a real receiver: it retries, gives up, and includes texts only if the subscription does."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from standardwebhooks import Webhook

from holdfast.config import load_settings
from holdfast.media import open_media
from holdfast.notices import delivery
from holdfast.notices.delivery import backoff, keep_delivering
from holdfast.notices.signature import new_secret
from holdfast.retention import erase
from holdfast.store import Store, open_store
from holdfast.subscriptions import Subscription, SubscriptionTerms
from holdfast.tasks import end
from holdfast.types import Batch, NewEvent, SubmissionChange
from tests.builders import until
from tests.conftest import Engine
from tests.notices.receiver import Receiver

_REFUSED = b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"
_GONE = b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n"


@asynccontextmanager
async def delivering(
    engine: Engine, *, content: bool = False
) -> AsyncGenerator[tuple[Store, Receiver, Subscription]]:
    """Open a store with a session and a subscription, and deliver its notices to a receiver."""
    settings = load_settings(store=engine.url, webhook_networks="127.0.0.0/8")
    async with Receiver().listening() as receiver, open_store(settings=settings) as store:
        await store.create_session(agent="scribe", id="s", owner="ada", title="Secret plans")
        terms = SubscriptionTerms(
            url=f"http://127.0.0.1:{receiver.port}/hook", kinds=("waiting", "done", "failed"), content=content
        )
        subscription = await store.create_subscription(terms, owner="ada", actor="ada", secret=new_secret())
        duty = asyncio.create_task(keep_delivering(store))
        try:
            yield store, receiver, subscription
        finally:
            await end(duty)


async def write(store: Store, batch: Batch) -> None:
    holder = await store.join("worker", ttl=60)
    lease = await store.acquire("s", holder)
    await store.write(lease, batch)
    await store.leave(holder)


async def ask(store: Store) -> None:
    calls = '{"calls": [{"tool": "pay", "arguments": {"to": "ada"}}]}'
    await write(store, Batch(events=[NewEvent(kind="approval_requested", payload=calls)]))


async def all_ended(store: Store, subscription: Subscription, count: int = 1) -> list[str]:
    """Wait until this many deliveries have ended, and return their states."""

    async def is_over() -> bool:
        found = (await store.deliveries(subscription.id)).items
        return len(found) == count and all(each.state != "pending" for each in found)

    await until(is_over)
    return [each.state for each in (await store.deliveries(subscription.id)).items]


def bodies(receiver: Receiver) -> list[Mapping[str, Any]]:
    return [json.loads(body) for _, _, body in receiver.requests]


async def test_a_notice_is_signed_and_has_only_ids(engine: Engine):
    async with delivering(engine) as (store, receiver, subscription):
        await ask(store)
        assert await all_ended(store, subscription) == ["delivered"]
        ((_, headers, body),) = receiver.requests
        notice = Webhook(subscription.secret).verify(body, headers)
        assert notice["type"] == "session.waiting"
        assert notice["data"] == {"session_id": "s", "event": 1, "agent": "scribe", "owner": "ada"}
        (sent,) = (await store.deliveries(subscription.id)).items
        assert headers["webhook-id"] == sent.id


async def test_a_subscription_with_content_has_the_texts(engine: Engine):
    async with delivering(engine, content=True) as (store, receiver, subscription):
        await ask(store)
        await store.submit("s", "message", '{"text": "go"}', id="q")
        holder = await store.join("worker", ttl=60)
        lease = await store.acquire("s", holder)
        await store.take(lease)
        done = NewEvent(kind="run_completed", payload='{"output": {"paid": 3}}')
        await store.write(
            lease, Batch(events=[done], submissions=[SubmissionChange(id="q", state="done")], status="idle")
        )
        await store.leave(holder)
        assert await all_ended(store, subscription, 2) == ["delivered"] * 2
        asked, ended = bodies(receiver)
        assert asked["data"]["calls"] == [{"tool": "pay", "arguments": {"to": "ada"}}]
        assert (ended["type"], ended["data"]["output"]) == ("session.done", {"paid": 3})
        assert (ended["data"]["title"], ended["data"]["submission_id"]) == ("Secret plans", "q")


async def test_a_rotated_secret_signs_with_both(engine: Engine):
    async with delivering(engine) as (store, receiver, subscription):
        new = new_secret()
        await store.rotate_secret(subscription.id, new, actor="ada")
        await store.test_subscription(subscription.id, actor="ada")
        assert await all_ended(store, subscription) == ["delivered"]
        ((_, headers, body),) = receiver.requests
        for secret in (new, subscription.secret):
            assert Webhook(secret).verify(body, headers)["type"] == "test"


async def test_a_failed_delivery_is_sent_again_with_the_same_id(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(delivery, "_FIRST_PAUSE", 0.01)
    async with delivering(engine) as (store, receiver, subscription):
        receiver._respond = _REFUSED  # pyright: ignore[reportPrivateUsage]
        await ask(store)

        async def was_refused() -> bool:
            found = (await store.deliveries(subscription.id)).items
            return bool(found) and "500" in (found[0].result or "")

        await until(was_refused)
        assert "500" in str((await store.subscription(subscription.id)).problem)
        receiver._respond = b"HTTP/1.1 204 No Content\r\n\r\n"  # pyright: ignore[reportPrivateUsage]
        assert await all_ended(store, subscription) == ["delivered"]
        assert len({headers["webhook-id"] for _, headers, _ in receiver.requests}) == 1
        assert (await store.subscription(subscription.id)).problem is None


async def test_a_delivery_that_fails_for_a_day_is_undeliverable(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(delivery, "GIVE_UP_AFTER", timedelta())
    async with delivering(engine) as (store, receiver, subscription):
        receiver._respond = _REFUSED  # pyright: ignore[reportPrivateUsage]
        await ask(store)
        assert await all_ended(store, subscription) == ["undeliverable"]


async def test_a_receiver_that_is_gone_pauses_the_subscription(engine: Engine):
    async with delivering(engine) as (store, receiver, subscription):
        receiver._respond = _GONE  # pyright: ignore[reportPrivateUsage]
        await ask(store)

        async def is_paused() -> bool:
            return (await store.subscription(subscription.id)).paused

        await until(is_paused)
        assert len(receiver.requests) == 1


async def test_a_notice_of_an_erased_session_has_no_texts(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delivery, "_FIRST_PAUSE", 0.01)
    async with delivering(engine, content=True) as (store, receiver, subscription):
        receiver._respond = _REFUSED  # pyright: ignore[reportPrivateUsage]
        await ask(store)

        async def was_refused() -> bool:
            return bool(receiver.requests)

        await until(was_refused)
        await erase(store, open_media(store=store), "s", actor="ada", idle_days=0)
        receiver._respond = b"HTTP/1.1 204 No Content\r\n\r\n"  # pyright: ignore[reportPrivateUsage]
        assert await all_ended(store, subscription) == ["delivered"]
        assert bodies(receiver)[-1]["data"] == {"session_id": "s", "event": 1}


def test_pauses_become_longer_up_to_an_hour():
    for attempts, most in ((0, 1), (1, 4), (2, 16), (6, 3600), (10**9, 3600)):
        assert most / 2 <= backoff(attempts) <= most
