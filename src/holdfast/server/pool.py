"""The worker processes that `holdfast serve` starts and restarts."""

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress

from holdfast.config import Settings

_log = logging.getLogger("holdfast.serve")
_LONGEST_PAUSE_SECONDS = 10.0
"""The longest pause before a worker is started again. A worker that lives longer starts the pauses anew."""


class WorkerPool:
    """The worker processes of an API server. Restarts those that exit, after a pause that grows."""

    def __init__(self, app: str, settings: Settings, size: int, numbers: str | None) -> None:
        # Everybody on the machine can read a command line, and the store's URL may have a password in it.
        self._environment = os.environ | {"HOLDFAST_STORE": settings.store}
        if numbers:
            self._environment["PROMETHEUS_MULTIPROC_DIR"] = numbers
        options = ["--log-format", settings.log_format]
        self._command = [sys.executable, "-m", "holdfast", "worker", app, "--supervised", *options]
        self._size = size
        self._pids: set[int] = set()

    async def keep(self, stopping: asyncio.Event) -> None:
        """Keep them running until told to stop, then let them hand over."""
        await asyncio.gather(*(self._keep_one(stopping) for _ in range(self._size)))

    def kill(self, pid: int | None) -> int | None:
        """Kill one of them with no chance to say a word, this one if it is ours; return which."""
        if pid not in self._pids:
            pid = next(iter(self._pids), None)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return pid

    def hurry(self) -> None:
        """Tell them once more to stop: then they cut off what runs."""
        for pid in self._pids:
            with suppress(ProcessLookupError):  # it has ended, and we are about to hear of it
                os.kill(pid, signal.SIGTERM)

    async def _keep_one(self, stopping: asyncio.Event) -> None:
        pause = 0.2
        while not stopping.is_set():
            started = asyncio.get_running_loop().time()
            # Its input ends with this process, also when this is killed: then it hands over and ends as well. Ctrl-C is
            # for this process alone, which passes it on: a worker that hears it twice cuts off what runs.
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command, env=self._environment, stdin=asyncio.subprocess.PIPE, process_group=0
                )
            except OSError as error:
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                _log.error("a worker cannot be started, trying again in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)
                continue
            self._pids.add(process.pid)
            ended = asyncio.create_task(process.wait())
            told = asyncio.create_task(stopping.wait())
            await asyncio.wait([ended, told], return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
            if ended.done():
                self._pids.discard(process.pid)
            if not ended.done():
                process.send_signal(signal.SIGTERM)
                await ended
                self._pids.discard(process.pid)
                return
            if stopping.is_set():
                return
            lived = asyncio.get_running_loop().time() - started
            pause = 0.2 if lived > _LONGEST_PAUSE_SECONDS else min(pause * 2, _LONGEST_PAUSE_SECONDS)
            _log.warning("a worker ended with code %s; another starts in %.1f s", process.returncode, pause)
            await asyncio.sleep(pause)
