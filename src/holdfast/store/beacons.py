"""Locked files that reveal when a process on this host has exited: the kernel releases the lock with the process."""

import os
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not Unix: only deadlines reveal dead processes
    fcntl = None


_TRIES = 100


class FileBeacons:
    """One locked file per holder of this process, in a folder next to the database that all its processes share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locked: dict[str, int] = {}

    def lock(self, holder_id: str) -> bool:
        """Lock a file named after the holder; return whether that is possible here."""
        if fcntl is None:
            return False
        hidden = self._folder / f".{holder_id}"
        descriptor = self._create(hidden)
        if descriptor is None:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        hidden.rename(
            self._folder / holder_id
        )  # other processes never see it unlocked while this one is alive
        self._locked[holder_id] = descriptor
        return True

    def _create(self, path: Path) -> int | None:
        """Open a new file in the folder; None if that is not possible here."""
        for _ in range(_TRIES):
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            except FileNotFoundError:
                continue  # another process has just removed the empty folder
            except OSError:
                break
        return None

    def unlock(self, holder_id: str) -> None:
        """Remove the holder's file; do nothing if there is none."""
        descriptor = self._locked.pop(holder_id, None)
        if descriptor is not None:
            (self._folder / holder_id).unlink(missing_ok=True)
            os.close(descriptor)
        if not self._locked:
            with suppress(OSError):
                self._folder.rmdir()  # fails if other processes use it

    def dead(self) -> list[str]:
        """Return the holders whose processes have exited, each once: their files are removed."""
        if fcntl is None:
            return []
        results: list[str] = []
        with suppress(FileNotFoundError):
            results += [
                p.name for p in self._folder.iterdir() if p.name not in self._locked and _is_unlocked(p)
            ]
        return results

    def close(self) -> None:
        """Release all remaining locks; their holders count as dead."""
        for descriptor in self._locked.values():
            os.close(descriptor)
        self._locked.clear()


def _try_lock(descriptor: int) -> None:
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_unlocked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        _try_lock(descriptor)
        if not path.name.startswith("."):  # a hidden file may be about to be locked
            path.unlink(missing_ok=True)
            return True
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)
    return False
