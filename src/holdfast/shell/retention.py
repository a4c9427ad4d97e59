"""Keep the log of shell commands bounded: delete the output of commands that ended long enough ago, but keep their results.

The cost is proportional to what is deleted. Running commands and commands of sessions on hold are never touched.
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
    """Delete the log of commands that ended at least this many seconds ago, in bounded batches; return how many events were deleted."""
    total = 0
    while deleted := await store.purge_commands(older_than=older_than, owner=owner, limit=_BATCH):
        total += deleted
    free = await store.shrink() if total else 0
    while free and (left := await store.shrink()) < free:  # other processes may free pages meanwhile
        free = left
    return total


class Sweeper:
    """Purges at once and then every `max(60, retention / 2)` seconds, less often after failures."""

    def __init__(self, store: Store, retention: float) -> None:
        self._store = store
        self._retention = retention
        self._interval = max(_LEAST_SECONDS, retention / 2)

    async def run(self) -> None:
        """Run until cancelled."""
        failures = 0
        while True:
            try:
                deleted = await purge(self._store, self._retention)
                failures = 0
                if deleted:
                    _log.info("deleted %d events of shell commands", deleted)
            except HoldfastError as error:
                failures += 1
                _log.warning("purging shell commands failed %d times in a row: %s", failures, error)
            await asyncio.sleep(self.pause(failures))

    def pause(self, failures: int) -> float:
        """Return how many seconds to wait after this many consecutive failures."""
        return max(self._interval, min(self._interval * _BACK_OFF ** min(failures, 10), _LONGEST_SECONDS))
