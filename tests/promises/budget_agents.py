"""The agent of the drill with a budget: each message takes some model requests, and each of them is noted in a file."""

import asyncio
import os
import pathlib

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

NOTES = "BUDGET_DRILL_NOTES"
"""The variable with the name of the file."""
ROUNDS = 24


async def _respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del info
    with pathlib.Path(os.environ[NOTES]).open("a") as notes:
        notes.write("request\n")
    await asyncio.sleep(0.25)
    calls = sum(isinstance(part, ToolCallPart) for message in messages for part in message.parts)
    if calls == ROUNDS:
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(parts=[ToolCallPart("look", {"number": calls}, f"call-{calls}")])


spender = Agent(FunctionModel(_respond), name="spender")


@spender.tool_plain(metadata={"recovery": "retry"})
async def look(number: int) -> int:
    """Return the number."""
    return number
