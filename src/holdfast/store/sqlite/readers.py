"""Connections besides that of the writer: for concurrent reads, and to detect the commits of other processes."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import StoreReplaced
from holdfast.store.hub import Hub
from holdfast.store.sqlite.files import DatabaseFiles
from holdfast.store.sqlite.transactions import run
from holdfast.store.sqlite.writer import connect
from holdfast.store.transactions import Tx

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

_READERS = 4
_POLL_SECONDS = 0.004


class Readers:
    """Connections that read concurrently with the writer, each on its own thread."""

    def __init__(self, path: str, files: DatabaseFiles) -> None:
        self._path = path
        self._files = files
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._pool = ThreadPoolExecutor(_READERS, "holdfast-reader")

    async def run(self, make: Callable[[], Tx[T]]) -> T:
        """Run a read-only transaction."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, make)

    def close(self) -> None:
        """Wait for the reads that run, then disconnect."""
        self._pool.shutdown()
        for connection in self._connections:
            connection.close()

    def _read(self, make: Callable[[], Tx[T]]) -> T:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            self._files.check()  # connecting would create a missing file
            connection = self._local.connection = connect(self._path)
            connection.execute("PRAGMA query_only = ON")
            self._connections.append(connection)
        connection.execute("BEGIN")
        try:
            result = run(connection, make())
        finally:
            connection.execute("ROLLBACK")
        self._files.check()
        return result


class Poller:
    """Detects commits of other processes while tasks here wait, and wakes those that are behind."""

    def __init__(
        self,
        path: str,
        hub: Hub,
        latest_numbers: Callable[[Sequence[str]], Tx[dict[str, int]]],
        files: DatabaseFiles,
    ) -> None:
        self._path = path
        self._hub = hub
        self._files = files
        self._latest_numbers = latest_numbers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="holdfast-poller", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._hub.has_readers.set()
        self._thread.join()

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        seen: tuple[int, list[str]] | None = None
        while not self._stop.is_set():
            self._hub.has_readers.wait()
            try:
                self._files.check()
                connection = connection or connect(self._path)
                version = connection.execute("PRAGMA data_version").fetchone()[0]
                topics = self._hub.topics()
                if (version, topics) != seen:
                    self._hub.at(run(connection, self._latest_numbers(topics)))
                    seen = version, topics
            except StoreReplaced:
                self._hub.wake_all()  # so that waiting tasks read, and get the error
                break
            except Exception:  # noqa: BLE001 - a boundary: the hint is delayed until the next poll, milliseconds later
                seen = None
            self._stop.wait(_POLL_SECONDS)
        if connection is not None:
            connection.close()
