"""The read side of Durable Streams: offsets, the end, waiting, and Server-Sent Events."""

import asyncio
import json
from typing import Any

import httpx2
import pytest

from holdfast import Store
from holdfast.server import durable_streams
from holdfast.types import Batch, NewEvent
from tests.server.test_chat import OTHER, TOKEN, http

__all__ = ["TOKEN", "http"]
pytestmark = pytest.mark.processes


async def add(store: Store, *kinds: str) -> None:
    lease = await store.acquire("s1", await store.join("test"))
    await store.write(lease, Batch(events=[NewEvent(kind=kind) for kind in kinds]))
    await store.release(lease)


@pytest.fixture(autouse=True)
async def session(store: Store) -> None:
    await store.create_session(agent="agent", owner="ada", id="s1")
    await add(store, "a", "b", "c")


def kinds(response: httpx2.Response) -> list[str]:
    return [event["kind"] for event in response.json()]


async def test_a_read_without_live_returns_everything_up_to_the_end(http: httpx2.AsyncClient, store: Store):
    whole = await http.get("/api/streams/s1?offset=-1")
    assert kinds(whole) == ["a", "b", "c"]
    assert (whole.headers["stream-up-to-date"], int(whole.headers["stream-next-offset"])) == ("true", 3)
    assert kinds(await http.get("/api/streams/s1?offset=2")) == ["c"]
    assert kinds(await http.get("/api/streams/s1?offset=now")) == []
    head = await http.head("/api/streams/s1")
    assert (head.headers["stream-next-offset"], head.content) == (whole.headers["stream-next-offset"], b"")
    await add(store, *("more" for _ in range(1200)))
    assert len(kinds(await http.get("/api/streams/s1"))) == 1203


async def test_a_long_poll_waits_for_the_next_events(
    http: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
):
    assert kinds(await http.get("/api/streams/s1?offset=1&live=long-poll")) == ["b", "c"]
    waiting = asyncio.create_task(http.get("/api/streams/s1?offset=now&live=long-poll&cursor=x"))
    await asyncio.sleep(0.2)
    await add(store, "d")
    found = await waiting
    assert (kinds(found), int(found.headers["stream-next-offset"])) == (["d"], 4)
    monkeypatch.setattr(durable_streams, "_POLL_SECONDS", 0.1)
    nothing = await http.get("/api/streams/s1?offset=4&live=long-poll")
    assert (nothing.status_code, int(nothing.headers["stream-next-offset"])) == (204, 4)


async def test_server_sent_events_have_data_and_control(http: httpx2.AsyncClient, store: Store):
    found: list[str] = []
    ends: list[tuple[int, bool]] = []
    async with http.stream("GET", "/api/streams/s1?offset=1&live=sse") as response, asyncio.timeout(20):
        name = ""
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data: Any = json.loads(line.removeprefix("data: "))
                if name == "data":
                    found += [event["kind"] for event in data]
                else:
                    ends.append((int(data["streamNextOffset"]), data["upToDate"]))
                    if ends == [(3, True)]:
                        await add(store, "d")
                    elif found[-1] == "d":
                        break
    assert found == ["b", "c", "d"]
    assert ends[-1] == (4, True)


async def test_bad_offsets_and_strangers_are_refused(http: httpx2.AsyncClient):
    for offset, status in (("x", 422), ("-2", 422), ("4", 409), ("9" * 21, 422)):
        response = await http.get(f"/api/streams/s1?offset={offset}")
        assert response.status_code == status, response.text
    stranger = {"authorization": f"Bearer {OTHER}"}
    assert (await http.get("/api/streams/s1", headers=stranger)).status_code == 404
    assert (await http.head("/api/streams/s1", headers=stranger)).status_code == 404
