"""Close the tool calls that an interrupted run left open, so that the next message can follow them."""

from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart

from holdfast.record import ledger
from holdfast.record.offloader import MediaOffloader
from holdfast.record.validity import pending_calls
from holdfast.store import Store
from holdfast.types import Effect


async def close_open_calls(
    store: Store, session_id: str, messages: Sequence[ModelMessage], offloader: MediaOffloader
) -> list[ModelMessage]:
    """Return a request that answers the calls left open at the end of a history; an empty list if there are none."""
    known = await pending_effects(store, session_id, messages)
    parts: list[ToolReturnPart] = []
    for call in pending_calls(messages):
        effect, outcome = known[call.tool_call_id], "success"
        if effect is None:
            content: Any = "This call was not carried out: the run was interrupted before it."
        elif ledger.is_known(effect):
            content = _content(*await offloader.effects_back([effect]))
        else:
            content = ledger.unknown(effect)
            outcome = "denied" if ledger.waits_for(effect) == "approval" else "interrupted"
        parts.append(ToolReturnPart(call.tool_name, content, call.tool_call_id, outcome=outcome))
    return [ModelRequest(parts=parts)] if parts else []


async def pending_effects(
    store: Store, session_id: str, messages: Sequence[ModelMessage]
) -> dict[str, Effect | None]:
    """Return the ledger entries of the calls left open at the end of a history."""
    run_id = ledger.origin(messages, "")
    before = ledger.calls_before(messages, run_id)
    ids = [call.tool_call_id for call in pending_calls(messages)]
    latest = await ledger.latest_entries(store, session_id, run_id, ids) if ids else {}
    return {call_id: ledger.open_entry(before[call_id], latest.get(call_id))[1] for call_id in ids}


def _content(effect: Effect) -> Any:
    try:
        value = ledger.replay(effect)
    except (ledger.ToolRetryError, ledger.ToolFailedError) as error:
        return str(error)
    return getattr(value, "return_value", value)
