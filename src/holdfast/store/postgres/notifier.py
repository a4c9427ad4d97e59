"""Notifications of changes between processes.

They are hints: they are coalesced and sent after the commit, from a separate connection. The heads are also polled once a
second, in case one is lost, and more often if a pooler in transaction mode prevents `LISTEN`.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from holdfast.store.hub import Hub
from holdfast.store.postgres.connections import ANSWER_SECONDS, GONE, Connections, in_time, is_open
from holdfast.store.postgres.writer import PAUSE_SECONDS
from holdfast.tasks import end

if TYPE_CHECKING:
    from holdfast.store.postgres.connections import Connection

_log = logging.getLogger(__name__)

_CHANNEL: Final = "holdfast"
_NOTIFY: Final = "SELECT pg_notify($1, $2)"
_HINT_IDS = 50
_HINT_SECONDS = 0.002
"""The first hint is sent at once; under load, one hint contains everything that changed in this time."""
_POLL_SECONDS = 1.0
_POLL_ONLY_SECONDS = 0.2
"""How often to poll if no notification can arrive."""


class Notifier:
    """Notifies other processes of changed topics, and receives their notifications."""

    def __init__(
        self,
        connections: Connections,
        hub: Hub,
        poll: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._connections = connections
        self._hub = hub
        self._poll = poll
        self._changed: dict[str, None] = {}
        self._wake = asyncio.Event()
        self.interrupted_at: float | None = None
        """When the connection was last lost or restored, on the clock of the event loop."""
        self._tasks = [
            asyncio.create_task(self._connect_and_listen(), name="holdfast-notifier"),
            asyncio.create_task(self._keep_polling(), name="holdfast-poll"),
        ]

    def announce(self, topics: Sequence[str]) -> None:
        self._changed.update(dict.fromkeys(topics))
        self._wake.set()

    async def close(self) -> None:
        await end(*self._tasks)

    async def _connect_and_listen(self) -> None:
        reported = False
        while True:
            try:
                connection = await self._connections.connect()
                reported = False
                try:
                    if self._connections.keeps_state:
                        # A hint does not need to be durable.
                        await connection.execute("SET synchronous_commit = off", timeout=ANSWER_SECONDS)
                        await self._listen(connection)
                    else:
                        await self._send(connection)
                finally:
                    await self._connections.disconnect(connection)
            except (asyncpg.PostgresError, *GONE) as error:
                self.interrupted_at = asyncio.get_running_loop().time()
                if not reported:
                    _log.info("notifications are delayed until the server is back: %s", error)
                reported = True
                await asyncio.sleep(PAUSE_SECONDS)

    async def _listen(self, connection: "Connection") -> None:
        await connection.add_listener(_CHANNEL, self._receive)
        connection.add_termination_listener(self._on_disconnect)
        try:
            if self.interrupted_at is not None:
                self.interrupted_at = asyncio.get_running_loop().time()
            self._hub.wake_all()  # notifications before this may have been missed
            await self._send(connection)
        finally:
            if is_open(connection):
                with suppress(*GONE, asyncpg.PostgresError):
                    connection.remove_termination_listener(self._on_disconnect)
                    async with in_time():
                        await connection.remove_listener(_CHANNEL, self._receive)

    async def _send(self, connection: "Connection") -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not is_open(connection):
                raise ConnectionError("the connection that listens was closed")
            topics, self._changed = list(self._changed), {}
            # A notification may have 8000 bytes, an id up to 128.
            for start in range(0, len(topics), _HINT_IDS):
                hint = " ".join(topics[start : start + _HINT_IDS])
                if self._connections.keeps_state:
                    await connection.execute(_NOTIFY, _CHANNEL, hint, timeout=ANSWER_SECONDS)
                else:
                    async with self._connections.transaction(connection):
                        await connection.execute(_NOTIFY, _CHANNEL, hint, timeout=ANSWER_SECONDS)
            await asyncio.sleep(_HINT_SECONDS)

    def _on_disconnect(self, connection: object) -> None:
        del connection
        self._wake.set()

    def _receive(self, connection: object, pid: int, channel: str, payload: object) -> None:
        del connection, pid, channel
        self._hub.changed(str(payload).split())

    async def _keep_polling(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS if self._connections.keeps_state else _POLL_ONLY_SECONDS)
            try:
                await self._poll()
            except Exception as error:  # noqa: BLE001 - a boundary: polling must survive any error
                _log.info("cannot poll for changes: %s", error)
