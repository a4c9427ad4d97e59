"""Keeps the log of shell commands bounded: what ended long enough ago is deleted, its result stays.

Costs what it deletes. Never touches a command that runs, nor one of a session on hold.
"""

import asyncio
import logging

from holdfast.errors import HoldfastError
from holdfast.store import Store

_log = logging.getLogger(__name__)

_BATCH = 200
_LEAST_SECONDS = 60.0
_BACK_OFF = 2.0
_LONGEST_SECONDS = 60.0 * 60


async def purge(store: Store, older_than: float, *, owner: str | None = None) -> int:
    """Delete the log of commands that ended so many seconds ago, in bounded batches; return how many events are gone."""
    total = 0
    while gone := await store.purge_commands(older_than=older_than, owner=owner, limit=_BATCH):
        total += gone
    free = await store.shrink() if total else 0
    while free and (left := await store.shrink()) < free:  # others may free pages meanwhile
        free = left
    return total


class Sweeper:
    """Purges at once and then every `max(60, retention / 2)` seconds, less often while it fails."""

    def __init__(self, store: Store, retention: float) -> None:
        self._store = store
        self._retention = retention
        self._interval = max(_LEAST_SECONDS, retention / 2)

    async def run(self) -> None:
        """Go on until cancelled."""
        failures = 0
        while True:
            try:
                gone = await purge(self._store, self._retention)
                failures = 0
                if gone:
                    _log.info("deleted %d events of shell commands", gone)
            except HoldfastError as error:
                failures += 1
                _log.warning("sweeping shell commands failed, %d times in a row: %s", failures, error)
            await asyncio.sleep(self.pause(failures))

    def pause(self, failures: int) -> float:
        """Return how long to wait after so many failures in a row."""
        return max(self._interval, min(self._interval * _BACK_OFF ** min(failures, 10), _LONGEST_SECONDS))
