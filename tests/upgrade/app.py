"""The agent of then and now: `hold` calls a tool that does not end the first time, `deploy` asks a person."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del info
    last = messages[-1].parts[-1]
    content = str(getattr(last, "content", ""))
    if isinstance(last, ToolReturnPart):
        return ModelResponse(parts=[TextPart(f"{last.tool_name}: {content}")])
    if content in {"hold", "deploy"}:
        return ModelResponse(parts=[ToolCallPart(content, {}, f"call-{content}")])
    return ModelResponse(parts=[TextPart(f"You said: {content}")])


agent: Agent[None, str] = Agent(FunctionModel(respond), name="agent")


@agent.tool_plain
async def hold() -> str:
    """Take for ever."""
    await asyncio.sleep(3600)
    return "held"


@agent.tool_plain(requires_approval=True)
async def deploy() -> str:
    """Do what a person has to allow."""
    return "deployed"
