"""The connections of a store: from its own pool, or from a pool that belongs to the application."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import asyncpg

from holdfast.errors import StoreError, StoreUnavailable
from holdfast.store.postgres.address import Address
from holdfast.store.postgres.settings import OWN_SETTINGS, SETTINGS

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"
    Pool: TypeAlias = asyncpg.Pool[Any]

ANSWER_SECONDS = 5.0
"""How long a server may take to respond before a call counts as lost. Full scans may take longer."""
_CONNECTIONS = 8
_CLOSE_SECONDS = 5.0
NO_TIMEOUT = 3600.0
_RELEASE_SECONDS = 1.0
_LEAST: Final = 5
"""The store keeps three connections: one commits, one listens, one holds the locks of the process. The others are for an export and all
other calls."""

GONE = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # raised for a connection that the server ended while it was idle
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.QueryCanceledError,  # by an operator, or after this process was paused
    asyncpg.ReadOnlySQLTransactionError,  # raised by a standby, or by a primary that is being replaced
)
"""Errors that mean that the server, or our connection to it, is not available right now."""

SCAN_BEGINS: Final = "SET LOCAL enable_seqscan = on; SET LOCAL plan_cache_mode = force_custom_plan"
SCAN_ENDS: Final = "SET LOCAL enable_seqscan = off; SET LOCAL plan_cache_mode = force_generic_plan"
"""A statement that reads everything may scan, and is planned for the present size of the tables."""
_TRANSACTION_LIMIT: Final = "10s"
_EXPORT_PAUSE: Final = "60s"
"""How long a reader of an archive may pause: its snapshot prevents the server from vacuuming."""

_VALUE: Final = """CASE WHEN name = 'synchronous_commit' AND current_setting(name) = 'remote_apply' THEN 'remote_apply' ELSE value END"""
# The server's process id differs from the one that the client was told if a pooler is in between.
_CONFIGURE: Final = """
DO $$ BEGIN
  IF {pid} NOT IN (0, pg_backend_pid()) THEN
    RAISE EXCEPTION 'there is a connection pooler in front of the server. Add ?pooler=transaction to the URL, or ?pooler=session if the pooler is in session mode';
  END IF;
  PERFORM set_config(name, {value}, false) FROM (VALUES {settings}) AS wanted(name, value);
  PERFORM {limit};
