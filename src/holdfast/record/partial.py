"""The text that a model had streamed when its run was stopped or failed. It becomes an event, and never enters the history."""

from typing import Any, Final

from holdfast.errors import HoldfastError
from holdfast.jsontext import lenient_json
from holdfast.store import Store
from holdfast.types import NewEvent

PARTIAL: Final = "partial_response"
LONGEST: Final = 100_000
"""How many characters of the text are recorded."""


async def partial_response(store: Store, session_id: str, run_id: str) -> list[NewEvent]:
    """Return the event for the drafts of a run that ends without their message; nothing if there are none.

    Write it in the batch that ends the run and deletes its drafts. Its parts have the form of message parts.
    """
    try:
        drafts = [draft for draft in await store.drafts(session_id) if draft.run_id == run_id and draft.text]
    except HoldfastError:
        return []  # the end of the run matters more than its last words
    parts: list[dict[str, Any]] = []
    left = LONGEST
    for draft in drafts:
        if left:
            parts.append({"index": draft.part, "part_kind": draft.kind, "content": draft.text[:left]})
        left -= min(left, len(draft.text))
    if not parts:
        return []
    cut = sum(len(draft.text) for draft in drafts) > LONGEST
    payload = {"parts": parts} | ({"truncated": True} if cut else {})
    return [NewEvent(kind=PARTIAL, run_id=run_id, payload=lenient_json(payload))]
