import asyncio
import email.utils
import logging
import socket
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks import Webhook

from holdfast.errors import BadInput
from holdfast.notices.signature import new_secret
from holdfast.notices.webhook import DeliveryResult, send
from tests.notices.receiver import (
    HIDDEN,
    LONG,
    LOOPBACK,
    SECRET,
    SOON,
    Handler,
    Receiver,
    deliver,
    respond,
    trap,
)


async def test_a_webhook_arrives_signed():
    async with Receiver().listening() as receiver:
        result = await deliver(receiver.url())
    assert result == DeliveryResult(status=204)
    [(line, headers, body)] = receiver.requests
    assert line == f"POST /hook?token={HIDDEN} HTTP/1.1"
    assert Webhook(SECRET).verify(body, headers) == {"type": "turn.completed"}
    assert (headers["host"], headers["content-type"]) == (f"127.0.0.1:{receiver.port}", "application/json")
    assert headers["connection"] == "close"


async def test_a_receiver_with_either_secret_verifies_during_a_rotation():
    previous = new_secret()
    async with Receiver().listening() as receiver:
        await deliver(receiver.url(), secrets=[SECRET, previous])
    [(_, headers, body)] = receiver.requests
    for secret in (SECRET, previous):
        Webhook(secret).verify(body, headers)


async def test_each_delivery_has_its_own_connection_which_is_closed():
    ok = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive\r\nset-cookie: a=b; path=/\r\n\r\n"
    async with Receiver(ok).listening() as receiver, asyncio.timeout(LONG):
        for _ in range(3):
            await deliver(receiver.url())
        while receiver.open:
            await asyncio.sleep(0.01)
    assert receiver.connections == 3
    assert not any("cookie" in headers for _, headers, _ in receiver.requests)


@pytest.mark.parametrize("status", [400, 404, 410, 429, 500, 503, 300, 304, 999])
async def test_other_statuses_are_failures(status: int):
    result = await respond(f"HTTP/1.1 {status} Reason\r\ncontent-length: 0\r\n\r\n".encode())
    assert result.status == status
    assert result.error == f"the receiver responded with status {status}"
    assert result.is_gone == (status == 410)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int):
    with trap() as port:
        location = f"http://127.0.0.1:{port}/"
        result = await respond(
            f"HTTP/1.1 {status} Moved\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n".encode()
        )
    assert result.status == status
    assert result.error is not None
    assert "Redirects are not followed" in result.error


def date(offset: timedelta) -> str:
    return email.utils.format_datetime(datetime.now(UTC) + offset, usegmt=True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", [0]),
        ("120", [120]),
        ("9" * 5000, [86400]),
        (timedelta(days=-1), [0]),
        (timedelta(days=9), [86400]),
        (timedelta(hours=1), range(3600 - LONG * 10, 3601)),
        ("Sat, 01 Jan 2022 00:00:00", [0]),
        ("", [None]),
        ("-5", [None]),
        ("soon", [None]),
        ("²", [None]),
        ("Sat, 99 Jan 99999 00:00:00 GMT", [None]),
    ],
)
async def test_retry_after(text: str | timedelta, seconds: Sequence[int | None]):
    text = text if isinstance(text, str) else date(text)
    head = f"HTTP/1.1 503 Busy\r\nretry-after: {text}\r\ncontent-length: 0\r\n\r\n"
    assert (await respond(head.encode())).retry_after in seconds


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"\0" * 1000,
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1",
        b"HTTP/1.1 99999 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: odd\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
async def test_invalid_responses_are_failures(response: bytes):
    result = await respond(response)
    assert result == DeliveryResult(error="127.0.0.1 closed the connection or sent an invalid response")


