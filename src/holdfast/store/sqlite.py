"""SQLite: one file, or memory. One connection writes, others read beside it; several processes may share the file.

Whatever waits to be written shares the next transaction (group commit) on a writer thread. A write that is alone
while commits are quick is committed right where it was asked for: then waiting costs less than changing threads.
Durable means durable: `synchronous=FULL`. Other processes' commits are noticed through `PRAGMA data_version`.
"""

import asyncio
import json
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Self, TypeVar

from holdfast.errors import (
    BadInput,
    BadText,
    Conflict,
    HoldfastError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.store.hub import Hub
from holdfast.store.sql import library
from holdfast.store.sql.core import Row, Tx, lease_lost, sql
from holdfast.store.sql.library import Dialect, Statement
from holdfast.store.sql.store import SqlStore
from holdfast.store.sql.write import Writing
from holdfast.types import Batch, Lease

T = TypeVar("T")

MEMORY: Final = ":memory:"
_READERS = 4
_LARGEST_GROUP = 256
_BUSY_SECONDS = 30.0
_POLL_SECONDS = 0.01
_QUICK_SECONDS = 0.0003
"""A commit that takes less than this on average is not worth a change of threads."""


class SqliteStore(SqlStore):
    """Sessions in one SQLite file, or in memory."""

    engine = "sqlite"
    _dialect: Dialect = "sqlite"

    def __init__(
        self, url: str, path: str, *, upgrade: bool, max_payload_bytes: int, max_pending: int
    ) -> None:
        super().__init__(url, max_payload_bytes=max_payload_bytes, max_pending=max_pending)
        self._path = path
        self._upgrade_on_open = upgrade
        self._hub = Hub()
        self._writer: _Writer | None = None
        self._readers: _Readers | None = None
        self._poller: _Poller | None = None

    async def open(self) -> Self:
        try:
            target = self._path if self._upgrade_on_open else _existing(self._path)
            self._writer = await asyncio.to_thread(_Writer, target, self._hub, self._translate)
            if self._path != MEMORY:
                self._readers = _Readers(self._path)
            await (self.upgrade() if self._upgrade_on_open else self.require())
        except BaseException as error:
            await self.close()
            raise self._translate(error) from error
        if self._path != MEMORY:
            self._poller = _Poller(self._path, self._hub)
        return self

    async def close(self) -> None:
        parts = (self._poller, self._readers, self._writer)
        self._poller = self._readers = self._writer = None
        for part in parts:
            if part is not None:
                await asyncio.to_thread(part.close)

    async def write(self, lease: Lease, batch: Batch) -> int:
        writing = Writing(lease.session_id, batch, self._check_size)
        work = partial(_write, lease=lease, writing=writing)
        return await self._running().submit(work, changes=lease.session_id)

    async def shrink(self, *, limit: int = 1000) -> int:
        def vacuum(connection: sqlite3.Connection) -> int:
            connection.execute(f"PRAGMA incremental_vacuum({int(limit)})").fetchall()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return connection.execute("PRAGMA freelist_count").fetchone()[0]

        return await self._running().submit(vacuum, chore=True)

    async def _transact(self, make: Callable[[], Tx[T]], *, repeatable: bool, changes: str | None) -> T:
        del repeatable  # an answer cannot get lost between us and the file
        return await self._running().submit(lambda connection: _run(connection, make()), changes=changes)

    async def _read(self, make: Callable[[], Tx[T]]) -> T:
        writer, readers = self._running(), self._readers
        if readers is None:
            return await writer.submit(lambda connection: _run(connection, make()))
        try:
            return await readers.run(make)
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            raise self._translate(error) from error

    def _running(self) -> "_Writer":
        if self._writer is None:
            raise StoreUnavailable(url=self.url, problem="it is not open")
        return self._writer

    def _translate(self, error: BaseException) -> BaseException:
        """Return the error of our family for one of the driver's; others as they are."""
        match error:
            case HoldfastError():
                return error
            case OverflowError():
                return BadInput(problem=f"a number does not fit into 64 bits: {error}")
            case UnicodeEncodeError():
                return BadText(what="text", problem=f"holds a lone surrogate at {error.start}")
            case sqlite3.Error():
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                make = _ERRORS.get(code, StoreError)
                problem = str(error)
                if code == sqlite3.SQLITE_CANTOPEN:
                    problem += " (is its folder there, and open to us?)"
                return make(url=self.url, problem=problem, seconds=_BUSY_SECONDS)
            case _:
                return error


_ERRORS: Final[dict[int, type[HoldfastError]]] = {
    sqlite3.SQLITE_BUSY: StoreBusy,
    sqlite3.SQLITE_LOCKED: StoreBusy,
    sqlite3.SQLITE_FULL: StoreFull,
    sqlite3.SQLITE_READONLY: StoreReadOnly,
    sqlite3.SQLITE_PERM: StoreReadOnly,
    sqlite3.SQLITE_CANTOPEN: StoreUnavailable,
    sqlite3.SQLITE_IOERR: StoreUnavailable,
    sqlite3.SQLITE_NOTADB: StoreCorrupt,
    sqlite3.SQLITE_CORRUPT: StoreCorrupt,
    sqlite3.SQLITE_CONSTRAINT: Conflict,
}


def _existing(path: str) -> str:
    """Return a name that opens the file only if it is there."""
    return path if path == MEMORY else f"{Path(path).absolute().as_uri()}?mode=rw"


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        uri=path.startswith("file://"),
    )
    connection.row_factory = sqlite3.Row
    connection.create_function("now_us", 0, _now_us)
    connection.execute("PRAGMA busy_timeout = 5000")
    return connection


