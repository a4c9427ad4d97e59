"""The connections of a store: from its own pool, or from a pool that belongs to the application."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import asyncpg

from holdfast.errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"
    Pool: TypeAlias = asyncpg.Pool[Any]

ANSWER_SECONDS = 5.0
"""How long a server may take to respond before a call counts as lost. Full scans may take longer."""
_CONNECTIONS = 8
_CLOSE_SECONDS = 5.0
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
)
"""Errors that mean that the server, or our connection to it, is not available right now."""

_NEEDED: Final = {
    "search_path": "holdfast",
    # A process that is paused in a transaction must not keep its locks for longer than its lease.
    "idle_in_transaction_session_timeout": "5s",
    # Every statement is keyed. Plans are made once; without these settings, a plan made for an empty table would remain a scan.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
}
_OWN: Final = {**_NEEDED, "application_name": "holdfast"}
# A pool may have been created with any of these. Time limits are set per call.
_BORROWED: Final = {
    **_NEEDED,
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "0",
    "lock_timeout": "0",
}

# Set in every session, even where it is strong enough, so that a reload of the server's settings does not weaken it.
_DURABLE: Final = """
SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')
  WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false)
"""
_SET_AND_RETURN: Final = """
SELECT name, current_setting(name) AS before, set_config(name, CASE
  WHEN name = 'synchronous_commit' AND current_setting(name) = 'remote_apply' THEN 'remote_apply' ELSE value END, false)
FROM unnest($1::text[], $2::text[]) AS wanted(name, value)
"""
_SET: Final = (
    "SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS wanted(name, value)"
)
_DESCRIBE: Final = """
SELECT format('postgresql://%s@%s/%s', current_user, host(inet_server_addr()) || ':' || inet_server_port(), current_database())
"""


class Connections(Protocol):
    """The connections of one store."""

    async def open(self, url: str) -> str:
        """Make connections available. Return the URL that identifies the store."""
        ...

    def acquire(self) -> "AbstractAsyncContextManager[Connection]":
        """Return a connection for one transaction."""
        ...

    async def connect(self, settings: Mapping[str, str] | None = None) -> "Connection":
        """Return a connection to keep, with these settings in addition to the common ones."""
        ...

    async def disconnect(self, connection: "Connection") -> None:
        """Give up a connection from `connect`, in any state."""
        ...

    async def close(self) -> None:
        """Give up all other connections."""
        ...


class OwnConnections:
    """The store's own pool, and more connections to the same server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._pool: Pool | None = None

    async def open(self, url: str) -> str:
        self._pool = await asyncpg.create_pool(
            self.address,
            min_size=0,
            max_size=_CONNECTIONS,
            server_settings=_OWN,
            init=_make_durable,
            reset=_keep,
            timeout=ANSWER_SECONDS,
            command_timeout=ANSWER_SECONDS,
        )
        return url

    def acquire(self) -> "AbstractAsyncContextManager[Connection]":
        assert self._pool is not None  # noqa: S101
        return self._pool.acquire()

    async def connect(self, settings: Mapping[str, str] | None = None) -> "Connection":
        connection = await asyncpg.connect(
            self.address,
            server_settings={**_OWN, **(settings or {})},
            timeout=ANSWER_SECONDS,
            command_timeout=ANSWER_SECONDS,
        )
        try:
            await _make_durable(connection)
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


class BorrowedConnections:
    """Connections of a pool that belongs to the application. Each is returned with its original settings."""

    def __init__(self, pool: "Pool") -> None:
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

    async def connect(self, settings: Mapping[str, str] | None = None) -> "Connection":
        wanted = {**_BORROWED, **(settings or {})}
        connection = await self._take()
        try:
            rows = await connection.fetch(
                _SET_AND_RETURN, list(wanted), list(wanted.values()), timeout=ANSWER_SECONDS
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
async def transaction(connection: "Connection", **options: Any) -> AsyncGenerator[None, None]:
    """Run a block in a transaction. The server must respond to its start and its end in time."""
    transaction = connection.transaction(**options)
    async with in_time():
        await transaction.start()
    try:
        yield
    except BaseException:
        with suppress(*GONE):
            async with in_time():
                await transaction.rollback()
        raise
    async with in_time():
        await transaction.commit()


def in_time() -> asyncio.Timeout:
    """Raise `TimeoutError` if the server does not respond in time."""
    return asyncio.timeout(ANSWER_SECONDS)


async def _make_durable(connection: Any) -> None:
    """Make commits on this connection wait for the disk, regardless of the defaults of the database and the role."""
    await connection.execute(_DURABLE)


async def _keep(connection: object) -> None:
    """Do nothing when a connection returns to the pool: the store changes nothing that needs a reset."""
