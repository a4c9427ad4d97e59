"""Requests as bytes, to a real server: slow ones, small chunks, and those that a proxy could read differently."""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request
from fastapi.responses import StreamingResponse
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
PATIENT_SECONDS = 1.0
"""For tests where the server must not give up: the client shares a busy machine, and its event loop, with it."""
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

    def end(self) -> None:
        """Send nothing more."""
        self._writer.write_eof()

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


@pytest.fixture(params=[SECONDS])
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncGenerator[Server, None]:
    async with open_store(STORE) as store, ShellService(store, cwd=tmp_path) as shell:
        settings = load_settings(store=STORE, token=SecretStr(TOKEN))
        app = create_app(settings, store, shell=shell)
        async with serving(app, new_protocol(request.param), keep_alive=round(4 * request.param)) as url:
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
    answer = await connection.rest()
    assert (
        answer == b"" or b"408" in answer
    )  # bytes that are under way when it closes may reset the connection
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"]
)
async def test_a_body_that_stops_arriving_is_refused_in_time(server: Server, framing: bytes):
    connection = await server.connect()
    await connection.send(SIGN_IN + framing)
    assert (await connection.rest()).startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_arrives_byte_by_byte_is_refused_in_time(server: Server):
    connection = await server.connect()
    await connection.send(SIGN_IN + b"Content-Length: 10000\r\n\r\n")

    async def drip() -> None:
        while True:
            await connection.send(b" ")
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    answer = await connection.rest()
    assert (
        answer == b"" or b"408" in answer
    )  # bytes that are under way when it closes may reset the connection
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)


async def test_an_upgrade_whose_handshake_does_not_end_is_closed(server: Server):
    connection = await server.connect()
    head = b"GET /sockets/bash-events HTTP/1.1\r\nHost: here\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    await connection.send(head + b"X: more than a WebSocket may have\r\n" * 200 + b"\r\n")
    assert await connection.rest() == b""


@pytest.mark.parametrize("server", [PATIENT_SECONDS], indirect=True)
async def test_a_slow_body_that_keeps_moving_is_accepted(server: Server):
    """A client that a busy machine held up proves nothing, and tries again."""
    for _ in range(20):
        connection = await server.connect()
        sent_at = [time.monotonic()]
        with suppress(ConnectionError):
            await connection.send(SIGN_IN + b"Content-Length: %d\r\n\r\n" % len(BODY))
            for number in range(len(BODY)):
                await asyncio.sleep(PATIENT_SECONDS * 1.2 / len(BODY))
                await connection.send(BODY[number : number + 1])
                sent_at.append(time.monotonic())
            assert await connection.status() == 204
            return
        longest_pause = max(after - before for before, after in pairwise(sent_at))
        assert longest_pause > PATIENT_SECONDS / 2 or sent_at[-1] - sent_at[0] > PATIENT_SECONDS * 1.7
    pytest.fail("The machine is too busy for this test.")


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


def endless(server: Server) -> asyncio.Event:
    """Add a response that does not end; return the event that is set when it has ended nevertheless."""
    ended = asyncio.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"x" * 65536
                await asyncio.sleep(0)
        finally:
            ended.set()

    server.app.add_api_route("/endless", lambda: StreamingResponse(pieces()), methods=["GET"])
    return ended


async def test_a_response_that_the_client_does_not_take_is_given_up(server: Server):
    ended = endless(server)
    connection = await server.connect()
    await connection.send(HEALTH.replace(b"/health", b"/endless"))
    async with asyncio.timeout(10):
        await ended.wait()


