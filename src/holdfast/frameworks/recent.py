"""A cache that is bounded in bytes."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps the entries that were used last, up to `most_bytes` by the estimate of `size`.

    The last entry is kept whatever its size, so that work on one large entry does not read it again each time.
    """

    def __init__(self, most_bytes: int, size: Callable[[K, V], int]) -> None:
        self._most = most_bytes
        self._measure = size
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._size = 0

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._entries))

    def get(self, key: K) -> V | None:
        """Return an entry, which is now the last one; None if it is not kept."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: K, value: V) -> None:
        """Keep an entry, and forget those that were used longest ago. Put an entry again after you changed it."""
        self.pop(key)
        size = self._measure(key, value)
        self._entries[key] = (value, size)
        self._size += size
        while self._size > self._most and len(self._entries) > 1:
            self._size -= self._entries.popitem(last=False)[1][1]

    def pop(self, key: K) -> V | None:
        """Forget an entry, and return it; None if it is not kept."""
        if key not in self._entries:
            return None
        value, size = self._entries.pop(key)
        self._size -= size
        return value
