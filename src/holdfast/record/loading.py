"""Limit how many large histories of one owner are in memory at once, so that one owner cannot use all memory of a worker."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from weakref import WeakValueDictionary

from holdfast.errors import HistoryTooLarge
from holdfast.store import Store

_LARGE: Final = 1024 * 1024
_AT_ONCE: Final = 4


class LargeHistories:
    """A limited number of slots per owner for turns with a large history. A turn has its slot from loading its history until it ends."""

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._at_once = at_once
        self._places = WeakValueDictionary[str, asyncio.Semaphore]()

    @contextmanager
    def turn(self, owner: str) -> Generator[None, None, None]:
        """Count everything loaded within this block, and in the tasks that it starts, as one turn."""
        place = _Place(self._places.setdefault(owner, asyncio.Semaphore(self._at_once)))
        token = _current.set(place)
        try:
            yield
        finally:
            _current.reset(token)
            place.leave()


class _Place:
    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._lock = asyncio.Lock()
        self._is_taken = False
        self._is_over = False

    async def take(self) -> None:
        async with self._lock:
            if self._is_taken or self._is_over:
                return
            await self._places.acquire()
            if self._is_over:  # a task that outlives its turn gets no slot
                self._places.release()
            else:
                self._is_taken = True

    def leave(self) -> None:
        self._is_over = True
        if self._is_taken:
            self._is_taken = False
            self._places.release()


_current: ContextVar[_Place | None] = ContextVar("holdfast_large_history", default=None)


async def admit(store: Store, size: int) -> None:
    """Wait until a history of this size may be loaded. Raise `HistoryTooLarge` if it exceeds the limit."""
    limit = store.settings.max_history_bytes
    if size > limit:
        raise HistoryTooLarge(size=size, limit=limit)
    place = _current.get()
    if size > _LARGE and place is not None:
        await place.take()
