"""Notices reach a real receiver at least once, and in order for each session, whatever is killed and however often the receiver fails."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.errors import StoreBusy, StoreUnavailable
from holdfast.notices.signature import new_secret
from holdfast.store import Store, open_store
from holdfast.subscriptions import NOTICE_KINDS, SubscriptionTerms
from tests.flaky_receiver import FlakyReceiver, notices_of
from tests.promises.fleet import fleet
from tests.servers import Postgres, postgres

T = TypeVar("T")
pytestmark = [pytest.mark.processes, pytest.mark.thorough, pytest.mark.timeout(600)]
_SESSIONS = 8
_MESSAGES = ("ask", "go", "fail")


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await call()
        except (StoreUnavailable, StoreBusy):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_every_notice_arrives_in_order_whatever_is_killed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOLDFAST_WEBHOOK_NETWORKS", "127.0.0.0/8")
    secret = new_secret()
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(FlakyReceiver(secret).listening())
        server: Postgres | None = None
        url = f"sqlite:///{tmp_path}/store.db"
        if kind == "postgres":
            server = stack.enter_context(postgres())
            url = server.url()
        store = await stack.enter_async_context(open_store(url))
        terms = SubscriptionTerms(url=f"http://127.0.0.1:{receiver.port}/hook", kinds=NOTICE_KINDS)
        subscription = await store.create_subscription(
            terms, owner="root", actor="root", secret=secret, everyone=True
        )
        calm = asyncio.Event()
        async with fleet(url, "tests.promises.noticed_agents:obedient", calm) as kills:
            for text in _MESSAGES:
                for number in range(_SESSIONS):
                    name = f"s{number}"
                    await _patiently(
                        lambda name=name: store.create_session(
                            agent="obedient", owner="ada", id=name, exist_ok=True
                        )
                    )
                    body = json.dumps({"text": text})
                    await _patiently(
                        lambda name=name, body=body, text=text: store.submit(
                            name, "message", body, idempotency_key=text
                        )
                    )
                await asyncio.sleep(3)
                if server is not None and text == "go":
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
            assert kills["workers"] >= 3
            calm.set()
            async with asyncio.timeout(300):
                while await _patiently(lambda: _is_pending(store, subscription.id)):
                    await asyncio.sleep(0.5)
        wanted = {
            name: notices_of(await store.events(name, limit=1000), (await store.submissions(name)).items)
            for name in (f"s{number}" for number in range(_SESSIONS))
        }
        deliveries = [each async for each in _all_deliveries(store, subscription.id)]
        assert {each.state for each in deliveries} == {"delivered"}
        lost = [each for each in deliveries if each.kind == "worker_lost"]
        assert len(lost) == sum(each["type"] == "worker.lost" for each in receiver.arrived.values()) > 0
        assert receiver.notices() == wanted
        assert sum(map(len, wanted.values())) >= _SESSIONS * (len(_MESSAGES) + 1)
        assert receiver.answers["500 Oops"]
        assert receiver.answers[""]
        assert await store.check() == []


async def _is_pending(store: Store, subscription_id: str) -> bool:
    if any(each.pending for each in (await store.sessions()).items) or await store.has_notices():
        return True
    return bool((await store.deliveries(subscription_id, state="pending", limit=1)).items)


async def _all_deliveries(store: Store, subscription_id: str) -> AsyncGenerator[Any, None]:
    cursor: str | None = None
    while True:
        page = await store.deliveries(subscription_id, cursor=cursor)
        for each in page.items:
            yield each
        cursor = page.next_cursor
        if cursor is None:
            return
