"""The network between the fleet and its database server: a line that can fall silent, be slow, or break.

A line that is silent loses nothing and closes nothing, as when packets are dropped: whoever waits for an answer hears nothing at
all, and what was sent arrives when it is over, or never, if the line breaks then.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress


class Line:
    """Relays every connection to the server's port."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open = asyncio.Event()
        self._open.set()
        self._delay = 0.0
        self._ends: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Where to connect instead of to the server."""
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    async def silent(self, seconds: float, *, breaks: bool) -> None:
        """Let nothing through for so long; then all of it, or nothing of it ever."""
        self._open.clear()
        try:
            await asyncio.sleep(seconds)
            if breaks:
                for end in list(self._ends):
                    end.transport.abort()
        finally:
            self._open.set()

    async def slow(self, seconds: float, delay: float) -> None:
        """Have everything take longer by `delay`, for so long."""
        self._delay = delay
        try:
            await asyncio.sleep(seconds)
        finally:
            self._delay = 0.0

    async def _relay(self, here: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        self._ends.add(back)
        try:
            there, on = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            self._ends.discard(back)
            back.transport.abort()
            return
        self._ends.add(on)
        ways = [asyncio.create_task(self._pass(here, on)), asyncio.create_task(self._pass(there, back))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (back, on):
                self._ends.discard(end)
                end.transport.abort()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await source.read(65536):
                await self._open.wait()
                if self._delay:
                    await asyncio.sleep(self._delay)
                target.write(piece)
                await target.drain()


@asynccontextmanager
async def line_to(port: int) -> AsyncGenerator[Line, None]:
    """Lay a line to a port for the duration of the block."""
    line = Line(port)
    line._server = await asyncio.start_server(line._relay, "127.0.0.1", 0)  # pyright: ignore[reportPrivateUsage]
    try:
        yield line
    finally:
        line._server.close()  # pyright: ignore[reportPrivateUsage]
