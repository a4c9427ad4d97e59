"""Sweep while a worker runs: at once, then at the interval of the settings, and with increasing pauses after failures.

With `retention_sweep_at` it sweeps once a day at that time instead, and not at the start.

It uses its own thread and connection, so that even a large deletion does not block a run.
"""

import asyncio
import logging
import random
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime

from holdfast.errors import HoldfastError
from holdfast.media import open_media
from holdfast.retention.sweep import Outcome, Swept, is_configured, sweep
from holdfast.store import Store
from holdfast.tasks import end

ACTOR = "retention"
_FIRST_PAUSE = 5.0
_BUSY_PAUSE = 60.0
_LONGEST_DOUBLING = 16
_HOUR = 3600.0
_HALF_DAY = 12 * _HOUR
_DAY = 24 * _HOUR
_log = logging.getLogger(__name__)


@asynccontextmanager
async def sweeping(store: Store) -> AsyncGenerator[None, None]:
    """Sweep while the block runs, if the settings of the store require it."""
    if not is_configured(store):
        yield
        return
    clone = store.clone_for_thread()
    if clone is None:  # an in-memory store, which is small and only visible to this process
        task = asyncio.create_task(_sweep_on(store), name="holdfast-sweep")
        try:
            yield
        finally:
            await end(task)
        return
    thread = _Thread(clone)
    try:
        yield
    finally:
        await asyncio.to_thread(thread.stop)


async def sweep_apart(
    store: Store,
    *,
    actor: str,
    dry_run: bool = False,
    limit: int | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Swept | None:
    """Sweep once, as `sweep` does, outside this event loop if possible. `on_outcome` is called on another thread."""

    async def work(opened: Store) -> Swept | None:
        media = open_media(store=opened)
        return await sweep(opened, media, actor=actor, dry_run=dry_run, limit=limit, on_outcome=on_outcome)

    async def open_and_work(clone: Store) -> Swept | None:
        async with clone:
            return await work(clone)

    clone = store.clone_for_thread()
    if clone is None:
        return await work(store)
    return await asyncio.to_thread(lambda: asyncio.run(open_and_work(clone)))


class _Thread:
    """A thread with its own event loop and store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop()
        self._stopped = False
        self._task = self._loop.create_task(self._work())
        self._thread = threading.Thread(target=self._run, name="holdfast-sweep", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, even in the middle of a deletion: the next sweep continues it."""
        self._stopped = True
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._task)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _work(self) -> None:
        failures = 0
        while True:
            try:
                async with self._store:
                    await _sweep_on(self._store)
            except HoldfastError as error:
                failures += 1
                _log.warning("the sweep could not open the store %d times in a row: %s", failures, error)
            await asyncio.sleep(pause(failures, self._store.settings.retention_sweep_seconds))


async def _sweep_on(store: Store) -> None:
    """Sweep until cancelled."""
    interval, at = store.settings.retention_sweep_seconds, store.settings.retention_sweep_at
    media = open_media(store=store)
    failures = 0
    every = 0.0  # at once on start, regardless of earlier sweeps
    if at is not None:
        every, interval = _HALF_DAY, _DAY
        await asyncio.sleep(until(at, await store.now()))
    while True:
        seconds = interval
        try:
            done = await sweep(store, media, actor=ACTOR, every=every, on_outcome=_log_outcome)
        except HoldfastError as error:
            failures += 1
            seconds = pause(failures, interval)
            _log.warning("the sweep failed %d times in a row: %s", failures, error)
        except Exception:  # noqa: BLE001 - a boundary: one unexpected error must not stop retention permanently
            failures += 1
            seconds = pause(failures, interval)
            _log.exception("the sweep failed %d times in a row", failures)
        else:
            if done is None:  # another process is sweeping, or has just finished
                seconds = min(_BUSY_PAUSE, interval)
            elif done.problem is not None:
                failures += 1
                seconds = pause(failures, interval)
                _log.warning("the sweep ended early %d times in a row: %s", failures, done.problem)
            else:
                failures = 0
                _log_swept(done)
        if at is None:
            every = 0.0 if failures else interval * 0.9
            await asyncio.sleep(seconds * random.uniform(0.9, 1))  # noqa: S311
        else:
            every = 0.0 if failures else _HALF_DAY
            left = until(at, await store.now())
            # A sweep that failed, or that another process may not finish, is retried for an hour.
            await asyncio.sleep(min(left, seconds) if _DAY - left < _HOUR else left)


def until(at: str, now: datetime) -> float:
    """Return how many seconds remain from `now` to the next time of day `at`, as HH:MM in UTC."""
    hour, minute = map(int, at.split(":"))
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    left = (hour * 60 + minute) * 60 - (now - midnight).total_seconds()
    return left if left > 0 else left + _DAY


def pause(failures: int, interval: float) -> float:
    """Return how many seconds to wait after this many consecutive failures: longer each time, at most the interval."""
    if not failures:
        return interval
    return min(interval, _FIRST_PAUSE * 2 ** min(failures - 1, _LONGEST_DOUBLING))


def _log_outcome(outcome: Outcome) -> None:
    level = {"failed": logging.WARNING, "refused": logging.DEBUG}.get(outcome.outcome, logging.INFO)
    _log.log(
        level,
        "session %s was %s by the policy %s%s",
        outcome.session_id,
        outcome.outcome,
        outcome.policy,
        f": {outcome.problem}" if outcome.problem else "",
    )


def _log_swept(done: Swept) -> None:
    if done.outcomes or done.submissions or done.shell_events or done.usage:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(done.outcomes.items())) or "none due"
        _log.info(
            "swept sessions: %s; deleted %d submissions, %d shell events, %d blobs, %d sums of usage",
            counts,
            done.submissions,
            done.shell_events,
            done.blobs,
            done.usage,
        )
