"""The agent of the drill of backups: `draw N` makes N tool calls whose results are media."""

import asyncio
import random

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel


def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del info
    parts = [part for message in messages for part in message.parts]
    prompt = next(part for part in parts if isinstance(part, UserPromptPart))
    wanted = int(str(prompt.content).split()[1])
    drawn = sum(isinstance(part, ToolReturnPart) for part in parts)
    if drawn < wanted:
        return ModelResponse(parts=[ToolCallPart("draw", {"number": drawn}, f"call-{drawn}")])
    return ModelResponse(parts=[TextPart(f"done after {drawn}")])


agent: Agent[None, str] = Agent(FunctionModel(respond), name="painter")


@agent.tool_plain
async def draw(number: int) -> str:
    await asyncio.sleep(0.1)
    return f"{number}: {random.randbytes(60_000).hex()}"
