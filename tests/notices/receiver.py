"""A receiver of webhooks on loopback, and other parts of the tests."""

import asyncio
import contextlib
import itertools
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from ipaddress import ip_network
from typing import Any

import pytest

from holdfast.notices.signature import new_secret
from holdfast.notices.webhook import DeliveryResult, send

BODY = b'{"type": "turn.completed"}'
SECRET = new_secret()
LOOPBACK = [ip_network("127.0.0.0/8"), ip_network("::1/128")]
HIDDEN = "hidden-in-the-query"
"""Part of every URL; it must not appear in results."""
SOON = 0.3
"""A deadline that a test waits for."""
LONG = 60
"""The limit for a test that must not depend on the speed of the machine."""
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Receiver:
    """Receives requests on loopback, and responds with bytes or a function."""

    def __init__(
        self, respond: bytes | Handler = b"HTTP/1.1 204 No Content\r\n\r\n", host: str = "127.0.0.1"
    ) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.open = 0
        self._respond = respond
        self._host = host
        self.port = 0

    @contextlib.asynccontextmanager
    async def listening(self, tls: ssl.SSLContext | None = None) -> AsyncGenerator["Receiver", None]:
        server = await asyncio.start_server(self._handle, self._host, 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self
            async with asyncio.timeout(LONG):  # the sender closes its connections
                while self.open:
                    await asyncio.sleep(0.01)

    def url(self, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}/hook?token={HIDDEN}"

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])
            }
            body = await reader.readexactly(int(headers["content-length"]))
            self.requests.append((head[0], headers, body))
            if isinstance(self._respond, bytes):
                writer.write(self._respond)
                await writer.drain()
                writer.write_eof()
            else:
                await self._respond(reader, writer)
            await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()


@contextlib.contextmanager
def trap(port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> Generator[int, None, None]:
    """Listen on loopback, and fail if there was a connection."""
    with socket.create_server(
        ("::1" if family == socket.AF_INET6 else "127.0.0.1", port), family=family
    ) as listener:
        yield listener.getsockname()[1]
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


class Names:
    """Resolves all names to the given addresses, one list after the other."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.lookups: list[str] = []
        self._answers = itertools.chain(answers, itertools.repeat(["127.0.0.1"]))

    def __call__(self, host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        self.lookups.append(host)
        return [
            (socket.AF_INET6 if ":" in text else socket.AF_INET, socket.SOCK_STREAM, 6, "", (text, port))
            for text in next(self._answers)
        ]


async def deliver(
    url: str, *, seconds: float = LONG, allow: Sequence[Any] = LOOPBACK, secrets: Sequence[str] = (SECRET,)
) -> DeliveryResult:
    """Send a webhook, and check that its result contains nothing that is secret."""
    async with asyncio.timeout(LONG):
        result = await send(url, BODY, id="msg_1", secrets=secrets, timeout=seconds, allow=allow)
    for hidden in (HIDDEN, SECRET, "/hook"):
        assert hidden not in str(result)
    assert result.is_success == (result.status in range(200, 300))
    return result


async def respond(response: bytes | Handler, **options: Any) -> DeliveryResult:
    async with Receiver(response).listening() as receiver:
        return await deliver(receiver.url(), **options)
