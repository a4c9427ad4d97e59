"""Locks that reveal when a process has exited: the server releases them with the connection that holds them."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import asyncpg

from holdfast.store.postgres.connections import GONE, Connections, is_open
from holdfast.store.postgres.writer import AGAIN, PAUSE_SECONDS, execute
from holdfast.store.transactions import op
from holdfast.tasks import end

if TYPE_CHECKING:
    from holdfast.store.postgres.connections import Connection

_log = logging.getLogger(__name__)


class ConnectionBeacons:
    """A connection that holds one lock per holder of this process. The server releases them when the process exits."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._locked: set[str] = set()
        self._connection: Connection | None = None
        self._busy = asyncio.Lock()
        self._relocking: asyncio.Task[None] | None = None

    async def lock(self, holder_id: str) -> None:
        """Take a lock for the holder."""
        self._locked.add(holder_id)
        try:
            await self._lock_all([holder_id])
        except BaseException:
            self._locked.discard(holder_id)
            raise

    async def unlock(self, holder_id: str) -> None:
        """Release the lock of the holder."""
        self._locked.discard(holder_id)
        async with self._busy:
            if is_open(self._connection):
                await execute(self._connection, op("unlock_beacon", id=holder_id))

    async def close(self) -> None:
        """Release all locks and disconnect."""
        left = list(self._locked)
        self._locked.clear()
        if self._relocking is not None:
            await end(self._relocking)
        if is_open(self._connection):
            with suppress(*GONE, asyncpg.PostgresError):
                for holder_id in left:
                    await execute(self._connection, op("unlock_beacon", id=holder_id))
        await self._disconnect()

    async def _lock_all(self, new: Sequence[str]) -> None:
        async with self._busy:
            if not is_open(self._connection):
                await self._disconnect()
                self._connection = await self._connections.connect()
                self._connection.add_termination_listener(self._on_disconnect)
                new = list(self._locked)
            for holder_id in new:
                await execute(self._connection, op("lock_beacon", id=holder_id))

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if is_open(connection):
                connection.remove_termination_listener(self._on_disconnect)
            await self._connections.disconnect(connection)

    def _on_disconnect(self, connection: object) -> None:
        if connection is self._connection and self._locked:
            self._relocking = asyncio.create_task(self._relock())

    async def _relock(self) -> None:
        logged = False
        while self._locked:
            try:
                await self._lock_all([])
                break
            except (*AGAIN, *GONE, asyncpg.PostgresError) as error:
                if not logged:
                    _log.info(
                        "other processes detect the end of this one only by its deadline for now: %s", error
                    )
                logged = True
                await asyncio.sleep(PAUSE_SECONDS)
