"""Limit how many bytes of large histories are in memory at once, in a worker and for one owner."""

import asyncio
import ctypes
import gc
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final
from weakref import WeakValueDictionary

from holdfast.errors import HistoryTooLarge
from holdfast.store import Store

_LARGE: Final = 1024 * 1024
"""A smaller history does not count."""
_HUGE: Final = 16 * 1024 * 1024
_OF_OWNER, _OF_ALL = 1, 2
"""How many of the largest histories one owner, and all owners together, may have in memory. Smaller ones count by their size."""


class LargeHistories:
    """The large histories of a worker. A turn counts from loading its history until it ends."""

    def __init__(self) -> None:
        self._all = _Memory()
        self._of_owners = WeakValueDictionary[str, _Memory]()

    @contextmanager
    def turn(self, owner: str) -> Generator[None, None, None]:
        """Count everything loaded within this block, and in the tasks that it starts, as one turn."""
        place = _Place(self._of_owners.setdefault(owner, _Memory()), self._all)
        token = _current.set(place)
        try:
            yield
        finally:
            _current.reset(token)
            place.leave()


class _Memory:
    """A shared budget of bytes. Turns take their parts in the order of their requests."""

    def __init__(self) -> None:
        self._used = 0
        self._waiting: deque[tuple[int, int, asyncio.Future[None]]] = deque()

    async def acquire(self, size: int, limit: int) -> None:
        """Wait until these bytes fit under the limit. A single history always fits."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, limit, ready))
        self._admit()
        try:
            await ready
        except asyncio.CancelledError:
            if ready.done() and not ready.cancelled():
                self.release(size)
            else:
                self._admit()  # those behind it may fit
            raise

    def release(self, size: int) -> None:
        self._used -= size
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            size, limit, ready = self._waiting[0]
            if not ready.done():
                if self._used and self._used + size > limit:
                    return
                self._used += size
                ready.set_result(None)
            self._waiting.popleft()


class _Place:
    def __init__(self, of_owner: _Memory, of_all: _Memory) -> None:
        self._of_owner = of_owner
        self._of_all = of_all
        self._lock = asyncio.Lock()
        self._size = 0
        self._is_over = False

    async def take(self, size: int, largest: int) -> None:
        async with self._lock:
            if self._size or self._is_over:
                return
            await self._of_owner.acquire(size, _OF_OWNER * largest)
            try:
                await self._of_all.acquire(size, _OF_ALL * largest)
            except asyncio.CancelledError:
                self._of_owner.release(size)
                raise
            self._size = size
            if self._is_over:  # a task that outlives its turn gets no place
                self.leave()

    def leave(self) -> None:
        self._is_over = True
        size, self._size = self._size, 0
        if size:
            if size > _HUGE:
                _return_memory()
            self._of_all.release(size)
            self._of_owner.release(size)


def _return_memory() -> None:
    """Return the memory of a turn to the system. Its objects refer to each other, and the C library keeps what is freed."""
    gc.collect()
    with suppress(AttributeError, OSError):  # only the GNU C library has it
        ctypes.CDLL(None).malloc_trim(0)


_current: ContextVar[_Place | None] = ContextVar("holdfast_large_history", default=None)


async def admit(store: Store, size: int) -> None:
    """Wait until a history of this size may be loaded. Raise `HistoryTooLarge` if it exceeds the limit."""
    limit = store.settings.max_history_bytes
    if size > limit:
        raise HistoryTooLarge(size=size, limit=limit)
    place = _current.get()
    if size > _LARGE and place is not None:
        await place.take(size, limit)
