"""The events of a session as they are read: typed, live, and resumed where the connection broke."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal, overload

from holdfast.client.transport import Transport
from holdfast.events import Draft, SessionEvent, parse_event


@overload
def follow(
    transport: Transport, session_id: str, *, after: int, drafts: Literal[False] = False
) -> AsyncGenerator[SessionEvent, None]: ...
@overload
def follow(
    transport: Transport, session_id: str, *, after: int, drafts: bool
) -> AsyncGenerator[SessionEvent | Draft, None]: ...
async def follow(
    transport: Transport, session_id: str, *, after: int, drafts: bool = False
) -> AsyncGenerator[SessionEvent | Draft, None]:
    """Yield every event after a number, past and future, each once. With `drafts`, yield drafts between them."""
    async with aclosing(transport.stream(f"/api/sessions/{session_id}/events", after=after)) as blocks:
        async for kind, data in blocks:
            if kind != "draft":
                yield parse_event(data)
            elif drafts:
                yield Draft.model_validate(data)


async def read(transport: Transport, path: str, *, after: int) -> AsyncGenerator[SessionEvent, None]:
    """Yield the events that exist now, page by page."""
    cursor: str | None = str(after)
    while cursor is not None:
        items, cursor = await transport.page(path, {"after": cursor})
        for item in items:
            yield parse_event(item)
