"""Wakes those who wait for something to change. It carries hints only: what changed is read from the store.

A topic is a session's id for those who read its events; with a mark before it for those who wait for its submissions,
for its drafts, or for the output of a shell command; the bare mark is for those who wait for any session to be ready.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress

READY = ">"
"""Some session may be ready to be claimed."""


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
    """One waiter's bell, and the number of the last thing it has."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.loop = asyncio.get_running_loop()
        self.bell = asyncio.Event()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until it rings, or for so long; then it is silent again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.bell.wait()
        self.bell.clear()


class Hub:
    """Who waits for what in this process. May be rung from any thread."""

    def __init__(self) -> None:
        self._signals: defaultdict[str, set[Signal]] = defaultdict(set)
        self._lock = threading.Lock()
        self.has_readers = threading.Event()

    @contextmanager
    def listen(self, topic: str, after: int) -> Generator[Signal, None, None]:
        """Hand out a signal that rings whenever the topic may have changed, from now until the end."""
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
        """Return what somebody waits for."""
        with self._lock:
            return list(self._signals)

    def changed(self, topics: Iterable[str]) -> None:
        """Ring for all who wait for these."""
        if not self._signals:
            return
        with self._lock:
            results = [*topics]
            # Whatever changes a session may have changed its drafts; a command is told by its id alone.
            results += [name(topic) for topic in results for name in (drafts, outputs)]
            _ring([signal for topic in results for signal in self._signals.get(topic, ())])

    def at(self, numbers: Mapping[str, int]) -> None:
        """Ring for those who have another number than this."""
        with self._lock:
            behind = [
                (topic, number, signal)
                for topic, number in numbers.items()
                for signal in self._signals.get(topic, ())
                if number != signal.after
            ]
            for topic, number, signal in behind:
                if topic.startswith(READY):
                    signal.after = number  # these look at everything there is: once is enough
            _ring([signal for _, _, signal in behind])

    def everyone(self) -> None:
        """Ring for all, as when hints may have been lost."""
        self.changed(self.topics())


def _ring(signals: list[Signal]) -> None:
    loops: defaultdict[asyncio.AbstractEventLoop, list[Signal]] = defaultdict(list)
    for signal in signals:
        loops[signal.loop].append(signal)
    for loop, group in loops.items():
        with suppress(RuntimeError):  # that loop has ended, and its readers with it
            loop.call_soon_threadsafe(_set_all, group)


def _set_all(signals: list[Signal]) -> None:
    for signal in signals:
        signal.bell.set()
