"""The read side of Durable Streams: the events of a session as a stream of JSON, for the clients of that protocol.

An offset is the number of an event with leading zeros. A stream is never closed: a session can always continue.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial
from typing import Annotated, Literal

from fastapi import Query, Request, Response

from holdfast.api.models import event_json
from holdfast.errors import EventNotFound
from holdfast.operations.channel import COMMENT, REFUSED, Channel, Subscriber, ending
from holdfast.operations.events import grace_of
from holdfast.operations.registry import SessionId
from holdfast.server.long_responses import Download, EventStream
from holdfast.server.routes import (
    access_of,
    caller_of,
    channels_of,
    new_router,
    route,
    session_of,
    store_of,
    while_allowed,
)
from holdfast.store import Store
from holdfast.types import Event

router = new_router("streams")
_POLL_SECONDS = 20.0
Offset = Annotated[
    str,
    Query(
        pattern="^(-1|now|[0-9]{1,20})$",
        description="Where to start: `-1` for the beginning, `now` for the end, or an offset of an earlier response.",
    ),
]


@route(router, "HEAD", "/api/streams/{session_id}", "read", no_method="for clients of Durable Streams")
async def stream_head(request: Request, session_id: SessionId) -> Response:
    """Return the offset of the end of the stream, without content."""
    session = await store_of(request).session(session_id)
    return Response(headers=_headers(session.seq, at_end=False), media_type="application/json")


@route(
    router,
    "GET",
    "/api/streams/{session_id}",
    "read",
    no_method="for clients of Durable Streams; `SessionHandle.events` streams the same events",
    responses={
        200: {"content": {"application/json": {}, "text/event-stream": {}}},
        204: {"description": "With `live=long-poll`: there is nothing new."},
    },
)
async def read_stream(
    request: Request,
    session_id: SessionId,
    offset: Offset = "-1",
    live: Annotated[
        Literal["long-poll", "sse"] | None,
        Query(
            description="Wait for the next events, or stream them. Without it, the response is everything up to the end."
        ),
    ] = None,
    cursor: Annotated[
        str | None, Query(max_length=200, description="Accepted for clients that send it, and ignored.")
    ] = None,
) -> Response:
    """Read the events of a session as a Durable Stream."""
    del cursor
    store, session = store_of(request), session_of(request)
    seq = (await store.session(session_id)).seq
    after = {"-1": 0, "now": seq}.get(offset)
    after = int(offset) if after is None else after
    if after > seq:
        raise EventNotFound(session_id=session_id, seq=seq, number=after)
    if live == "sse":
        join = partial(
            channels_of(request).join, session_id, session.seq, grace_of(caller_of(request), session)
        )
        dropped = request.app.state.metrics.dropped
        return EventStream(join, partial(_feed, after=after), watch=access_of(request), dropped=dropped)
    if live == "long-poll" and after >= seq:
        found = await while_allowed(request, _wait(store, session_id, after))
        if not found:
            return Response(status_code=204, headers=_headers(after, at_end=True))
        body = "[" + ",".join(map(event_json, found)) + "]"
        headers = _headers(found[-1].seq, at_end=True)
        return Response(body, headers=headers, media_type="application/json")
    return Download(
        _read(store, session_id, after, seq),
        watch=access_of(request),
        headers=_headers(seq, at_end=True),
        media_type="application/json",
    )


def _headers(seq: int, *, at_end: bool) -> dict[str, str]:
    headers = {"stream-next-offset": _offset(seq), "cache-control": "no-store"}
    return headers | ({"stream-up-to-date": "true"} if at_end else {})


def _offset(seq: int) -> str:
    return f"{seq:020}"


async def _read(store: Store, session_id: str, after: int, last: int) -> AsyncGenerator[bytes, None]:
    """Yield the events up to a number as one JSON array."""
    yield b"["
    separator = ""
    while after < last:
        page = [event for event in await store.events(session_id, after=after) if event.seq <= last]
        if not page:
            break
        after = page[-1].seq
        yield (separator + ",".join(map(event_json, page))).encode()
        separator = ","
    yield b"]"


async def _wait(store: Store, session_id: str, after: int) -> list[Event]:
    """Return the next events, as soon as there are any; nothing after a while."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_POLL_SECONDS), aclosing(store.watch(session_id, after=after)) as events:
            async for _ in events:
                return await store.events(session_id, after=after)
    return []


async def _feed(channel: Channel, client: Subscriber, after: int) -> None:
    """Send the events after a number and then new ones, each page with its control event."""
    told = -1
    while not client.gone:
        if client.refused:
            await client.send(ending(REFUSED))
            return
        page = await channel.page(after) if after < channel.latest else []
        if page:
            after = page[-1].seq
            data = "[" + ",".join(map(event_json, page)) + "]"
            await client.send(f"event: data\ndata: {data}\n\n".encode())
        if page or told < after:
            told = after
            control = {"streamNextOffset": _offset(after), "upToDate": after >= channel.latest}
            await client.send(f"event: control\ndata: {json.dumps(control)}\n\n".encode())
        elif channel.ended is not None:
            await client.send(ending(channel.ended))
            return
        elif client.silent:
            client.silent = False
            await client.send(COMMENT)
        else:
            await client.wait()
