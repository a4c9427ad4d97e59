"""The processes under fire: each is started again whenever it has ended, and says what it was hit by.

They are `holdfast worker` and `holdfast serve --role api` as an operator starts them, with nothing added.
"""

import asyncio
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

ROOT = Path(__file__).parents[2]
SKEWED = ROOT / "tests" / "promises" / "skewed"
Standing: TypeAlias = Literal["down", "starting", "up", "paused"]
_START_SECONDS = 60.0
_LINES = 40


class Member:
    """One place in the fleet, and the process that fills it now."""

    def __init__(
        self, name: str, kind: str, command: list[str], environment: dict[str, str], log: Path
    ) -> None:
        self.name = name
        self.kind = kind
        self.standing: Standing = "down"
        self.starts = 0
        self.tracebacks: list[str] = []
        self.fell: list[str] = []
        """How it ended without having been hit, after it had served."""
        self.start_failures = 0
        self._command = command
        self._environment = environment
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._told: signal.Signals | None = None
        self._ending = False
        self._up = asyncio.Event()
        self._living: asyncio.Task[None] | None = None
        self._last: list[str] = []

    def start(self) -> None:
        """Keep a process here from now on."""
        self._living = asyncio.create_task(self._live(), name=self.name)

    async def up(self) -> None:
        """Wait until it serves."""
        await self._up.wait()

    async def end(self, seconds: float) -> int | None:
        """Tell it to stop and return how it ended; None if it had to be killed."""
        self._ending = True
        process = self._process
        if process is None or self._living is None or process.returncode is not None:
            if self._living is not None:
                self._living.cancel()
            return 0
        self.hit(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), seconds)
        except TimeoutError:
            _send(process, signal.SIGKILL)
            await self._living
            return None
        await self._living
        return process.returncode

    def abandon(self) -> None:
        """Kill it, whatever it does."""
        self._ending = True
        if self._process is not None:
            _send(self._process, signal.SIGKILL)
        if self._living is not None:
            self._living.cancel()

    def hit(self, number: signal.Signals) -> bool:
        """Send a signal that ends it; say whether it was there to be hit."""
        if self._process is None or self._process.returncode is not None:
            return False
        self._told = number
        _send(self._process, number)
        return True

    async def pause(self, seconds: float) -> None:
        """Stop it in its tracks for a while."""
        process, before = self._process, self.standing
        if process is None:
            return
        _send(process, signal.SIGSTOP)
        self.standing = "paused"
        try:
            await asyncio.sleep(seconds)
        finally:
            if self.standing == "paused":
                self.standing = "up" if self._up.is_set() else before
            _send(process, signal.SIGCONT)

    async def _live(self) -> None:
        pause = random.Random(self.name)
        while not self._ending:
            await self._once()
            self.standing = "down"
            self._up.clear()
            if not self._ending:
                await asyncio.sleep(pause.uniform(0, 0.3))

    async def _once(self) -> None:
        self._told = None
        self.starts += 1
        self.standing = "starting"
        process = self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast", *self._command),
            cwd=ROOT,
            env=os.environ | self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=2**20,
        )
        served = False
        assert process.stdout is not None
        with self._log.open("a") as log:
            log.write(f"--- {self.name}, start {self.starts}, pid {process.pid}\n")
            async for raw in process.stdout:
                line = raw.decode("utf-8", "replace")
                log.write(line)
                self._last = [*self._last[-_LINES:], line]
                if line.startswith("Traceback"):
                    self.tracebacks.append(f"{self.name}, start {self.starts}")
                if not served and " serves " in line:
                    served = True
                    self._up.set()
                    self._rise()
                    log.flush()
            code = await process.wait()
            log.write(f"--- {self.name} ended with {code}, told {self._told}\n")
        if self._told is None and not self._ending:
            if served:
                self.fell.append(f"{self.name} ended with {code}: {''.join(self._last[-3:]).strip()}")
            else:
                self.start_failures += 1

    def _rise(self) -> None:
        if self.standing != "paused":  # else it does when it goes on
            self.standing = "up"

    def move_clock(self, seconds: float | None) -> None:
        """Have the next process believe in another time."""
        for name in ("SKEW", "PYTHONPATH"):
            self._environment.pop(name, None)
        if seconds is not None:
            path = [str(SKEWED), os.environ.get("PYTHONPATH", "")]
            self._environment |= {"SKEW": str(seconds), "PYTHONPATH": os.pathsep.join(filter(None, path))}


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal. `Process.send_signal` would look first whether it has ended, and so take its end from asyncio."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def worker(number: int, url: str, folder: Path, settings: dict[str, str]) -> Member:
    environment = settings | {
        "TORTURE_EFFECTS": str(folder / "effects"),
        "PROMETHEUS_MULTIPROC_DIR": str(folder / "counted"),  # what was counted outlives a kill
    }
    name = f"worker-{number}"
    command = ["worker", "tests.torture.app:agents", "--store", url, "--name", name, "--grace", "3"]
    return Member(name, "worker", command, environment, folder / f"{name}.log")


def front(number: int, port: int, url: str, folder: Path, settings: dict[str, str]) -> Member:
    name = f"front-{number}"
    command = ["serve", "--role", "api", "--store", url, "--port", str(port)]
    return Member(name, "front", command, dict(settings), folder / f"{name}.log")
