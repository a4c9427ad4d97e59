"""Workers that are killed all the time."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from tests.promises.workers import WorkerProcess, worker

_SHORT: Final[dict[str, Any]] = {"lease_ttl_seconds": 3, "lease_renew_seconds": 1}


@asynccontextmanager
async def fleet(
    url: str, app: str, calm: asyncio.Event, *, count: int = 3
) -> AsyncGenerator[Counter[str], None]:
    """Keep some workers running, and kill one of them every second until it is `calm`."""
    alive: set[WorkerProcess] = set()
    kills: Counter[str] = Counter()

    async def live() -> None:
        while True:
            with suppress(TimeoutError, AssertionError):
                async with worker(url, app=app, **_SHORT) as process:
                    alive.add(process)
                    try:
                        await process.process.wait()
                    finally:
                        alive.discard(process)

    async def kill() -> None:
        while not calm.is_set():
            await asyncio.sleep(1)
            if alive:
                random.choice(sorted(alive, key=id)).signal(signal.SIGKILL)
                kills["workers"] += 1

    tasks = [*(asyncio.create_task(live()) for _ in range(count)), asyncio.create_task(kill())]
    try:
        yield kills
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
