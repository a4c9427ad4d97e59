"""Wake tasks that wait for a change. Signals are only hints: the change itself is read from the store.

The topic of a session's events is its id. With a prefix it is the topic of its submissions or its drafts, or of the output of a
shell command. The prefix `>` alone is the topic of all sessions that become ready.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress

READY = ">"
"""The topic of sessions that may be ready to be claimed."""


def inbox(session_id: str) -> str:
    """Return the topic of a session's submissions."""
    return f">{session_id}"


def drafts(session_id: str) -> str:
    """Return the topic of a session's drafts."""
    return f"~{session_id}"


def outputs(command_id: str) -> str:
    """Return the topic of a shell command's output."""
    return f"${command_id}"


class Signal:
    """The bell of one waiting task, and the number of the last item that it has."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.loop = asyncio.get_running_loop()
        self.bell = asyncio.Event()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until it rings, or for at most this many seconds; then reset it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.bell.wait()
        self.bell.clear()


class Hub:
    """The waiting tasks of this process. May be called from any thread."""

    def __init__(self) -> None:
        self._signals: defaultdict[str, set[Signal]] = defaultdict(set)
        self._lock = threading.Lock()
        self.has_readers = threading.Event()

    @contextmanager
    def listen(self, topic: str, after: int) -> Generator[Signal, None, None]:
        """Provide a signal that rings whenever the topic may have changed, while the block runs."""
        signal = Signal(after)
        with self._lock:
            self._signals[topic].add(signal)
            self.has_readers.set()
        try:
            yield signal
        finally:
            with self._lock:
                self._signals[topic].discard(signal)
                if not self._signals[topic]:
                    del self._signals[topic]
                if not self._signals:
                    self.has_readers.clear()

    def topics(self) -> list[str]:
        """Return the topics that tasks wait for."""
        with self._lock:
            return list(self._signals)

    def changed(self, topics: Iterable[str]) -> None:
        """Ring for all tasks that wait for these topics."""
        if not self._signals:
            return
        with self._lock:
            results = [*topics]
            # Any change of a session may have changed its drafts; a command is announced by its bare id.
            results += [name(topic) for topic in results for name in (drafts, outputs)]
            _ring([signal for topic in results for signal in self._signals.get(topic, ())])

    def at(self, numbers: Mapping[str, int]) -> None:
        """Ring for tasks that have a different number."""
        with self._lock:
            behind = [
                (topic, number, signal)
                for topic, number in numbers.items()
                for signal in self._signals.get(topic, ())
                if number != signal.after
            ]
            for topic, number, signal in behind:
                if topic.startswith(READY):
                    signal.after = number  # these tasks read everything, so one ring is enough
            _ring([signal for _, _, signal in behind])

    def wake_all(self) -> None:
        """Ring for all tasks, for example when hints may have been lost."""
        self.changed(self.topics())


def _ring(signals: list[Signal]) -> None:
    loops: defaultdict[asyncio.AbstractEventLoop, list[Signal]] = defaultdict(list)
    for signal in signals:
        loops[signal.loop].append(signal)
    for loop, group in loops.items():
        with suppress(RuntimeError):  # that loop has ended, with its tasks
            loop.call_soon_threadsafe(_set_all, group)


def _set_all(signals: list[Signal]) -> None:
    for signal in signals:
        signal.bell.set()
