"""SQLite: one file, or memory. One connection writes, and others read concurrently; several processes may share the file.

Commits are durable: `synchronous=FULL`. Commits of other processes are detected through `PRAGMA data_version`.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

from holdfast.config import Settings
from holdfast.diagnostics import StoreStats
from holdfast.errors import (
    BadInput,
    BadText,
    Conflict,
    HoldfastError,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreMissing,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.store.beacons import FileBeacons
from holdfast.store.hub import READY, Hub
from holdfast.store.sql import library
from holdfast.store.sql.library import Dialect
from holdfast.store.sql.store import SqlStore
from holdfast.store.sqlite.files import DatabaseFiles
from holdfast.store.sqlite.readers import Poller, Readers
from holdfast.store.sqlite.transactions import execute, pages, run, run_separately
from holdfast.store.sqlite.writer import BUSY_SECONDS, Writer, connect
from holdfast.store.transactions import Tx, lease_lost, op
from holdfast.store.write import CONTENT, NUMBERED, Writing, charged, missing, unstored
from holdfast.tasks import end
from holdfast.types import Batch, Lease

T = TypeVar("T")

MEMORY: Final = ":memory:"
_EMPTY_SECONDS = 1.0
_RESTING_SECONDS = 5.0
"""How long nothing was written to a log that is emptied because of its age."""


class SqliteStore(SqlStore):
    """Sessions in one SQLite file, or in memory."""

    engine = "sqlite"
    _dialect: Dialect = "sqlite"

    def __init__(
        self,
        url: str,
        path: str,
        *,
        upgrade: bool,
        settings: Settings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(url, settings)
        self._clock = clock  # a test of an agent may control the time of a store in memory
        # Absolute, for connections that are opened after a change of the working directory.
        self._path = path if path == MEMORY else str(Path(path).absolute())
        self._upgrade_on_open = upgrade
        self._hub = Hub()
        self._writer: Writer | None = None
        self._readers: Readers | None = None
        self._poller: Poller | None = None
        self._emptying: asyncio.Task[None] | None = None
        self._must_empty = False  # deleted content is left in the write-ahead log
        self._beacons = None if path == MEMORY else FileBeacons(Path(f"{self._path}-holders"))
        self._files = self._new_files()

    def clone_for_thread(self) -> "SqliteStore | None":
        if self._path == MEMORY:
            return None
        return SqliteStore(self.url, self._path, upgrade=False, settings=self.settings)

    async def open(self) -> Self:
        self._opened_by = os.getpid()
        target = self._path if self._upgrade_on_open else _existing(self._path)
        if self._upgrade_on_open and self._path != MEMORY:
            # A new file is readable only by its owner. An existing one is not opened: closing it would release its locks.
            with suppress(OSError):
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o600))
        self._files = self._new_files()
        opening = asyncio.ensure_future(
            asyncio.to_thread(Writer, target, self._hub, self._translate, self._files, self._clock)
        )
        try:
            self._writer = await asyncio.shield(opening)
            if self._path != MEMORY:
                self._readers = Readers(self._path, self._files)
            await (self.upgrade() if self._upgrade_on_open else self.require())
            self._files.note()
        except BaseException as error:
            if self._writer is None:
                with suppress(Exception):
                    self._writer = await opening
            await self.close()
            raise self._translate(error) from error
        if self._path != MEMORY:
            self._poller = Poller(self._path, self._hub, self._latest_numbers, self._files)
            self._emptying = asyncio.create_task(self._empty_wal_in_time())
        return self

    async def close(self) -> None:
        if self._is_inherited():
            return
        if self._emptying is not None:
            await end(self._emptying)
        parts = (self._poller, self._readers, self._writer)
        self._poller = self._readers = self._writer = None
        self._hub.wake_all()  # so that no task waits for a closed store
        for part in parts:
            if part is not None:
                await asyncio.to_thread(part.close)
        if self._beacons is not None:
            self._beacons.close()

    async def _lock_beacon(self, holder_id: str) -> bool:
        return self._beacons is not None and await asyncio.to_thread(self._beacons.lock, holder_id)

    async def _unlock_beacon(self, holder_id: str) -> None:
        if self._beacons is not None:
            await asyncio.to_thread(self._beacons.unlock, holder_id)

    async def _dead_holders(self) -> list[str]:
        return [] if self._beacons is None else await asyncio.to_thread(self._beacons.dead)

    async def write(self, lease: Lease, batch: Batch) -> int:
        writing = Writing(lease.session_id, batch, self._max_payload_bytes)
        work = partial(_write, lease=lease, writing=writing)
        try:
            seq, ready = await self._running().submit(work, changes=(lease.session_id,), fail=writing.fail)
        except StoreUnavailable:
            lease.lost = True
            raise
        lease.runs |= writing.runs
        if batch.release:
            lease.lost = lease.released = True
        if ready or (batch.release and self.limits_running):
            self._announce(READY)
        return seq

    def _announce(self, *topics: str) -> None:
        self._hub.changed(topics)  # other processes poll

    async def shrink(self, *, limit: int = 1000) -> int:
        def vacuum(connection: sqlite3.Connection) -> tuple[int, bool]:
            # Returns a row without columns for each page: `execute` would stop after the first of them.
            connection.executescript(f"PRAGMA incremental_vacuum({int(limit)})")
            is_empty = _empty_wal(connection)
            return connection.execute("PRAGMA freelist_count").fetchone()[0], is_empty

        left, is_empty = await self._running().submit(vacuum, chore=True)
        self._must_empty = not is_empty
        return left

    async def stats(self) -> StoreStats:
        return replace(await super().stats(), wal_bytes=await asyncio.to_thread(self._wal_bytes))

    def _wal_bytes(self) -> int:
        try:
            return Path(f"{self._path}-wal").stat().st_size
        except FileNotFoundError:  # nothing was written since the log was removed, or the store is in memory
            return 0

    async def _empty_wal_in_time(self) -> None:
        """Overwrite deleted content in the write-ahead log as soon as no reader, such as an export, has an older snapshot.

        Another process may have deleted it and ended before that reader. Therefore a log that nobody writes to is emptied as well.
        """
        while True:
            await asyncio.sleep(_EMPTY_SECONDS)
            with suppress(HoldfastError):
                if self._must_empty or await asyncio.to_thread(self._has_resting_wal):
                    self._must_empty = not await self._running().submit(_empty_wal, chore=True)

    def _has_resting_wal(self) -> bool:
        try:
            wal = Path(f"{self._path}-wal").stat()
        except OSError:
            return False
        return wal.st_size > 0 and time.time() - wal.st_mtime > _RESTING_SECONDS

    async def _transact(
        self,
        make: Callable[[], Tx[T]],
        *,
        repeatable: bool,
        changes: Sequence[str] = (),
        long: bool = False,
    ) -> T:
        del repeatable  # the response of a local file cannot be lost
        if long:
            result = await self._running().submit(
                lambda connection: run_separately(connection, make), chore=True
            )
            self._hub.changed(changes)
            return result
        return await self._running().submit(lambda connection: run(connection, make()), changes=changes)

    async def _snapshot(
        self, session_id: str
    ) -> AsyncGenerator[tuple[str, Sequence[Mapping[str, object]]], None]:
        writer = self._running()
        if self._path == MEMORY:
            for page in await writer.submit(lambda connection: list(pages(connection, session_id))):
                yield page
            return
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, "holdfast-export")
        exported = self._exported(session_id)
        try:
            while (page := await loop.run_in_executor(thread, next, exported, None)) is not None:
                yield page
        except sqlite3.Error as error:
            raise self._translate(error) from error
        finally:
            # Not awaited: if the reader is cancelled, the await would be too, and the snapshot would stay open.
            thread.submit(exported.close)
            thread.shutdown(wait=False)

    def _exported(self, session_id: str) -> Generator[tuple[str, Sequence[Mapping[str, object]]], None, None]:
        self._files.check()  # connecting would create a missing file
        with closing(connect(self._path)) as connection:
            connection.execute("BEGIN")
            self._files.check()
            yield from pages(connection, session_id)

    async def _read(self, make: Callable[[], Tx[T]]) -> T:
        writer, readers = self._running(), self._readers
        if readers is None:
            return await writer.submit(lambda connection: run(connection, make()))
        try:
            return await readers.run(make)
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            raise self._translate(error) from error

    def _new_files(self) -> DatabaseFiles:
        return DatabaseFiles(self.url, None if self._path == MEMORY else self._path)

    def _running(self) -> "Writer":
        self._refuse_inherited()
        if self._writer is None:
            raise StoreClosed(url=self.url)
        return self._writer

    def _not_open(self, problem: str) -> HoldfastError:
        path = Path(self._path).absolute()
        if not path.parent.is_dir():
            return StoreMissing(url=self.url, problem=f"the folder {path.parent} does not exist")
        if not path.exists():
            problem = f"the file {path} does not exist; create it with `holdfast db upgrade`"
            return StoreMissing(url=self.url, problem=problem)
        return StoreUnavailable(url=self.url, problem=f"{problem} {path}")

    def _translate(self, error: BaseException) -> BaseException:
        """Return the Holdfast error for an error of the driver; other errors unchanged."""
        match error:
            case HoldfastError():
                return error
            case OverflowError():
                return BadInput(problem=f"a number does not fit into 64 bits: {error}")
            case UnicodeEncodeError():
                return BadText(what="text", problem=f"contains a lone surrogate at {error.start}")
            case sqlite3.Error():
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                make = _ERRORS.get(code, StoreError)
                problem = str(error).rstrip(".")
                if code == sqlite3.SQLITE_CANTOPEN:
                    return self._not_open(problem)
                return make(url=self.url, problem=problem, seconds=BUSY_SECONDS)
            case _:
                return error


_ERRORS: Final[dict[int, type[HoldfastError]]] = {
    sqlite3.SQLITE_BUSY: StoreBusy,
    sqlite3.SQLITE_LOCKED: StoreBusy,
    sqlite3.SQLITE_FULL: StoreFull,
    sqlite3.SQLITE_READONLY: StoreReadOnly,
    sqlite3.SQLITE_PERM: StoreReadOnly,
    sqlite3.SQLITE_IOERR: StoreUnavailable,
    sqlite3.SQLITE_NOTADB: StoreCorrupt,
    sqlite3.SQLITE_CORRUPT: StoreCorrupt,
    sqlite3.SQLITE_CONSTRAINT: Conflict,
}


def _empty_wal(connection: sqlite3.Connection) -> bool:
    """Move the write-ahead log into the file and empty it. Return False if a reader still needs it."""
    ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return not busy


def _existing(path: str) -> str:
    """Return a URI that opens the file only if it exists."""
    return path if path == MEMORY else f"{Path(path).absolute().as_uri()}?mode=rw"


def _charge(connection: sqlite3.Connection, writing: Writing) -> None:
    """Add to the sums of budgets. Raises `BudgetReached` if the batch starts a request although one is used up."""
    text = library.text("charge_budget", "sqlite")
    sums = [charged(tuple(connection.execute(text, row).fetchone())) for row in writing.charges]
    if problem := writing.over_budget(sums):
        raise problem


def _write(connection: sqlite3.Connection, lease: Lease, writing: Writing) -> tuple[int, bool]:
    """Do the work of `Transactions._fence` and the arms with as little overhead as possible: this is the hot path.

    Returns the session's event number, and whether the session was released with submissions pending.
    """
    if lease.lost:
        raise lease_lost(lease, "it was released or lost before")
    writing.refuse()
    seq = lease.seq + writing.count
    fence = (lease.session_id, lease.epoch, lease.holder)
    if not connection.execute(_FENCE_AT, (seq, *fence, lease.seq)).rowcount:
        # Another process has taken numbers since, for example for a submission; or the lease is lost.
        if not connection.execute(_FENCE, (writing.count, *fence)).rowcount:
            raise lease_lost(lease, "another holder has acquired it, or it was released")
        (seq,) = connection.execute(_SEQ, (lease.session_id,)).fetchone()
    lease.seq = seq
    if not lease.number:
        (lease.number,) = connection.execute(_NUMBER, (lease.session_id,)).fetchone()
    for run_id in writing.runs - lease.runs:
        connection.execute(library.text("name_run", "sqlite"), (lease.number, run_id))
    session = (lease.number,)
    for arm, rows in writing.rows.items():
        text = library.text(arm, "sqlite")
        values = [session + row[1:] for row in rows] if arm in CONTENT else rows
        if arm in NUMBERED:
            values = [(*row, seq) for row in values]
        done = (
            connection.executemany(text, values) if len(values) > 1 else connection.execute(text, values[0])
        )
        problem_of = _COUNTED.get(arm)
        if problem_of and (problem := problem_of(done.rowcount, writing)):
            raise problem
    if writing.charges:
        _charge(connection, writing)
    return seq, writing.release and _free(connection, lease.session_id)


def _free(connection: sqlite3.Connection, session_id: str) -> bool:
    session_ids = [session_id]
    execute(connection, op("requeue_all_claimed", session_ids=session_ids))
    (freed,) = execute(connection, op("free_heads", session_ids=session_ids))
    return bool(freed["ready"])


_COUNTED: Final = {"change_submissions": missing, "refer_blobs": unstored}
"""Arms whose rows must all match an existing row."""

# Two plain statements cost less than one with RETURNING, and one is enough as long as no other process takes numbers.
_FENCE_AT = "UPDATE heads SET seq = ? WHERE session_id = ? AND epoch = ? AND holder = ? AND seq = ?"
_FENCE = "UPDATE heads SET seq = seq + ? WHERE session_id = ? AND epoch = ? AND holder = ?"
_SEQ = "SELECT seq FROM heads WHERE session_id = ?"
_NUMBER = "SELECT number FROM heads WHERE session_id = ?"
