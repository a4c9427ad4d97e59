"""Hold leases: every process that writes to sessions joins as a holder, renews its deadline, and leaves.

The store's settings define how long a holder lives and how often it is renewed. A worker renews from a thread, so that a busy event loop
does not cost it its sessions. It stops renewing when the event loop does not respond for a long time: then every session of the worker
hangs, and another worker can continue them.
"""

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress

from holdfast.errors import HolderLost, HoldfastError, SessionBusy
from holdfast.ids import did_you_mean
from holdfast.store import Store
from holdfast.tasks import end
from holdfast.types import SUSPENDED, Holder, Lease, Session

_MARGIN = 0.1
"""The fraction of the time to live that is left when a loss is reported: enough to stop the current runs."""
_WARN_SECONDS = 1.0
"""How long the event loop may be blocked before a warning is logged."""
_PAUSE_SECONDS = 0.2
_log = logging.getLogger(__name__)


def process_name() -> str:
    """Return a name for this process as a holder."""
    return f"{socket.gethostname()}:{os.getpid()}"


async def join(
    store: Store, name: str | None = None, *, ttl: float | None = None, agents: Sequence[str] = ()
) -> Holder:
    """Join as a holder that lives for `ttl` seconds, by default as long as the settings define."""
    return await store.join(
        name or process_name(), ttl=ttl or store.settings.lease_ttl_seconds, agents=agents
    )


async def why_waiting(store: Store, session: Session) -> str | None:
    """Return the reason why no worker continues a session, and the remedy; None if a worker does or nothing is pending."""
    if session.waiting_for == "worker":
        now = await store.now()
        alive = [holder for holder in await store.holders() if holder.deadline > now]
        return no_worker(session.agent, {agent for holder in alive for agent in holder.agents})
    if session.waiting_for == "limit":
        most = store.settings.max_running_per_owner
        allowed = "many" if most is None else str(most)
        return f"Its owner runs as many sessions as allowed ({allowed}). It starts when one of them ends, or with a higher max_running_per_owner."
    if session.waiting_for == "resume":
        return (
            "The process of its last run ended before the run did. Send the next message, or resume the run:"
            " `holdfast runs list --interrupted` lists it."
        )
    if session.status in SUSPENDED and "budget of" in (session.waiting_for or ""):
        held = "" if session.pending else " Then resume its last run."
        return f"It waits for {session.waiting_for}. An administrator can raise it with `holdfast budget set`.{held}"
    return None


def no_worker(agent: str, served: Collection[str]) -> str:
    """Return a message that no live worker serves an agent, with similar names that are served."""
    if not served:
        return f"No live worker serves agent {agent!r}. Start one with `holdfast worker` or `holdfast serve`."
    return f"No live worker serves agent {agent!r}.{did_you_mean(agent, served)} Live workers serve: {', '.join(sorted(served))}."


@asynccontextmanager
async def joined(
    store: Store, name: str | None = None, *, ttl: float | None = None
) -> AsyncGenerator[Holder, None]:
    """Be a holder while the block runs, renewed on this event loop."""
    holder = await join(store, name, ttl=ttl)
    renewal = Renewal(store, holder)
    try:
        yield holder
    finally:
        try:
            await renewal.stop()
        finally:  # also if this task is cancelled meanwhile
            with suppress(HoldfastError):  # if this fails, the holder expires at its deadline
                await store.leave(holder)


@asynccontextmanager
async def hold_lease(
    store: Store, session_id: str, *, ttl: float | None = None, patience: float = 0.0
) -> AsyncGenerator[Lease, None]:
    """Hold the lease of a session while the block runs, with a holder of its own. Raises `SessionBusy`, after `patience` seconds."""
    async with joined(store, ttl=ttl) as holder:
        tries = 2 + int(patience / _PAUSE_SECONDS)
        pause = _PAUSE_SECONDS if patience else 0.0
        yield await acquire(store, session_id, holder, tries=tries, pause=pause)


async def acquire(
    store: Store,
    session_id: str,
    holder: Holder,
    *,
    cleaned: bool = False,
    tries: int = 2,
    pause: float = 0.0,
) -> Lease:
    """Acquire the lease of a session. Between attempts, free the sessions of processes that ended before their deadline."""
    while True:
        try:
            return await store.acquire(session_id, holder, cleaned=cleaned)
        except SessionBusy:
            tries -= 1
            if not tries:
                raise
        await store.reclaim()
        await asyncio.sleep(pause)


class Renewal:
    """Renews a holder until it is stopped or lost.

    With `lost`, a loss is reported once, before the deadline passes, by calling that function on the event loop that created this object.
    Without it, renewal is retried as long as the holder exists; then `is_lost` is set, and the next write fails. With `in_thread`, it renews
    from a thread of its own if the store supports that.
    """

    def __init__(
        self,
        store: Store,
        holder: Holder,
        *,
        lost: Callable[[], None] | None = None,
        every: float | None = None,
        in_thread: bool = False,
    ) -> None:
        settings = store.settings
        self._holder = holder
        self._every = every or min(settings.lease_renew_seconds, holder.ttl * 0.3)
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._loop_timeout = settings.loop_timeout_seconds
        self._pinged: float | None = None  # when the event loop received a ping that it has not answered
        self._warned = False
        self._since = time.monotonic()
        self.is_lost = False
        self.was_blocked = False
        """Whether the holder was lost because code blocked the event loop."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        clone = store.clone_for_thread() if in_thread else None
        if clone is None:
            self._task = asyncio.create_task(self._keep(store))
        else:
            self._thread = threading.Thread(
                target=self._work, args=[clone], name="holdfast-renewal", daemon=True
            )
            self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the deadline has not passed since it was renewed last."""
        return time.monotonic() < self._since + self._holder.ttl

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
                _log.warning("cannot start to renew holder %s yet: %s", self._holder.name, error)
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
                _log.warning("cannot reach the store to renew holder %s yet: %s", self._holder.name, error)
                await self._sleep(_PAUSE_SECONDS)
        if not self._stopped.is_set():
            self._give_up("the store could not be opened in time")

    async def _keep(self, store: Store) -> None:
        while True:
            await self._sleep(self._since + self._every - time.monotonic())
            if self._stopped.is_set():
                return
            if self._blocked() > self._loop_timeout:
                self.was_blocked = True
                self._give_up(f"its event loop has not responded for {self._blocked():.0f} s")
                return
            sent = time.monotonic()
            try:
                async with asyncio.timeout(None if self._lost is None else max(0.0, self._limit() - sent)):
                    await store.renew(self._holder)
                self._since = sent
            except HolderLost:
                self._give_up("its deadline passed, and its sessions were freed")
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
        if self._thread is None:
            await asyncio.sleep(seconds)
            return
        until = time.monotonic() + seconds
        while not self._stopped.is_set() and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.05))
            self._ping()

    def _ping(self) -> None:
        """Ping the event loop, unless a ping is unanswered; log a warning if the answer takes long."""
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
        self.is_lost = True
        if self._lost is None:
            return
        _log.error("holder %s is lost: %s", self._holder.name, reason)
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._lost)
