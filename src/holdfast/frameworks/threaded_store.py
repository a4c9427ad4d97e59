"""A store that any thread and any event loop can use: it has an event loop in a thread of its own."""

import asyncio
import atexit
import re
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.errors import (
    BadInput,
)
from holdfast.event_loop import EventLoop
from holdfast.store import Store, open_store

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
"""One letter and a colon is a drive."""


class ThreadedStore:
    """A store on an event loop in a thread of its own: call `run` from a thread, or await `call` on any event loop.

    It connects when it is first used. Close it at the end, or leave that to the end of the process.
    """

    def __init__(self, store: str | Path | Store, *, name: str) -> None:
        self._name = name
        self._source: str | Store = store if isinstance(store, Store) else _to_url(store)
        if isinstance(self._source, str):
            open_store(self._source)  # does not connect, but refuses a URL that is wrong
        self._starting = threading.Lock()
        self._loop: EventLoop | None = None
        self._closed = False
        self._store: Store | None = None
        self._abandoned: set[Future[Any]] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that uses this object, and block until it has a result."""
        future = self._submit(work)
        try:
            return future.result()
        finally:
            self._abandon(future)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that uses this object, from any event loop.

        If the caller is cancelled, the work continues, and later work waits for it: a write that was begun may still be stored, so
        that nothing may be numbered as if it were not.
        """
        future = self._submit(work)
        waiting = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(waiting)
        finally:
            waiting.add_done_callback(_forget)
            self._abandon(future)

    def _submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        try:
            loop = self._started()
        except BaseException:
            work.close()
            raise
        return loop.submit(self._after(set(self._abandoned), work) if self._abandoned else work)

    async def _after(self, earlier: "set[Future[Any]]", work: Coroutine[Any, Any, T]) -> T:
        for future in map(asyncio.wrap_future, earlier):
            future.add_done_callback(_forget)
            await asyncio.wait([future])
        return await work

    def _abandon(self, future: "Future[Any]") -> None:
        """Keep the order if the caller of this work stopped waiting for it."""
        if not future.done():
            self._abandoned.add(future)
            future.add_done_callback(self._abandoned.discard)

    def open(self) -> None:
        """Connect, which otherwise happens at the first use. A new database gets its tables, and an old one is upgraded."""
        self._started()

    def close(self) -> None:
        """Release all sessions and disconnect. Nothing can be used afterwards."""
        atexit.unregister(self._close_at_exit)
        with self._starting:
            loop, self._loop, self._closed = self._loop, None, True
        if loop is not None:
            loop.run(self._after(set(self._abandoned), self._close()))
            loop.close()

    def _close_at_exit(self) -> None:
        """Release all sessions. Connections that are closed by a thread of an executor end with the process."""
        with suppress(RuntimeError):  # executors have been shut down
            self.close()

    def _started(self) -> EventLoop:
        with self._starting:
            if self._closed:
                raise BadInput(problem=f"the {self._name} store is closed")
            if self._loop is None:
                loop = EventLoop()
                try:
                    loop.run(self._open())
                except BaseException:
                    loop.close()
                    raise
                self._loop = loop
                atexit.register(self._close_at_exit)
            return self._loop

    async def _open(self) -> None:
        store = open_store(self._source) if isinstance(self._source, str) else self._source.clone_for_thread()
        if store is None:
            raise BadInput(problem="this store cannot be used from another thread; pass its URL")
        self._store = await store.__aenter__()

    async def _close(self) -> None:
        await self.store.close()

    @property
    def store(self) -> Store:
        """The open store. Only for coroutines that run on this object's event loop."""
        assert self._store is not None  # noqa: S101
        return self._store


def _to_url(place: str | Path) -> str:
    """Return the URL of a store for a URL or a path. A name such as `file:a.db` has a scheme, so that it is no path."""
    if str(place) == ":memory:":
        return "sqlite://:memory:"
    if isinstance(place, str) and _SCHEME.match(place):
        return place
    return f"sqlite:///{Path(place).absolute()}"


def _forget(future: "asyncio.Future[Any]") -> None:
    """Retrieve the error of work that has no caller left, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()