END $$
"""
_SET_AND_RETURN: Final = f"""
SELECT name, current_setting(name) AS before, set_config(name, {_VALUE}, false)
FROM unnest($1::text[], $2::text[]) AS wanted(name, value)
"""  # noqa: S608 - of constants
_SET: Final = (
    "SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS wanted(name, value)"
)
_DESCRIBE: Final = """
SELECT format('postgresql://%s@%s/%s', current_user, host(inet_server_addr()) || ':' || inet_server_port(), current_database())
"""


class LimitedConnection(asyncpg.Connection[asyncpg.Record] if TYPE_CHECKING else asyncpg.Connection):
    """A connection through a pooler in transaction mode. PostgreSQL 17 and later limit the time of its transactions.

    Without prepared statements, the driver sends each statement in two parts. For the server, a process that is paused between them is
    not idle, and would keep its locks.
    """

    async def unlimit(self) -> None:
        """Remove the limit for the rest of the transaction."""
        await self.execute(f"SELECT {_limit('0', local=True)}", timeout=ANSWER_SECONDS)


class Connections(Protocol):
    """The connections of one store."""

    keeps_state: bool
    """Whether settings, locks and listeners of a connection outlive a transaction. Not with a pooler in transaction mode."""

    async def open(self, url: str) -> str:
        """Make connections available. Return the URL that identifies the store."""
        ...

    def acquire(self) -> "AbstractAsyncContextManager[Connection]":
        """Return a connection for one transaction."""
        ...

    async def connect(self) -> "Connection":
        """Return a connection to keep."""
        ...

    async def disconnect(self, connection: "Connection") -> None:
        """Give up a connection from `connect`, in any state."""
        ...

    async def close(self) -> None:
        """Give up all other connections."""
        ...

    def transaction(
        self, connection: "Connection", *, snapshot: bool = False, export: bool = False
    ) -> AbstractAsyncContextManager[None]:
        """Run a block in a transaction: a read-only one with a `snapshot`, which an `export` may keep for longer."""
        ...


class OwnConnections:
    """The store's own pool, and more connections to the same server."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.keeps_state = address.pooler != "transaction"
        self._pool: Pool | None = None
        self._options: dict[str, Any] = {
            "server_settings": {"application_name": "holdfast"},
            "timeout": ANSWER_SECONDS,
            "command_timeout": ANSWER_SECONDS,
        }
        if not self.keeps_state:
            self._options |= {"statement_cache_size": 0, "connection_class": LimitedConnection}

    async def open(self, url: str) -> str:
        self._pool = await asyncpg.create_pool(
            min_size=0,
            max_size=_CONNECTIONS,
            connect=self._dial,
            init=self._configure,
            reset=_keep,
            **self._options,
        )
        return url

    def acquire(self) -> "AbstractAsyncContextManager[Connection]":
        assert self._pool is not None  # noqa: S101
        return self._pool.acquire()

    async def connect(self) -> "Connection":
        connection = await self._dial(**self._options)
        try:
            await self._configure(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def disconnect(self, connection: "Connection") -> None:
        try:
            await connection.close(timeout=_RELEASE_SECONDS)
        except (TimeoutError, asyncpg.PostgresError, *GONE):
            cut(connection)

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), timeout=_CLOSE_SECONDS)
            except (TimeoutError, *GONE):
                pool.terminate()

    def transaction(
        self, connection: "Connection", *, snapshot: bool = False, export: bool = False
    ) -> AbstractAsyncContextManager[None]:
        return _transaction(connection, "" if self.keeps_state else _LOCAL, snapshot=snapshot, export=export)

    async def _dial(self, *_: object, **options: Any) -> "asyncpg.Connection[Any]":
        """Connect to the first server that accepts writes. All are tried at once: one that is down may not respond at all."""
        attempts = [asyncio.ensure_future(asyncpg.connect(host, **options)) for host in self.address.hosts]
        errors: list[Exception] = []
        chosen: asyncpg.Connection[Any] | None = None
        try:
            for attempt in asyncio.as_completed(attempts):
                try:
                    chosen = await attempt
                except (ValueError, asyncpg.PostgresError, *GONE) as error:
                    errors.append(error)
                else:
                    return chosen
        finally:
            for attempt in attempts:
                attempt.cancel()
                attempt.add_done_callback(partial(_discard, chosen))
        # The error of a server that refuses us explains more than that of one that is down.
        raise next((error for error in errors if not isinstance(error, GONE)), errors[0])

    async def _configure(self, connection: Any) -> None:
        """Set what every transaction needs, regardless of the defaults of the server, the database and the role."""
        if self.keeps_state:
            pid = 0 if self.address.pooler else connection.get_server_pid()
            text = _CONFIGURE.format(
                pid=pid, value=_VALUE, settings=_values(OWN_SETTINGS), limit=_limit("0", local=False)
            )
            await connection.execute(text, timeout=ANSWER_SECONDS)


class BorrowedConnections:
    """Connections of a pool that belongs to the application. Each is returned with its original settings."""

    def __init__(self, pool: "Pool") -> None:
        self.keeps_state = True
        self._pool = pool
        self._before: dict[Connection, dict[str, str]] = {}
        self._url = ""

    async def open(self, url: str) -> str:
        self._url = url
        if getattr(self._pool, "_loop", None) not in {None, asyncio.get_running_loop()}:
            problem = (
                "the pool belongs to another event loop. Create it in the event loop that opens the store"
            )
            raise StoreError(url=url, problem=problem)
        if self._pool.get_max_size() < _LEAST:
            problem = f"the pool has max_size={self._pool.get_max_size()}, but a store needs at least {_LEAST}, since it keeps three connections"
            raise StoreError(url=url, problem=problem)
        try:
            async with self.acquire() as connection:
                self._url = await connection.fetchval(_DESCRIBE, timeout=ANSWER_SECONDS)
        except asyncpg.InterfaceError as error:  # the pool was never initialized
            raise StoreError(url=url, problem=str(error)) from error
        return self._url

    @asynccontextmanager
    async def acquire(self) -> "AsyncGenerator[Connection, None]":
        connection = await self.connect()
        try:
            yield connection
        finally:
            await self.disconnect(connection)

    async def connect(self) -> "Connection":
        connection = await self._take()
        try:
            rows = await connection.fetch(
                _SET_AND_RETURN, list(SETTINGS), list(SETTINGS.values()), timeout=ANSWER_SECONDS
            )
        except BaseException:
            cut(connection)
            raise
        self._before[connection] = {row["name"]: row["before"] for row in rows}
        return connection

    async def disconnect(self, connection: "Connection") -> None:
        before = self._before.pop(connection, {})
        if not is_open(connection) or connection.is_in_transaction():
            cut(connection)
            return
        try:
            await connection.execute(_SET, list(before), list(before.values()), timeout=_RELEASE_SECONDS)
            await self._pool.release(connection, timeout=_RELEASE_SECONDS)  # pyright: ignore[reportArgumentType]
        except (TimeoutError, asyncpg.PostgresError, *GONE):
            cut(connection)
        except BaseException:
            cut(connection)
            raise

    async def close(self) -> None:
        """Do nothing: the pool belongs to the application."""

    def transaction(
        self, connection: "Connection", *, snapshot: bool = False, export: bool = False
    ) -> AbstractAsyncContextManager[None]:
        return _transaction(connection, "", snapshot=snapshot, export=export)

    async def _take(self) -> "Connection":
        if self._pool.is_closing():
            problem = "its pool is closed. Close the store before you close the pool"
            raise StoreUnavailable(url=self._url, problem=problem)
        try:
            return await self._pool.acquire(timeout=ANSWER_SECONDS)
        except TimeoutError:
            if self._pool.get_idle_size() or self._pool.get_size() < self._pool.get_max_size():
                raise
            problem = (
                f"all {self._pool.get_max_size()} connections of the pool were in use for {ANSWER_SECONDS:g} seconds. "
                "Raise its max_size, or release connections sooner"
            )
            raise StoreUnavailable(url=self._url, problem=problem) from None


