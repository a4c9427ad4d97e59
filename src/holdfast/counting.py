"""Report countable facts to the listeners in this process. Without a listener this costs almost nothing.

It keeps the lower layers independent of any metrics library: the commands attach the listeners.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeAlias

Listener: TypeAlias = Callable[[str, float, dict[str, str]], None]
_listeners: list[Listener] = []


def count(fact: str, amount: float = 1, **labels: str) -> None:
    """Report a fact: how often it happened, or its size."""
    for listener in _listeners:
        listener(fact, amount, labels)


@contextmanager
def counted_by(listener: Listener) -> Generator[None, None, None]:
    """Send all facts, from any thread, to a listener while the block runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
