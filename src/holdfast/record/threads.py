"""Threads of synchronous tools and steps. A thread cannot be cancelled, so a call that is stopped waits until its thread has ended.

Until then its run does not end, its lease is kept, and its ledger entry stays `started`: no retry can run the same code beside it. The same
holds for an output function, which has no ledger entry.

Each call has a daemon thread of its own. One that hangs delays no other call, and does not keep the process alive.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
from pydantic_ai import Agent, _utils

from holdfast.record.ledger import CallRef, current_call
from holdfast.tasks import start_thread, without_stop_iteration

T = TypeVar("T")


class RunThreads(Executor):
    """The threads of one run. It is the executor in which Pydantic AI runs the synchronous tools of the run."""

    def __init__(self) -> None:
        self._turn = _turn.get()
        self._working: set[Future[Any]] = set()
        self._calls: dict[CallRef | None, ThreadedCall] = {}
        self._recorded = asyncio.Event()

    @property
    def are_working(self) -> bool:
        """Whether a thread of this run, or of one that it started, has not ended."""
        return any(not thread.done() for thread in self._working)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Run a function in a new thread, or in the executor that the application has chosen.

        The first function of a call is its own. Others are started by agents that it runs, and end before it does.
        """
        call = self._calls.get(current_call.get()) or self._calls.get(None)
        if call is None or call.thread is not None:
            return start_thread(partial(fn, *args, **kwargs))
        start = start_thread if call.executor is None else call.executor.submit
        call.thread = thread = start(without_stop_iteration(partial(fn, *args, **kwargs)))
        self.watch(thread)
        if self._turn is not None:
            self._turn.watch(thread)
        return thread

    async def ended(self) -> None:
        """Wait until all threads have ended."""
        while working := [thread for thread in self._working if not thread.done()]:
            await _end(working[0])

    def watch(self, thread: "Future[Any]") -> None:
        """Count a thread as one of these until it has ended."""
        self._working.add(thread)
        thread.add_done_callback(self._working.discard)

    def call(
        self, ref: CallRef | None, announced: Callable[[], AbstractAsyncContextManager[None]]
    ) -> "ThreadedCall":
        """Return the block in which a call runs and is recorded. If it must wait for its thread, that happens within `announced`.

        An output function has no ledger entry, so its `ref` is None.
        """
        return ThreadedCall(self._calls, self._recorded, ref, announced)

    async def recorded(self) -> "DelayedStop":
        """Wait until the outcome of every thread is recorded. Return the cancellations that arrived meanwhile."""
        stop = DelayedStop()
        while waiting := [call for call in self._calls.values() if call.thread is not None]:
            self._recorded.clear()
            await stop.wait_for(asyncio.create_task(waiting[0].announce(self._recorded.wait())))
        return stop


class ThreadedCall:
    """A tool call or a step while it runs and is recorded. Cancellations are raised at its end if its thread delayed them."""

    def __init__(
        self,
        calls: dict[CallRef | None, "ThreadedCall"],
        recorded: asyncio.Event,
        ref: CallRef | None,
        announced: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        self.thread: Future[Any] | None = None
        self.executor = _executor_of_application()
        self._calls = calls
        self._recorded = recorded
        self._ref = ref
        self._announced = announced
        self._is_announced = False
        self._stop = DelayedStop()

    async def __aenter__(self) -> Self:
        self._calls[self._ref] = self
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._calls[self._ref]
        self._recorded.set()
        await self.deliver_stop()

    async def deliver_stop(self) -> None:
        """Raise the cancellation that was delayed, if there is one."""
        await self._stop.deliver()

    async def run_tool(self, threads: RunThreads, tool: Awaitable[T]) -> T:
        """Await a synchronous tool or an output function, which Pydantic AI runs in an executor."""
        with Agent.using_thread_executor(threads):
            return await self._complete(tool)

    async def run(self, threads: RunThreads, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function in a thread, in the context of the caller."""
        thread = threads.submit(copy_context().run, function, *arguments)
        return await self._complete(asyncio.wrap_future(thread))

    async def _complete(self, call: Awaitable[T]) -> T:
        """Await the call. If it is stopped or fails while its thread works, return or raise the outcome of the thread."""
        try:
            return await call
        except (Exception, asyncio.CancelledError) as error:
            thread = self.thread
            if thread is None or thread.done():
                raise
            if isinstance(error, asyncio.CancelledError):
                self._stop.delay(error)
            await self._stop.wait_for(asyncio.create_task(self.announce(_end(thread))))
            if self._ref is None:  # nothing records the outcome
                raise
            return thread.result()

    async def leave_thread(self) -> None:
        """Record that the thread returned an awaitable, so that the call can be cancelled again."""
        self.thread = None
        self._recorded.set()
        await self.deliver_stop()

    async def announce(self, end: Awaitable[object]) -> None:
        """Wait for the end, and show that the call waits for its thread."""
        if self._is_announced:
            await end
            return
        self._is_announced = True
        async with self._announced():
            await end


class DelayedStop:
    """Cancellations of this task that must wait."""

    def __init__(self) -> None:
        self._cancellations: list[tuple[Any, ...]] = []

    def delay(self, error: asyncio.CancelledError) -> None:
        """Keep a cancellation until `deliver`."""
        self._cancellations.append(error.args)
        if (task := asyncio.current_task()) is not None:
            task.uncancel()

    async def wait_for(self, end: "asyncio.Future[Any]") -> None:
        """Wait for the end of something, even if this task is cancelled meanwhile."""
        with anyio.CancelScope(shield=True):
            while not end.done():
                try:
                    await asyncio.wait([end])
                except asyncio.CancelledError as error:
                    self.delay(error)

    async def deliver(self) -> None:
        """Raise the cancellation, if there was one. The task then counts as cancelled as often as it was."""
        task, cancellations, self._cancellations = asyncio.current_task(), self._cancellations, []
        for arguments in cancellations:
            if task is not None:
                task.cancel(*arguments)
        if cancellations:
            await asyncio.sleep(0)


async def _end(thread: "Future[Any]") -> None:
    """Wait until a thread has ended, with any outcome."""
    await asyncio.gather(asyncio.wrap_future(thread), return_exceptions=True)


def _executor_of_application() -> Executor | None:
    """Return the executor that the application has set for synchronous tools. Pydantic AI has no public way to read it."""
    variable: ContextVar[Executor | None] | None = getattr(_utils, "_thread_executor", None)
    chosen = None if variable is None else variable.get()
    return None if isinstance(chosen, RunThreads) else chosen


_turn: ContextVar[RunThreads | None] = ContextVar("holdfast_threads", default=None)
"""The threads of all runs of the turn that runs this code."""


@contextmanager
def of_turn(threads: RunThreads) -> Generator[None, None, None]:
    """Make these the threads of the turn whose tasks are started in this block."""
    token = _turn.set(threads)
    try:
        yield
    finally:
        _turn.reset(token)
