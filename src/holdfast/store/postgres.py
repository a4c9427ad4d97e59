"""PostgreSQL 14 and later, through asyncpg, in a schema of its own: `holdfast`.

All batches that wait to be written go out as one statement on a connection of its own (group commit): the fence and
every arm of write.sql, in which a refused batch simply has no rows. Notifications are hints: they are sent coalesced
after the commit, from a connection of their own, and a look at the heads once a second makes up for a lost one.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from holdfast.config import Settings
from holdfast.errors import (
    BadInput,
    BadText,
    Conflict,
    HoldfastError,
    StoreClosed,
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
from holdfast.store.sql.write import ARMS, Writing, missing
from holdfast.types import Batch, Lease

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_CHANNEL: Final = "holdfast"
_CONNECTIONS = 8
_LARGEST_GROUP = 256
_HINT_IDS = 50
_HINT_SECONDS = 0.002
"""The first hint goes out at once; under load, one carries all that changed in this time."""
_LOOK_SECONDS = 1.0
_PATIENCE_SECONDS = 6.0
"""How long a write is sent again while the server is away. Less than a lease lives."""
_PAUSE_SECONDS = 0.1

_GONE = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # how asyncpg greets a connection that the server ended while it was idle
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
"""The server, or our connection to it, is not there right now."""
_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""Rolled back for the sake of another transaction: the same may succeed at once."""


class PostgresStore(SqlStore):
    """Sessions in a PostgreSQL database."""

    engine = "postgres"
    _dialect: Dialect = "postgres"

    def __init__(self, url: str, *, upgrade: bool, settings: Settings) -> None:
        super().__init__(_without_password(url), settings)
        self._address = url
        self._upgrade_on_open = upgrade
        self._hub = Hub()
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._committer: _Committer | None = None
        self._notifier: _Notifier | None = None

    async def open(self) -> Self:
        try:
            self._pool = await asyncpg.create_pool(
                self._address, min_size=0, max_size=_CONNECTIONS, server_settings=_SETTINGS, reset=_keep
            )
            await (self.upgrade() if self._upgrade_on_open else self.require())
        except BaseException as error:
            await self.close()
            raise self._translate(error) from error
        self._committer = _Committer(self._connect, self._translate, self._announce)
        self._notifier = _Notifier(self._connect, self._hub, self._look)
        return self

    async def close(self) -> None:
        committer, notifier, pool = self._committer, self._notifier, self._pool
        self._committer = self._notifier = self._pool = None
        if committer is not None:
            await committer.close()
        if notifier is not None:
            await notifier.close()
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), timeout=5)
            except (TimeoutError, *_GONE):
                pool.terminate()

    async def write(self, lease: Lease, batch: Batch) -> int:
        writing = Writing(lease.session_id, batch, self._check_size)
        if self._committer is None:
            raise StoreClosed(url=self.url)
        return await self._committer.submit(lease, writing)

    async def shrink(self, *, limit: int = 1000) -> int:
        """Do nothing: autovacuum gives the space of deleted rows back to the table."""
        del limit
        return 0

    async def _transact(self, make: Callable[[], Tx[T]], *, repeatable: bool, changes: str | None) -> T:
        """Run it in a transaction. It is sent again if it cannot have happened, or does no harm when it happens twice."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        while True:
            committing = False
            try:
                async with self._running().acquire() as connection:
                    transaction = connection.transaction()
                    await transaction.start()
                    try:
                        result = await _run(connection, make())
                    except BaseException:
                        with suppress(*_GONE):
                            await transaction.rollback()
                        raise
                    committing = True
                    await transaction.commit()
                    if changes is not None:
                        self._announce(changes)
                    return result
            except _AGAIN:
                pass
            except _GONE as error:
                in_doubt = committing and not repeatable
                if in_doubt or asyncio.get_running_loop().time() > deadline or isinstance(error, ValueError):
                    raise self._translate(error) from error
                await asyncio.sleep(_PAUSE_SECONDS)
            except (asyncpg.PostgresError, ValueError) as error:
                raise self._translate(error) from error

    async def _read(self, make: Callable[[], Tx[T]]) -> T:
        deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        while True:
            try:
                async with self._running().acquire() as connection:
                    return await _look_up(connection, make)
            except _GONE as error:
                if asyncio.get_running_loop().time() > deadline or isinstance(error, ValueError):
                    raise self._translate(error) from error
                await asyncio.sleep(_PAUSE_SECONDS)
            except (asyncpg.PostgresError, ValueError) as error:
                raise self._translate(error) from error

    def _announce(self, session_id: str) -> None:
        """Tell the readers of a session here, and hint to other processes."""
        self._hub.changed((session_id,))
        if self._notifier is not None:
            self._notifier.announce(session_id)

    async def _look(self) -> None:
        """Compare the heads of all watched sessions with what their readers have."""
        watched = self._hub.watched()
        if watched:
            rows = await self._read(lambda: _watched(watched))
            self._hub.at({row["session_id"]: row["seq"] for row in rows})

    async def _connect(self) -> "Connection":
        return await asyncpg.connect(self._address, server_settings=_SETTINGS)

    def _running(self) -> "asyncpg.Pool[asyncpg.Record]":
        if self._pool is None:
            raise StoreClosed(url=self.url)
        return self._pool

    def _translate(self, error: BaseException) -> BaseException:
        """Return the error of our family for one of the driver's; others as they are."""
        match error:
            case HoldfastError():
                return error
            case asyncpg.UniqueViolationError():
                return Conflict(problem=f"{error.args[0]} ({error.constraint_name})")
            case asyncpg.CharacterNotInRepertoireError() | asyncpg.UntranslatableCharacterError():
                return BadText(what="text", problem="holds a NUL character or is not UTF-8")
            case UnicodeEncodeError():
                return BadText(what="text", problem=f"holds a lone surrogate at {error.start}")
            case asyncpg.DataError() | asyncpg.exceptions.DataError():
                return BadInput(problem=str(error))
            case asyncpg.DiskFullError():
                return StoreFull(url=self.url)
            case asyncpg.ReadOnlySQLTransactionError() | asyncpg.InsufficientPrivilegeError():
                return StoreReadOnly(url=self.url, problem=str(error))
            case OSError() | asyncpg.InterfaceError() | asyncpg.PostgresConnectionError():
                return StoreUnavailable(url=self.url, problem=str(error) or type(error).__name__)
            case asyncpg.InvalidCatalogNameError() | asyncpg.InvalidAuthorizationSpecificationError():
                return StoreUnavailable(url=self.url, problem=str(error))
            case ValueError():
                return StoreError(url=self.url, problem=f"its URL cannot be used: {error}")
            case asyncpg.PostgresError():
                make = StoreUnavailable if isinstance(error, _GONE) else StoreError
                return make(url=self.url, problem=str(error))
            case _:
                return error


