"""The agents that are tortured. What is said to them is a key and a plan, and their model follows it to the letter.

A plan is a list of steps, a step a list of calls that are made at once, a call a tool and the seconds it takes. Every tool
appends to one real file when it has begun and when it has ended, with its idempotency key: what ran twice is seen there.

The tool `steps` has steps with a probe. Their effects are files, one for each key, as at a service that deduplicates requests. `nap`
sleeps and `hear` waits for a signal before such a step. `doubt` needs an approval, which it gets by default after a moment. The agent `function` is a plain one: each call of its plan is a step with the
policy of the tool.
"""

import asyncio
import json
import os
import time
import zlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from holdfast import Done, NotDone, Turn, Unsettled, idempotency_key, signal, sleep, step
from holdfast import agent as function_agent
from holdfast.errors import OutcomeUnknown
from holdfast.runtime import AgentSetup, current_session

POLICIES: dict[str, Any] = {
    "act": "report",
    "stall": "report",
    "again": "retry",
    "ask": "ask",
    "steps": "steps",
    "look": "readonly",
    "thread": "report",
    "nap": "steps",
    "hear": "steps",
    "doubt": "report",
}
"""Each tool, and what becomes of a call of it whose outcome is not known."""


SOON = timedelta(seconds=1.5)
"""When the default of a question applies."""
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


async def _do(tool: str, call: str, seconds: float, key: str) -> str:
    here = current_session()
    epoch = None if here is None else here.session.epoch
    probed = POLICIES[tool] == "steps"
    facts = {"tool": tool, "call": call, "key": key, "epoch": epoch, "pid": os.getpid(), "probed": probed}
    _append(phase="begun", **facts)
    if tool == "stall":
        time.sleep(seconds)  # and nothing else of this worker goes on
    else:
        await asyncio.sleep(seconds)
    if probed:
        _store_effect(key, facts)
        await asyncio.sleep(seconds)
    _append(phase="ended", **facts)
    return f"did {call} at epoch {epoch}{LARGE if is_large(call) else ''}"


def effects_folder(file: Path) -> Path:
    """Return where the effects of steps with a probe are, next to the file of all others."""
    return file.with_name("stored")


def _store_effect(key: str, facts: dict[str, Any]) -> None:
    """Store an effect under its key, whole or not at all. A repetition changes nothing."""
    folder = effects_folder(Path(os.environ["TORTURE_EFFECTS"]))
    draft = folder / f"{key}.{os.getpid()}"
    draft.write_text(json.dumps(facts))
    with suppress(FileExistsError):
        os.link(draft, folder / key)
    draft.unlink()


def _find(unsettled: Unsettled) -> Done[str] | NotDone:
    stored = effects_folder(Path(os.environ["TORTURE_EFFECTS"])) / unsettled.key
    if not stored.exists():
        return NotDone()
    facts = json.loads(stored.read_text())
    return Done(f"did {facts['call']} at epoch {facts['epoch']}")


async def act(ctx: RunContext[None], call: str, seconds: float) -> str:
    return await _do("act", call, seconds, idempotency_key(ctx))


async def stall(ctx: RunContext[None], call: str, seconds: float) -> str:
    return await _do("stall", call, seconds, idempotency_key(ctx))


async def again(ctx: RunContext[None], call: str, seconds: float) -> str:
    return await _do("again", call, seconds, idempotency_key(ctx))


async def ask(ctx: RunContext[None], call: str, seconds: float) -> str:
    return await _do("ask", call, seconds, idempotency_key(ctx))


async def look(ctx: RunContext[None], call: str, seconds: float) -> str:
    return await _do("look", call, seconds, idempotency_key(ctx))


def _do_in_thread(call: str, seconds: float, key: str) -> str:
    """Do it without the event loop. No interrupt and no time limit ends it."""
    here = current_session()
    epoch = None if here is None else here.session.epoch
    facts = {"tool": "thread", "call": call, "key": key, "epoch": epoch, "pid": os.getpid(), "probed": False}
    _append(phase="begun", **facts)
    time.sleep(seconds)
    _append(phase="ended", **facts)
    return f"did {call} at epoch {epoch}"


def thread(ctx: RunContext[None], call: str, seconds: float) -> str:
    return _do_in_thread(call, seconds, idempotency_key(ctx))


