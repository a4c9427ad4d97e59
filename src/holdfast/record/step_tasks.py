"""The tasks that run steps. A call or turn ends after them: nothing of it may run, or be recorded, after its end."""

import asyncio
from collections import Counter
from collections.abc import Collection, Generator
from contextlib import contextmanager
from typing import Any, cast

from holdfast.record.threads import DelayedStop


class StepTasks:
    """The tasks of one tool call, or of one turn of a plain agent, while they run steps."""

    def __init__(self) -> None:
        self.closed = False
        """Whether the call or turn ends: no step may begin."""
        self._main: asyncio.Task[Any] | None = None
        self._running: Counter[asyncio.Task[Any]] = Counter()  # a step may run others
        self._changed = asyncio.Event()

    def begin(self) -> None:
        """Make the current task the one that runs the call or turn. It waits for the others."""
        self._main = asyncio.current_task()

    @property
    def is_main(self) -> bool:
        """Whether the current task is the one that runs the call or turn."""
        return asyncio.current_task() is self._main

    @contextmanager
    def counted(self) -> Generator[None, None, None]:
        """Let the end of the call or turn wait for the current task."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._running[task] += 1
        try:
            yield
        finally:
            self._running[task] -= 1
            if not self._running[task]:
                del self._running[task]
            self._changed.set()

    def changed(self) -> None:
        """Let `finish` look again."""
        self._changed.set()

    async def idle(self, running: Collection[object]) -> None:
        """Wait until no step is running."""
        self._changed.set()
        while running:
            self._changed.clear()
            await self._changed.wait()

    async def finish(self, running: Collection[object]) -> None:
        """Wait until no step is running, so that all outcomes are known. Then stop those that pause before they are tried again."""
        try:
            while running:
                self._changed.clear()
                await self._changed.wait()
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Cancel the other tasks, such as those of a `gather`, and wait until none of them runs a step."""
        self.closed = True
        stop = DelayedStop()
        cancelled: set[asyncio.Task[Any]] = set()
        while others := [task for task in self._running if task is not self._main]:
            for task in others:
                if task not in cancelled:
                    task.cancel()
            cancelled.update(others)
            self._changed.clear()
            await stop.wait_for(asyncio.create_task(self._changed.wait()))
        await stop.deliver()
