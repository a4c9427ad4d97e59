"""Whether a history can be sent to a model provider, and which tool calls at its end wait for an answer."""

from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart


def is_provider_valid(messages: Sequence[ModelMessage]) -> bool:
    """Say whether every tool call is answered exactly once, right after it was made, and nothing else is answered.

    A retry prompt that names no tool is a plain user turn.
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
            for call_id in answers(message):
                if call_id not in open_calls:
                    return False
                open_calls.remove(call_id)
            if open_calls:
                return False
    return not open_calls


def pending_calls(messages: Sequence[ModelMessage]) -> list[ToolCallPart]:
    """Return the calls of the last response that no message after it answers."""
    if not messages or not isinstance(last := messages[-1], ModelResponse):
        return []
    return [part for part in last.parts if isinstance(part, ToolCallPart)]


def answers(message: ModelRequest) -> list[str]:
    """Return the ids of the tool calls that a request answers, in order."""
    found: list[str] = []
    for part in message.parts:
        if isinstance(part, ToolReturnPart) or (
            part.part_kind == "retry-prompt" and part.tool_name is not None
        ):
            found.append(part.tool_call_id)
    return found
