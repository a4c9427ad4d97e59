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
        self._lit: set[str] = set()
        self._connection: Connection | None = None
        self._busy = asyncio.Lock()
        self._relighting: asyncio.Task[None] | None = None

    async def light(self, holder_id: str) -> None:
        """Take a lock for the holder."""
        self._lit.add(holder_id)
        try:
            await self._light_all([holder_id])
        except BaseException:
            self._lit.discard(holder_id)
            raise

    async def put_out(self, holder_id: str) -> None:
        """Release the lock of the holder."""
        self._lit.discard(holder_id)
        async with self._busy:
            if is_open(self._connection):
                await execute(self._connection, op("dim_beacon", id=holder_id))

    async def close(self) -> None:
        """Release all locks and disconnect."""
        left = list(self._lit)
        self._lit.clear()
        if self._relighting is not None:
            await end(self._relighting)
        if is_open(self._connection):
            with suppress(*GONE, asyncpg.PostgresError):
                for holder_id in left:
                    await execute(self._connection, op("dim_beacon", id=holder_id))
        await self._disconnect()

    async def _light_all(self, new: Sequence[str]) -> None:
        async with self._busy:
            if not is_open(self._connection):
                await self._disconnect()
                self._connection = await self._connections.connect()
                self._connection.add_termination_listener(self._went)
                new = list(self._lit)
            for holder_id in new:
                await execute(self._connection, op("light_beacon", id=holder_id))

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if is_open(connection):
                connection.remove_termination_listener(self._went)
            await self._connections.disconnect(connection)

    def _went(self, connection: object) -> None:
        if connection is self._connection and self._lit:
            self._relighting = asyncio.create_task(self._relight())

    async def _relight(self) -> None:
        logged = False
        while self._lit:
            try:
                await self._light_all([])
                break
            except (*AGAIN, *GONE, asyncpg.PostgresError) as error:
                if not logged:
                    _log.info(
                        "other processes detect the end of this one only by its deadline for now: %s", error
                    )
                logged = True
                await asyncio.sleep(PAUSE_SECONDS)
