"""A worker: claims sessions that have work, runs each in its own task, and releases them.

It holds all its sessions under one deadline. If it cannot renew that in time, it stops its runs before other workers
may claim them. When it is stopped, it hands over its sessions at their next settled point.
"""

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from typing import Any

from holdfast.counting import count
from holdfast.errors import (
    HolderLost,
    HoldfastError,
    LeaseLost,
    NotFound,
    StoreClosed,
    StoreError,
)
from holdfast.leases import Renewal, join, process_name
from holdfast.logs import log_context
from holdfast.notices.delivery import keep_delivering
from holdfast.notices.mirror import keep_mirroring
from holdfast.record.loading import LargeHistories
from holdfast.retention.measuring import keep_measuring
from holdfast.retention.sweeper import sweeping
from holdfast.runtime.agents import Agents, by_name
from holdfast.runtime.pace import Pace
from holdfast.runtime.scheduler import keep_firing
from holdfast.runtime.session import SessionRunner
from holdfast.store import Store
from holdfast.tasks import end
from holdfast.types import Batch, Holder, Lease, Submission, Work

_POLL_SECONDS = 1.0
_AT_ONCE = 8
"""How many sessions are claimed at once: few enough to leave some to other workers."""
_RESCUE_SECONDS = 0.25
_PAUSE_SECONDS = 0.5
_log = logging.getLogger(__name__)


