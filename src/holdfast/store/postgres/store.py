"""PostgreSQL 14 and later, through asyncpg, in its own schema `holdfast`."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import asyncpg

from holdfast.config import Settings
from holdfast.diagnostics import ServerSetting
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
from holdfast.store.hub import READY, Hub
from holdfast.store.postgres.address import parse_address, without_password
from holdfast.store.postgres.beacons import ConnectionBeacons
from holdfast.store.postgres.connections import (
    GONE,
    BorrowedConnections,
    Connections,
    OwnConnections,
)
from holdfast.store.postgres.notifier import Notifier
from holdfast.store.postgres.settings import SETTING_NAMES, harmful_settings
from holdfast.store.postgres.submitter import Submitter, queue_all
from holdfast.store.postgres.writer import AGAIN, PATIENCE_SECONDS, PAUSE_SECONDS, Committer, execute
from holdfast.store.rows import Row, Rows, from_row
from holdfast.store.sql.library import Dialect, Script
from holdfast.store.sql.store import SqlStore, page_text
from holdfast.store.submissions import NewSubmission
from holdfast.store.transactions import Tx, op, topics
from holdfast.store.write import Writing
from holdfast.tables import SESSION, TABLES, Table
from holdfast.types import Batch, Lease, Submission

if TYPE_CHECKING:
    from holdfast.store.postgres.connections import Pool

T = TypeVar("T")

_log = logging.getLogger(__name__)

_POOL: Final = "postgresql://"
"""The URL of a store on a pool until it is opened and the server has been queried."""
_SUSPECT_SECONDS = 0.2


class PostgresStore(SqlStore):
    """Sessions in a PostgreSQL database."""

    engine = "postgres"
    _dialect: Dialect = "postgres"

    def __init__(self, source: "str | Pool", *, upgrade: bool, settings: Settings) -> None:
        """Store sessions in the database at a URL, or in that of an application's pool, which is never closed."""
        super().__init__(without_password(source) if isinstance(source, str) else _POOL, settings)
        self._source = source
        self._connections: Connections = (
            OwnConnections(parse_address(source)) if isinstance(source, str) else BorrowedConnections(source)
        )
        self._is_open = False
        self._upgrade_on_open = upgrade
        self._hub = Hub()
        self._committer: Committer | None = None
        self._notifier: Notifier | None = None
        self._beacons = ConnectionBeacons(self._connections)
        self._submitter = Submitter(self._queue_group, self._unfinished)
        self._suspects: dict[str, float] = {}

    def clone_for_thread(self) -> "PostgresStore | None":
        if not isinstance(self._source, str):
            return None  # another thread cannot use the connections of this one's event loop
        return PostgresStore(self._source, upgrade=False, settings=self.settings)

    async def open(self) -> Self:
        self._opened_by = os.getpid()
        try:
            self.url = await self._connections.open(self.url)
            self._is_open = True
            await (self.upgrade() if self._upgrade_on_open else self.require())
        except BaseException as error:
            await self.close()
            raise self._translate(error) from error
        self._committer = Committer(self._connections, self._translate, self._announce)
        self._notifier = Notifier(self._connections, self._hub, self._poll)
        return self

    async def close(self) -> None:
        if self._is_inherited():
            return
        committer, notifier = self._committer, self._notifier
        self._committer = self._notifier = None
        self._is_open = False
        self._hub.wake_all()  # so that no task waits for a closed store
        await self._unfinished.wait()
        if committer is not None:
            await committer.close()
        if notifier is not None:
            await notifier.close()
        await self._beacons.close()
        await self._connections.close()

    async def write(self, lease: Lease, batch: Batch) -> int:
        self._refuse_inherited()
        writing = Writing(lease.session_id, batch, self._max_payload_bytes)
        if self._committer is None:
            raise StoreClosed(url=self.url)
        seq = await self._committer.submit(lease, writing)
        if batch.release and self.limits_running:
            self._announce(READY)
        return seq

    async def _submit(self, session_id: str, new: NewSubmission, tries: list[str]) -> Submission:
        """Queue it together with other submissions of this process; on its own if it needs more than an insert."""
        self._check_new(new)
        self._running()
        return await self._unfinished.run(self._submit_now(session_id, new, tries))

    async def _submit_now(self, session_id: str, new: NewSubmission, tries: list[str]) -> Submission:
        row = await self._submitter.submit(new) if new["deliver_at"] == 0 else None
        if row is not None:
            return from_row(Submission, row)
        return await super()._submit(session_id, new, [*tries, new["id"]])

    async def _queue_group(self, group: Sequence[NewSubmission]) -> Rows:
        """Queue these submissions, also while the store is being closed: they were accepted before."""
        async with self._connections.acquire() as connection:
            async with self._connections.transaction(connection):
                rows = await _run(connection, queue_all(group, self._max_pending))
            self._announce(*(topic for row in rows for topic in topics(row["session_id"], wakes=True)))
            return rows

    def _begin(self, max_attempts: int, ours: Mapping[str, str]) -> Tx[Rows]:
        """Do in one statement what other engines do in three."""
        return (yield op("begin_with_events", max_attempts=max_attempts, **ours))

    async def harmful_settings(self) -> list[ServerSetting]:
        rows = await self._read(_settings)
        return harmful_settings({row["name"]: (row["setting"], row["reset_val"]) for row in rows})

    async def shrink(self, *, limit: int = 1000) -> int:
        """Do nothing: autovacuum returns the space of deleted rows to the table."""
        del limit
        return 0

    async def _transact(
        self,
        make: Callable[[], Tx[T]],
        *,
        repeatable: bool,
        changes: Sequence[str] = (),
        long: bool = False,
    ) -> T:
        """Run it to its end, even if the caller is cancelled meanwhile."""
        del long  # the server does the work
        return await self._unfinished.run(self._transact_now(make, repeatable=repeatable, changes=changes))

    async def _transact_now(
        self, make: Callable[[], Tx[T]], *, repeatable: bool, changes: Sequence[str]
    ) -> T:
        """Run it in a transaction. Retry if it cannot have been committed, or if a second commit is harmless."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            committing = False
            try:
                async with self._running().acquire() as connection:
                    async with self._connections.transaction(connection):
                        result = await _run(connection, make())
                        committing = True
                    self._announce(*changes)
                    return result
            except (*AGAIN, *GONE) as error:
                in_doubt = committing and not repeatable and not isinstance(error, AGAIN)
                if in_doubt or asyncio.get_running_loop().time() > deadline or isinstance(error, ValueError):
                    raise self._translate(error) from error
                await asyncio.sleep(PAUSE_SECONDS)
            except (asyncpg.PostgresError, ValueError) as error:
                raise self._translate(error) from error

    async def _read(self, make: Callable[[], Tx[T]]) -> T:
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            try:
                async with self._running().acquire() as connection:
                    return await _read_consistently(self._connections, connection, make)
            except GONE as error:
                if asyncio.get_running_loop().time() > deadline or isinstance(error, ValueError):
                    raise self._translate(error) from error
                await asyncio.sleep(PAUSE_SECONDS)
            except (asyncpg.PostgresError, ValueError) as error:
                raise self._translate(error) from error

    async def _snapshot(
        self, session_id: str
    ) -> AsyncGenerator[tuple[str, Sequence[Mapping[str, object]]], None]:
        """Read on a separate connection, which a slow reader may keep for a limited time."""
        try:
            connection = await self._running().connect()
            try:
                async with self._connections.transaction(connection, snapshot=True, export=True):
                    result = await execute(connection, op("export_session", session_id=session_id))
                    yield SESSION.name, _of(SESSION, result)
                    for table in TABLES:
                        after: Mapping[str, object] = {}
                        while True:
                            text = page_text(table, bounded=True, after=bool(after))
                            params = {"session_id": session_id, **after}
                            page = await execute(connection, Script(table.name, params, slow=True, text=text))
                            if not page:
                                break
                            after = {f"after_{column}": page[-1][column] for column in table.key}
                            yield table.name, _of(table, page)
            finally:
                await self._connections.disconnect(connection)
        except (asyncpg.PostgresError, ValueError, *GONE) as error:
            raise self._translate(error) from error

    async def _lock_beacon(self, holder_id: str) -> bool:
        if not self._connections.keeps_state:
            return False
        try:
            await self._beacons.lock(holder_id)
        except (*AGAIN, *GONE, asyncpg.PostgresError) as error:
            _log.info("other processes detect the end of this one only by its deadline: %s", error)
            return False
        return True

    async def _unlock_beacon(self, holder_id: str) -> None:
        with suppress(*GONE, asyncpg.PostgresError):
            await self._beacons.unlock(holder_id)

    async def _dead_holders(self) -> list[str]:
        """Return the holders whose connection is closed and is still closed a moment later: a broken one is reopened at once."""
        now = asyncio.get_running_loop().time()
        # After a failover all locks are gone, as after a start of the server. The others need time to take them again.
        since = None if self._notifier is None else self._notifier.interrupted_at
        unlocked = {
            row["id"]
            for row in await self._read(_unlocked)
            if since is None or now - since > row["ttl_us"] / 1_000_000
        }
        self._suspects = {holder_id: self._suspects.get(holder_id, now) for holder_id in unlocked}
        return [holder_id for holder_id, since in self._suspects.items() if now - since >= _SUSPECT_SECONDS]

    def _announce(self, *topics: str) -> None:
        """Wake waiting tasks here, and send hints to other processes."""
        self._hub.changed(topics)
        if topics and self._notifier is not None:
            self._notifier.announce(topics)

    async def _poll(self) -> None:
        """Compare the numbers of all waiting tasks with the current ones."""
        topics = self._hub.topics()
        if topics:
            self._hub.at(await self._read(lambda: self._latest_numbers(topics)))

    def _running(self) -> Connections:
        self._refuse_inherited()
        if not self._is_open:
            raise StoreClosed(url=self.url)
        return self._connections

    def _translate(self, error: BaseException) -> BaseException:
        """Return the Holdfast error for an error of the driver; other errors unchanged."""
        match error:
            case HoldfastError():
                return error
            case asyncpg.UniqueViolationError():
                return Conflict(problem=f"{error.args[0]} ({error.constraint_name})")
            case asyncpg.CharacterNotInRepertoireError() | asyncpg.UntranslatableCharacterError():
                return BadText(what="text", problem="contains a NUL character or is not UTF-8")
            case UnicodeEncodeError():
                return BadText(what="text", problem=f"contains a lone surrogate at {error.start}")
            case asyncpg.DataError() | asyncpg.exceptions.DataError():
                return BadInput(problem=str(error))
            case asyncpg.DiskFullError():
                return StoreFull(url=self.url)
            case asyncpg.ReadOnlySQLTransactionError() | asyncpg.InsufficientPrivilegeError():
                return StoreReadOnly(url=self.url, problem=str(error))
            case TimeoutError():
                return StoreUnavailable(url=self.url, problem="the server does not respond")
            case asyncpg.InvalidCatalogNameError() | asyncpg.InvalidAuthorizationSpecificationError():
                return StoreUnavailable(url=self.url, problem=str(error))
            case _ if isinstance(error, GONE):
                return StoreUnavailable(url=self.url, problem=str(error) or type(error).__name__)
            case ValueError() | OverflowError():
                return StoreError(url=self.url, problem=f"its URL is invalid: {error}")
            case asyncpg.PostgresError():
                return StoreError(url=self.url, problem=str(error))
            case _:
                return error


def _unlocked() -> Tx[Sequence[Row]]:
    return (yield op("unlocked_beacons"))


def _settings() -> Tx[Sequence[Row]]:
    return (yield op("server_settings", names=SETTING_NAMES))


def _of(table: Table, rows: Sequence[Row]) -> list[dict[str, object]]:
    return [{name: row[name] for name in table.names} for row in rows]


async def _read_consistently(connections: Connections, connection: Any, make: Callable[[], Tx[T]]) -> T:
    """Run a read-only transaction. A single statement is consistent by itself; if there are more, restart in a transaction.

    After an empty result, the only other statement is the one that checks whether the session exists. It needs no snapshot. A statement
    that scans changes settings for its transaction.
    """
    if connections.keeps_state:
        tx = make()
        try:
            first = next(tx)
            if not first.scans:
                rows = await execute(connection, first)
                following = tx.send(rows)
                if not rows and following.name == "head":
                    tx.send(await execute(connection, following))
        except StopIteration as end:
            return end.value
        finally:
            tx.close()
    async with connections.transaction(connection, snapshot=True):
        return await _run(connection, make())


async def _run(connection: Any, tx: Tx[T]) -> T:
    try:
        statement = next(tx)
        while True:
            statement = tx.send(await execute(connection, statement))
    except StopIteration as end:
        return end.value
    finally:
        tx.close()
