"""The event stream as a response: it ends when the client leaves, and drops a client that does not read."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import MappingProxyType
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.server.channel import PATIENCE_SECONDS, Channel, Client

DIRECT = "holdfast.send"
"""Where the server's own `send` is: past the start of an answer nothing between it and a stream has anything to do."""
_log = logging.getLogger(__name__)


class EventStream(Response):
    """Server-Sent Events from a channel."""

    media_type = "text/event-stream"

    def __init__(
        self,
        join: Callable[[Send], AbstractAsyncContextManager[tuple[Channel, Client]]],
        feed: Callable[[Channel, Client], Awaitable[None]],
        *,
        watch: Callable[[Callable[[], None]], AbstractContextManager[None]],
        dropped: Callable[[], None],
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._join = join
        self._feed = feed
        self._watch = watch
        self._dropped = dropped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the client leaves or the channel ends."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        direct: Send = scope.pop(DIRECT, send)
        async with self._join(direct) as (channel, client):
            leaving = asyncio.create_task(_left(receive, client))
            try:
                with self._watch(client.refuse):
                    await self._feed(channel, client)
                await client.send(b"", more=False)
            except asyncio.CancelledError:
                if not client.dropped:
                    raise
                self._dropped()
                _log.info("a stream was dropped: its client took nothing for %d s", PATIENCE_SECONDS)
                _hang_up(direct)
            finally:
                leaving.cancel()
                await asyncio.gather(leaving, return_exceptions=True)


def _hang_up(send: Any) -> None:
    """End a connection whose client takes nothing: to close it politely would wait for that client."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()


async def _left(receive: Receive, client: Client) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    client.leave()