_SETTINGS: Final = {
    "search_path": "holdfast",
    "application_name": "holdfast",
    # A process that is paused inside of a transaction must not keep its locks for longer than its lease.
    "idle_in_transaction_session_timeout": "5s",
    # Every statement is keyed. Plans are made once, and a table that was empty then does not make them scans for good.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
}


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@", 1)))


def _watched(session_ids: list[str]) -> Tx[Sequence[Row]]:
    return (yield sql("watched_heads", session_ids=json.dumps(session_ids)))


async def _keep(connection: object) -> None:
    """Leave a connection as it is when it goes back to the pool: nothing of ours needs a reset."""


async def _look_up(connection: Any, make: Callable[[], Tx[T]]) -> T:
    """Run a transaction that only reads. One statement is a consistent cut by itself; for more, begin again in one."""
    tx = make()
    try:
        tx.send(await _execute(connection, next(tx)))
    except StopIteration as end:
        return end.value
    finally:
        tx.close()
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        return await _run(connection, make())


async def _run(connection: Any, tx: Tx[T]) -> T:
    try:
        statement = next(tx)
        while True:
            statement = tx.send(await _execute(connection, statement))
    except StopIteration as end:
        return end.value
    finally:
        tx.close()


async def _execute(connection: Any, statement: Statement) -> Sequence[Row]:
    if statement.text is not None:
        await connection.execute(statement.text)
        return ()
    text, names = library.numbered(statement.name, statement.given())
    return await connection.fetch(text, *(statement.params[name] for name in names))


