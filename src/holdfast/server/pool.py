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
"""The longest pause before a worker is restarted. The pauses start again after a worker that ran for longer than this."""


class WorkerPool:
    """The worker processes of an API server. Restarts those that exit, after a pause that grows."""

    def __init__(self, app: str, settings: Settings, size: int, numbers: str | None) -> None:
        # Any user of the machine can read command lines, and the store's URL may contain a password.
        self._environment = os.environ | {"HOLDFAST_STORE": settings.store}
        # It is that of an administrator, and the tools of agents run in workers.
        self._environment.pop("HOLDFAST_TOKEN", None)
        if numbers:
            self._environment["PROMETHEUS_MULTIPROC_DIR"] = numbers
        options = ["--log-format", settings.log_format]
        self._command = [sys.executable, "-m", "holdfast", "worker", app, "--supervised", *options]
        self._size = size
        self._pids: set[int] = set()

    async def keep(self, stopping: asyncio.Event) -> None:
        """Keep the workers running until `stopping` is set, then wait until they have handed over."""
        await asyncio.gather(*(self._keep_one(stopping) for _ in range(self._size)))

    def kill(self, pid: int | None) -> int | None:
        """Send SIGKILL to the worker with this process id, or to any worker if there is none. Return its process id."""
        if pid not in self._pids:
            pid = next(iter(self._pids), None)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return pid

    def hurry(self) -> None:
        """Send a second SIGTERM, so that workers cut off their runs."""
        for pid in self._pids:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGTERM)

    async def _keep_one(self, stopping: asyncio.Event) -> None:
        pause = 0.2
        while not stopping.is_set():
            started = asyncio.get_running_loop().time()
            # The worker's standard input closes when this process ends, even if it is killed; the worker then stops too. In its
            # own process group the worker gets no Ctrl-C from the terminal: a second signal would cut off its runs.
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command, env=self._environment, stdin=asyncio.subprocess.PIPE, process_group=0
                )
            except OSError as error:
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                _log.error("cannot start a worker, retrying in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)
                continue
            self._pids.add(process.pid)
            ended = asyncio.create_task(process.wait())
            stop = asyncio.create_task(stopping.wait())
            await asyncio.wait([ended, stop], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if ended.done():
                self._pids.discard(process.pid)
            if not ended.done():
                process.send_signal(signal.SIGTERM)
                await ended
                self._pids.discard(process.pid)
                return
            if stopping.is_set():
                return
            uptime = asyncio.get_running_loop().time() - started
            pause = 0.2 if uptime > _LONGEST_PAUSE_SECONDS else min(pause * 2, _LONGEST_PAUSE_SECONDS)
            _log.warning("a worker exited with code %s; restarting it in %.1f s", process.returncode, pause)
            await asyncio.sleep(pause)
