"""Starts the processes of the drills that are killed: crash.py, delegates.py and cutter.py in tests/promises."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.forking import Forked, start_forked


class Crash:
    """Where the runs that are to be killed live: in the database that `url` names, or in a `{place}` of their own."""

    def __init__(self, folder: Path, url: str, module: str = "crash") -> None:
        self._folder = folder
        self.url = url
        self._module = module

    def of(self, module: str) -> "Crash":
        """Return the same with the runs of another module in tests/promises."""
        return Crash(self._folder, self.url, module)

    async def run(self, policy: str, mode: str, points: list[str]) -> list[dict[str, Any]]:
        """Kill a run at each of the points, continue it, and return what was found, in two processes at once.

        A slow machine joins writes, so that a run may have fewer of them than the one that the points are from. Such a run is left
        out, and there may be few of them.
        """
        halves = [points[::2], points[1::2]]
        found = await asyncio.gather(*(self._run(policy, mode, half) for half in halves if half))
        everything = [facts for half in found for facts in half]
        killed = [facts for facts in everything if not _has_missed(facts)]
        assert len(everything) - len(killed) <= len(points) // 5, [facts["point"] for facts in everything]
        return killed

    async def _run(self, policy: str, mode: str, points: list[str]) -> list[dict[str, Any]]:
        place = self._folder / f"{policy}-{mode}-{len(list(self._folder.iterdir()))}-{points[0]}"
        place.mkdir()
        process = await start_forked(
            *(sys.executable, "-m", f"tests.promises.{self._module}", self.url, str(place)),
            *(policy, mode, *points),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0
        return [json.loads(line) for line in output.splitlines()]


def _has_missed(facts: dict[str, Any]) -> bool:
    """Return whether a run ended without passing the numbered write at which it was to be killed."""
    return (
        facts["ended"] == 0 and "-write#" in facts["point"] and facts["point"] not in facts.get("points", ())
    )


class Cutters:
    """Processes on a store, each of which is killed at a step."""

    def __init__(self, url: str) -> None:
        self._process = Forked(
            [sys.executable, "-m", "tests.promises.cutter", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, session_id: str, action: str, at: int, file: Path) -> int:
        """Return how it ended: -9 if it came to that step, 0 if it was done before."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{session_id} {action} {at} {file}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


async def every_point(crash: Crash) -> list[str]:
    """Return the boundaries that an undisturbed run passes."""
    (facts,) = await crash.run("report", "resume", ["none"])
    assert facts["output"] == "done with 3 answers"
    return facts["points"]
