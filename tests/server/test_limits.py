"""Limits of each owner: a request beyond them is refused with the time to wait, or names sessions to delete, and other owners are not affected."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest

from holdfast import Store, connect
from holdfast.config import load_settings
from holdfast.errors import RateLimited, TooMuchStored
from holdfast.media import open_media
from holdfast.operations.limits import RateLimits
from holdfast.retention import clean
from holdfast.retention.measuring import measure_changed
from holdfast.server import create_app
from holdfast.server.auth import digest
from holdfast.store import open_store
from tests.builders import until
from tests.client.agents import payer
from tests.server.conftest import TOKENS
from tests.server.fronts import front
from tests.server.serving import serving, working


def as_(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[name]}"}


@asynccontextmanager
async def limited(store: Store, **settings: Any) -> AsyncGenerator[httpx2.AsyncClient, None]:
    app = create_app(load_settings(**settings), store)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://test", headers=as_("owner")
    ) as client:
        yield client


@pytest.mark.usefixtures("tokens")
async def test_requests_per_minute(store: Store):
    async with limited(store, max_requests_per_minute=3) as http:
        answers = [await http.get("/api/me") for _ in range(4)]
        assert [each.status_code for each in answers] == [200, 200, 200, 429]
        assert 1 <= int(answers[3].headers["retry-after"]) <= 20
        error = answers[3].json()["error"]
        assert (error["code"], error["facts"]["limit"]) == ("rate_limited", 3)
        assert (await http.get("/api/me", headers=as_("reader"))).status_code == 429, (
            "another token of the owner"
        )
        assert (await http.get("/api/me", headers=as_("other"))).status_code == 200
        assert {(await http.get("/api/me", headers=as_("admin"))).status_code for _ in range(5)} == {200}
        assert {(await http.get("/health")).status_code for _ in range(5)} == {200}
        assert (await http.get("/api/me", headers={"authorization": "Bearer hf_bad"})).status_code == 401


@pytest.mark.usefixtures("tokens")
async def test_submissions_per_minute_but_not_interrupts(store: Store):
    session = await store.create_session(agent="agent", owner="owner")
    path = f"/api/sessions/{session.id}"
    async with limited(store, max_submissions_per_minute=2) as http:
        body = {"kind": "message", "text": "hello"}
        answers = [await http.post(f"{path}/submissions", json=body) for _ in range(3)]
        assert [each.status_code for each in answers] == [202, 202, 429]
        assert answers[2].json()["error"]["facts"]["what"] == "submissions per minute"
        assert (await http.post(f"{path}/interrupt")).status_code == 202
        assert (await http.get(path)).status_code == 200
    assert (await store.session(session.id)).pending == 3


@pytest.mark.usefixtures("tokens")
async def test_the_number_of_sessions(store: Store):
    await store.create_session(agent="agent", owner="other")
    async with limited(store, max_sessions=2) as http:
        answers = [await http.post("/api/sessions", json={"agent": "agent"}) for _ in range(3)]
        assert [each.status_code for each in answers] == [201, 201, 409]
        error = answers[2].json()["error"]
        assert error["code"] == "too_many_sessions"
        assert "Clean or erase some" in error["message"]
        assert "use a token with the scope `delete`" in error["message"]
        mine = {"agent": "agent", "owner": "owner"}
        assert (await http.post("/api/sessions", json=mine, headers=as_("admin"))).status_code == 201
        again = {"agent": "agent", "id": answers[0].json()["id"]}
        assert (await http.post("/api/sessions", json=again)).json()["error"]["code"] == "session_exists"
        erased = await http.delete(f"/api/sessions/{answers[0].json()['id']}")
        assert erased.status_code < 300, erased.text
        assert (await http.post("/api/sessions", json={"agent": "agent"})).status_code == 409
        await http.delete(f"/api/sessions/{answers[1].json()['id']}")
        assert (await http.post("/api/sessions", json={"agent": "agent"})).status_code == 201


async def measured(store: Store, session_id: str, characters: int = 5000) -> int:
    """Give a session a message that nobody has read, measure it, and return how much its owner has stored."""
    await store.submit(session_id, "message", json.dumps({"text": "x" * characters}))
    await store.measure(session_id)
    return await store.stored_bytes("owner")


@pytest.mark.usefixtures("tokens")
async def test_stored_bytes(store: Store):
    small = await store.create_session(agent="agent", owner="owner", id="small")
    large = await store.create_session(agent="agent", owner="owner", id="large")
    others = await store.create_session(agent="agent", owner="other")
    cleaned = await store.create_session(agent="agent", owner="owner")
    await clean(store, open_media(store=store), cleaned.id, actor="test", force=True)
    await measured(store, small.id)
    stored = await measured(store, large.id, 9000)
    path, body = f"/api/sessions/{small.id}", {"kind": "message", "text": "hello"}
    key = {"idempotency_key": "k"}
    async with limited(store, max_stored_bytes_per_owner=stored + 1) as http:
        assert (await http.post(f"{path}/submissions", json=body | key)).status_code == 202
    async with limited(store, max_stored_bytes_per_owner=stored) as http:
        refused = [
            await http.post(f"{path}/submissions", json=body),
            await http.post(f"{path}/submissions", json=body | {"idempotency_key": "l"}),
            await http.post(f"{path}/fork"),
            await http.post("/api/sessions", json={"agent": "agent"}),
            await http.post("/api/sessions", json={"agent": "agent", "id": "new"}),
            await http.put(f"{path}/state", json={"body": {}, "expected_version": 0}),
            await http.post(f"/api/sessions/{cleaned.id}/rehydrate"),
            await http.post(
                "/api/chat?agent=agent",
                json={
                    "id": small.id,
                    "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"}]}],
                },
            ),
        ]
        assert [each.status_code for each in refused] == [409] * 8
        for each in refused:
            error = each.json()["error"]
            assert error["code"] == "too_much_stored"
            assert (error["facts"]["stored_bytes"], error["facts"]["limit_bytes"]) == (stored, stored)
            assert list(error["facts"]["sessions"]) == ["large", "small"]
            for part in (
                "'owner' has ",
                "may have ",
                "erase",
                "clean or archive",
                "scope `delete`",
                "large (",
                "small (",
            ):
                assert part in error["message"]

        again = await http.post(f"{path}/submissions", json=body | key)
        assert again.status_code == 202, "it was accepted before"
        assert (await http.post(f"{path}/interrupt")).status_code == 202
        assert (await http.post(f"{path}/signals/go")).status_code == 202
        taken = await http.post("/api/sessions", json={"agent": "agent", "id": "small"})
        assert taken.json()["error"]["code"] == "session_exists"
        assert (await http.get(path)).status_code == 200
        elsewhere = await http.post(f"/api/sessions/{others.id}/submissions", json=body, headers=as_("other"))
        assert elsewhere.status_code == 202
        boss = await http.post(f"{path}/submissions", json=body, headers=as_("admin"))
        assert boss.status_code == 202
        assert (await http.delete(f"/api/sessions/{large.id}")).status_code < 300
        assert (await http.post(f"{path}/submissions", json=body)).status_code == 202
        assert (await http.post("/api/sessions", json={"agent": "agent"})).status_code == 201


@pytest.mark.usefixtures("tokens")
async def test_a_turn_of_a_full_owner_can_be_answered_and_ends(store: Store):
    settings = load_settings(max_stored_bytes_per_owner=1)
    async with (
        working(store, payer),
        serving(create_app(settings, store)) as url,
        connect(url, token=TOKENS["owner"]) as client,
    ):
        session = await client.session(agent="payer")
        turn = await session.send("pay")
        await until(lambda: is_waiting(store, session.id))
        await store.measure(session.id)
        with pytest.raises(TooMuchStored) as caught:
            await session.send("more")
        assert session.id in str(caught.value)
        assert caught.value.status == 409
        with pytest.raises(TooMuchStored):
            await client.session(agent="payer")
        for call in ("first", "second"):
            await session.approve(call)
        async with asyncio.timeout(20):
            assert "answered" in str(await turn)


async def is_waiting(store: Store, session_id: str) -> bool:
    return (await store.session(session_id)).status == "waiting"


@pytest.mark.processes
async def test_the_stored_bytes_of_an_owner_are_the_same_for_all_servers(tmp_path: Any):
    """A worker measures them, and an erasure through one server lowers them for the other."""
    url = f"sqlite:///{tmp_path}/store.db"
    body = {"kind": "message", "text": "x" * 20_000}
    limit = {"max_stored_bytes_per_owner": 10_000}
    async with open_store(url) as store, AsyncExitStack() as stack:
        await store.add_token(digest(TOKENS["owner"]), owner="owner")
        session = await store.create_session(agent="agent", owner="owner")
        servers = [await stack.enter_async_context(front(url, "--role", "api", **limit)) for _ in range(2)]
        first, second = [f"{each.url}/api/sessions/{session.id}" for each in servers]
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=as_("owner"), timeout=30))
        assert (await http.post(f"{first}/submissions", json=body)).status_code == 202

        settings = load_settings(store=url, **limit)
        measuring = await stack.enter_async_context(open_store(settings=settings))
        holder = await measuring.join("worker", ttl=60)
        await measure_changed(measuring, holder)
        for path in (first, second):
            assert (await http.post(f"{path}/submissions", json=body)).status_code == 409
        assert (await http.delete(first)).status_code < 300
        new = await http.post(f"{servers[1].url}/api/sessions", json={"agent": "agent"})
        assert new.status_code == 201


@pytest.mark.processes
async def test_streams_at_once(tmp_path: Any):
    url = f"sqlite:///{tmp_path}/store.db"
    async with open_store(url) as store, AsyncExitStack() as stack:
        await store.add_token(digest(TOKENS["owner"]), owner="owner")
        session = await store.create_session(agent="agent", owner="owner")
        server = await stack.enter_async_context(front(url, "--role", "api", max_streams=2))
        path = f"{server.url}/api/sessions/{session.id}/events"
        headers = as_("owner") | {"accept": "text/event-stream"}
        http = await stack.enter_async_context(httpx2.AsyncClient())
        streams = AsyncExitStack()
        for _ in range(2):
            assert (
                await streams.enter_async_context(http.stream("GET", path, headers=headers))
            ).status_code == 200
        refused = await http.get(path, headers=headers)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert (await http.get(path, headers=as_("owner"))).status_code == 200, (
            "a page of events is no stream"
        )
        await streams.aclose()
        async with asyncio.timeout(10):
            while True:
                async with http.stream("GET", path, headers=headers) as again:
                    if again.status_code == 200:
                        break
                await asyncio.sleep(0.05)


def test_what_is_left_grows_back_evenly_and_memory_is_bounded():
    now = 0.0
    limits = RateLimits(load_settings(max_requests_per_minute=60), lambda: now)
    for _ in range(60):
        limits.use("requests", "ada")
    with pytest.raises(RateLimited, match="60 requests per minute"):
        limits.use("requests", "ada")
    now = 2.0
    limits.use("requests", "ada")
    limits.use("requests", "ada")
    with pytest.raises(RateLimited):
        limits.use("requests", "ada")
    for number in range(30_000):
        limits.use("requests", f"owner-{number}")
    assert len(limits._allowances) == 20_000  # pyright: ignore[reportPrivateUsage]
    limits.use("submissions", "ada")
