"""Keeps a holder alive: renews its one deadline from a thread of its own, so that a busy event loop does not lose it.

When it cannot renew in time it reports the loss before the deadline passes, and the holder stops its runs. It stops renewing by itself when
the event loop does not respond for a long time: then every session of the worker hangs, and another worker can continue them.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from holdfast.errors import HolderLost, HoldfastError
from holdfast.store import Store
from holdfast.tasks import end
from holdfast.types import Holder

_MARGIN = 0.1
"""The part of the time to live that is left when the runs are stopped."""
_WARN_SECONDS = 1.0
"""How long the event loop may be blocked before a warning is logged."""
_PAUSE_SECONDS = 0.2
_log = logging.getLogger(__name__)


class Keeper:
    """Renews a holder until it is stopped, or lost: then `lost` is called, once, on the loop that made this."""

    def __init__(
        self, store: Store, holder: Holder, *, every: float, lost: Callable[[], None], loop_timeout: float
    ) -> None:
        self._holder = holder
        self._every = every
        self._loop_timeout = loop_timeout
        self._pinged: float | None = (
            None  # when the event loop was asked for a response that has not come yet
        )
        self._warned = False
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._since = time.monotonic()
        self._stopped = threading.Event()
        twin = store.twin()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        if twin is None:  # nobody else can see it, so nobody can take over either
            self._task = asyncio.create_task(self._keep(store))
        else:
            self._thread = threading.Thread(
                target=self._work, args=[twin], name="holdfast-keeper", daemon=True
            )
            self._thread.start()

    async def stop(self) -> None:
        """Stop renewing."""
        self._stopped.set()
        if self._task is not None:
            await end(self._task)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _work(self, store: Store) -> None:
        while not self._stopped.is_set():
            try:
                with asyncio.Runner() as runner:
                    runner.get_loop()
                    runner.run(self._open_and_keep(store))
            except OSError as error:  # no file descriptors for an event loop
                if time.monotonic() >= self._limit():
                    self._give_up("no event loop could be started in time")
                    return
                _log.warning("the keeper cannot start yet: %s", error)
                self._stopped.wait(_PAUSE_SECONDS)
            else:
                return

    async def _open_and_keep(self, store: Store) -> None:
        while not self._stopped.is_set():
            try:
                async with store:
                    await self._keep(store)
                    return
            except HoldfastError as error:
                if time.monotonic() >= self._limit():
                    break
                _log.warning("the keeper cannot reach the store yet: %s", error)
                await self._sleep(_PAUSE_SECONDS)
        if not self._stopped.is_set():
            self._give_up("the store could not be opened in time")

    async def _keep(self, store: Store) -> None:
        while not self._stopped.is_set():
            await self._sleep(self._since + self._every - time.monotonic())
            if self._stopped.is_set():
                return
            if self._blocked() > self._loop_timeout:
                self._give_up(f"its event loop has not responded for {self._blocked():.0f} s")
                return
            sent = time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, self._limit() - sent)):
                    await store.renew(self._holder)
                self._since = sent
            except HolderLost:
                self._give_up("others have taken its place")
                return
            except TimeoutError:
                self._give_up("its deadline could not be renewed in time")
                return
            except HoldfastError as error:
                _log.warning("holder %s was not renewed: %s", self._holder.name, error)
                await self._sleep(_PAUSE_SECONDS)

    def _limit(self) -> float:
        return self._since + self._holder.ttl * (1 - _MARGIN)

    async def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopped.is_set() and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.05))
            self._ping()

    def _ping(self) -> None:
        """Ask the event loop for a response, unless it owes one; log a warning if that takes long."""
        if self._thread is None:
            return
        if self._pinged is None:
            self._pinged = time.monotonic()
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._respond)
        elif self._blocked() > _WARN_SECONDS and not self._warned:
            self._warned = True
            _log.warning(
                "The event loop of %s has been blocked for %.1f s: all its sessions wait. Other workers take them over after %g s. "
                "Run blocking code in a thread: make the tool a plain function, or use asyncio.to_thread.",
                *(self._holder.name, self._blocked(), self._loop_timeout),
            )

    def _respond(self) -> None:
        self._pinged, self._warned = None, False

    def _blocked(self) -> float:
        pinged = self._pinged
        return 0.0 if pinged is None else time.monotonic() - pinged

    def _give_up(self, reason: str) -> None:
        _log.error("holder %s is lost: %s", self._holder.name, reason)
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._lost)
