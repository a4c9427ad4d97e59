"""Notices reach a real receiver at least once, and in order for each session, whatever is killed and however often the receiver fails."""

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from standardwebhooks import Webhook

from holdfast.errors import StoreBusy, StoreUnavailable
from holdfast.notices.signature import new_secret
from holdfast.store import Store, open_store
from holdfast.subscriptions import NOTICE_KINDS, SubscriptionTerms
from tests.promises.fleet import fleet
from tests.servers import Postgres, postgres

T = TypeVar("T")
pytestmark = [pytest.mark.processes, pytest.mark.thorough, pytest.mark.timeout(600)]
_SESSIONS = 8
_MOST_REFUSALS = 1
_MESSAGES = ("ask", "go", "fail")


class FlakyReceiver:
    """A receiver that verifies each request, and answers a third of them with an error, or not at all."""

    def __init__(self, secret: str) -> None:
        self.answers: Counter[str] = Counter()
        self.arrived: dict[str, dict[str, Any]] = {}
        """The accepted notices, by their ids, in the order in which they were first accepted."""
        self._refused: Counter[str] = Counter()
        self._webhook = Webhook(secret)
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> "AsyncGenerator[FlakyReceiver, None]":
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head)
            }
            body = await reader.readexactly(int(headers["content-length"]))
            notice = self._webhook.verify(body, headers)
            answer = random.choices(("204 No Content", "500 Oops", ""), (4, 1, 1))[0]
            if self._refused[headers["webhook-id"]] == _MOST_REFUSALS:
                answer = "204 No Content"  # otherwise the sender may wait for an hour
            self._refused[headers["webhook-id"]] += not answer.startswith("204")
            self.answers[answer] += 1
            if answer:
                writer.write(f"HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n".encode())
                await writer.drain()
            if answer.startswith("204"):
                self.arrived.setdefault(headers["webhook-id"], notice)
        except (OSError, asyncio.IncompleteReadError):
            self.answers["cut off"] += 1  # the sender was killed
        finally:
            writer.close()


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await call()
        except (StoreUnavailable, StoreBusy):
            await asyncio.sleep(0.05)


async def _announced(store: Store) -> dict[str, list[tuple[str, int]]]:
    """Return the notices that each journal demands, in order."""
    wanted: dict[str, list[tuple[str, int]]] = {}
    for number in range(_SESSIONS):
        name = f"s{number}"
        turns = {each.id for each in (await store.submissions(name)).items if each.kind == "message"}
        wanted[name] = []
        for event in await store.events(name, limit=1000):
            payload = json.loads(event.payload)
            if event.kind == "approval_requested":
                wanted[name].append(("session.waiting", event.seq))
            elif event.kind == "submission_done" and payload["submission_id"] in turns:
                wanted[name].append(("session.done", event.seq))
            elif event.kind == "submission_failed" and payload["submission_id"] in turns:
                given_up = payload["state"] == "dead"
                wanted[name].append(("session.given_up" if given_up else "session.failed", event.seq))
    return wanted


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
        wanted = await _announced(store)
        deliveries = [each async for each in _all_deliveries(store, subscription.id)]
        assert {each.state for each in deliveries} == {"delivered"}
        lost = [each for each in deliveries if each.kind == "worker_lost"]
        assert len(lost) == sum(each["type"] == "worker.lost" for each in receiver.arrived.values()) > 0
        arrived: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for notice in receiver.arrived.values():
            if notice["type"] != "worker.lost":
                arrived[notice["data"]["session_id"]].append((notice["type"], notice["data"]["event"]))
        assert arrived == wanted
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
