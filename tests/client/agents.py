"""The agents of these tests."""

import asyncio
from collections.abc import AsyncGenerator

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel


class Invoice(BaseModel):
    """What a clerk of invoices returns."""

    customer: str
    total: int


def _echo(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del info
    requests = [message for message in messages if isinstance(message, ModelRequest)]
    prompts = [p.content for r in requests for p in r.parts if isinstance(p, UserPromptPart)]
    said = prompts[-1] if isinstance(prompts[-1], str) else f"{len(prompts[-1])} parts"
    return ModelResponse(parts=[TextPart(f"{len(prompts)}: {said}")])


def _pay(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del info
    returned = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    if returned:
        return ModelResponse(parts=[TextPart(f"answered {returned[0].model_response_str()}")])
    return ModelResponse(
        parts=[
            ToolCallPart("pay", {"amount": 5}, tool_call_id="first"),
            ToolCallPart("pay", {"amount": 7}, tool_call_id="second"),
        ]
    )


def _wait(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del info
    if any(part.part_kind == "tool-return" for part in messages[-1].parts):
        return ModelResponse(parts=[TextPart("never")])
    return ModelResponse(parts=[ToolCallPart("sleep", {}, tool_call_id="sleep")])


def _break(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    raise RuntimeError("no model today")


async def _stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncGenerator[str, None]:
    del messages, info
    yield "one "
    await asyncio.sleep(1)  # long enough for a draft
    yield "two"


echo = Agent(FunctionModel(_echo), name="echo")
streamer = Agent(FunctionModel(stream_function=_stream), name="streamer")
clerk = Agent(
    TestModel(custom_output_args={"customer": "Ada", "total": 12}), name="clerk", output_type=Invoice
)
large = Agent(
    TestModel(custom_output_args={"customer": "A" * 200_000, "total": 1}), name="large", output_type=Invoice
)
payer = Agent(FunctionModel(_pay), name="payer")
broken = Agent(FunctionModel(_break), name="broken")
sleeper = Agent(FunctionModel(_wait), name="sleeper")


@payer.tool_plain(requires_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@sleeper.tool_plain(metadata={"recovery": "retry"})
async def sleep() -> str:
    """Sleep for longer than any test takes."""
    await asyncio.sleep(600)
    return "woke up"


AGENTS = [echo, streamer, clerk, large, payer, sleeper, broken]
