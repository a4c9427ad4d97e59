"""The routes of what other frameworks stored in a session: its records, and the conversation in them."""

import asyncio
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query, Request, Response

from holdfast.api.models import ConversationEntry, Items, RecordInfo
from holdfast.server.routes import new_router, route, session_of, store_of
from holdfast.server.sessions import NO_NUL, Limit, SessionId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.frameworks.conversations import Entry

router = new_router("sessions")
Text = Annotated[str, Query(max_length=1000, pattern=NO_NUL)]
Cursor = Annotated[Text | None, Query(description="`next_cursor` of the previous page.")]


@route(
    router,
    "GET",
    "/api/sessions/{session_id}/records",
    "read",
    responses={200: {"model": Items[RecordInfo], "description": "A page of records."}},
)
async def records(
    request: Request,
    session_id: SessionId,
    kind: Annotated[Text, Query(min_length=1, description="The kind of the records.")],
    prefix: Annotated[Text, Query(description="The beginning of their keys.")] = "",
    cursor: Cursor = None,
    limit: Limit = 200,
) -> Response:
    """List what a framework stored in a session under a kind, in the order of the keys."""
    page = await store_of(request).records(session_id, kind, prefix=prefix, after=cursor, limit=limit)
    items = ",".join(
        f'{{"kind":{json.dumps(one.kind)},"key":{json.dumps(one.key)},"body":{one.body}}}' for one in page
    )
    more = json.dumps(page[-1].key) if page else "null"
    return Response(f'{{"items":[{items}],"next_cursor":{more}}}', media_type="application/json")


@route(
    router,
    "GET",
    "/api/sessions/{session_id}/conversation",
    "read",
    responses={200: {"model": Items[ConversationEntry], "description": "A page of the conversation."}},
)
async def read_conversation(
    request: Request, session_id: SessionId, cursor: Cursor = None, limit: Limit = 200
) -> Response:
    """Read the conversation in a session of another framework, as far as it is understood.

    A page ends with the entry that reaches 4 MiB.
    """
    from holdfast.frameworks.conversations import conversation  # imports the adapters

    del session_id
    entries = await conversation(store_of(request), session_of(request), after=cursor, limit=limit)
    return Response(await asyncio.to_thread(_to_page, entries), media_type="application/json")


def _to_page(entries: "Sequence[Entry]") -> bytes:
    items = [asdict(replace(entry, body=_strict(entry.body))) for entry in entries]
    page = {"items": items, "next_cursor": entries[-1].key if entries else None}
    return json.dumps(page, ensure_ascii=False).encode("utf-8", "replace")


def _strict(body: Any) -> Any:
    """Return a body, or its text if JSON cannot represent it, such as NaN."""
    try:
        json.dumps(body, allow_nan=False)
    except ValueError:
        return json.dumps(body)
    return body
