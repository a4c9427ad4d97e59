"""Facts worth counting, told to whoever counts in this process; to nobody, it costs next to nothing.

Layers that must not know of any metrics library tell them here; the commands decide who listens.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeAlias

Listener: TypeAlias = Callable[[str, float, dict[str, str]], None]
_listeners: list[Listener] = []


def count(fact: str, amount: float = 1, **labels: str) -> None:
    """Tell that something happened, so often, or of this size."""
    for listener in _listeners:
        listener(fact, amount, labels)


@contextmanager
def counted_by(listener: Listener) -> Generator[None, None, None]:
    """Have all facts told to a listener, from any thread, for as long as the block lasts."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
