"""Locked files that tell when a process on this host is gone: the kernel lets go of the lock with the process."""

import os
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a Unix: then deadlines alone tell
    fcntl = None


_TRIES = 100


class FileBeacons:
    """One locked file per holder of this process, in a folder beside the database that all its processes share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lit: dict[str, int] = {}

    def light(self, holder_id: str) -> bool:
        """Lock a file in the holder's name; say whether that is possible here."""
        if fcntl is None:
            return False
        hidden = self._folder / f".{holder_id}"
        descriptor = self._create(hidden)
        if descriptor is None:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        hidden.rename(self._folder / holder_id)  # nobody ever sees it unlocked while we live
        self._lit[holder_id] = descriptor
        return True

    def _create(self, path: Path) -> int | None:
        """Open a new file in the folder; None if that is not possible here."""
        for _ in range(_TRIES):
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            except FileNotFoundError:
                continue  # another process, as the last one there, has just removed the folder
            except OSError:
                break
        return None

    def put_out(self, holder_id: str) -> None:
        """Remove the holder's file; harmless if there is none."""
        descriptor = self._lit.pop(holder_id, None)
        if descriptor is not None:
            (self._folder / holder_id).unlink(missing_ok=True)
            os.close(descriptor)
        if not self._lit:
            with suppress(OSError):
                self._folder.rmdir()  # if nobody else is there

    def gone(self) -> list[str]:
        """Return the holders whose processes are gone, once: their files are removed."""
        if fcntl is None:
            return []
        results: list[str] = []
        with suppress(FileNotFoundError):
            results += [p.name for p in self._folder.iterdir() if p.name not in self._lit and _is_unlocked(p)]
        return results

    def close(self) -> None:
        """Let go of all that are left; their holders are gone."""
        for descriptor in self._lit.values():
            os.close(descriptor)
        self._lit.clear()


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
        if not path.name.startswith("."):  # a hidden one may be about to be locked
            path.unlink(missing_ok=True)
            return True
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)
    return False
