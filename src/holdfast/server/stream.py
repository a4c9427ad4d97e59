"""The event stream as a response: it ends when the client leaves, and drops a client that does not read."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.server.channel import Channel

_PATIENCE_SECONDS = 30.0
"""A client that takes nothing for so long is dropped; it resumes from its number."""
_log = logging.getLogger(__name__)


class EventStream(Response):
    """Server-Sent Events from a channel."""

    media_type = "text/event-stream"

    def __init__(
        self,
        join: Callable[[], AbstractAsyncContextManager[Channel]],
        after: int,
        *,
        comment_seconds: float,
        dropped: Callable[[], None],
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._join = join
        self._after = after
        self._comment_seconds = comment_seconds
        self._dropped = dropped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the client leaves or the channel ends."""
        del scope
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            results = await asyncio.gather(sending, leaving, return_exceptions=True)
        error = results[0]
        if isinstance(error, TimeoutError):
            self._dropped()
            _log.info("a stream was dropped: its client took nothing for %d s", _PATIENCE_SECONDS)
        elif isinstance(error, Exception):
            raise error

    async def _send(self, send: Send) -> None:
        async with self._join() as channel:
            feed = channel.feed(self._after, comment_seconds=self._comment_seconds)
            try:
                async for chunk in feed:
                    await _within(send, chunk, more=True)
            finally:
                await feed.aclose()
        await _within(send, b"", more=False)


async def _within(send: Send, chunk: bytes, *, more: bool) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        await send({"type": "http.response.body", "body": chunk, "more_body": more})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
