"""Requests as bytes, to a real server: slow ones, small chunks, and those that a proxy could read differently."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from fastapi import Request
from pydantic import SecretStr
from websockets.asyncio.client import connect as connect_socket

from holdfast.config import load_settings
from holdfast.server import create_app
from holdfast.server.protocol import new_protocol
from holdfast.shell import ShellService
from holdfast.store import open_store
from tests.server.serving import serving

TOKEN = "hf_protocol"
STORE = "sqlite://:memory:"
SECONDS = 0.3
HEALTH = b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n"
SIGN_IN = b"POST /sign-in HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
BODY = json.dumps({"token": TOKEN}).encode()


class Connection:
    """One connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def status(self) -> int:
        """Read a whole response and return its status."""
        async with asyncio.timeout(10):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = [line for line in head.splitlines() if line.startswith("content-length: ")]
            await self._reader.readexactly(int(length[0].split()[1]) if length else 0)
            return int(head.split()[1])

    async def until(self, text: bytes) -> bytes:
        async with asyncio.timeout(10):
            return await self._reader.readuntil(text)

    async def rest(self) -> bytes:
        """Read until the server closes the connection."""
        async with asyncio.timeout(10):
            try:
                return await self._reader.read()
            except ConnectionResetError:
                return b""

    def close(self) -> None:
        self._writer.close()


class Server:
    """A server whose clients have to be quick."""

    def __init__(self, app: Any, url: str) -> None:
        self.app, self.url = app, url
        self._connections: list[Connection] = []

    async def connect(self) -> Connection:
        host, _, port = self.url.removeprefix("http://").partition(":")
        self._connections.append(Connection(*await asyncio.open_connection(host, int(port))))
        return self._connections[-1]

    async def outlast(self) -> None:
        """Wait until the server has closed two connections, one after the other, that sent nothing."""
        for _ in range(2):
            assert await (await self.connect()).rest() == b""

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


@pytest.fixture
async def server(tmp_path: Any) -> AsyncGenerator[Server, None]:
    async with open_store(STORE) as store, ShellService(store, cwd=tmp_path) as shell:
        settings = load_settings(store=STORE, token=SecretStr(TOKEN))
        app = create_app(settings, store, shell=shell)
        async with serving(app, new_protocol(SECONDS), keep_alive=1) as url:
            running = Server(app, url)
            yield running
            running.close()


async def test_a_connection_that_sends_nothing_is_closed(server: Server):
    assert await (await server.connect()).rest() == b""


@pytest.mark.parametrize("before", [b"", HEALTH])
async def test_half_a_head_is_refused_in_time(server: Server, before: bytes):
    connection = await server.connect()
    if before:
        await connection.send(before)
        assert await connection.status() == 200
    await connection.send(HEALTH[:20])
    assert (await connection.rest()).startswith(b"HTTP/1.1 408 ")


async def test_a_head_that_arrives_byte_by_byte_is_refused_in_time(server: Server):
    connection = await server.connect()

    async def drip() -> None:
        await connection.send(b"GET /health HTTP/1.1\r\nx: ")
        while True:
            await connection.send(b"y")
            await asyncio.sleep(0.01)

    dripping = asyncio.create_task(drip())
    assert b"408" in await connection.rest()
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"]
)
async def test_a_body_that_stops_arriving_is_refused_in_time(server: Server, framing: bytes):
    connection = await server.connect()
    await connection.send(SIGN_IN + framing)
    assert (await connection.rest()).startswith(b"HTTP/1.1 408 ")


async def test_a_slow_body_that_keeps_moving_is_accepted(server: Server):
    connection = await server.connect()
    await connection.send(SIGN_IN + b"Content-Length: %d\r\n\r\n" % len(BODY))
    for number in range(len(BODY)):
        await connection.send(BODY[number : number + 1])
        await asyncio.sleep(SECONDS * 3 / len(BODY))
    assert await connection.status() == 204


async def test_a_body_that_the_application_does_not_read_yet_is_not_late(server: Server):
    read = asyncio.Event()

    async def slow(request: Request) -> int:
        await read.wait()
        return len(await request.body())

    server.app.add_api_route("/slow", slow, methods=["POST"])
    connection = await server.connect()
    await connection.send(
        b"POST /slow HTTP/1.1\r\nHost: here\r\nContent-Length: 300000\r\n\r\n" + b"x" * 200_000
    )
    waiting = await server.connect()
    head = b"POST /slow HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    await waiting.send(head)
    await server.outlast()
    read.set()
    await connection.send(b"x" * 100_000)
    assert await connection.status() == 200
    assert b" 100 " in await waiting.until(b"\r\n\r\n")
    await waiting.send(b"abc")
    assert await waiting.status() == 200


async def test_the_rest_of_a_body_that_nobody_reads_does_not_keep_the_connection_open(server: Server):
    connection = await server.connect()
    await connection.send(b"POST /no/such HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000000\r\n\r\n")
    assert await connection.status() == 404

    async def flood() -> None:
        while True:
            await connection.send(b"x" * 1000)
            await asyncio.sleep(0.01)

    flooding = asyncio.create_task(flood())
    assert await connection.rest() == b""
    flooding.cancel()
    await asyncio.gather(flooding, return_exceptions=True)


async def test_streams_sockets_and_idle_connections_stay_open(server: Server):
    await server.app.state.store.create_session(agent="agent", owner="local", id="mine")
    stream = await server.connect()
    lines = ["GET /api/sessions/mine/events HTTP/1.1", "Host: here", "Accept: text/event-stream"]
    await stream.send("\r\n".join([*lines, f"Authorization: Bearer {TOKEN}", "", ""]).encode())
    assert b" 200 " in await stream.until(b"\r\n\r\n")
    address = server.url.replace("http://", "ws://") + "/sockets/bash-events"
    async with connect_socket(address, additional_headers={"X-Session-API-Key": TOKEN}) as socket:
        await server.outlast()
        idle = await server.connect()
        await idle.send(HEALTH)
        assert await idle.status() == 200
        assert await (await server.connect()).rest() == b""
        await idle.send(HEALTH)
        assert await idle.status() == 200
        await server.app.state.store.submit("mine", "message", '{"text": "hi"}')
        await stream.until(b"submission_queued")
        await socket.send(json.dumps({"command": "true"}))
        async with asyncio.timeout(10):
            assert json.loads(await socket.recv())["command"] == "true"


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def test_a_body_of_one_byte_chunks_is_refused(server: Server):
    connection = await server.connect()
    body = chunked(BODY + b" " * 20_000, 1)
    await connection.send(SIGN_IN + b"Transfer-Encoding: chunked\r\n\r\n" + body)
    assert (await connection.rest()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(("more", "size"), [(0, 1), (300, 1), (1_000_000, 300), (1_000_000, 100_000)])
async def test_bodies_in_usual_chunks_are_accepted(server: Server, more: int, size: int):
    connection = await server.connect()
    body = chunked(BODY + b" " * more, size)
    await connection.send(SIGN_IN + b"Transfer-Encoding: chunked\r\n\r\n" + body)
    assert await connection.status() == 204
