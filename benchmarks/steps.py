"""How many steps per second a plain agent does, against workflow engines on the same PostgreSQL: each claim is a bar that must hold.

Each side is one worker process with its default settings. A step only returns a small dict, so what is measured is the record.
The sides take turns. Run it as `python -m benchmarks.steps --peer`; without `--peer` only our own growth is measured.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import holdfast
from benchmarks.peers import peer_python, process, ready
from benchmarks.report import Report, progress
from benchmarks.steps_peers import MOST_WORKFLOWS, clock, serve_rounds
from holdfast.runtime import Turn, Worker
from holdfast.store import open_store
from tests.servers import postgres

if TYPE_CHECKING:
    import subprocess

PEERS = {"dbos": ["dbos==3.3.0"], "absurd": ["absurd-sdk==0.5.1", "absurdctl==0.5.1"]}
FASTER = 1.5
"""How many times as many steps per second we must do as each peer."""
EARLY, LATE = range(5, 15), range(990, 1010)
"""The steps that stand for step 10 and step 1,000 of a turn."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of everything, and how often it is repeated."""

    sequential: int
    concurrent: int
    rounds: int
    long_turns: int


FULL = Scale(sequential=300, concurrent=30, rounds=5, long_turns=15)
QUICK = Scale(sequential=50, concurrent=5, rounds=1, long_turns=1)


class Side:
    """A worker process that runs workflows on request."""

    def __init__(self, started: "subprocess.Popen[str]") -> None:
        self._process = started

    def run(self, workflows: int, steps: int) -> list[float]:
        """Run workflows at once, and return when their steps began."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(workflows, steps, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def rate(self, workflows: int, steps: int) -> float:
        """Return the steps per second from the first to the last one."""
        began = self.run(workflows, steps)
        return (len(began) - 1) / (began[-1] - began[0])


def _start(stack: ExitStack, *command: str) -> Side:
    started = stack.enter_context(process(*command))
    ready(started)
    return Side(started)


def _start_ours(stack: ExitStack, url: str) -> Side:
    return _start(stack, sys.executable, "-m", "benchmarks.steps", "--worker", url)


def _compare(report: Report, sides: dict[str, Side], scale: Scale) -> None:
    """Measure every side in turns, and compare the medians."""
    for name, workflows, steps in (
        ("one workflow", 1, scale.sequential),
        (f"{MOST_WORKFLOWS} workflows at once", MOST_WORKFLOWS, scale.concurrent),
    ):
        progress(f"{name}, {steps} steps each")
        rates: dict[str, list[float]] = {side: [] for side in sides}
        order = list(sides)
        for number in range(scale.rounds + 1):
            for side in order:
                rate = sides[side].rate(workflows, steps)
                if number:  # the first round warms up
                    rates[side].append(rate)
                    progress(f"  {side}: {rate:,.0f}/s")
            order.reverse()
        ours = rates.pop("holdfast")
        for side, theirs in rates.items():
            report.add(
                f"steps per second of {name}, ours / {side}",
                median(a / b for a, b in zip(ours, theirs, strict=True)),
                at_least=FASTER,
                detail=f"ours {median(ours):,.0f}/s, {side} {median(theirs):,.0f}/s",
            )


def _growth(report: Report, engine: str, side: Side, scale: Scale) -> None:
    """Measure what a late step costs against an early one, within long turns."""
    early: list[float] = []
    late: list[float] = []
    for _ in range(scale.long_turns + 1):
        began = side.run(1, LATE.stop + 1)
        took = [after - before for before, after in pairwise(began)]
        early.append(median(took[number] for number in EARLY))
        late.append(median(took[number] for number in LATE))
    del early[0], late[0]  # the first turn warms up
    report.add(
        f"{engine}: step 1,000 of a turn / step 10",
        median(a / b for a, b in zip(late, early, strict=True)),
        at_most=1.3,
        detail=f"{median(late) * 1e3:.2f} ms, {median(early) * 1e3:.2f} ms",
    )


def _sync_seconds(path: Path) -> float:
    """Return how long it takes to sync one page, which every side does for each step of a lone workflow."""
    took: list[float] = []
    with path.open("wb", buffering=0) as file:
        for _ in range(200):
            file.seek(0)
            file.write(bytes(8192))
            before = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - before)
    return median(took)


@holdfast.agent("bench")
async def _agent(turn: Turn) -> None:
    await clock.arrive()
    for _ in range(clock.steps):
        await turn.step("note", _note)


async def _note() -> dict[str, int]:
    return clock.note()


async def _be_worker(url: str) -> None:
    async with open_store(url) as store:

        async def run_round(workflows: int) -> None:
            sessions = [
                (await store.create_session(agent="bench", owner="bench")).id for _ in range(workflows)
            ]
            for session in sessions:
                await store.submit(session, "message", json.dumps({"text": "go"}))
            await clock.finished.wait()
            for session in sessions:
                async for event in store.watch(session):
                    if event.kind == "submission_done":
                        break

        worker = Worker(store, _agent)
        serving = asyncio.create_task(worker.run())
        try:
            await serve_rounds(run_round)
        finally:
            worker.stop()
            await serving


def _measure(scale: Scale, topics: Sequence[str], *, with_peer: bool, peer_venv: Path | None) -> int:
    report = Report("steps")
    with ExitStack() as stack:
        server = stack.enter_context(postgres())
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-"))
        for name in ("holdfast", *PEERS):
            asyncio.run(server.create_database(name))
        ours = _start_ours(stack, server.url("holdfast"))
        if "peers" in topics and with_peer:
            packages = [package for group in PEERS.values() for package in group]
            python = str(stack.enter_context(peer_python(peer_venv, packages)))
            sides = {"holdfast": ours}
            for name in PEERS:
                sides[name] = _start(stack, python, "-m", "benchmarks.steps_peers", name, server.url(name))
            report.add("sync of one page, p50", _sync_seconds(Path(folder, "page")) * 1e3, "ms")
            _compare(report, sides, scale)
        if "growth" in topics:
            progress("growth")
            _growth(report, "postgres", ours, scale)
            _growth(report, "sqlite", _start_ours(stack, f"sqlite:///{folder}/bench.db"), scale)
    return report.finish()


TOPICS = ("peers", "growth")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="do little of everything: to see that it runs")
    parser.add_argument("--topic", choices=TOPICS, action="append", help="measure only this")
    parser.add_argument(
        "--peer",
        action=argparse.BooleanOptionalAction,
        default=False,
        help=f"compare with {' and '.join(PEERS)}",
    )
    parser.add_argument(
        "--peer-venv", type=Path, help="where they are installed, created if missing; else temporary"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        asyncio.run(_be_worker(given.worker))
        return 0
    scale = QUICK if given.quick else FULL
    return _measure(scale, given.topic or TOPICS, with_peer=given.peer, peer_venv=given.peer_venv)


if __name__ == "__main__":
    sys.exit(main())
