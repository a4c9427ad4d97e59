"""The agent of the runtime's benchmark; also the one job that peers do. Its model is scripted by what the user says."""

import asyncio
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

USAGE = RequestUsage(input_tokens=10, output_tokens=10)
STEP_SECONDS = 0.2
LONG = 120.0


async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del info
    last = messages[-1].parts[-1]
    stepping = isinstance(last, ToolReturnPart) and last.tool_name == "step"
    content: Any = getattr(last, "content", "")
    prompt = "step" if stepping else str(content)
    match prompt:
        case "hold":
            return ModelResponse(parts=[ToolCallPart("hold", {}, f"hold-{len(messages)}")], usage=USAGE)
        case "step":
            return ModelResponse(parts=[ToolCallPart("step", {}, f"step-{len(messages)}")], usage=USAGE)
        case "think":
            await asyncio.sleep(LONG)
        case _:
            pass
    return ModelResponse(parts=[TextPart("ok")], usage=USAGE)


agent: Agent[None, str] = Agent(FunctionModel(respond), name="bench")


@agent.tool_plain
async def hold() -> str:
    """Take for ever."""
    await asyncio.sleep(LONG)
    return "held"


@agent.tool_plain
async def step() -> str:
    """Take a moment; the model asks for another one."""
    await asyncio.sleep(STEP_SECONDS)
    return "stepped"
