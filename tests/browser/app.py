"""The agent that the browser talks to. Its model is scripted by what the user says, and streams.

`say WORDS` says them, one after the other. `work N MARK` calls `act` N times, which appends a line to the file that MARK names
and takes HOLD seconds. `deploy` and `remove` ask a person, who may edit the arguments of `deploy` only; `remove and say WORDS` says them afterwards. `talk` goes on for half a minute. `drip N` says N
characters, one at a time. `huge N` calls a tool whose result has N characters. `book` calls
a tool whose step can be undone, and fails.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel

from holdfast import AgentSetup, CompletedStep, sleep, step


def call(messages: list[ModelMessage], tool: str, arguments: dict[str, Any]) -> dict[int, DeltaToolCall]:
    made = DeltaToolCall(name=tool, json_args=json.dumps(arguments), tool_call_id=f"{tool}-{len(messages)}")
    return {5: made}


async def respond(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    del info
    last = max(n for n, message in enumerate(messages) if prompt(message) is not None)
    words = str(prompt(messages[last])).split(" ")
    results = [
        part for message in messages[last:] for part in message.parts if isinstance(part, ToolReturnPart)
    ]
    match words:
        case ["work", number, mark] if len(results) < int(number):
            yield call(messages, "act", {"mark": mark, "number": len(results)})
        case ["deploy", *_] if not results:
            yield {0: DeltaThinkingPart(content="Deploying needs a yes.")}
            yield call(messages, "deploy", {"target": "staging"})
        case ["remove", *_] if not results:
            yield call(messages, "remove", {"path": "notes.txt"})
        case ["nap", seconds] if not results:
            yield call(messages, "nap", {"seconds": float(seconds)})
        case ["huge", size] if not results:
            yield call(messages, "huge", {"size": int(size)})
        case ["book"] if not results:
            yield call(messages, "book", {})
        case ["talk"]:
            for number in range(600):
                await asyncio.sleep(0.05)
                yield f"word-{number} "
        case ["drip", number]:
            text = "\n\n".join(f"**Paragraph {n}** with `code` and words in it." for n in range(200))[
                : int(number)
            ]
            for character in f"{text}\n\nthe end":
                await asyncio.sleep(0)
                yield character
        case ["say", *rest] | ["remove", "and", "say", *rest]:
            for word in rest:
                await asyncio.sleep(0.02)
                yield f"{word} "
        case _:
            said = str(results[-1].content)[:200] if results else "nothing to do"
            yield f"ended after {len(results)}: {said}"


async def summarize(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer a compaction, which does not stream."""
    del info
    return ModelResponse(parts=[TextPart(f"{len(messages)} messages")])


def prompt(message: ModelMessage) -> Any:
    if not isinstance(message, ModelRequest):
        return None
    said = [part.content for part in message.parts if isinstance(part, UserPromptPart)]
    return said[-1] if said else None  # one that was interrupted may stand before it


agent: Agent[None, str] = Agent(FunctionModel(summarize, stream_function=respond), name="agent")


@agent.tool_plain
async def act(mark: str, number: int) -> str:
    with Path(mark).open("a") as log:
        log.write(f"{number}\n")
    await asyncio.sleep(float(os.environ.get("HOLD", "0")))
    return f"did {number}"


@agent.tool_plain(requires_approval=True, metadata={"editable": True})
async def deploy(target: str) -> str:
    return f"<img src=x onerror=window.hurt=1> on {target}"


@agent.tool_plain(requires_approval=True)
async def remove(path: str) -> str:
    return f"removed {path}"


async def cancel(booked: CompletedStep[str]) -> None:
    assert booked.result == "A12"


def reserve() -> str:
    return "A12"


@agent.tool_plain(metadata={"recovery": "steps"})
async def book() -> str:
    await step("seat", reserve, undo="cancel")
    message = "no more hotels"
    raise RuntimeError(message)


served = AgentSetup(agent=agent, name="agent", undo=[cancel])


@agent.tool_plain
async def huge(size: int) -> str:
    return "x" * size


@agent.tool_plain(metadata={"recovery": "steps"})
async def nap(seconds: float) -> str:
    await sleep(seconds=seconds)
    return "rested"
