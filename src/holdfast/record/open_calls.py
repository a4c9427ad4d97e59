"""The unanswered tool calls at the end of a history: find them, and close those that an interrupted run left open."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
)

from holdfast.record import ledger
from holdfast.record.offloader import MediaOffloader
from holdfast.store import Store
from holdfast.types import Effect


def is_provider_valid(messages: Sequence[ModelMessage]) -> bool:
    """Return whether every tool call is answered exactly once, right after it was made, and nothing else is answered.

    The answers may be spread over consecutive requests, which are sent as one. A retry prompt without a tool name is an
    ordinary user turn.
    """
    open_calls: list[str] = []
    for message in messages:
        if isinstance(message, ModelResponse):
            if open_calls:
                return False
            open_calls = [part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)]
            if len(set(open_calls)) != len(open_calls):
                return False
        else:
            answering = answers(message)
            if open_calls and not answering:
                return False
            for part in answering:
                if part.tool_call_id not in open_calls:
                    return False
                open_calls.remove(part.tool_call_id)
    return not open_calls


def pending_calls(messages: Sequence[ModelMessage]) -> list[ToolCallPart]:
    """Return the calls of the last response that no later message answers."""
    answered: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
            return [call for call in calls if call.tool_call_id not in answered]
        answering = answers(message)
        if not answering:
            break  # the conversation continued without them
        answered |= {part.tool_call_id for part in answering}
    return []


def without_pending_calls(messages: Sequence[ModelMessage], answered: Collection[str]) -> list[ModelMessage]:
    """Return the history without the calls of the last response that no later message answers, and that are not in `answered`."""
    kept = list(messages)
    pending = {call.tool_call_id for call in pending_calls(messages)} - set(answered)
    for number in reversed(range(len(kept))) if pending else ():
        message = kept[number]
        if isinstance(message, ModelResponse):
            parts = [part for part in message.parts if getattr(part, "tool_call_id", None) not in pending]
            kept[number : number + 1] = [replace(message, parts=parts)] if parts else []
            break
    return kept


def answers(message: ModelRequest) -> list[Any]:
    """Return the parts of a request that answer tool calls, in order. Each has a `tool_call_id`."""
    return [
        part
        for part in message.parts
        if isinstance(part, ToolReturnPart)
        or (part.part_kind == "retry-prompt" and part.tool_name is not None)
    ]


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
            content = recorded_outcome(*await offloader.effects_back([effect]))
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


def recorded_outcome(effect: Effect) -> Any:
    """Return what the model is told of a call that has ended: its result or message, or why it failed."""
    if not ledger.is_known(effect):
        return ledger.unknown(effect)
    try:
        value = ledger.replay(effect)
    except (ledger.ToolRetryError, ledger.ToolFailedError) as error:
        return str(error)
    return getattr(value, "return_value", value)
