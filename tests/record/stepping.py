"""Agents with one tool that has steps, run in this process, killed and continued."""

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import (
    Holdfast,
    resume,
)
from holdfast.record.open_calls import is_provider_valid
from holdfast.store import Store
from holdfast.testing.agents import ManualClock

done: list[str] = []


async def do(what: str) -> str:
    done.append(what)
    return f"{what} done"


def tool_agent(
    tool: Callable[..., Awaitable[Any]], *, recorder: Holdfast | None = None, **metadata: Any
) -> Agent[None, str]:
    """Return an agent whose model calls the tool once and reports its result."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        last = messages[-1].parts[-1]
        if last.part_kind == "user-prompt":
            return ModelResponse(parts=[ToolCallPart("book", {"trip": "Rome"}, "call-1")])
        return ModelResponse(parts=[TextPart(f"{getattr(last, 'content', '')}")])

    agent = Agent(FunctionModel(model), name="clerk", capabilities=[recorder] if recorder else [])
    agent.tool_plain(name="book", metadata={"recovery": "steps", **metadata})(tool)
    return agent


async def run(agent: Agent[None, Any], store: Store) -> str:
    result = await agent.run("Book.", conversation_id="s", capabilities=[Holdfast(store)])
    return result.output


async def rerun(agent: Agent[None, Any], store: Store, clock: ManualClock, **options: Any) -> Any:
    clock.advance(60)
    (last,) = (await store.checkpoints(session_id="s", limit=1)).items
    result = await resume(agent, store, last.run_id or "", **options)
    waits = isinstance(result.output, DeferredToolRequests)
    assert waits or is_provider_valid(result.all_messages())
    return result.output
