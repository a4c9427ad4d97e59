"""Limits how many large histories are in memory at once. A worker has many turns; a few large ones must not take all memory."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from holdfast.errors import HistoryTooLarge
from holdfast.store import Store

_LARGE: Final = 1024 * 1024
_AT_ONCE: Final = 4


class LargeHistories:
    """The places for turns with a large history. A turn has at most one, from when it loads its history until it ends."""

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._places = asyncio.Semaphore(at_once)

    @contextmanager
    def turn(self) -> Generator[None, None, None]:
        """Count what is loaded within this block, and in tasks that it starts, as one turn."""
        place = _Place(self._places)
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

    async def take(self) -> None:
        async with self._lock:
            if not self._is_taken:
                await self._places.acquire()
                self._is_taken = True

    def leave(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._places.release()


_current: ContextVar[_Place | None] = ContextVar("holdfast_large_history", default=None)


async def admit(store: Store, size: int) -> None:
    """Wait until a history of this size may be loaded. Raises `HistoryTooLarge` if it must not be."""
    limit = store.settings.max_history_bytes
    if size > limit:
        raise HistoryTooLarge(size=size, limit=limit)
    place = _current.get()
    if size > _LARGE and place is not None:
        await place.take()
