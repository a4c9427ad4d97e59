"""Write a SQLite file: one connection, and group commit on its own thread.

All waiting jobs share the next transaction. A lone job, while jobs are fast, runs on the caller's thread: waiting for it
costs less than switching threads.
"""

import asyncio
import math
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from holdfast.counting import count
from holdfast.errors import StoreReplaced
from holdfast.store.hub import Hub
from holdfast.store.sqlite.files import DatabaseFiles

T = TypeVar("T")

BUSY_SECONDS = 30.0
_CHECKPOINT_PAGES, _CHECKPOINT_PAGES_TOGETHER = 1000, 4000
"""After how many pages the log is copied into the file: for a lone job, and for jobs that are committed together. More is faster for many
sessions at once, and slower for a single run: syncing a log that still grows takes longer than syncing one that is overwritten."""
_LARGEST_GROUP = 256
_QUICK_SECONDS = 0.001
"""A job that takes less than this on average is not worth a switch of threads."""
_SPLIT_JOBS = 16
_SPLIT_SECONDS = 0.002
"""A group of more jobs than this is split in two while a sync takes less than this."""


def connect(path: str, clock: Callable[[], float] = time.time) -> sqlite3.Connection:
    """Open a connection with the function `now_us` and a short busy timeout."""
    connection = sqlite3.connect(
        path,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        uri=path.startswith("file://"),
    )
    connection.row_factory = sqlite3.Row
    connection.create_function("now_us", 0, lambda: int(clock() * 1_000_000))
    connection.execute("PRAGMA busy_timeout = 5000")
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    """Set the pragmas of the file, before the first table, and those of the writer."""
    _retry_while_busy(lambda: connection.execute("PRAGMA auto_vacuum = INCREMENTAL"))
    _retry_while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchall())
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = ON")  # deleted content must not remain in the file
    connection.execute("PRAGMA busy_timeout = 0")  # _retry_while_busy waits instead, which is fairer


def _retry_while_busy(action: Callable[[], T]) -> T:
    """Run the action as soon as no other process has the lock. Pauses are short and random, so that no process starves."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(0.0002, 0.002))  # noqa: S311


class _Job:
    """Work on the connection, within a transaction unless it is a chore, and its result."""

    __slots__ = ("_fail", "changes", "chore", "done", "error", "future", "loop", "result", "work")

    def __init__(
        self,
        work: Callable[[sqlite3.Connection], Any],
        chore: bool,
        changes: Sequence[str],
        fail: Callable[[BaseException], None] | None,
    ) -> None:
        self.work = work
        self.chore = chore
        self.changes = changes
        self._fail = fail
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] | None = None
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Record why it failed, before any later job is done."""
        if self.error is None:
            self.error = error
            if self._fail is not None:
                self._fail(error)

    def deliver(self) -> None:
        """Wake the waiting caller; called on its event loop."""
        self.done = True
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    async def wait(self) -> Any:
        if not self.done:
            self.future = self.loop.create_future()
            await self.future
        if self.error is not None:
            raise self.error
        return self.result


class _Pace:
    """Statistics of the last commits, by which the writer chooses how to do the next one.

    - `together`: whether the last group had several jobs. Then the next job waits for the writer's thread, which collects a group.
    - `latest`: the topics of the last job. A lone job for other topics first lets the rest of this turn of the event loop join it.
    - `lone_seconds`: how long a lone job takes. A fast one is done on the caller's thread.
    - `sync_seconds`: how long the disk takes. If that is short, a large group is split, so that the event loop works on one half
      while the other is synced; if it is long, a second sync would cost more than it gains.

    The times are moving averages, infinite until the first measurement.
    """

    def __init__(self) -> None:
        self.together = False
        self.latest: Sequence[str] = ()
        self.lone_seconds = self.sync_seconds = math.inf

    def note(self, jobs: "list[_Job]", seconds: float, sync_seconds: float) -> None:
        """Record the times of a commit."""
        self.together = len(jobs) > 1
        self.latest = jobs[-1].changes
        self.sync_seconds = _average(self.sync_seconds, sync_seconds)
        if not self.together:
            self.lone_seconds = _average(self.lone_seconds, seconds)

    def waits_for_others(self, changes: Sequence[str]) -> bool:
        """Return whether a job should let others join it before it is run."""
        return not self.together and changes != self.latest

    def is_done_at_once(self, waiting: int) -> bool:
        """Return whether the caller should run the waiting jobs instead of the writer's thread."""
        return waiting == 1 and not self.together and self.lone_seconds < _QUICK_SECONDS

    @property
    def checkpoint_pages(self) -> int:
        """After how many pages the log is copied into the file."""
        return _CHECKPOINT_PAGES_TOGETHER if self.together else _CHECKPOINT_PAGES

    def group_size(self, waiting: int) -> int:
        """Return how many of the waiting jobs to take."""
        if waiting > _SPLIT_JOBS and self.sync_seconds < _SPLIT_SECONDS:
            waiting //= 2
        return min(waiting, _LARGEST_GROUP)


def _average(before: float, seconds: float) -> float:
    return seconds if before == math.inf else before + (seconds - before) / 4


def _deliver(jobs: list[_Job]) -> None:
    for job in jobs:
        job.deliver()