def _now_us() -> int:
    return time.time_ns() // 1000


def _prepare(connection: sqlite3.Connection) -> None:
    """Set what belongs to the file, before the first table, and what belongs to the writer."""
    _patiently(lambda: connection.execute("PRAGMA auto_vacuum = INCREMENTAL"))
    _patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchall())
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA busy_timeout = 0")  # waiting is done by _patiently, which is fairer


def _patiently(action: Callable[[], T]) -> T:
    """Do it as soon as other processes let us. Short random pauses, so that nobody starves."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(0.0002, 0.002))  # noqa: S311


def _run(connection: sqlite3.Connection, tx: Tx[T]) -> T:
    try:
        statement = next(tx)
        while True:
            statement = tx.send(_execute(connection, statement))
    except StopIteration as end:
        return end.value


def _write(connection: sqlite3.Connection, lease: Lease, writing: Writing) -> int:
    """Do what `SqlCore._fence` and the arms do, with as little as possible around it: this is the hot path."""
    if lease.lost:
        raise lease_lost(lease, "an earlier write failed")
    fenced = connection.execute(_FENCE, (writing.count, lease.session_id, lease.epoch, lease.holder))
    if not fenced.rowcount:
        raise lease_lost(lease, "another holder took it, or it was released")
    for arm, rows in writing.rows.items():
        text = _arm(arm)
        for row in rows:
            connection.execute(text, row)
    return connection.execute(_SEQ, (lease.session_id,)).fetchone()[0]


# RETURNING would cost as much as both of these together.
_FENCE = "UPDATE heads SET seq = seq + ? WHERE session_id = ? AND epoch = ? AND holder = ?"
_SEQ = "SELECT seq FROM heads WHERE session_id = ?"


def _execute(connection: sqlite3.Connection, statement: Statement) -> Sequence[Row]:
    text = statement.text or library.text(statement.name, "sqlite", statement.given())
    return connection.execute(text, statement.params).fetchall()


@cache
def _arm(name: str) -> str:
    """Return an arm for one row: its values are the relation."""
    arm = library.arm(name, "sqlite")
    values = ", ".join(f"?{n} AS {column}" for n, (column, _) in enumerate(arm.columns, 1))
    rows = f"(SELECT {values}, (SELECT seq FROM heads WHERE session_id = ?1) AS head_seq) AS rows"  # noqa: S608
    return f"{arm.before}{rows}{arm.after}"


class _Job:
    """Work on the connection, inside of a transaction unless it is a chore, and who waits for it."""

    __slots__ = ("changes", "chore", "done", "error", "future", "loop", "result", "work")

    def __init__(self, work: Callable[[sqlite3.Connection], Any], chore: bool, changes: str | None) -> None:
        self.work = work
        self.chore = chore
        self.changes = changes
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] | None = None
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def deliver(self) -> None:
        """Say that it is done; on its own loop."""
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


class _Writer:
    """The one connection that writes."""

    def __init__(self, path: str, hub: Hub, translate: Callable[[BaseException], BaseException]) -> None:
        self._hub = hub
        self._translate = translate
        self._waiting: deque[_Job] = deque()
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._busy = threading.Lock()
        self._seconds = 1.0  # a moving average of what a commit takes; slow until measured
        self._connection = _connect(path)
        try:
            _prepare(self._connection)
        except BaseException:
            self._connection.close()
            raise
        self._thread = threading.Thread(target=self._work, name="holdfast-writer", daemon=True)
        self._thread.start()

    async def submit(
        self, work: Callable[[sqlite3.Connection], T], *, chore: bool = False, changes: str | None = None
    ) -> T:
        """Do the work and return after the commit. If the caller is cancelled meanwhile, it is done all the same."""
        job = _Job(work, chore, changes)
        self._waiting.append(job)
        try:
            await asyncio.sleep(0)  # what else is written in this turn of the loop joins the group
        finally:
            self._flush()
        return await job.wait()

    def close(self) -> None:
        self._wake.put(False)
        self._thread.join()
        self._connection.close()

    def _flush(self) -> None:
        if not self._waiting:
            return
        alone = len(self._waiting) == 1 and self._seconds < _QUICK_SECONDS
        if alone and self._busy.acquire(blocking=False):
            try:
                done = self._at_once()
            finally:
                self._busy.release()
            if done:
                return
        self._wake.put(True)

    def _at_once(self) -> bool:
        """Commit the one job that waits, unless another process has the lock."""
        try:
            job = self._waiting.popleft()
        except IndexError:
            return True
        if job.chore or job.loop is not asyncio.get_running_loop():
            self._waiting.appendleft(job)
            return False
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            self._waiting.appendleft(job)
            return False
        self._transact([job], begun=True)
        self._tell([job])
        job.deliver()
        return True

    def _work(self) -> None:
        while self._wake.get():
            with self._busy:
                self._drain()
        with self._busy:
            self._drain()

    def _drain(self) -> None:
        while self._waiting:
            group: list[_Job] = []
            while self._waiting and len(group) < _LARGEST_GROUP:
                group.append(self._waiting.popleft())
            try:
                self._commit(group)
            except Exception as error:  # noqa: BLE001 - the thread goes on; those who wait are told
                for job in group:
                    job.error = job.error or self._translate(error)
            self._tell(group)
            for loop in {job.loop for job in group}:
                mine = [job for job in group if job.loop is loop]
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_deliver, mine)

    def _tell(self, group: list[_Job]) -> None:
        self._hub.changed([job.changes for job in group if job.changes is not None and job.error is None])

    def _commit(self, group: list[_Job]) -> None:
        for job in group:
            if job.chore:
                try:
                    job.result = job.work(self._connection)
                except Exception as error:  # noqa: BLE001 - delivered to the one who waits for it
                    job.error = self._translate(error)
        jobs = [job for job in group if not job.chore]
        if jobs:
            self._transact(jobs, begun=False)

    def _transact(self, jobs: list[_Job], *, begun: bool) -> None:
        """Run them in one transaction. If one of several fails, run each in a savepoint: it spoils no other."""
        connection = self._connection
        started = time.perf_counter()
        try:
            if connection.in_transaction and not begun:
                connection.execute("ROLLBACK")  # an earlier one could not be ended
            if not begun:
                _patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
            try:
                for job in jobs:
                    job.result = job.work(connection)
            except Exception:
                if len(jobs) == 1:
                    raise
                connection.execute("ROLLBACK")
                _patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
                for job in jobs:
                    self._apart(job)
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - whatever it was, it is delivered to those who wait for it
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            for job in jobs:
                job.error = job.error or self._translate(error)
        self._seconds += (time.perf_counter() - started - self._seconds) / 8

    def _apart(self, job: _Job) -> None:
        self._connection.execute("SAVEPOINT job")
        try:
            job.result = job.work(self._connection)
        except Exception as error:
            job.error = self._translate(error)
            if not self._connection.in_transaction:
                raise  # the whole transaction is gone, as when the disk is full
            self._connection.execute("ROLLBACK TO job")
        self._connection.execute("RELEASE job")


def _deliver(jobs: list[_Job]) -> None:
    for job in jobs:
        job.deliver()


class _Readers:
    """Connections that read beside the writer, each on a thread of its own."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._pool = ThreadPoolExecutor(_READERS, "holdfast-reader")

    async def run(self, make: Callable[[], Tx[T]]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, make)

    def close(self) -> None:
        self._pool.shutdown()
        for connection in self._connections:
            connection.close()

    def _read(self, make: Callable[[], Tx[T]]) -> T:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = _connect(self._path)
            connection.execute("PRAGMA query_only = ON")
            self._connections.append(connection)
        connection.execute("BEGIN")
        try:
            return _run(connection, make())
        finally:
            connection.execute("ROLLBACK")


class _Poller:
    """Notices what other processes commit while somebody here reads, and rings for those who are behind."""

    def __init__(self, path: str, hub: Hub) -> None:
        self._path = path
        self._hub = hub
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="holdfast-poller", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._hub.has_readers.set()
        self._thread.join()

    def _work(self) -> None:
        connection = _connect(self._path)
        seen = -1
        while not self._stop.is_set():
            self._hub.has_readers.wait()
            try:
                version = connection.execute("PRAGMA data_version").fetchone()[0]
                if version != seen:
                    statement = sql("watched_heads", session_ids=json.dumps(self._hub.watched()))
                    rows = _execute(connection, statement)
                    self._hub.at({row["session_id"]: row["seq"] for row in rows})
                    seen = version
            except sqlite3.Error:
                seen = -1  # a hint is late; the next look, a moment from now, makes up for it
            self._stop.wait(_POLL_SECONDS)
        connection.close()