async def steps(ctx: RunContext[None], call: str, seconds: float) -> str:
    """Do one thing, then two at once, then one within another one."""

    async def do(name: str) -> str:
        return await _do("steps", f"{call}/{name}", seconds / 4, idempotency_key())

    async def outer() -> None:
        _append(phase="begun", tool="steps", call=f"{call}/outer", key=idempotency_key())
        await step("inner", do, "outer/inner", recovery="probe", probe=_find)

    key = idempotency_key(ctx)
    _append(phase="begun", tool="steps", call=call, key=key)
    await step("one", do, "one", recovery="probe", probe=_find)
    await asyncio.gather(*(step(name, do, name, recovery="probe", probe=_find) for name in ("two", "three")))
    await step("outer", outer, recovery="retry")
    _append(phase="ended", tool="steps", call=call, key=key)
    here = current_session()
    return f"did {call} at epoch {here.session.epoch if here else None}"


async def doubt(ctx: RunContext[None], call: str, seconds: float) -> str:
    return await _do("doubt", call, seconds, idempotency_key(ctx))


async def nap(ctx: RunContext[None], call: str, seconds: float) -> str:
    """Sleep without a process, and then do one thing."""
    await sleep(seconds=seconds)
    return await _do_after_wait("nap", call, idempotency_key(ctx))


async def hear(ctx: RunContext[None], call: str, seconds: float) -> str:
    """Wait for the signal with the name of the call, and then do one thing."""
    del seconds
    assert await signal(call) == call
    return await _do_after_wait("hear", call, idempotency_key(ctx))


async def _do_after_wait(tool: str, call: str, key: str) -> str:
    async def do() -> str:
        return await _do(tool, f"{call}/do", 0, idempotency_key())

    _append(phase="begun", tool=tool, call=call, key=key)
    await step("do", do, recovery="probe", probe=_find)
    _append(phase="ended", tool=tool, call=call, key=key)
    here = current_session()
    return f"did {call} at epoch {here.session.epoch if here else None}"


@function_agent("function")
async def function(turn: Turn) -> None:
    """Follow the plan without a model. A person approves each plan with a call that may ask one."""
    key, plan = turn.text.split(" ", 1)
    planned: list[list[tuple[str, float]]] = json.loads(plan)
    results: dict[str, str] = {}

    async def do(tool: str, call: str, seconds: float) -> str:
        return await _do(tool, call, seconds, idempotency_key())

    def do_in_thread(call: str, seconds: float) -> str:
        return _do_in_thread(call, seconds, idempotency_key())

    async def carry_out(call: str, tool: str, seconds: float) -> None:
        options: dict[str, Any] = {"recovery": "retry" if tool == "look" else POLICIES[tool]}
        if POLICIES[tool] == "steps":
            options = {"recovery": "probe", "probe": _find}
        if tool == "nap":
            await turn.sleep(seconds=seconds)
        if tool == "hear":
            assert await turn.signal(call) == call
        if tool == "doubt":
            await turn.ask(f"Do {call}?", deadline=SOON, default="approve")
        try:
            if tool == "thread":
                results[call] = await turn.step(call, do_in_thread, call, seconds, **options)
            else:
                results[call] = await turn.step(call, do, tool, call, seconds, **options)
        except OutcomeUnknown as error:
            results[call] = str(error)

    if any(tool == "ask" for calls in planned for tool, _ in calls):
        await turn.ask(f"Carry out {key}?")
    for number, calls in enumerate(planned):
        await asyncio.gather(
            *(
                carry_out(call_id(key, number, place), tool, seconds)
                for place, (tool, seconds) in enumerate(calls)
            )
        )
    await turn.add({"results": dict(sorted(results.items()))})
    await turn.answer(answer(key))


tools: list[Any] = [act, stall, again, ask, steps, look, thread, nap, hear]
expiring = {"approval": {"deadline": SOON, "default": "approve"}}
tools.append(Tool(doubt, requires_approval=True, metadata=expiring))
plain: Agent[None, str] = Agent(FunctionModel(respond), name="plain", tools=tools)
talker: Agent[None, str] = Agent(FunctionModel(stream_function=stream), name="talker", tools=tools)
agents = [*(AgentSetup(agent=agent, policies=POLICIES) for agent in (plain, talker)), function]
