"""Where the time of a recorded step goes: each part of it, next to the same part of a step that nothing records.

An agent calls one tool per step, and its model takes 20 ms, as in `benchmarks.record`. Every run has the same hooks; those of the unrecorded
run do nothing. Runs take turns. Nothing here is a bar.
Run it as `python -m benchmarks.anatomy`.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

from benchmarks.record import MODEL_SECONDS, USAGE, call, result
from benchmarks.report import Report, progress
from holdfast import Holdfast
from holdfast.store import open_store

STEPS = 50
ROUNDS = 12
SIDES: tuple[str, ...] = ("nothing", "report", "readonly")
"""Nothing is recorded, or the tool has this policy."""
PARTS = {
    "request begins > model": "the request is recorded and prepared",
    "model > response": "the model",
    "response > request ends": "the response waits until the last results are durable",
    "request ends > call begins": "Pydantic AI reads the response",
    "call begins > tool": "the call is recorded",
    "tool > call ends": "the tool, and its result is kept",
    "call ends > request begins": "Pydantic AI builds the next request",
}

Mark = Callable[[str], None]


class Unrecorded(AbstractCapability[Any]):
    """The hooks of a recorder that does nothing."""

    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> ModelResponse:
        """Only ask the model."""
        del ctx
        return await handler(request_context)

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        """Only run the tool."""
        del ctx, call, tool_def
        return await handler(args)


def marked(capability: Any, mark: Mark) -> Any:
    """Return the capability with marks at the ends of its hooks."""
    for hook, name in (("wrap_model_request", "request"), ("wrap_tool_execute", "call")):
        setattr(capability, hook, _between(getattr(capability, hook), name, mark))
    return capability


def _between(hook: Callable[..., Any], name: str, mark: Mark) -> Callable[..., Any]:
    async def marking(*args: Any, **rest: Any) -> Any:
        mark(f"{name} begins")
        try:
            return await hook(*args, **rest)
        finally:
            mark(f"{name} ends")

    return marking


async def run(side: str) -> dict[str, float]:
    """Return the median milliseconds of each part."""
    marks: list[tuple[str, float]] = []
    number = 0

    def mark(name: str) -> None:
        marks.append((name, time.perf_counter()))

    async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal number
        del messages, info
        mark("model")
        number += 1
        step = number
        await asyncio.sleep(MODEL_SECONDS)
        mark("response")
        return call(step) if step <= STEPS else ModelResponse(parts=[TextPart("done")], usage=USAGE)

    async def look_up(number: int) -> str:
        mark("tool")
        return result(number)

    class Marked(Holdfast):
        async def for_run(self, ctx: RunContext[Any]) -> Any:
            return marked(await super().for_run(ctx), mark)

    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        async with open_store(f"sqlite:///{folder}/bench.db") as store:
            recorder = marked(Unrecorded(), mark) if side == "nothing" else Marked(store)
            tool = Tool(look_up, metadata=None if side == "nothing" else {"recovery": side})
            agent = Agent(FunctionModel(model), name="bench", tools=[tool], capabilities=[recorder])
            await agent.run("Look it all up.", usage_limits=UsageLimits(request_limit=None))
    found: dict[str, list[float]] = {}
    for (name, began), (following, ended) in pairwise(marks):
        found.setdefault(f"{name} > {following}", []).append((ended - began) * 1e3)
    return {part: median(found[part]) for part in PARTS}


def measure(rounds: int) -> int:
    """Compare the sides."""
    report = Report("anatomy")
    taken: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for number in range(rounds + 1):  # the first only warms up
        progress(f"round {number} of {rounds}")
        for side, times in taken.items():
            times.append(asyncio.run(run(side)))
    whole = dict.fromkeys(SIDES, 0.0)
    for part, name in PARTS.items():
        parts = {side: median(times[part] for times in taken[side][1:]) for side in SIDES}
        for side, took in parts.items():
            whole[side] += took
        _add(report, name, parts)
    _add(report, "the whole step", whole)
    return report.finish()


def _add(report: Report, name: str, parts: dict[str, float]) -> None:
    detail = ", ".join(f"{side} {took:.2f} ms" for side, took in parts.items())
    for side in SIDES[1:]:
        report.add(f"{name}: added with {side}", parts[side] - parts["nothing"], "ms", detail=detail)


def main() -> int:
    """Measure as often as asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.anatomy", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="to see that it runs")
    return measure(1 if parser.parse_args().quick else ROUNDS)


if __name__ == "__main__":
    sys.exit(main())