@pytest.mark.parametrize("way", ["close", "end of input", "failure", "idle"])
async def test_a_closed_connection_whose_client_does_not_take_the_rest_is_given_up(way: str):
    lost = asyncio.Event()

    class Roomy(new_protocol(SECONDS)):
        """Takes all of a response at once, as any does with a small one."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.set_write_buffer_limits(2**30)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"x" * 50_000_000
        if way == "failure":
            raise RuntimeError
        if way == "end of input":
            await lost.wait()

    async with open_store(STORE) as store:
        app = create_app(load_settings(store=STORE, token=SecretStr(TOKEN)), store)
        app.add_api_route("/large", lambda: StreamingResponse(pieces()), methods=["GET"])
        async with serving(app, Roomy, keep_alive=1) as url:
            server = Server(app, url)
            connection = await server.connect()
            request = HEALTH.replace(b"/health", b"/large")
            if way == "close":
                request = request.replace(HOST, HOST + b"Connection: close\r\n")
            await connection.send(request)
            await connection.until(b"\r\n\r\n")
            if way == "end of input":
                connection.end()
            async with asyncio.timeout(10):
                await lost.wait()
            server.close()


@pytest.mark.parametrize("server", [PATIENT_SECONDS], indirect=True)
async def test_a_response_that_the_client_takes_slowly_is_not_given_up(server: Server):
    ended = endless(server)
    connection = await server.connect()
    await connection.send(HEALTH.replace(b"/health", b"/endless"))
    silent = asyncio.create_task(server.outlast())  # for as long as a response may stand still
    while not silent.done():
        await connection.until(b"x" * 30_000)
        await asyncio.sleep(0.01)
    await silent
    assert not ended.is_set()


@pytest.mark.parametrize("server", [3 * PATIENT_SECONDS], indirect=True)
async def test_streams_sockets_and_idle_connections_stay_open(server: Server):
    await server.app.state.service.store.create_session(agent="agent", owner="local", id="mine")
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
        await server.app.state.service.store.submit("mine", "message", '{"text": "hi"}')
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
    body = chunked(b'{"agent": "scribe"}' + b" " * more, size)
    head = f"POST /api/sessions HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
    head += b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    await connection.send(head + body)
    assert await connection.status() == 201


@pytest.mark.parametrize("server", [PATIENT_SECONDS], indirect=True)
async def test_a_chunked_body_may_arrive_in_any_pieces(server: Server):
    connection = await server.connect()
    body = chunked(BODY, 5).removesuffix(b"\r\n") + b"X: a trailer\r\n\r\n"
    await connection.send(SIGN_IN + b"Transfer-Encoding: chunked\r\n\r\n")
    for number in range(len(body)):
        await connection.send(body[number : number + 1])
        await asyncio.sleep(0)
    assert await connection.status() == 204
    await connection.send(HEALTH)
    assert await connection.status() == 200


POST = b"POST /sign-in HTTP/1.1\r\n"
HOST = b"Host: here\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
AMBIGUOUS = {
    "no host": POST + b"Content-Length: 0\r\n\r\n",
    "an empty host": POST + b"Host:\r\nContent-Length: 0\r\n\r\n",
    "two hosts": POST + HOST + b"Host: there\r\nContent-Length: 0\r\n\r\n",
    "the same host twice": POST + HOST + HOST + b"Content-Length: 0\r\n\r\n",
    "a list of hosts": POST + b"Host: here, there\r\nContent-Length: 0\r\n\r\n",
    "a host with a path": POST + b"Host: here/x\r\nContent-Length: 0\r\n\r\n",
    "a host with a user": POST + b"Host: x@here\r\nContent-Length: 0\r\n\r\n",
    "length and chunks": POST + HOST + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "chunks and length": POST + HOST + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
    "chunks twice": POST + HOST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "another coding": POST + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "an unknown coding": POST + HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "identity": POST + HOST + b"Transfer-Encoding: identity\r\nContent-Length: 0\r\n\r\n",
    "an empty coding": POST + HOST + b"Transfer-Encoding:\r\nContent-Length: 0\r\n\r\n",
    "a coding with a tab": POST + HOST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "a name with a space": POST + HOST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a folded coding": POST + HOST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a folded header": POST + HOST + b"X: a\r\n\tContent-Length: 5\r\nContent-Length: 0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST /sign-in HTTP/1.0\r\n" + HOST + CHUNKED + b"\r\n0\r\n\r\n",
    "a signed length": POST + HOST + b"Content-Length: +0\r\n\r\n",
    "a negative length": POST + HOST + b"Content-Length: -0\r\n\r\n",
    "a length with a space": POST + HOST + b"Content-Length: 0 0\r\n\r\n",
    "a length with zeros": POST + HOST + b"Content-Length: 00\r\n\r\n",
    "a hexadecimal length": POST + HOST + b"Content-Length: 0x0\r\n\r\n",
    "an empty length": POST + HOST + b"Content-Length:\r\n\r\n",
    "two lengths": POST + HOST + b"Content-Length: 0\r\nContent-Length: 1\r\n\r\n",
    "the same length twice": POST + HOST + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "a list of lengths": POST + HOST + b"Content-Length: 0, 0\r\n\r\n",
    "a bare LF in the head": POST + b"Host: here\nContent-Length: 0\r\n\r\n",
    "only bare LF": (POST + HOST + b"Content-Length: 0\r\n\r\n").replace(b"\r\n", b"\n"),
    "a bare LF at the end": POST + HOST + b"Content-Length: 0\r\n\n",
    "a bare CR in a value": POST + HOST + b"X: a\rContent-Length: 5\r\nContent-Length: 0\r\n\r\n",
    "a NUL": POST + HOST + b"X: a\x00b\r\nContent-Length: 0\r\n\r\n",
    "a whole URL": b"POST http://there/sign-in HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n",
    "a tunnel": b"CONNECT there:80 HTTP/1.1\r\n" + HOST + b"\r\n",
    "another version": b"POST /sign-in HTTP/1.2\r\n" + HOST + b"Content-Length: 0\r\n\r\n",
    "a chunk size with a sign": POST + HOST + CHUNKED + b"\r\n+0\r\n\r\n",
    "a chunk size with 0x": POST + HOST + CHUNKED + b"\r\n0x0\r\n\r\n",
    "a chunk that ends in LF": POST + HOST + CHUNKED + b"\r\n1\nx\n0\n\n",
    "a bare LF after the last chunk": POST + HOST + CHUNKED + b"\r\n0\r\n\n",
    "a trailer that ends in LF": POST + HOST + CHUNKED + b"\r\n0\r\nX: a\n\r\n",
    "a folded trailer": POST + HOST + CHUNKED + b"\r\n0\r\nX: a\r\n b\r\n\r\n",
    "a bare CR in the size of a chunk": POST + HOST + CHUNKED + b"\r\n1;a\rb\r\nx\r\n0\r\n\r\n",
    "an upgrade with a body": b"GET /health HTTP/1.1\r\n"
    + HOST
    + b"Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\n",
    "a chunk that is too long": POST + HOST + CHUNKED + b"\r\n1\r\nxy\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("request_", AMBIGUOUS.values(), ids=AMBIGUOUS)
async def test_a_request_that_a_proxy_could_read_differently_is_refused(server: Server, request_: bytes):
    connection = await server.connect()
    await connection.send(request_ + HEALTH)
    answer = await connection.rest()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert len(re.findall(rb"HTTP/1.1 [0-9]", answer)) == 1


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: here:8350\r\n",
        b"GET /health HTTP/1.1\r\nhost: [::1]:8350\r\n",
        b"GET /health HTTP/1.1\r\nHOST: my_service.example-1.com \r\n",
        b"GET /health HTTP/1.1\r\nHost:here\r\nContent-Length: 0\r\n",
        b"GET /health HTTP/1.1\r\nHost: here\r\nX:\r\nX: a b\r\nX: \xc3\xa9\r\n",
        b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n",
    ],
)
async def test_usual_heads_are_accepted(server: Server, head: bytes):
    connection = await server.connect()
    await connection.send(head + b"\r\n" + HEALTH)
    assert await connection.status() == 200


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length: 5" + b" " * 60_000 + b",5\r\n",
        b'Cookie: holdfast_token="' + b'\\"' * 30_000 + b'"\r\n',
    ],
)
async def test_a_head_takes_time_in_proportion_to_its_length(server: Server, line: bytes):
    connection = await server.connect()
    started = time.process_time()
    await connection.send(
        b"GET /api/sessions HTTP/1.1\r\nHost: here\r\nConnection: close\r\n" + line + b"\r\n"
    )
    assert (await connection.rest()).split()[1] in {b"400", b"401"}
    assert time.process_time() - started < 1  # it was 6 seconds


UPGRADE = (
    b"GET /sockets/bash-events HTTP/1.1\r\nHost: here\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@pytest.mark.parametrize("frame", [b"\x8a\x80\0\0\0\0", b"\x01\x80\0\0\0\0"], ids=["pongs", "fragments"])
async def test_a_socket_that_sends_many_tiny_frames_is_ended(server: Server, frame: bytes):
    """Each costs some microseconds, and anybody may send them before their token is checked."""
    connection = await server.connect()
    await connection.send(UPGRADE)
    await asyncio.sleep(0.1)
    began = time.monotonic()
    with suppress(ConnectionError):
        await connection.send(frame + (b"\x00\x80\0\0\0\0" if frame[0] == 1 else frame) * 20_000)
    await connection.rest()
    assert time.monotonic() - began < 5  # else it is closed after ten seconds, for want of a token
