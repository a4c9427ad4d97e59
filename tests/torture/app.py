"""The agents that are tortured. What is said to them is a key and a plan, and their model follows it to the letter.

A plan is a list of steps, a step a list of calls that are made at once, a call a tool and the seconds it takes. Every tool
appends to one real file when it has begun and when it has ended, with its idempotency key: what ran twice is seen there.
"""

import asyncio
import json
import os
import time
import zlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from holdfast import idempotency_key
from holdfast.runtime import AgentSetup, current_session

POLICIES: dict[str, Any] = {"act": "report", "stall": "report", "again": "retry", "ask": "ask"}
"""Each tool, and what becomes of a call of it whose outcome is not known."""


LARGE = " and more" * 10_000
"""It goes to the media store."""


def is_large(call: str) -> bool:
    """Choose the calls whose results are large: one of twenty."""
    return zlib.crc32(call.encode()) % 20 == 0


def answer(key: str) -> str:
    """Return the last word of a turn."""
    return f"done {key}"


def call_id(key: str, step: int, number: int) -> str:
    """Return the name of a call: no other one has it, in any session."""
    return f"{key}.{step}.{number}"


def _next(messages: Sequence[ModelMessage]) -> list[ToolCallPart] | str:
    """Return the calls that come next; if there are none, the last word."""
    last = max(n for n, message in enumerate(messages) if _prompt(message) is not None)
    key, plan = str(_prompt(messages[last])).split(" ", 1)
    steps: list[list[tuple[str, float]]] = json.loads(plan)
    done = sum(isinstance(message, ModelResponse) for message in messages[last:])
    if done >= len(steps):
        return answer(key)
    return [
        ToolCallPart(tool, {"call": call_id(key, done, n), "seconds": seconds}, call_id(key, done, n))
        for n, (tool, seconds) in enumerate(steps[done])
    ]


def _prompt(message: ModelMessage) -> Any:
    if not isinstance(message, ModelRequest):
        return None
    # The last one: behind a message that was given up unanswered, the next one joins its request.
    return next((p.content for p in reversed(message.parts) if isinstance(p, UserPromptPart)), None)


def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del info
    found = _next(messages)
    return ModelResponse(parts=[TextPart(found)] if isinstance(found, str) else found)


async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncGenerator[str | DeltaToolCalls, None]:
    del info
    found = _next(messages)
    if isinstance(found, str):
        for word in found.split(" "):
            yield word if word == "done" else f" {word}"
            await asyncio.sleep(0.02)
        return
    for number, call in enumerate(found):
        yield {number: DeltaToolCall(call.tool_name, json.dumps(call.args), tool_call_id=call.tool_call_id)}


def _append(**facts: object) -> None:
    """Add a line with one system call: it is there whole, or not at all."""
    file = os.open(os.environ["TORTURE_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(facts).encode() + b"\n")
    finally:
        os.close(file)


async def _do(ctx: RunContext[None], tool: str, call: str, seconds: float) -> str:
    here = current_session()
    epoch = None if here is None else here.session.epoch
    facts = {
        "tool": tool,
        "call": call,
        "key": idempotency_key(ctx),
        "run": ctx.run_id,
        "epoch": epoch,
        "pid": os.getpid(),
    }
    _append(phase="begun", **facts)
    if tool == "stall":
        time.sleep(seconds)  # and nothing else of this worker goes on
    else:
        await asyncio.sleep(seconds)
    _append(phase="ended", **facts)
    return f"did {call} at epoch {epoch}{LARGE if is_large(call) else ''}"


async def act(ctx: RunContext[None], call: str, seconds: float) -> str:
    return await _do(ctx, "act", call, seconds)


async def stall(ctx: RunContext[None], call: str, seconds: float) -> str:
    return await _do(ctx, "stall", call, seconds)


async def again(ctx: RunContext[None], call: str, seconds: float) -> str:
    return await _do(ctx, "again", call, seconds)


async def ask(ctx: RunContext[None], call: str, seconds: float) -> str:
    return await _do(ctx, "ask", call, seconds)


plain: Agent[None, str] = Agent(FunctionModel(respond), name="plain", tools=[act, stall, again, ask])
talker: Agent[None, str] = Agent(
    FunctionModel(stream_function=stream), name="talker", tools=[act, stall, again, ask]
)
agents = [AgentSetup(agent=agent, policies=POLICIES) for agent in (plain, talker)]
