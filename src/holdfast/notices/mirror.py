"""Mirror the journals of all sessions as files while a worker runs, if it has the setting `mirror`.

Of the workers with the same folder, the one that has its lock writes. It follows each session by a position in the database, and deletes
the files of sessions that were cleaned or erased. Its file operations run in a thread of their own, in order.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from holdfast.counting import count
from holdfast.errors import HoldfastError, SessionNotFound, StoreClosed
from holdfast.notices.mirror_folder import MARK, MirrorFolder
from holdfast.store import Store
from holdfast.store.mirrored import MirrorPosition, MirrorWork

POLL_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 5.0
_SPREAD_SECONDS: Final = 0.2
_DELETION_SECONDS: Final = 0.1
_QUIET_SECONDS: Final = 60.0
_SESSIONS: Final = 64
"""How many sessions are followed before the next look at what must be deleted."""
_TOGETHER: Final = 16
"""How many positions are recorded in one transaction."""
_EVENTS: Final = 500
_BYTES: Final = 512 * 1024
_log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")


async def keep_mirroring(store: Store) -> None:
    """Mirror the journals until cancelled, or until the store is closed. Returns at once without the setting."""
    if store.settings.mirror is None:
        return
    mirroring = _Mirroring(store, store.settings.mirror)
    try:
        while True:
            try:
                await mirroring.work()
            except StoreClosed:
                return
            except (HoldfastError, OSError) as error:
                mirroring.warn("the mirror is behind and continues later: %s", error)
            except Exception:  # noqa: BLE001 - a boundary: one unexpected error must not stop the mirror
                _log.exception("the mirror is behind and continues later")
            await asyncio.sleep(POLL_SECONDS + random.uniform(-_SPREAD_SECONDS, _SPREAD_SECONDS))  # noqa: S311
    finally:
        mirroring.close()


async def delete_files(store: Store, session_ids: Sequence[str], *, wait: bool = True) -> bool:
    """Wait until the files of cleaned or erased sessions are deleted. Return whether some are left, at once or after some seconds.

    The worker that has the lock on the folder deletes them. If none has it, this process does, provided that it has the setting.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + (PATIENCE_SECONDS if wait else 0.0)
    for session_id in session_ids:
        while pending := await store.undeleted_files(session_id):
            if loop.time() >= until:
                return True
            await _delete_here(store, session_id, pending)
            await asyncio.sleep(_DELETION_SECONDS)
    return False


async def _delete_here(store: Store, session_id: str, pending: Sequence[str]) -> None:
    path = store.settings.mirror
    if path is None or not (path / MARK).exists():
        return
    mirroring = _Mirroring(store, path)
    try:
        if await mirroring.lock() and mirroring.folder.name in pending:
            await mirroring.delete([session_id])
    except (OSError, HoldfastError) as error:
        _log.warning("the files of session %s are deleted later: %s", session_id, error)
    finally:
        mirroring.close()


class _Mirroring:
    """A folder and its thread. The thread also closes the folder, after everything else, so the lock outlasts a cancelled call."""

    def __init__(self, store: Store, path: Path) -> None:
        self._store = store
        self.folder = MirrorFolder(path)
        self._thread = ThreadPoolExecutor(1, "holdfast-mirror")
        self._quiet_until = 0.0
        self._after = ""
        self._starting = True
        self._more: list[str] = []

    def close(self) -> None:
        """Release the lock when the current file operation has ended."""
        self._thread.submit(self.folder.close)
        self._thread.shutdown(wait=False)

    def warn(self, message: str, *args: object) -> None:
        """Log a warning, at most one per minute."""
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until:
            self._quiet_until = now + _QUIET_SECONDS
            _log.warning(message, *args)

    async def lock(self) -> bool:
        """Lock the folder if this process does not have the lock yet."""
        return await self._call(self.folder.is_locked) or await self._call(self._lock_again)

    def _lock_again(self) -> bool:
        self.folder.close()
        return self.folder.lock()

    async def work(self) -> None:
        """Do everything that can be done without a pause, if no other process has the lock."""
        loop = asyncio.get_running_loop()
        while await self.lock():
            began = loop.time()
            after = None if self._more else self._after
            work = await self._store.mirror_work(self.folder.name, also=self._more, after=after)
            await self.delete(work.deleting)
            failed = await self._follow(work)
            if after is not None:
                self._after = work.after
                self._starting = self._starting and bool(work.after)
            if failed or not (self._more or self._starting):
                return
            await asyncio.sleep(loop.time() - began)  # the runs of this worker need time, too

    async def delete(self, session_ids: Sequence[str]) -> None:
        """Delete the files of sessions, then their rows."""
        for session_id in session_ids:
            await self._call(self.folder.delete, session_id)
        if session_ids:
            await self._store.forget_files(self.folder.name, session_ids)

    async def _follow(self, work: MirrorWork) -> bool:
        """Append a page of events to the files of each session, and return whether that failed for some."""
        behind = work.behind[:_SESSIONS]
        self._more = [position.session_id for position, _ in work.behind[_SESSIONS:]]
        failed = False
        for start in range(0, len(behind), _TOGETHER):
            positions: list[MirrorPosition] = []
            for position, last in behind[start : start + _TOGETHER]:
                try:
                    reached = await self._append(position, is_new=position.session_id in work.unknown)
                except OSError as error:
                    failed = True
                    self.warn("the mirror of session %s is behind: %s", position.session_id, error)
                    continue
                if reached is not None:
                    positions.append(reached)
                    if reached.seq < last:
                        self._more.append(position.session_id)
            if positions:
                # Without its row, a session was cleaned or erased, and another process has deleted its files before these were written.
                for gone in await self._store.record_mirrored(self.folder.name, positions):
                    await self._call(self.folder.delete, gone)
        return failed

    async def _append(self, position: MirrorPosition, *, is_new: bool) -> MirrorPosition | None:
        session_id = position.session_id
        if is_new and not await self._store.begin_mirroring(self.folder.name, session_id):
            return None
        try:
            events = await self._store.events(session_id, after=position.seq, limit=_EVENTS, max_bytes=_BYTES)
        except SessionNotFound:
            return None
        if not events or events[0].seq != position.seq + 1:
            return None  # they are being deleted
        reached = await self._call(self.folder.append, position, events)
        if reached.seq == 0:
            _log.warning("a file of session %s was shortened or deleted; it is written again", session_id)
        else:
            count("mirrored", len(events))
        return reached

    async def _call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self._thread.submit(work, *args, **kwargs))
