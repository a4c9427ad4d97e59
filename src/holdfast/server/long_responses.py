"""Long responses: event streams and downloads. They end when the client disconnects or loses access."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing
from functools import partial
from types import MappingProxyType
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.operations.channel import PATIENCE_SECONDS, Channel, Subscriber

DIRECT = "holdfast.send"
"""The key in a request's scope for the server's own `send`. After the start of a response, streams bypass the middleware."""
_log = logging.getLogger(__name__)


class EventStream(Response):
    """Server-Sent Events from a channel."""

    media_type = "text/event-stream"

    def __init__(
        self,
        join: Callable[[Send], AbstractAsyncContextManager[tuple[Channel, Subscriber]]],
        feed: Callable[[Channel, Subscriber], Awaitable[None]],
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
        """Send until the client disconnects or the channel ends."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        direct: Send = scope.pop(DIRECT, send)
        async with self._join(direct) as (channel, client):
            leaving = asyncio.create_task(_wait_for_disconnect(receive, client))
            try:
                with self._watch(client.refuse):
                    await self._feed(channel, client)
                await client.send(b"", more=False)
            except asyncio.CancelledError:
                if not client.dropped:
                    raise
                self._dropped()
                _log.info("dropped a stream: its client read nothing for %d s", PATIENCE_SECONDS)
                _abort(direct)
            finally:
                leaving.cancel()
                await asyncio.gather(leaving, return_exceptions=True)


class Download(StreamingResponse):
    """Content in pieces. The connection is aborted when the token becomes invalid, so that clients notice the truncation."""

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        status_code: int = 200,
        *,
        watch: Callable[[Callable[[], None]], AbstractContextManager[None]],
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        super().__init__(pieces, status_code, headers, media_type)
        self._pieces = pieces
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all pieces, or those before the client disconnects."""
        async with aclosing(self._pieces):
            with self._watch(partial(_abort, scope.get(DIRECT))):
                await super().__call__(scope, receive, send)


def _abort(send: Any) -> None:
    """End a connection at once. Closing it would wait for a client that reads nothing."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()


async def _wait_for_disconnect(receive: Receive, client: Subscriber) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    client.leave()