class Worker:
    """Serves agents' sessions from a store until it is stopped.

    `concurrency` is how many sessions run at once. After `stop` a run has `grace` seconds to reach a point from which
    another worker can continue without repeating anything; then it is cancelled. `credential_key` decrypts the sessions' credentials.
    `ttl` and `renew` default to the store's settings.
    """

    def __init__(
        self,
        store: Store,
        agents: Agents,
        *,
        name: str | None = None,
        concurrency: int = 100,
        ttl: float | None = None,
        renew: float | None = None,
        grace: float = 20.0,
        max_attempts: int = 5,
        credential_key: str | None = None,
    ) -> None:
        self._store = store
        self._agents = by_name(agents)
        self.name = name or process_name()
        self._concurrency = concurrency
        self._ttl = ttl
        self._renew = renew
        self._grace = grace
        self._max_attempts = max_attempts
        self._credential_key = credential_key
        self._stopping = asyncio.Event()
        self._lost = asyncio.Event()
        self._renewal: Renewal | None = None
        self._uncounted: list[Submission] = []  # whose last attempt must not count
        self._look_again = asyncio.Event().set  # replaced by the bell of the loop that claims
        self._running: dict[SessionRunner, asyncio.Task[None]] = {}
        self._left_behind: dict[str, asyncio.Task[Any]] = {}  # turns that wait for a thread, by session
        self._outlasting: asyncio.Task[None] | None = None
        self._histories = LargeHistories()
        self._pace = Pace()
        self._store_failures: Counter[str] = Counter()  # in a row, by session
        self.counters: Counter[str] = Counter()

    def stop(self) -> None:
        """Claim nothing new, and hand over the running sessions. `run` returns when that is done."""
        self._stopping.set()
        self._hand_over_all()

    @property
    def threads_are_working(self) -> bool:
        """Whether synchronous code of a session that was stopped still runs. Its lease is kept until it ends, or until the process exits."""
        return any(not task.done() for task in self._left_behind.values())

    async def run(self) -> bool:
        """Serve until stopped, and sweep. Return whether every run was handed over at a settled point."""
        async with sweeping(self._store):
            return await self._serve_until_stopped()

    async def _serve_until_stopped(self) -> bool:
        clean = True
        while not self._stopping.is_set():
            try:
                clean = await self._serve_as_holder()
            except StoreClosed:
                raise
            except HoldfastError as error:
                _log.warning("the store is not available, retrying: %s", error)
                await self._pause()
        return clean

    async def _serve_as_holder(self) -> bool:
        """Serve as one holder, until stopped or the holder is lost."""
        holder = await join(self._store, self.name, ttl=self._ttl, agents=sorted(self._agents))
        self._lost.clear()
        self._renewal = renewal = Renewal(
            self._store, holder, lost=self._lost.set, every=self._renew, in_thread=True
        )
        duties = [
            self._rescue(),
            keep_firing(self._store),
            keep_delivering(self._store),
            keep_mirroring(self._store),
            keep_measuring(self._store, holder),
            self._check_budgets(),
        ]
        duties = [asyncio.create_task(duty) for duty in duties]
        _log.info("worker %s serves %s", self.name, ", ".join(sorted(self._agents)))
        try:
            await self._uncount_attempts()
            await self._claim_until_stopped(holder)
            return await self._drain(holder)
        finally:
            cut_off = list(self._running.values())
            for task in cut_off:
                task.cancel()
            await end(*duties)
            if cut_off:
                await asyncio.wait(cut_off)
            if self.threads_are_working and not self._lost.is_set():
                self._outlasting = asyncio.create_task(self._outlast(holder, renewal))
            else:
                await self._leave(holder, renewal)

    async def _check_budgets(self) -> None:
        """Let the sessions check their budgets again that wait for one: it may have been raised or removed in the settings."""
        with suppress(HoldfastError):
            await self._store.wake_for_budgets()

    async def _outlast(self, holder: Holder, renewal: Renewal) -> None:
        """Keep the leases of the sessions whose threads still work, and leave when these have ended."""
        sessions = ", ".join(sorted(self._left_behind))
        _log.warning("worker %s waits for threads of the sessions %s", self.name, sessions)
        await asyncio.wait(self._left_behind.values())
        await self._leave(holder, renewal)

    async def _leave(self, holder: Holder, renewal: Renewal) -> None:
        await renewal.stop()
        with suppress(HoldfastError):
            await self._store.leave(holder)
        _log.info("worker %s has left", self.name)

    async def _claim_until_stopped(self, holder: Holder) -> None:
        agents = sorted(self._agents)
        with self._store.ready_bell() as bell:
            self._look_again = bell.bell.set
            while not (self._stopping.is_set() or self._lost.is_set()):
                claimed: list[Work] = []
                ready_in: float | None = None
                if not self._pace.free:
                    await self._first(self._pace.wait())
                    continue
                if free := min(self._concurrency - len(self._running), self._pace.free):
                    try:
                        claimed = await self._store.next_work(
                            holder, agents=agents, limit=min(free, _AT_ONCE), max_attempts=self._max_attempts
                        )
                        if not claimed:
                            ready_in = await self._store.ready_in(holder, agents=agents)
                    except HolderLost:
                        self._lost.set()
                        return
                    except StoreClosed:
                        raise
                    except HoldfastError as error:
                        _log.warning("cannot claim sessions: %s", error)
                        await self._pause()
                        continue
                for work in claimed:
                    self._start(work)
                if not claimed:
                    if ready_in == 0 and self._store.limits_running:
                        ready_in = None  # until a session ends, here or in another worker
                    await self._first(
                        bell.wait(_POLL_SECONDS if ready_in is None else min(ready_in, _POLL_SECONDS))
                    )

    def _start(self, work: Work) -> None:
        lease = work.lease
        runner = SessionRunner(
            self._store,
            work,
            self._agents,
            max_attempts=self._max_attempts,
            credential_key=self._credential_key,
            histories=self._histories,
            store_failures=self._store_failures,
            begun=self._pace.begin(),
        )
        runner.yields = lambda: len(self._running) >= self._concurrency
        task = asyncio.create_task(self._serve(runner, lease), name=f"session {lease.session_id}")
        self._running[runner] = task
        self.counters["claimed"] += 1
        if lease.taken_from is not None:
            self.counters["taken_over"] += 1
            count("takeovers")
            _log.info("took over session %s", lease.session_id)

    async def _serve(self, runner: SessionRunner, lease: Lease) -> None:
        log_context(lambda: {"session_id": lease.session_id})
        try:
            await self._wait_for_thread(lease)
            await runner.serve()
        except (LeaseLost, NotFound) as error:
            _log.warning("%s", error)
            self.counters["lost"] += 1
        except HoldfastError as error:
            _log.warning("session %s is left to other workers: %s", lease.session_id, error)
            self.counters["failed"] += 1
            if not isinstance(error, StoreError):
                runner.unfinished = None
        except Exception:  # noqa: BLE001 - a boundary: the other sessions continue
            _log.exception("session %s failed", lease.session_id)
            self.counters["failed"] += 1
            runner.unfinished = None
        finally:
            if runner.unfinished is not None and not (self._renewal and self._renewal.was_blocked):
                self._uncounted.append(runner.unfinished)
            runner.begun()
            if (left := runner.leave_threads()) is not None:
                self._left_behind[lease.session_id] = left
            try:
                if left is None:
                    await self._release(lease)
            finally:  # also if this task is cancelled meanwhile, because the holder was lost
                was_full = len(self._running) >= self._concurrency
                self._running.pop(runner, None)
                if was_full:
                    self._look_again()

    async def _wait_for_thread(self, lease: Lease) -> None:
        """Wait for a thread that worked on the session when this worker lost it, and that has not ended yet."""
        left = self._left_behind.get(lease.session_id)
        if left is not None and not left.done():
            waits = Batch(status="running", waiting_for="a thread of the turn before")
            await self._store.write(lease, waits)
            await asyncio.wait([left])
        self._left_behind.pop(lease.session_id, None)

    async def _uncount_attempts(self) -> None:
        """Do not count attempts that ended because the store failed, or the process had too little time to renew.

        Attempts count if the worker dies, or if code of an agent blocks its event loop.
        """
        while self._uncounted:
            submission = self._uncounted.pop()
            try:
                await self._store.uncount_attempt(submission)
            except HoldfastError:
                self._uncounted.append(submission)
                raise

    async def _release(self, lease: Lease) -> None:
        """Release a session, and retry until it succeeds: no other worker can claim it while this one renews its deadline."""
        while not (lease.released or self._lost.is_set()):
            try:
                await self._uncount_attempts()  # before another worker reads the count
                await self._store.release(lease)
            except (NotFound, StoreClosed):
                return
            except HoldfastError as error:
                _log.warning("session %s cannot be released yet: %s", lease.session_id, error)
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return

    async def _drain(self, holder: Holder) -> bool:
        """Let every run reach a settled point; cancel those that do not in time."""
        if self._lost.is_set():
            for runner in list(self._running):
                runner.stop("lost")
            await self._wait_for_all(holder.ttl * 0.1)
            return True
        _log.info("worker %s is stopping and hands over %d sessions", self.name, len(self._running))
        self._hand_over_all()
        await self._wait_for_all(self._grace)
        late = list(self._running)
        for runner in late:
            runner.stop("handover")
        await self._wait_for_all(5.0)
        return not late

    def _hand_over_all(self) -> None:
        for runner in list(self._running):
            runner.hand_over("shutdown")

    async def _wait_for_all(self, seconds: float) -> None:
        if self._running:
            await asyncio.wait(list(self._running.values()), timeout=seconds)

    async def _rescue(self) -> None:
        """Free the sessions of dead holders."""
        while True:
            try:
                freed = await self._store.reclaim()
                if freed:
                    _log.info(
                        "freed %d session%s of dead holders", len(freed), "" if len(freed) == 1 else "s"
                    )
            except HoldfastError as error:
                _log.debug("cannot look for dead holders: %s", error)
            await asyncio.sleep(_RESCUE_SECONDS)

    async def _pause(self) -> None:
        await self._first(asyncio.sleep(_PAUSE_SECONDS))

    async def _first(self, waiting: Any) -> None:
        """Wait for this, or until stopped or lost."""
        tasks = [
            asyncio.ensure_future(waiting),
            asyncio.ensure_future(self._stopping.wait()),
            asyncio.ensure_future(self._lost.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
