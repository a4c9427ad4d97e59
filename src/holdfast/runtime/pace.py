"""How many turns a worker begins at once: few after its start and on a starved machine, and many on a quick one.

A turn that begins loads its history and makes its first request. On a starved machine a dozen of them at once would all be slow, and a worker
that dies meanwhile would use up an attempt of each.
"""

import asyncio
from collections.abc import Callable
from typing import Final

_FIRST: Final = 2
_MOST: Final = 128
_QUICK_SECONDS: Final = 0.25
_LONGEST_SECONDS: Final = 5.0
"""After this time a turn no longer counts as beginning: it waits for something else, such as memory for a large history."""


class Pace:
    """Doubles the number of turns that may begin at once after one that began quickly, and halves it after one that did not."""

    def __init__(self) -> None:
        self._limit = _FIRST
        self._beginning: set[object] = set()
        self._changed = asyncio.Event()

    @property
    def free(self) -> int:
        """How many more turns may begin now."""
        return max(0, self._limit - len(self._beginning))

    def begin(self) -> Callable[[], None]:
        """Count a turn that begins, and return the function to call when it has begun or ended."""
        loop = asyncio.get_running_loop()
        turn, since = object(), loop.time()
        self._beginning.add(turn)

        def begun() -> None:
            timer.cancel()
            if turn in self._beginning:
                self._beginning.discard(turn)
                quick = loop.time() - since < _QUICK_SECONDS
                self._limit = min(self._limit * 2, _MOST) if quick else max(self._limit // 2, _FIRST)
                self._changed.set()

        timer = loop.call_later(_LONGEST_SECONDS, begun)
        return begun

    async def wait(self) -> None:
        """Wait until a turn may begin."""
        while not self.free:
            self._changed.clear()
            await self._changed.wait()