class Writer:
    """The only connection that writes, on its own thread or, for a lone fast job, on the caller's."""

    def __init__(
        self,
        path: str,
        hub: Hub,
        translate: Callable[[BaseException], BaseException],
        files: DatabaseFiles,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._hub = hub
        self._translate = translate
        self._files = files
        self._waiting: deque[_Job] = deque()
        self._finished: list[_Job] = []  # committed, but not delivered yet
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._woken = False
        self._busy = threading.Lock()
        self._pace = _Pace()
        self._checkpoint_pages = 0
        self._connection = connect(path, clock)
        try:
            _prepare(self._connection)
            self._set_checkpoint()
        except BaseException:
            self._connection.close()
            raise
        self._thread = threading.Thread(target=self._work, name="holdfast-writer", daemon=True)
        self._thread.start()

    async def submit(
        self,
        work: Callable[[sqlite3.Connection], T],
        *,
        chore: bool = False,
        changes: Sequence[str] = (),
        fail: Callable[[BaseException], None] | None = None,
    ) -> T:
        """Do the work and return after the commit. The work is done even if the caller is cancelled meanwhile.

        If it fails, `fail` is called at once, even if the caller was cancelled.
        """
        job = _Job(work, chore, changes, fail)
        self._waiting.append(job)
        try:
            if self._pace.waits_for_others(changes):
                await asyncio.sleep(0)
        finally:
            self._flush()
        return await job.wait()

    def close(self) -> None:
        """Do the waiting jobs, then disconnect.

        If the files were replaced, the connection stays open until the process ends: closing it would delete the log by its
        name, and with it the commits of other processes to the new file.
        """
        try:
            self._files.check()
        except StoreReplaced:
            return  # the thread keeps the connection alive, and refuses new jobs
        self._wake.put(False)
        self._thread.join()
        self._connection.close()

    def _flush(self) -> None:
        if not self._waiting:
            return
        if self._pace.is_done_at_once(len(self._waiting)) and self._busy.acquire(blocking=False):
            try:
                done = self._at_once()
            finally:
                self._busy.release()
            if done:
                return
        if not self._woken:
            self._woken = True
            self._wake.put(True)

    def _at_once(self) -> bool:
        """Commit the only waiting job, unless another process has the lock."""
        try:
            job = self._waiting.popleft()
        except IndexError:
            return True
        try:
            ours = not job.chore and job.loop is asyncio.get_running_loop() and self._begin()
            if ours:
                self._transact([job])
        except Exception as error:  # noqa: BLE001 - delivered to the caller
            ours = True
            job.fail(self._translate(error))
        if ours:
            job.deliver()
        else:
            self._waiting.appendleft(job)
        return ours

    def _work(self) -> None:
        while self._wake.get():
            self._woken = False  # before reading the queue: a later job wakes the thread again
            with self._busy:
                self._drain()
        with self._busy:
            self._drain()

    def _drain(self) -> None:
        while self._waiting:
            group = [self._waiting.popleft() for _ in range(self._pace.group_size(len(self._waiting)))]
            try:
                self._do(group)
            except Exception as error:  # noqa: BLE001 - delivered to the callers; the thread continues
                for job in group:
                    job.fail(self._translate(error))
            self._finished += group
        self._hand_out()

    def _hand_out(self) -> None:
        """Deliver the committed jobs, each on its own event loop."""
        finished, self._finished = self._finished, []
        for loop in {job.loop for job in finished}:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, [job for job in finished if job.loop is loop])

    def _do(self, group: list[_Job]) -> None:
        jobs = [job for job in group if not job.chore]
        if jobs:
            if not self._begin():
                self._hand_out()  # finished jobs must not wait for the lock
                _retry_while_busy(self._begin_now)
            self._transact(jobs)
        for job in group:
            if job.chore:
                self._hand_out()
                try:
                    self._files.refuse()
                    job.result = _retry_while_busy(partial(job.work, self._connection))
                    self._files.check()
                except Exception as error:  # noqa: BLE001 - delivered to the caller
                    job.fail(self._translate(error))

    def _begin(self) -> bool:
        """Start a transaction, unless another process has the lock."""
        try:
            self._begin_now()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            return False
        return True

    def _begin_now(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")  # an earlier transaction could not be ended
        self._files.refuse()
        self._connection.execute("BEGIN IMMEDIATE")

    def _transact(self, jobs: list[_Job]) -> None:
        """Run the jobs in the current transaction. If one of several fails, the others still succeed."""
        connection = self._connection
        started = time.perf_counter()
        count("commit_batches", len(jobs))
        try:
            try:
                for job in jobs:
                    job.result = job.work(connection)
            except Exception:
                if len(jobs) == 1:
                    raise
                _retry_while_busy(self._begin_now)
                for job in jobs:
                    self._run_separately(job)
            if self._finished:
                self._hand_out()  # the event loop handles them while the disk syncs
            syncing = time.perf_counter()
            connection.execute("COMMIT")
            self._files.check()  # a commit to a deleted file succeeds too
        except Exception as error:  # noqa: BLE001 - delivered to the callers
            for job in jobs:
                job.fail(self._translate(error))
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            return
        ended = time.perf_counter()
        self._pace.note(jobs, ended - started, ended - syncing)
        self._set_checkpoint()
        self._hub.changed([topic for job in jobs if job.error is None for topic in job.changes])

    def _set_checkpoint(self) -> None:
        if self._checkpoint_pages != self._pace.checkpoint_pages:
            self._checkpoint_pages = self._pace.checkpoint_pages
            self._connection.execute(f"PRAGMA wal_autocheckpoint = {self._checkpoint_pages}")

    def _run_separately(self, job: _Job) -> None:
        self._connection.execute("SAVEPOINT job")
        try:
            job.result = job.work(self._connection)
        except Exception as error:
            job.fail(self._translate(error))
            if not self._connection.in_transaction:
                raise  # the whole transaction was rolled back, for example because the disk is full
            self._connection.execute("ROLLBACK TO job")
        self._connection.execute("RELEASE job")
