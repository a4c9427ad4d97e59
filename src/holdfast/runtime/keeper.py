"""Keeps a holder alive: renews its one deadline from a thread of its own, so that no tool can get in the way.

When it could not renew in time it says so before the deadline passes; whoever holds leases stops then.
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
_log = logging.getLogger(__name__)


class Keeper:
    """Renews a holder until it is stopped, or lost: then `lost` is called, once, on the loop that made this."""

    def __init__(self, store: Store, holder: Holder, *, every: float, lost: Callable[[], None]) -> None:
        self._holder = holder
        self._every = every
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
        asyncio.run(self._open_and_keep(store))

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
                await self._sleep(0.2)
        if not self._stopped.is_set():
            self._give_up("the store could not be opened in time")

    async def _keep(self, store: Store) -> None:
        while not self._stopped.is_set():
            await self._sleep(self._since + self._every - time.monotonic())
            if self._stopped.is_set():
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
                await self._sleep(0.2)

    def _limit(self) -> float:
        return self._since + self._holder.ttl * (1 - _MARGIN)

    async def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopped.is_set() and (left := until - time.monotonic()) > 0:  # noqa: ASYNC110 - set by a thread
            await asyncio.sleep(min(left, 0.05))

    def _give_up(self, reason: str) -> None:
        _log.error("holder %s is lost: %s", self._holder.name, reason)
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._lost)
