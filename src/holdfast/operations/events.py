"""Events, the history, and the records of other frameworks. Stored JSON is returned as exact text."""

import asyncio
import json
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from holdfast.api.models import ConversationEntry, HistoryMessage, Items, RecordInfo, RunInfo, event_json
from holdfast.errors import BadInput, EventNotFound
from holdfast.operations.access import Caller
from holdfast.operations.registry import (
    NO_NUL,
    ClientMethod,
    CursorText,
    JsonText,
    Limit,
    SessionId,
    operation,
)
from holdfast.runtime.attachment import attachment
from holdfast.types import Event, Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.frameworks.conversations import Entry

_S = "/api/sessions/{session_id}"
Text = Annotated[str, Field(max_length=1000, pattern=NO_NUL)]
Cursor = Annotated[Text | None, Field(description="`next_cursor` of the previous page.")]


def items_text(items: "Iterable[str]", more: str | None) -> JsonText:
    """Return a page of items that are JSON text."""
    return JsonText(f'{{"items":[{",".join(items)}],"next_cursor":{json.dumps(more)}}}')


def events_page(page: "Sequence[Event]", limit: int, seq: int) -> JsonText:
    """Return a page of events. `seq` is the number of the session's last event."""
    is_part = bool(page) and (len(page) == limit or page[-1].seq < seq)
    return items_text(map(event_json, page), str(page[-1].seq) if is_part else None)


async def check_event(caller: Caller, after: int) -> Session:
    """Return the session, if it has the event with this number. Raises `EventNotFound`."""
    session = caller.session
    if after > session.seq:
        session = await caller.store.session(session.id)  # it may have grown since
    if after > session.seq:
        raise EventNotFound(session_id=session.id, seq=session.seq, number=after)
    return session


def grace_of(caller: Caller, session: Session) -> float | None:
    """Return for how long an attached session may have no watcher."""
    with suppress(BadInput):  # a library may have written invalid metadata; the worker reports it
        attached = attachment(session.metadata, caller.settings.attached_grace_seconds)
        return None if attached is None else attached.grace
    return None


@operation("GET", f"{_S}/events", "read", topic="sessions", has_route=False)
async def read_events(
    caller: Caller,
    session_id: SessionId,
    after: Annotated[int, Field(ge=0, lt=2**63)] = 0,
    limit: Annotated[int, Field(ge=1, le=1000)] = 500,
) -> JsonText:
    """Read a page of the events of a session."""
    session = await check_event(caller, after)
    page = await caller.store.events(session_id, after=after, limit=limit)
    return events_page(page, limit, session.seq)


@operation(
    "GET",
    f"{_S}/messages",
    "read",
    ClientMethod("SessionHandle.messages", note="`holdfast tail` prints them with the events"),
    topic="sessions",
    responses={200: {"model": Items[HistoryMessage], "description": "A page of the history."}},
)
async def messages(
    caller: Caller,
    session_id: SessionId,
    after: Annotated[
        int, Field(ge=-1, lt=2**31, description="The position of the last message you have.")
    ] = -1,
    limit: Limit = 200,
) -> JsonText:
    """Read the history that the next message continues."""
    latest = (await caller.store.checkpoints(session_id=session_id, limit=1)).items
    if not latest:
        return items_text([], None)
    place = latest[0]
    page = await caller.store.history(
        session_id, segment=place.segment, length=place.length, after=after, limit=limit
    )
    more = str(page[-1].position) if page and page[-1].position + 1 < place.length else None
    return items_text((f'{{"position":{m.position},"message":{m.body}}}' for m in page), more)


@operation("GET", f"{_S}/runs", "read", ClientMethod("SessionHandle.runs", "runs list"), topic="sessions")
async def runs(
    caller: Caller, session_id: SessionId, cursor: CursorText = None, limit: Limit = 50
) -> Items[RunInfo]:
    """List the runs of a session, oldest first."""
    return Items[RunInfo].of(await caller.store.runs(session_id=session_id, cursor=cursor, limit=limit))


@operation(
    "GET",
    f"{_S}/records",
    "read",
    ClientMethod("SessionHandle.records", note="for programs"),
    topic="sessions",
    responses={200: {"model": Items[RecordInfo], "description": "A page of records."}},
)
async def records(
    caller: Caller,
    session_id: SessionId,
    kind: Annotated[Text, Field(min_length=1, description="The kind of the records.")],
    prefix: Annotated[Text, Field(description="The beginning of their keys.")] = "",
    cursor: Cursor = None,
    limit: Limit = 200,
) -> JsonText:
    """List the records of one kind that a framework stored in a session, ordered by key."""
    page = await caller.store.records(session_id, kind, prefix=prefix, after=cursor, limit=limit)
    items = (
        f'{{"kind":{json.dumps(one.kind)},"key":{json.dumps(one.key)},"body":{one.body}}}' for one in page
    )
    return items_text(items, page[-1].key if page else None)


@operation(
    "GET",
    f"{_S}/conversation",
    "read",
    ClientMethod("SessionHandle.conversation", "sessions conversation"),
    topic="sessions",
    responses={200: {"model": Items[ConversationEntry], "description": "A page of the conversation."}},
)
async def read_conversation(
    caller: Caller, session_id: SessionId, cursor: Cursor = None, limit: Limit = 200
) -> JsonText:
    """Read the conversation of another framework's session. Unrecognized entries have the role `other`.

    A page ends with the entry that reaches 4 MiB.
    """
    from holdfast.frameworks.conversations import conversation  # imports the adapters

    del session_id
    entries = await conversation(caller.store, caller.session, after=cursor, limit=limit)
    return await asyncio.to_thread(_to_page, entries)


def _to_page(entries: "Sequence[Entry]") -> JsonText:
    items = [asdict(replace(entry, body=_strict(entry.body))) for entry in entries]
    page = {"items": items, "next_cursor": entries[-1].key if entries else None}
    return JsonText(json.dumps(page, ensure_ascii=False))


def _strict(body: Any) -> Any:
    """Return a body, or its text if JSON cannot represent it, such as NaN."""
    try:
        json.dumps(body, allow_nan=False)
    except ValueError:
        return json.dumps(body)
    return body
