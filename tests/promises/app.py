"""The agent that worker processes serve in the drills. Its model is scripted by what the user says.

`work N MARK` calls the tool `act` N times, one after the other; `act` appends a line to the file that MARK names, then
takes the seconds in HOLD. `stall MARK` does so and blocks the whole event loop. `leave HOW` calls a tool that tries to end the
process, and `leave dynamic` does so in the agent's instructions. Everything else is answered at once. The plain agent `steady` does the same work in steps.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, RunContext
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

from holdfast import Turn
from holdfast import agent as function_agent


def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del info
    last = max(n for n, message in enumerate(messages) if _prompt(message) is not None)
    words = str(_prompt(messages[last])).split()
    done = sum(isinstance(part, ToolReturnPart) for message in messages[last:] for part in message.parts)
    match words:
        case ["work", count, mark] if done < int(count):
            return ModelResponse(
                parts=[ToolCallPart("act", {"mark": mark, "number": done}, f"call-{last}-{done}")]
            )
        case ["stall", mark] if done == 0:
            return ModelResponse(parts=[ToolCallPart("stall", {"mark": mark}, f"call-{last}")])
        case ["leave", how] if done == 0:
            return ModelResponse(parts=[ToolCallPart("leave", {"how": how}, f"call-{last}")])
        case _:
            return ModelResponse(parts=[TextPart(f"done after {done}")])


def _prompt(message: ModelMessage) -> Any:
    if not isinstance(message, ModelRequest):
        return None
    return next((part.content for part in message.parts if isinstance(part, UserPromptPart)), None)


agent: Agent[None, str] = Agent(FunctionModel(respond), name="agent")
bot: Agent[None, str] = Agent(FunctionModel(respond), name="bot")


@agent.instructions
def instructions(ctx: RunContext[object]) -> str:
    if ctx.prompt == "leave dynamic":
        raise SystemExit(4)
    return ""


@agent.tool_plain
async def act(mark: str, number: int) -> str:
    with Path(mark).open("a") as log:
        log.write(f"{number} {os.getpid()}\n")
    await asyncio.sleep(float(os.environ.get("HOLD", "0")))
    return f"did {number}"


@agent.tool_plain
async def stall(mark: str) -> str:
    with Path(mark).open("a") as log:
        log.write(f"stalled {os.getpid()}\n")
    time.sleep(float(os.environ.get("HOLD", "0")))
    return "stalled"


async def _leave() -> None:
    raise SystemExit(7)


@agent.tool_plain
async def leave(how: str) -> str:
    if how == "gather":
        await asyncio.gather(asyncio.sleep(0), _leave())
    if how == "callback":
        asyncio.get_running_loop().call_soon(sys.exit, 5)
        await asyncio.sleep(0.1)
        raise SystemExit(6)
    raise {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "close": GeneratorExit()}[how]


@function_agent("steady")
async def steady(turn: Turn) -> str:
    """Do `work N MARK` in N steps."""
    _, count, mark = turn.text.split()
    for number in range(int(count)):
        await turn.step("act", act, mark, number)
    return f"done after {count}"
