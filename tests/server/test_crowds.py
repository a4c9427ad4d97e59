"""Crowds and bombs on a real server: many idle streams, heads that never end, clients that do not read or just leave."""

import asyncio
import resource
import socket
from collections.abc import AsyncGenerator
from contextlib import nullcontext

import httpx2
import pytest
import uvicorn
from prometheus_client import generate_latest

from holdfast import Store
from holdfast.config import load_settings
from holdfast.operations import channel
from holdfast.server import create_app
from holdfast.types import Batch, NewEvent
from tests.conftest import Engine
from tests.server.fronts import Front, front

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
TOKEN = "hf_crowd"


@pytest.fixture
async def server(engine: Engine, store: Store) -> AsyncGenerator[Front, None]:
    async with front(engine.url, "--role", "api", token=TOKEN) as running:
        yield running


def connect(server: Front) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def stream(server: Front, session: str, *, buffer: int | None = None) -> socket.socket:
    """Open a stream and return when its head is there."""
    connection = connect(server)
    if buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    lines = ["GET /api/sessions/" + session + "/events HTTP/1.1", "Host: x", "Accept: text/event-stream"]
    connection.sendall("\r\n".join([*lines, f"Authorization: Bearer {TOKEN}", "", ""]).encode())
    head = b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(4096)
    assert b" 200 " in head
    return connection


async def streams(server: Front) -> float:
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=60) as http:
        text = (await http.get("/metrics")).text
    return float(text.split("\nholdfast_streams ")[1].split("\n")[0])


async def test_a_crowd_that_only_waits(server: Front, store: Store, long: bool):
    """10,000 with --long: each gets what comes, others are answered meanwhile, and nothing is left of them."""
    count = 10_000 if long else 500
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most > count + 100, "the system allows too few open files for this test"
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    holder = await store.join("writer", ttl=280)
    sessions = [(await store.create_session(agent="agent", owner="you")).id for _ in range(20)]
    crowd = await asyncio.to_thread(lambda: [stream(server, sessions[n % 20]) for n in range(count)])
    try:
        assert await streams(server) == count
        for session in sessions:
            lease = await store.acquire(session, holder)
            await store.write(lease, Batch(events=[NewEvent(kind="tick")]))

        def hear() -> None:
            for connection in crowd:
                text = b""
                while b"event: tick" not in text:
                    got = connection.recv(4096)
                    assert got
                    text += got
                assert b"id: 1\n" in text

        await asyncio.to_thread(hear)
        async with httpx2.AsyncClient(base_url=server.url) as http:
            assert (await http.get("/health")).json()["status"] == "ok"
    finally:
        for connection in crowd:
            connection.close()
    async with asyncio.timeout(60):
        while await streams(server):
            await asyncio.sleep(0.05)


BOMBS = {
    "many headers": b"GET /health HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(100_000)),
    "a long header": b"GET /health HTTP/1.1\r\nx: " + b"y" * 1_000_000,
    "a long path": b"GET /" + b"a" * 1_000_000,
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
    "nonsense": b"nonsense\r\n\r\n",
    "a negative length": b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\ncontent-length: -5\r\n\r\n",
}


async def test_a_head_that_is_none_is_refused_in_the_documented_shape(server: Front):
    def throw(bomb: bytes) -> bytes:
        with connect(server) as connection:
            answer = b""
            try:
                connection.sendall(bomb)
                while got := connection.recv(4096):
                    answer += got
            except (BrokenPipeError, ConnectionResetError):
                pass  # it did not listen to the end
            return answer

    for name, bomb in BOMBS.items():
        answer = await asyncio.to_thread(throw, bomb)
        if answer:
            assert answer.startswith(b"HTTP/1.1 400 "), name
            assert b'{"error": {"code": "bad_request"' in answer, name
        else:
            assert len(bomb) > 65536, name  # hung up on while it was still sending
        async with httpx2.AsyncClient(base_url=server.url) as http:
            assert (await http.get("/health")).status_code == 200, name


async def test_who_leaves_in_the_middle_of_a_request_is_forgotten(server: Front, store: Store):
    session = (await store.create_session(agent="agent", owner="you")).id
    for cut in (20, 60, 200, 250):
        request = (
            f"POST /api/sessions/{session}/submissions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
            'content-type: application/json\r\ncontent-length: 500\r\n\r\n{"text": "hello'
        )
        with connect(server) as connection:
            connection.sendall(request.encode()[:cut])
    async with httpx2.AsyncClient(base_url=server.url) as http:
        assert (await http.get("/health")).status_code == 200
    assert (await store.submissions(session)).items == []


async def test_who_does_not_read_holds_up_nobody(server: Front, store: Store):
    """One client takes nothing; the writer and another client go on as if it were not there."""
    session = (await store.create_session(agent="agent", owner="you")).id
    lease = await store.acquire(session, await store.join("writer", ttl=280))
    stuck = await asyncio.to_thread(lambda: stream(server, session, buffer=4096))
    brisk = await asyncio.to_thread(lambda: stream(server, session))
    batch = Batch(events=[NewEvent(kind="tick", payload=f'"{"x" * 1000}"') for _ in range(100)])
    async with asyncio.timeout(60):
        for _ in range(100):
            await store.write(lease, batch)

        def hear() -> None:
            tail = b""
            while b"id: 10000\n" not in tail:
                tail = tail[-20:] + brisk.recv(65536)

        await asyncio.to_thread(hear)
    assert await streams(server) == 2
    stuck.close()
    brisk.close()


async def test_who_takes_nothing_is_dropped_and_resumes(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channel, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(channel, "TICK_SECONDS", 0.1)
    # What is sent next waits for the client to take what is on its way: here the comment that the stream lives.
    app = create_app(load_settings(token=TOKEN, stream_comment_seconds=1), store)
    listening = socket.create_server(("127.0.0.1", 0))
    serving = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
    serving.capture_signals = nullcontext  # pyright: ignore[reportAttributeAccessIssue]
    task = asyncio.create_task(serving.serve(sockets=[listening]))
    here = Front(None, f"http://127.0.0.1:{listening.getsockname()[1]}", TOKEN)  # pyright: ignore[reportArgumentType]
    try:
        session = (await store.create_session(agent="agent", owner="you")).id
        lease = await store.acquire(session, await store.join("writer", ttl=280))
        stuck = await asyncio.to_thread(lambda: stream(here, session, buffer=4096))
        batch = Batch(events=[NewEvent(kind="tick", payload=f'"{"x" * 100_000}"') for _ in range(100)])
        await store.write(lease, batch)
        async with asyncio.timeout(30):
            while app.state.channels.clients or serving.server_state.connections:
                await asyncio.sleep(0.02)
        stuck.close()
        assert "holdfast_streams_dropped_total 1.0" in generate_latest(app.state.metrics.registry).decode()
        async with here.client() as client, asyncio.timeout(30):
            last = 0
            async for event in client.stream(session, after=last):
                assert event["seq"] == last + 1
                last = event["seq"]
                if last == 100:
                    break
    finally:
        app.state.channels.close()
        serving.should_exit = True
        await task