@pytest.mark.parametrize(
    "rest",
    [
        b"transfer-encoding: chunked\r\n\r\nnot a chunk",
        b"content-length: 10\r\n\r\nshort",
        b"content-encoding: gzip\r\n\r\nnot gzip",
        b"content-type: text/plain; charset=odd\r\n\r\n\xff\xfe",
        b"x: \xff\xfe\r\n\r\n",
    ],
)
async def test_only_the_status_counts(rest: bytes):
    assert await respond(b"HTTP/1.1 200 OK\r\n" + rest) == DeliveryResult(status=200)


async def hang(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


def drip(head: bytes) -> Handler:
    async def write(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.01)

    return write


def again(piece: bytes) -> Handler:
    async def write(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(piece)
            await asyncio.sleep(0)

    return write


@pytest.mark.parametrize(
    "handler", [hang, drip(b"HTTP/1.1 200 OK\r\nx: "), again(b"HTTP/1.1 100 Continue\r\n\r\n")]
)
async def test_a_slow_receiver_costs_at_most_the_timeout(handler: Handler):
    result = await respond(handler, seconds=SOON)
    assert result == DeliveryResult(error="no response from 127.0.0.1 within 0.3 seconds")


async def test_a_slow_body_costs_at_most_the_timeout_and_is_a_success():
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffff\r\n"
    assert await respond(drip(head), seconds=SOON) == DeliveryResult(status=200)


@pytest.mark.parametrize(
    ("head", "piece", "status"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n", b"x" * 2**16, 200),
        (b"HTTP/1.1 200 OK\r\n", b"x: " + b"y" * 1000 + b"\r\n", None),
        (b"HTTP/1.1 200 OK\r\nx: ", b"y" * 2**16, None),
    ],
)
async def test_little_of_a_large_response_is_read(head: bytes, piece: bytes, status: int | None):
    written = 0

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(head)
        while written < 2**30:
            writer.write(piece)
            await writer.drain()
            written += len(piece)

    assert (await respond(flood)).status == status
    assert written < 2**26  # the buffers of the system


async def test_a_receiver_that_does_not_read_costs_at_most_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        async with asyncio.timeout(LONG):
            result = await send(url, b"x" * 2**24, id="m", secrets=[SECRET], timeout=SOON, allow=LOOPBACK)
    assert result == DeliveryResult(error="no response from 127.0.0.1 within 0.3 seconds")


async def test_a_receiver_that_is_down():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert await deliver(f"http://127.0.0.1:{port}/") == DeliveryResult(
        error="cannot connect to 127.0.0.1: Connection refused"
    )


async def test_logs_contain_neither_the_query_nor_the_secret(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    async with Receiver().listening() as receiver:
        await deliver(receiver.url())
    await deliver(f"https://user:{HIDDEN}@127.0.0.1/?{HIDDEN}")
    assert HIDDEN not in caplog.text
    assert SECRET not in caplog.text


async def test_a_cancelled_delivery_is_cancelled():
    async with Receiver(hang).listening() as receiver, asyncio.timeout(LONG):
        task = asyncio.create_task(deliver(receiver.url()))
        while not receiver.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while receiver.open:
            await asyncio.sleep(0.01)


async def test_a_timeout_of_zero_is_a_failure():
    began = time.monotonic()
    assert not (await deliver("https://hooks.example/", seconds=0)).is_success
    assert time.monotonic() - began < LONG


async def test_a_malformed_secret_is_an_error_of_the_caller():
    with pytest.raises(BadInput, match="webhook secret"):
        await deliver("https://hooks.example/", secrets=["whsec_short"])


async def test_the_timestamp_is_that_of_the_attempt():
    """A worker passes the time of the database: a receiver refuses the timestamp of a machine whose clock is wrong."""
    at = datetime(2030, 1, 2, tzinfo=UTC)
    async with Receiver().listening() as receiver:
        assert (await send(receiver.url(), b"{}", id="m", secrets=[SECRET], at=at, allow=LOOPBACK)).is_success
        ((_, headers, _),) = receiver.requests
        assert headers["webhook-timestamp"] == str(int(at.timestamp()))
