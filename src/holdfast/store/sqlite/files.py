"""Detect when the files of an open SQLite database are deleted, moved or replaced.

The system lets a process continue writing to a file that has no name any longer, and SQLite commits to it without an error:
acknowledged writes would be lost. A change of the contents under the same name and inode is not detected.
"""

import os
import time
from pathlib import Path

from holdfast.errors import StoreReplaced

_RECENT_NS, _RECENT_FINE_NS = 3_000_000_000, 100_000_000
"""Two changes within the precision of the file system's times may look like one. It is up to two seconds, or less than 0.1 seconds if a
time has a fraction of a second."""


class DatabaseFiles:
    """The database file, its log and its index, by device and inode. Without a path, as in memory, all checks pass.

    Once a check has failed, all later ones fail, even if the old files are moved back: they may contain writes that were
    reported as failed.
    """

    def __init__(self, url: str, path: str | None) -> None:
        self._url = url
        self._path = path
        self._opened: dict[str, tuple[int, int] | None] = {} if path is None else {path: _identity(path)}
        # As they were when the files were last compared.
        self._folders: dict[str, tuple[int, int, int] | None] = {}
        self._settled_ns = 0  # from this time on, a change of a folder cannot look like the last one
        self._replaced: str | None = None

    def note(self) -> None:
        """Remember the files, now that all three exist. Raise `StoreReplaced` if the database file was already replaced."""
        self.check()
        if self._path is not None:
            real = os.path.realpath(self._path)  # the others are next to it, not next to a link to it
            self._opened |= {name: _identity(name) for name in (f"{real}-wal", f"{real}-shm")}
            self._folders = {str(Path(name).parent): None for name in (self._path, real)}

    def check(self) -> None:
        """Raise `StoreReplaced` unless all files still exist. Costs one stat of the folder if nothing changed in it."""
        self.refuse()
        if time.time_ns() > self._settled_ns:
            for folder, before in self._folders.items():
                if before is None or _state(folder) != before:
                    break
            else:
                return
        self._compare()

    def _compare(self) -> None:
        folders = {folder: _state(folder) for folder in self._folders}
        for path, opened in self._opened.items():
            if _identity(path) != opened:
                self._replaced = path
        self.refuse()
        self._folders = folders
        changed = [time.time_ns() if state is None else state[2] for state in folders.values()]
        self._settled_ns = max((at + _recent(at) for at in changed), default=0)

    def refuse(self) -> None:
        """Raise `StoreReplaced` if an earlier check has failed."""
        if self._replaced is not None:
            raise StoreReplaced(url=self._url, path=self._replaced)


def _recent(changed_ns: int) -> int:
    return _RECENT_FINE_NS if changed_ns % 1_000_000_000 else _RECENT_NS


def _identity(path: str) -> tuple[int, int] | None:
    state = _state(path)
    return None if state is None else state[:2]


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        result = os.stat(path)  # noqa: PTH116 - faster, and this runs with every commit
    except OSError:
        return None
    return result.st_dev, result.st_ino, result.st_ctime_ns  # a restore resets the other times
