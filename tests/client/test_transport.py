"""The client against servers that are not Holdfast, or that stand in front of it."""

import asyncio
import pickle
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from holdfast import Client, SessionHandle, Store, connect
from holdfast.client.output import OutputType
from holdfast.config import load_settings
from holdfast.errors import (
    ArchiveFailed,
    BadId,
    BadInput,
    ServerError,
    ServerUnavailable,
    SessionBusy,
    Unauthenticated,
)
from holdfast.server import create_app
from holdfast.server.auth import digest
from tests.server.serving import serving

NOT_JSON = [b"<html>Bad gateway</html>", b"[" * 100_000, b"\xff\xfe\x00"]
ODD_ERRORS = [
    b"",
    b"[]",
    b"null",
    b"1",
    b'"no"',
    b"{}",
    b'{"error": null}',
    b'{"error": "no"}',
    b'{"error": []}',
    b'{"error": {"code": "c"}}',
    b'{"error": {"message": "m"}}',
    b'{"error": {"code": [], "message": {}}}',
]


@asynccontextmanager
async def answering(status: int, body: bytes, head: str = "") -> AsyncGenerator[Client, None]:
    """Serve the same response to every request; yield a client."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        start = f"HTTP/1.1 {status} Odd\r\n{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(start.encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, connect(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
        yield client


@pytest.mark.parametrize("body", ODD_ERRORS + NOT_JSON, ids=range(len(ODD_ERRORS + NOT_JSON)))
async def test_an_error_of_an_odd_shape_is_a_server_error(body: bytes):
    async with answering(502, body) as client:
        with pytest.raises(ServerError, match="502"):
            await _session(client).info()
        with pytest.raises(ServerError, match="502"):
            await anext(_session(client).archive())
        with pytest.raises(ServerError, match="502"):
            await client.media("0" * 64)


@pytest.mark.parametrize("body", NOT_JSON, ids=range(len(NOT_JSON)))
async def test_a_success_that_is_not_json_is_a_server_error(body: bytes):
    async with answering(200, body) as client:
        with pytest.raises(ServerError, match="200"):
            await _session(client).info()


async def test_content_that_cannot_be_decoded_is_a_clear_error():
    async with answering(200, b"no gzip", "content-encoding: gzip\r\n") as client:
        with pytest.raises(ServerUnavailable):
            await _session(client).info()
        with pytest.raises(ArchiveFailed):
            await anext(_session(client).archive())


async def test_an_error_of_the_server_is_raised_as_its_own_class_with_its_facts():
    body = b'{"error": {"code": "session_busy", "message": "m", "facts": {"holder": "w"}}}'
    async with answering(409, body) as client:
        with pytest.raises(SessionBusy, match=r"^m$") as caught:
            await _session(client).info()
    assert (caught.value.facts, caught.value.status) == ({"holder": "w"}, 409)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.facts) == ("m", {"holder": "w"})


async def test_an_unknown_code_is_a_server_error():
    body = b'{"error": {"code": "from_the_future", "message": "Later."}}'
    async with answering(418, body) as client:
        with pytest.raises(ServerError, match="418, from_the_future: Later"):
            await _session(client).info()


async def test_a_server_that_cannot_be_reached_is_named():
    async with connect("http://127.0.0.1:9") as client:
        with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1:9"):
            await client.me()


def _session(client: Client) -> SessionHandle[str]:
    return SessionHandle(client._transport, "s", OutputType(str))  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("token", ["tökén", "€", "a\nb", "\ud800", "a\x00b"])
async def test_a_token_that_no_header_can_have_is_refused(token: str):
    with pytest.raises(Unauthenticated):
        async with connect("http://127.0.0.1:1", token=token) as client:
            await client.me()


@pytest.mark.parametrize("on", ["server", "store"])
async def test_lone_surrogates_are_bad_input(on: str, store: Store):
    async with AsyncExitStack() as stack:
        target: str | Store = store
        if on == "server":
            await store.add_token(digest("hf_odd"), owner="ada")
            target = await stack.enter_async_context(serving(create_app(load_settings(), store)))
        client = await stack.enter_async_context(connect(target, token="hf_odd"))
        session = await client.session(agent="agent")
        with pytest.raises(BadInput, match="lone surrogate"):
            await session.send("\ud800")
        with pytest.raises(BadInput, match="lone surrogate"):
            await client.session(agent="agent", metadata={"\ud800": 1})
        with pytest.raises(BadInput, match="lone surrogate"):
            assert [one async for one in client.sessions(search="\ud800")] == []
        for wrong in ("\ud800", "a b", "..", "../me", "", "x" * 129):
            with pytest.raises(BadId):
                await client.session(wrong)
            with pytest.raises(BadId):
                await client.session(wrong, agent="agent")
            with pytest.raises(BadId):
                client.run(wrong)
        with pytest.raises(BadId):
            await session.rewind("a b")
