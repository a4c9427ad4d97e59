"""Read the events of a session: typed, live, and resumed after a lost connection."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, overload

from holdfast.api.models import EventInfo
from holdfast.client.transport import Transport

if TYPE_CHECKING:
    from holdfast.events import DraftText, SessionEvent


@overload
def follow(
    transport: Transport, session_id: str, *, after: int, drafts: Literal[False] = False
) -> "AsyncGenerator[SessionEvent, None]": ...
@overload
def follow(
    transport: Transport, session_id: str, *, after: int, drafts: bool
) -> "AsyncGenerator[SessionEvent | DraftText, None]": ...
async def follow(
    transport: Transport, session_id: str, *, after: int, drafts: bool = False
) -> "AsyncGenerator[SessionEvent | DraftText, None]":
    """Yield every event after number `after` exactly once, past and future. With `drafts`, yield drafts between them."""
    from holdfast.events import DraftText, parse_event  # imports Pydantic AI

    async with aclosing(transport.stream(f"/api/sessions/{session_id}/events", after=after)) as blocks:
        async for kind, data in blocks:
            if kind != "draft":
                yield parse_event(data)
            elif drafts:
                yield DraftText.model_validate(data)


async def read(transport: Transport, path: str, *, after: int) -> "AsyncGenerator[SessionEvent, None]":
    """Yield the events that exist now."""
    from holdfast.events import parse_event  # imports Pydantic AI

    async with aclosing(_stored(transport, path, after)) as items:
        async for item in items:
            yield parse_event(item)


async def journal(
    transport: Transport, path: str, *, after: int, follow: bool
) -> AsyncGenerator[EventInfo, None]:
    """Yield the events as they are stored: existing ones and, with `follow`, new ones."""
    if not follow:
        async with aclosing(_stored(transport, path, after)) as items:
            async for item in items:
                yield EventInfo.model_validate(item)
        return
    async with aclosing(transport.stream(path, after=after)) as blocks:
        async for kind, data in blocks:
            if kind != "draft":
                yield EventInfo.model_validate(data)


async def _stored(transport: Transport, path: str, after: int) -> AsyncGenerator[dict[str, Any], None]:
    cursor: str | None = str(after)
    while cursor is not None:
        items, cursor = await transport.page(path, {"after": cursor})
        for item in items:
            yield item
