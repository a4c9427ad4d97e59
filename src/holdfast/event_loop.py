"""An event loop in a thread of its own, for callers that do not use asyncio."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
_END = object()


class EventLoop:
    """Runs coroutines in a thread until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and return its result. It is cancelled if this thread is interrupted."""
        future = self.submit(work)
        try:
            return future.result()
        finally:
            future.cancel()

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine, and return the future of its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Yield the items of an asynchronous generator."""
        try:
            while (item := self.run(_next(items))) is not _END:
                yield item  # pyright: ignore[reportReturnType]
        finally:
            self.run(_close(items))

    @contextmanager
    def entered(self, context: AbstractAsyncContextManager[T]) -> Generator[T, None, None]:
        """Enter an asynchronous context, and exit it in the same task."""
        entering: asyncio.Future[T] = self.run(_new_future())
        leaving = self.run(_new_event())

        async def hold() -> None:
            try:
                async with context as value:
                    entering.set_result(value)
                    await leaving.wait()
            except BaseException as error:
                if entering.done():
                    raise
                entering.set_exception(error)

        holding = asyncio.run_coroutine_threadsafe(hold(), self._loop)
        value = self.run(_result(entering))
        try:
            yield value
        finally:
            self._loop.call_soon_threadsafe(leaving.set)
            holding.result()

    def close(self) -> None:
        """Stop the thread."""
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _next(items: AsyncGenerator[T, None]) -> T | object:
    return await anext(items, _END)


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


async def _new_future() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()


async def _new_event() -> asyncio.Event:
    return asyncio.Event()


async def _result(future: "asyncio.Future[T]") -> T:
    return await future
