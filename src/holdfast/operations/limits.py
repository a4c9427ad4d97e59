"""Limits of each owner. Administrators have none.

Requests and submissions per minute, and open streams, are counted by this process; stored bytes are measured by a worker.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from holdfast.config import Settings
from holdfast.counting import count
from holdfast.errors import RateLimited, TooMuchStored
from holdfast.store import Store

_MINUTE: Final = 60.0
_MOST_OWNERS: Final = 10_000
"""How many owners are remembered: the memory is bounded, and one that is forgotten has its whole minute again."""


@dataclass(slots=True)
class _Allowance:
    """What is left of the limit, which grows back evenly."""

    left: float
    at: float


class RateLimits:
    """Counts what owners do, in this process."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = {
            "requests": settings.max_requests_per_minute,
            "submissions": settings.max_submissions_per_minute,
        }
        self._most_streams = settings.max_streams
        self._clock = clock
        self._allowances: OrderedDict[tuple[str, str], _Allowance] = OrderedDict()
        self._streams: dict[str, int] = {}

    def use(self, what: str, owner: str) -> None:
        """Count one of the `requests` or `submissions` of an owner. Raises `RateLimited` if it has none left."""
        most = self._most[what]
        if most is None:
            return
        now = self._clock()
        key = what, owner
        allowance = self._allowances.setdefault(key, _Allowance(most, now))
        self._allowances.move_to_end(key)
        if len(self._allowances) > 2 * _MOST_OWNERS:
            self._allowances.popitem(last=False)
        allowance.left = min(most, allowance.left + (now - allowance.at) * most / _MINUTE)
        allowance.at = now
        if allowance.left < 1:
            raise _limited(f"{what} per minute", most, math.ceil((1 - allowance.left) * _MINUTE / most))
        allowance.left -= 1

    def check_streams(self, owner: str) -> None:
        """Raise `RateLimited` if the owner has as many open streams as it may have."""
        if self._most_streams is not None and self._streams.get(owner, 0) >= self._most_streams:
            raise _limited("streams at once", self._most_streams, 1)

    @contextmanager
    def streaming(self, owner: str) -> Generator[None, None, None]:
        """Count an open stream."""
        self._streams[owner] = self._streams.get(owner, 0) + 1
        try:
            yield
        finally:
            self._streams[owner] -= 1
            if not self._streams[owner]:
                del self._streams[owner]


def _limited(what: str, most: int, seconds: int) -> RateLimited:
    count("limited", what=what.partition(" ")[0])
    return RateLimited(what=what, limit=most, seconds=seconds)


async def check_stored_bytes(store: Store, owner: str, most: int | None) -> None:
    """Raise `TooMuchStored` if the owner has stored `most` bytes or more."""
    if most is None:
        return
    try:
        await store.refuse_full(owner, most)
    except TooMuchStored:
        count("limited", what="stored_bytes")
        raise
