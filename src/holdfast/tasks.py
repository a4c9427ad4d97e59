"""Cancel tasks reliably, start threads that end with the process, and keep an event loop running when a task tries to exit the process."""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
_log = logging.getLogger(__name__)

_AGAIN_SECONDS = 1.0


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended, with any outcome.

    Cancel repeatedly: up to Python 3.11, a wait with a timeout that ends at the same moment swallows the cancellation.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


def run_through_exits(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, even if another task or callback raises SystemExit or KeyboardInterrupt.

    asyncio raises these out of the event loop. A worker runs the code of many sessions: `sys.exit()` in a task that a tool of one
    session started must not end the others. The task itself fails with that error. `main` must handle SIGINT before it runs such code.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(main)
        while True:
            try:
                return loop.run_until_complete(task)
            except (SystemExit, KeyboardInterrupt) as error:
                if task.done() or (isinstance(error, KeyboardInterrupt) and not _handles_interrupts()):
                    raise
                _log.exception("the code of an agent tried to exit the process; the process continues")


def _handles_interrupts() -> bool:
    """Return whether Ctrl-C is handled, so that a KeyboardInterrupt can only come from code that raised it."""
    return signal.getsignal(signal.SIGINT) is not signal.default_int_handler


def start_thread(function: Callable[[], T]) -> "Future[T]":
    """Run a function in a daemon thread of its own."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = without_stop_iteration(function)()
        except BaseException as error:  # noqa: BLE001 - the caller receives it
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="holdfast-call", daemon=True).start()
    return future


def without_stop_iteration(function: Callable[[], T]) -> Callable[[], T]:
    """Return the function with another error for `StopIteration`, which no future accepts."""

    def run() -> T:
        try:
            return function()
        except StopIteration as error:
            message = "the function raised StopIteration"
            raise RuntimeError(message) from error

    return run


@contextmanager
def ended_with(caller: "asyncio.Task[Any] | None") -> Generator[None, None, None]:
    """Cancel the current task when the task that runs the agent ends first.

    Pydantic AI calls `wrap_run` in a separate task and abandons it if the run is cancelled right after its start. Without this,
    that task would wait for the run and hold its session until the process exits.
    """
    task = asyncio.current_task()
    if caller is None or task is None:
        yield
        return

    def cancel(_: object) -> None:
        task.cancel()

    caller.add_done_callback(cancel)
    try:
        yield
    finally:
        caller.remove_done_callback(cancel)
