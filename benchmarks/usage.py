"""What the sums of usage cost: a recorded step with them against the same step without.

Usage is added in the transaction of the step that it belongs to. In every second step of a run, the benchmark removes the usage from each
batch before the store writes it. A step is compared with its neighbour, and the first of both is in turns the one with usage and the one
without. The model takes no time, so that a step is only the recorder and Pydantic AI. `--quick` does little of everything.
Run it as `python -m benchmarks.usage`.
"""

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt
from statistics import median, quantiles

from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

from benchmarks.record import USAGE, call, result
from benchmarks.report import Report, progress
from holdfast import Holdfast
from holdfast.store import Store, open_store
from holdfast.types import Batch, Lease
from tests.servers import postgres

LIMIT = 1.03
"""How many times as long a step with usage may take."""
STEPS = 40
_WARM_UP = 4
"""So many steps at the beginning of each run are not measured."""


@dataclass(slots=True)
class Pairs:
    """The seconds of steps with usage, and of the steps next to them without."""

    with_usage: list[float] = field(default_factory=list[float])
    without: list[float] = field(default_factory=list[float])

    def add(self, steps: list[float]) -> None:
        """Add the steps of a run."""
        for number in range(_WARM_UP, len(steps) - 1, 2):
            for step in (number, number + 1):
                (self.with_usage if keeps_usage(step) else self.without).append(steps[step])

    def report(self, report: Report, name: str, limit: float | None, *, what: str = "usage") -> None:
        """Report the ratio, and how exactly it is known."""
        ratios = [a / b for a, b in zip(self.with_usage, self.without, strict=True)]
        low, _, high = quantiles(ratios, n=4)
        error = 1.25 * (high - low) / 1.35 / sqrt(len(ratios))  # of a median, if the distribution is normal
        times = f"{median(self.with_usage) * 1e6:,.0f} us, without {median(self.without) * 1e6:,.0f} us"
        detail = f"{len(ratios):,} pairs, standard error {error:.3f}; with {times}"
        report.add(f"{name} with {what} / without", median(ratios), at_most=limit, detail=detail)


def keeps_usage(step: int) -> bool:
    """Return whether a step keeps its usage: the first, the fourth and the fifth, the eighth and the ninth, …."""
    return step % 4 in {0, 3}


class Recording:
    """Records runs of an agent in a store."""

    def __init__(self, store: Store) -> None:
        self.steps, self.writes = Pairs(), Pairs()
        self.requests = 0
        """How many model requests were written with their usage."""
        self._store = store
        self._write = store.write
        self._step = 0
        self._writing = 0.0
        store.write = self._timed

    async def run(self) -> None:
        """Run the agent once."""
        called: list[float] = []
        written: list[float] = []

        async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            del messages, info
            self._step = len(called)
            called.append(time.perf_counter())
            written.append(self._writing)
            done = len(called) > STEPS
            return ModelResponse(parts=[TextPart("done")], usage=USAGE) if done else call(len(called))

        async def look_up(number: int) -> str:
            return result(number)

        agent = Agent(
            FunctionModel(model), name="bench", tools=[Tool(look_up)], capabilities=[Holdfast(self._store)]
        )
        await agent.run("Look it all up.", usage_limits=UsageLimits(request_limit=None))
        self.steps.add(_differences(called))
        self.writes.add(_differences(written))

    async def _timed(self, lease: Lease, batch: Batch) -> int:
        if keeps_usage(self._step):
            self.requests += sum(usage.requests for usage in batch.usage)
        else:
            batch.usage = []
        began = time.perf_counter()
        try:
            return await self._write(lease, batch)
        finally:
            self._writing += time.perf_counter() - began


def _differences(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


async def _compare(report: Report, name: str, url: str, runs: int) -> None:
    async with open_store(url) as store:
        recording = Recording(store)
        progress(f"{name}: {runs} runs of {STEPS} steps")
        for number in range(runs + 1):
            gc.collect()
            gc.disable()  # it would fall on some steps only
            try:
                await recording.run()
            finally:
                gc.enable()
            if not number:  # the first run warms up
                recording.steps, recording.writes = Pairs(), Pairs()
        written = sum(used.requests for used in (await store.usage()).items)
    kept = sum(map(keeps_usage, range(STEPS + 1)))
    assert written == recording.requests == (runs + 1) * kept, (written, recording.requests)
    recording.steps.report(report, f"{name}: a step", LIMIT)
    recording.writes.report(report, f"{name}: its writes", None)


async def _measure(runs: int, only: str | None) -> int:
    report = Report("usage")
    if only in {None, "sqlite"}:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            await _compare(report, "sqlite", f"sqlite:///{folder}/bench.db", runs)
    if only in {None, "postgres"}:
        with postgres() as server:
            await _compare(report, "postgres", await server.create_database("bench"), runs)
    return report.finish()


def main() -> int:
    """Measure as often as asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.usage", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="to see that it runs")
    parser.add_argument("--engine", choices=["sqlite", "postgres"], help="measure only this one")
    given = parser.parse_args()
    return asyncio.run(_measure(5 if given.quick else 300, given.engine))


if __name__ == "__main__":
    sys.exit(main())