@cache
def _group(arms: tuple[str, ...]) -> str:
    """Return the statement that writes a group of batches which between them have these arms."""
    parts = [f"WITH head AS (\n{library.text('fence_group', 'postgres')}\n)"]
    parameter = 5
    for name in arms:
        arm = library.arm(name, "postgres")
        arrays: list[str] = []
        for _, kind in arm.columns:
            parameter += 1
            arrays.append(f"${parameter}::{kind}[]")
        columns = ", ".join(column for column, _ in arm.columns)
        rows = (  # names and types come from write.sql, values are parameters
            f"(SELECT r.*, head.seq AS head_seq FROM unnest({', '.join(arrays)}) AS r({columns})"  # noqa: S608
            " JOIN head ON head.session_id = r.session_id) AS rows"
        )
        parts.append(f", {name} AS (\n{arm.before}{rows}{arm.after}\n)")
    changed = "0"
    if "change_submissions" in arms:
        changed = "(SELECT count(*) FROM change_submissions c WHERE c.session_id = head.session_id)"
    return "\n".join([*parts, f"SELECT session_id, seq, {changed} AS changed FROM head"])  # noqa: S608


class _Job:
    __slots__ = ("future", "lease", "writing")

    def __init__(self, lease: Lease, writing: Writing) -> None:
        self.lease = lease
        self.writing = writing
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def succeed(self, seq: int) -> None:
        self.lease.writes += 1
        if not self.future.done():
            self.future.set_result(seq)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class _Committer:
    """Writes the batches that wait, all at once, one batch of each lease at a time."""

    def __init__(
        self,
        connect: Callable[[], Coroutine[Any, Any, "Connection"]],
        translate: Callable[[BaseException], BaseException],
        announce: Callable[[str], None],
    ) -> None:
        self._connect = connect
        self._translate = translate
        self._announce = announce
        self._connection: Connection | None = None
        self._waiting: deque[_Job] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._task = asyncio.create_task(self._work(), name="holdfast-committer")

    async def submit(self, lease: Lease, writing: Writing) -> int:
        """Write a batch and return after the commit. If the caller is cancelled meanwhile, it is written all the same."""
        job = _Job(lease, writing)
        self._waiting.append(job)
        self._wake.set()
        return await job.future

    async def close(self) -> None:
        self._closing = True
        self._wake.set()
        await self._task
        if self._connection is not None:
            await _hang_up(self._connection)

    async def _work(self) -> None:
        while self._waiting or not self._closing:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            group = self._next_group()
            try:
                await self._commit(group)
            except Exception as error:  # noqa: BLE001 - whatever it was, it is delivered to those who wait for it
                for job in group:
                    job.fail(self._translate(error))

    def _next_group(self) -> list[_Job]:
        group: dict[int, _Job] = {}
        later: list[_Job] = []
        while self._waiting and len(group) < _LARGEST_GROUP:
            job = self._waiting.popleft()
            if job.lease.lost:
                job.fail(lease_lost(job.lease, "it was released, or lost before"))
            elif id(job.lease) in group:
                later.append(job)
            else:
                group[id(job.lease)] = job
        self._waiting.extendleft(reversed(later))
        return list(group.values())

    async def _commit(self, group: list[_Job]) -> None:
        """Send the group until it is answered or patience ends. Then its fate is unknown, and its leases are lost."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        sent_before = False
        while True:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await self._connect()
                await self._send(group, sent_before=sent_before)
            except _AGAIN:
                continue
            except _GONE as error:
                if isinstance(error, ValueError):
                    await self._apart(group, error)
                    return
                sent_before = True
                if self._connection is not None:
                    self._connection.terminate()
                if self._closing or asyncio.get_running_loop().time() > deadline:
                    for job in group:
                        job.lease.lost = True
                    raise
                await asyncio.sleep(_PAUSE_SECONDS)
            except (asyncpg.PostgresError, ValueError, Conflict) as error:
                await self._apart(group, error)
                return
            else:
                return

    async def _apart(self, group: list[_Job], error: Exception) -> None:
        """One of the group cannot be written: write each on its own, so that it spoils no other."""
        if len(group) == 1:
            group[0].fail(self._translate(error))
            return
        for job in group:
            await self._commit([job])

    async def _send(self, group: list[_Job], *, sent_before: bool) -> None:
        assert self._connection is not None  # noqa: S101
        arms = tuple(arm for arm in ARMS if any(arm in job.writing.rows for job in group))
        values: list[Sequence[Any]] = [
            [job.lease.session_id for job in group],
            [job.lease.epoch for job in group],
            [job.lease.holder for job in group],
            [job.lease.writes for job in group],
            [job.writing.count for job in group],
        ]
        for arm in arms:
            values += zip(*(row for job in group for row in job.writing.rows.get(arm, ())), strict=True)
        written = await self._fetch(arms, values, group)
        for job in group:
            seq = written.get(job.lease.session_id)
            if seq is None and sent_before:
                seq = await self._found(job)
            if seq is None:
                job.fail(lease_lost(job.lease, "another holder took it, or it was released"))
            else:
                job.succeed(seq)
                self._announce(job.lease.session_id)

    async def _fetch(
        self, arms: tuple[str, ...], values: list[Sequence[Any]], group: list[_Job]
    ) -> dict[str, int]:
        """Send the statement. Alone it is a transaction; where submissions change it is checked before the commit."""
        assert self._connection is not None  # noqa: S101
        if "change_submissions" not in arms:
            rows = await self._connection.fetch(_group(arms), *values)
        else:
            jobs = {job.lease.session_id: job for job in group}
            async with self._connection.transaction():
                rows = await self._connection.fetch(_group(arms), *values)
                for row in rows:
                    if problem := missing(row["changed"], jobs[row["session_id"]].writing):
                        raise problem
        return {row["session_id"]: row["seq"] for row in rows}

    async def _found(self, job: _Job) -> int | None:
        """Return the number after a batch that was in already, though its answer got lost."""
        assert self._connection is not None  # noqa: S101
        for head in await _execute(self._connection, sql("head", session_id=job.lease.session_id)):
            ours = (head["epoch"], head["holder"], head["writes"])
            if ours == (job.lease.epoch, job.lease.holder, job.lease.writes + 1):
                return head["written"]
        return None


class _Notifier:
    """Tells other processes which sessions have changed, and listens to what they tell."""

    def __init__(
        self,
        connect: Callable[[], Coroutine[Any, Any, "Connection"]],
        hub: Hub,
        look: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._connect = connect
        self._hub = hub
        self._look = look
        self._changed: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._talk(), name="holdfast-notifier"),
            asyncio.create_task(self._keep_looking(), name="holdfast-look"),
        ]

    def announce(self, session_id: str) -> None:
        self._changed[session_id] = None
        self._wake.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _talk(self) -> None:
        while True:
            try:
                connection = await self._connect()
                try:
                    await connection.add_listener(_CHANNEL, self._hear)
                    self._hub.everyone()  # whatever was said while nobody listened
                    await self._tell(connection)
                finally:
                    await _hang_up(connection)
            except (asyncpg.PostgresError, *_GONE) as error:
                _log.info("notifications are late until the server is back: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _tell(self, connection: "Connection") -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            session_ids, self._changed = list(self._changed), {}
            # A notification carries 8000 bytes at the most, an id has up to 128.
            for start in range(0, len(session_ids), _HINT_IDS):
                hint = " ".join(session_ids[start : start + _HINT_IDS])
                await connection.execute("SELECT pg_notify($1, $2)", _CHANNEL, hint)
            await asyncio.sleep(_HINT_SECONDS)

    def _hear(self, connection: object, pid: int, channel: str, payload: object) -> None:
        del connection, pid, channel
        self._hub.changed(str(payload).split())

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self._look()
            except HoldfastError as error:
                _log.info("could not look for changes: %s", error)


async def _hang_up(connection: "Connection") -> None:
    try:
        await connection.close(timeout=1)
    except (TimeoutError, asyncpg.PostgresError, *_GONE):
        connection.terminate()
