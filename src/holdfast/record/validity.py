"""Check whether a history can be sent to a model provider, and find the unanswered tool calls at its end."""

from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
)


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


def answers(message: ModelRequest) -> list[Any]:
    """Return the parts of a request that answer tool calls, in order. Each has a `tool_call_id`."""
    return [
        part
        for part in message.parts
        if isinstance(part, ToolReturnPart)
        or (part.part_kind == "retry-prompt" and part.tool_name is not None)
    ]
