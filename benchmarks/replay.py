"""What replay costs: recording the profile of each request, and checking a long session.

In every second step of a run, the benchmark leaves out the description of the request. A step is compared with its neighbour, and the first of
both is in turns the one with a profile and the one without. The model takes no time, so that a step is only the recorder and Pydantic AI.
The check of a long session is compared with the same steps of Pydantic AI alone, in the same process. `--quick` does little of everything.
Run it as `python -m benchmarks.replay`.
"""

import argparse
import asyncio
import gc
import io
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pydantic_ai import Agent, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

from benchmarks.record import USAGE, call, result
from benchmarks.report import Report, progress
from benchmarks.usage import STEPS, Pairs, keeps_usage
from holdfast import Holdfast
from holdfast.media import open_media
from holdfast.record.profiles import Profiles
from holdfast.replay import check_archive
from holdfast.retention import write_archive
from holdfast.store import Store, open_store
from tests.servers import postgres

TOOLS = 10
LIMIT = 1.03
BYTES = 1.02
CHECK = 1.3


async def look_up(number: int) -> str:
    """Look up a number."""
    return result(number)


def agent(steps: int, called: list[float], *capabilities: AbstractCapability[Any]) -> "Agent[None, str]":
    """Return an agent with several tools, one of which its model calls in each step."""

    async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del messages, info
        called.append(time.perf_counter())
        done = len(called) > steps
        return ModelResponse(parts=[TextPart("done")], usage=USAGE) if done else call(len(called))

    tools = [Tool(look_up), *(Tool(look_up, name=f"other_{n}") for n in range(TOOLS - 1))]
    return Agent(
        FunctionModel(model, model_name="bench"), name="bench", tools=tools, capabilities=[*capabilities]
    )


async def run(steps: int, *capabilities: AbstractCapability[Any]) -> list[float]:
    """Run the agent, and return the seconds of its steps."""
    called: list[float] = []
    await agent(steps, called, *capabilities).run(
        "Look it all up.", usage_limits=UsageLimits(request_limit=None), conversation_id=None
    )
    return [after - before for before, after in pairwise(called)]


async def _record(report: Report, name: str, url: str, runs: int) -> None:
    facts = Profiles.facts
    step = 0

    def only_some(
        self: Profiles, sent: ModelRequestContext, history: Sequence[ModelMessage]
    ) -> Mapping[str, Any]:
        nonlocal step
        step += 1
        return facts(self, sent, history) if keeps_usage(step) else {}

    pairs = Pairs()
    progress(f"{name}: {runs} runs of {STEPS} steps")
    async with open_store(url) as store:
        with patch.object(Profiles, "facts", only_some):
            for number in range(runs + 1):
                gc.collect()
                gc.disable()  # it would fall on some steps only
                step = -1  # the response to the first request belongs to step 0
                try:
                    steps = await run(STEPS, Holdfast(store))
                finally:
                    gc.enable()
                if number:  # the first run warms up
                    pairs.add(steps)
    pairs.report(report, f"{name}: a step", LIMIT, what="profile")


async def _bytes(report: Report, folder: Path, steps: int) -> None:
    def nothing(*_: object) -> Mapping[str, Any]:
        return {}

    async def stored(name: str) -> int:
        url = f"sqlite:///{folder}/{name}.db"
        async with open_store(url) as store:
            await run(steps, Holdfast(store))
        return (folder / f"{name}.db").stat().st_size

    whole = await stored("with")
    with patch.object(Profiles, "facts", nothing):
        without = await stored("without")
    report.add(
        "stored bytes with profile / without",
        whole / without,
        at_most=BYTES,
        detail=f"{steps} steps, {whole:,} bytes",
    )


async def _check(report: Report, steps: int, times: int) -> None:
    async with open_store("sqlite://:memory:") as store:
        await agent(steps, [], Holdfast(store)).run(
            "Look it all up.", usage_limits=UsageLimits(request_limit=None), conversation_id="long"
        )
        archive = await _archive(store)
    ratios: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        await run(steps)
        alone = time.perf_counter() - began
        archive.seek(0)
        began = time.perf_counter()
        checked = await check_archive(archive, agent(steps, []))
        assert checked.is_same, checked
        assert checked.requests == steps + 1, checked
        ratios.append((time.perf_counter() - began) / alone)
        progress(
            f"a check of {steps} steps: {ratios[-1]:.2f} times Pydantic AI alone, which took {alone:.1f} s"
        )
    report.add(
        f"check of {steps} steps / Pydantic AI alone", min(ratios), at_most=CHECK, detail=f"best of {times}"
    )


async def _archive(store: Store) -> io.BytesIO:
    media = open_media(store=store)
    return io.BytesIO(b"".join([piece async for piece in write_archive(store, media, "long")]))


async def _measure(*, quick: bool) -> int:
    report = Report("replay")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        await _bytes(report, Path(folder), 50 if quick else 200)
        await _record(report, "sqlite", f"sqlite:///{folder}/bench.db", 5 if quick else 100)
        with postgres() as server:
            await _record(report, "postgres", await server.create_database("bench"), 5 if quick else 100)
    await _check(report, 100 if quick else 1000, 1 if quick else 3)
    return report.finish()


def main() -> int:
    """Measure as often as asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="to see that it runs")
    return asyncio.run(_measure(quick=parser.parse_args().quick))


if __name__ == "__main__":
    sys.exit(main())
