"""Wakes those who wait for a session to change. It carries hints only: what changed is read from the store."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress


class Signal:
    """One reader's bell, and the number of the last event it has."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.loop = asyncio.get_running_loop()
        self.bell = asyncio.Event()


class Hub:
    """The readers of each session in this process. May be rung from any thread."""

    def __init__(self) -> None:
        self._signals: defaultdict[str, set[Signal]] = defaultdict(set)
        self._lock = threading.Lock()
        self.has_readers = threading.Event()

    @contextmanager
    def listen(self, session_id: str, after: int) -> Generator[Signal, None, None]:
        """Hand out a signal that rings whenever the session may have changed, from now until the end."""
        signal = Signal(after)
        with self._lock:
            self._signals[session_id].add(signal)
            self.has_readers.set()
        try:
            yield signal
        finally:
            with self._lock:
                self._signals[session_id].discard(signal)
                if not self._signals[session_id]:
                    del self._signals[session_id]
                if not self._signals:
                    self.has_readers.clear()

    def watched(self) -> list[str]:
        """Return the sessions somebody reads."""
        with self._lock:
            return list(self._signals)

    def changed(self, session_ids: Iterable[str]) -> None:
        """Ring for every reader of these sessions."""
        if not self._signals:
            return
        with self._lock:
            _ring([signal for session_id in session_ids for signal in self._signals.get(session_id, ())])

    def at(self, heads: Mapping[str, int]) -> None:
        """Ring for the readers that are behind these numbers, and for those whose session is gone."""
        with self._lock:
            _ring(
                [
                    signal
                    for session_id, signals in self._signals.items()
                    for signal in signals
                    if heads.get(session_id, signal.after + 1) > signal.after
                ]
            )

    def everyone(self) -> None:
        """Ring for all, as when hints may have been lost."""
        self.changed(self.watched())


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
