"""The folder of a mirror: a file of JSON lines for each session and day, in a folder for each day.

One process at a time has the lock on the file `.mirror`, which contains the name of the mirror. Only that process writes or deletes
files. The kernel releases the lock with the process, so it is never held by a dead one.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Final

from holdfast.api.models import event_json
from holdfast.errors import BadSettings
from holdfast.ids import check_id, new_id
from holdfast.store.mirrored import MirrorPosition
from holdfast.types import Event

try:
    import fcntl
except ImportError:  # not Unix
    fcntl = None

MARK: Final = ".mirror"
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_FIRST_DAY: Final = date(1970, 1, 1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNBROKEN: Final = str.maketrans("\r\n", "  ")
"""Stored JSON may contain line breaks between its tokens."""
_LONGEST_NAME: Final = 200


class MirrorFolder:
    """A folder that this process may lock. Every method may block, so none of them runs on an event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = ""
        self._descriptor: int | None = None

    def lock(self) -> bool:
        """Lock the folder, which is created if it does not exist; false if another process has the lock. Raises `BadSettings`."""
        if fcntl is None:
            raise BadSettings(problem="mirror is available only on Unix.")
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark = self.path / MARK
        descriptor = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.name = os.pread(descriptor, _LONGEST_NAME, 0).decode() or self._begin(descriptor)
            check_id(self.name, f"name of a mirror in {mark}")
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._descriptor = descriptor
        return True

    def _begin(self, descriptor: int) -> str:
        """Name a new mirror. Files of another one, which no row of the database refers to, must not remain in its folder."""
        if (self.path / MARK.upper()).exists():
            raise BadSettings(
                problem=f"mirror: {self.path} is on a file system that ignores case, on which the files of two sessions could be the same."
            )
        if self._days():
            raise BadSettings(
                problem=f"mirror: {self.path} has journals, but no name in {MARK}. Delete the journals."
            )
        name = new_id()
        os.pwrite(descriptor, name.encode(), 0)
        os.fsync(descriptor)
        _sync(self.path)
        return name

    def is_locked(self) -> bool:
        """Return whether this process still has the lock: not after somebody has deleted or replaced the folder."""
        if self._descriptor is None:
            return False
        try:
            there = (self.path / MARK).stat()
        except FileNotFoundError:
            return False
        ours = os.fstat(self._descriptor)
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def close(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def append(self, position: MirrorPosition, events: Sequence[Event]) -> MirrorPosition:
        """Append the events after a position, and return the new position, when they are on disk.

        A file that is longer than recorded is truncated first: a process was killed after it had written, or the disk was full. If the
        file is shorter, the position returned is the start of the journal, so that the files are written again.
        """
        day, size = position.day, position.size
        # The clock of the database may go back; the order of the lines must not depend on it.
        days = accumulate(((event.at - _EPOCH).days for event in events), max, initial=day)
        for file_day, part in groupby(zip(islice(days, 1, None), events, strict=True), itemgetter(0)):
            lines = b"".join(_line(event) for _, event in part)
            start = size if file_day == day else 0
            if not self._write(position.session_id, file_day, start, lines):
                return MirrorPosition(position.session_id)
            day, size = file_day, start + len(lines)
        return replace(position, seq=events[-1].seq, day=day, size=size)

    def _write(self, session_id: str, day: int, start: int, lines: bytes) -> bool:
        """Write lines into a file after its first bytes; false if it has fewer."""
        folder = self.path / str(_FIRST_DAY + timedelta(days=day))
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)
            _sync(self.path)
        descriptor = os.open(folder / _file_name(session_id), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(descriptor).st_size < start:
                return False
            is_new = not start
            os.ftruncate(descriptor, start)
            while lines:
                written = os.pwrite(descriptor, lines, start)
                start, lines = start + written, lines[written:]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            _sync(folder)
        return True

    def delete(self, session_id: str) -> None:
        """Delete all files of a session. They stay deleted even if the power fails."""
        for folder in self._days():
            try:
                (folder / _file_name(session_id)).unlink()
            except FileNotFoundError:
                continue
            _sync(folder)
            with suppress(OSError):  # it has other files
                folder.rmdir()

    def _days(self) -> list[Path]:
        return sorted(path for path in self.path.iterdir() if _DAY.fullmatch(path.name))


def _file_name(session_id: str) -> str:
    return f"{check_id(session_id, 'session id')}.jsonl"


def _line(event: Event) -> bytes:
    text = f'{{"session_id":"{event.session_id}",{event_json(event)[1:]}'
    return text.translate(_UNBROKEN).encode() + b"\n"


def _sync(folder: Path) -> None:
    """Make changes of the entries of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
