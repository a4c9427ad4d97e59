"""Real worker processes: `holdfast worker` as a user starts it, with signals as an operator or a kernel sends them."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.forking import AsyncForked, start_forked

ROOT = Path(__file__).parents[2]


class WorkerProcess:
    """One `holdfast worker`, and what it says."""

    def __init__(self, process: AsyncForked) -> None:
        self.process = process
        self.said: list[str] = []
        self._listening = asyncio.create_task(self._listen())
        self._serving = asyncio.Event()

    async def serving(self) -> None:
        await asyncio.wait_for(self._serving.wait(), 90)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def ended(self, seconds: float = 30) -> int:
        code = await asyncio.wait_for(self.process.wait(), seconds)
        await self._listening
        return code

    async def _listen(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.said.append(line.decode())
            if " serves " in self.said[-1]:
                self._serving.set()


@asynccontextmanager
async def worker(
    url: str, *options: str, hold: float = 0, app: str = "tests.promises.app:agent", **settings: str
) -> AsyncGenerator[WorkerProcess, None]:
    """Start a worker and kill it in the end, if it still lives."""
    environment = (
        os.environ | {"HOLD": str(hold)} | {f"HOLDFAST_{k.upper()}": str(v) for k, v in settings.items()}
    )
    process = await start_forked(
        sys.executable,
        "-m",
        "holdfast",
        "worker",
        app,
        "--store",
        url,
        *options,
        cwd=ROOT,
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    started = WorkerProcess(process)
    try:
        await started.serving()
        yield started
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await started._listening  # pyright: ignore[reportPrivateUsage]
        if "PYTEST_CURRENT_TEST" in os.environ:
            sys.stderr.write("".join(started.said))


async def lines(path: Path, count: int) -> list[str]:
    """Wait until a file has so many lines, and return them."""
    async with asyncio.timeout(90):
        while True:
            found = path.read_text().splitlines() if path.exists() else []
            if len(found) >= count:
                return found
            await asyncio.sleep(0.01)
