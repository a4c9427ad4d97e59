"""Agents whose model follows a script: what it answers depends on how many responses the turn has had."""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from holdfast import Holdfast, Store

Turn = Sequence[ModelResponsePart]


def scripted(*turns: Turn) -> FunctionModel:
    """Return a model that gives these turns in order, then the text `done`; also when it is streamed."""

    def next_turn(messages: list[ModelMessage]) -> Turn:
        asked = sum(isinstance(message, ModelResponse) for message in messages)
        return turns[asked] if asked < len(turns) else [TextPart("done")]

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=list(next_turn(messages)))

    async def stream(messages: list[ModelMessage], info: AgentInfo):
        for number, part in enumerate(next_turn(messages)):
            if isinstance(part, ToolCallPart):
                yield {
                    number: DeltaToolCall(
                        part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id
                    )
                }
            elif isinstance(part, TextPart):
                yield part.content

    return FunctionModel(respond, stream_function=stream)


def recorded(
    store: Store, *turns: Turn, tools: Sequence[Callable[..., Any]] = (), **options: Any
) -> Agent[None, Any]:
    """Return an agent on such a model whose runs are recorded."""
    known = ("policies", "run_id", "lease_ttl", "media", "media_threshold")
    settings = {name: options.pop(name) for name in known if name in options}
    return Agent(scripted(*turns), tools=list(tools), capabilities=[Holdfast(store, **settings)], **options)


def call(tool: str, call_id: str = "call-1", **arguments: Any) -> ToolCallPart:
    return ToolCallPart(tool, arguments, call_id)