def is_open(connection: "Connection | None") -> bool:
    """Return whether a connection can be used."""
    try:
        return connection is not None and not connection.is_closed()
    except asyncpg.InterfaceError:  # it broke, and its pool has taken it back
        return False


def cut(connection: "Connection") -> None:
    """Close a connection at once. A pool replaces it."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


@asynccontextmanager
async def _transaction(
    connection: "Connection", settings: str, *, snapshot: bool, export: bool
) -> AsyncGenerator[None, None]:
    begin = (
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        if snapshot
        else "BEGIN ISOLATION LEVEL READ COMMITTED"
    )
    if export:
        settings += f"; SET LOCAL idle_in_transaction_session_timeout = '{_EXPORT_PAUSE}'"
    try:
        await connection.execute(begin + settings, timeout=ANSWER_SECONDS)
    except BaseException:
        cut(connection)  # it may have begun
        raise
    try:
        yield
    except asyncpg.ReadOnlySQLTransactionError:
        cut(connection)  # this server is not the primary, or not any longer
        raise
    except BaseException:
        try:
            await connection.execute("ROLLBACK", timeout=ANSWER_SECONDS)
        except GONE:
            cut(connection)
        raise
    with committing(connection):
        await connection.execute("COMMIT", timeout=NO_TIMEOUT)


@contextmanager
def committing(connection: "Connection") -> Generator[None, None, None]:
    """Run a statement that commits. If the server does not respond in time, cut the connection.

    It must not be cancelled, as a timeout of the driver would: a commit that waits for a synchronous standby would become visible, and
    a retry would acknowledge it, although the standby does not have it.
    """
    timer = asyncio.get_running_loop().call_later(ANSWER_SECONDS, cut, connection)
    try:
        yield
    except GONE as error:
        if timer.when() <= asyncio.get_running_loop().time():
            raise TimeoutError from error
        raise
    finally:
        timer.cancel()


def in_time() -> asyncio.Timeout:
    """Raise `TimeoutError` if the server does not respond in time."""
    return asyncio.timeout(ANSWER_SECONDS)


def _values(settings: Mapping[str, str]) -> str:
    return ", ".join(f"('{name}', '{value}')" for name, value in settings.items())


def _limit(value: str, *, local: bool) -> str:
    """Return an expression that limits the time of transactions, where the server can: since PostgreSQL 17."""
    name = "transaction_timeout"
    return f"CASE WHEN current_setting('{name}', true) IS NOT NULL THEN set_config('{name}', '{value}', {local}) END"


_LOCAL: Final = (
    f"; SELECT set_config(name, {_VALUE}, true) FROM (VALUES {_values(SETTINGS)}) AS wanted(name, value)"  # noqa: S608
    f"; SELECT {_limit(_TRANSACTION_LIMIT, local=True)}"
)
"""Sets for one transaction what `_CONFIGURE` sets for a connection."""


def _discard(
    chosen: "asyncpg.Connection[Any] | None", attempt: "asyncio.Future[asyncpg.Connection[Any]]"
) -> None:
    """Close a connection that was made but not chosen."""
    if not attempt.cancelled() and attempt.exception() is None and attempt.result() is not chosen:
        attempt.result().terminate()


async def _keep(connection: object) -> None:
    """Do nothing when a connection returns to the pool: the store changes nothing that needs a reset."""
