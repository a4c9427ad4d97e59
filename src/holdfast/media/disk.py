"""Media as files below one folder, each with a JSON file next to it that describes it.

A file appears under its name complete and synced, or not at all. Nothing outside the folder is read or written,
whatever a key strategy returns and wherever a symbolic link leads.
"""

import asyncio
import errno
import json
import os
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Final, ParamSpec, TypeVar

from holdfast.errors import (
    BadKey,
    HoldfastError,
    MediaDenied,
    MediaError,
    MediaFull,
    MediaNotFound,
    MediaUnavailable,
)
from holdfast.media.media_store import CHUNK, KeyStrategy, MediaStore, PublicUrl, Stage, by_digest, check_key
from holdfast.store import Store
from holdfast.types import Blob

P = ParamSpec("P")
T = TypeVar("T")

_STAGING: Final = ".storing"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


class DiskMedia(MediaStore):
    """Content as files below `root`, which is created when it is first needed."""

    def __init__(
        self,
        store: Store,
        root: str | os.PathLike[str],
        *,
        key_strategy: KeyStrategy = by_digest,
        public_url: PublicUrl | None = None,
    ) -> None:
        self.root = Path(root).absolute()
        super().__init__(store, f"disk://{self.root}", key_strategy=key_strategy, public_url=public_url)

    async def _write(self, blob: Blob, data: bytes) -> None:
        def work() -> None:
            with self._begin(blob) as file:
                _write(file, data)
                _sync(file)
            self._place(blob)

        await self._in_thread(work)

    async def _stage(self, blob: Blob) -> Stage:
        return _StagedFile(self, blob, await self._in_thread(self._begin, blob))

    async def _read(self, blob: Blob) -> AsyncGenerator[bytes, None]:
        file = await self._in_thread(self._open, blob)
        try:
            while chunk := await self._in_thread(file.read, CHUNK):
                yield chunk
        finally:
            file.close()

    async def _read_part(self, blob: Blob, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        file = await self._in_thread(self._open, blob)
        try:
            size = await self._in_thread(file.seek, 0, os.SEEK_END)
            if size != blob.size:
                raise await self._resized(blob, size)
            await self._in_thread(file.seek, start)
            while start < stop and (chunk := await self._in_thread(file.read, min(CHUNK, stop - start))):
                start += len(chunk)
                yield chunk
        finally:
            file.close()

    async def _present(self, blob: Blob) -> bool:
        def look() -> bool:
            with suppress(FileNotFoundError):
                return self._path(blob.key).lstat().st_size == blob.size
            return False

        return await self._in_thread(look)

    async def _remove(self, blob: Blob) -> None:
        def work() -> None:
            staged = self._staged(blob)
            paths = [staged, _sidecar(staged)]
            if blob.key:
                path = self._path(blob.key)
                paths = [path, _sidecar(path), *paths]
            for path in paths:
                with suppress(FileNotFoundError, NotADirectoryError):
                    path.unlink()
            if blob.key:
                self._tidy(paths[0].parent)

        await self._in_thread(work)

    # Everything below blocks, and runs on a thread.

    def _open(self, blob: Blob) -> IO[bytes]:
        try:
            return os.fdopen(os.open(self._path(blob.key), os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=0)
        except FileNotFoundError:
            raise MediaNotFound(uri=blob.uri, location=self.location) from None

    def _begin(self, blob: Blob) -> IO[bytes]:
        staged = self._staged(blob)
        staged.parent.mkdir(parents=True, exist_ok=True)
        return staged.open("wb", buffering=0)

    def _place(self, blob: Blob) -> None:
        """Rename a synced staged file to its final name; its description is placed first."""
        staged, path = self._staged(blob), self._path(blob.key)
        facts = {name: value for name, value in asdict(blob).items() if name in _DESCRIBED}
        with _sidecar(staged).open("w") as file:
            json.dump({**facts, "metadata": json.loads(blob.metadata)}, file, indent=1)
            _sync(file)
        while True:
            made = _make(path.parent)
            try:
                _sidecar(staged).replace(_sidecar(path))
                staged.replace(path)
            except FileNotFoundError:
                if not _sidecar(staged).exists():
                    raise
                continue  # another process removed the folder while it was empty
            for folder in {path.parent, *made}:
                _sync_folder(folder)
            return

    def _tidy(self, folder: Path) -> None:
        """Remove empty folders, and make the removal durable."""
        with suppress(OSError):
            _sync_folder(folder)
            while folder != self.root:
                folder.rmdir()
                folder = folder.parent

    def _staged(self, blob: Blob) -> Path:
        return self.root / _STAGING / blob.id

    def _path(self, key: str) -> Path:
        """Return the file of a key. Raise `BadKey` if links lead outside the root."""
        path = self.root / check_key(key, self.location)
        if not path.parent.resolve().is_relative_to(self.root.resolve()):
            raise BadKey(key=key, location=self.location, problem="a symbolic link leads out of the folder")
        return path

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do blocking work on a thread. A cancelled caller waits until it is done, to clean up after it."""
        with self._translated_errors():
            working = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
            try:
                return await asyncio.shield(working)
            except asyncio.CancelledError:
                await asyncio.wait([working])
                raise

    @contextmanager
    def _translated_errors(self) -> Generator[None, None, None]:
        """Raise errors of the system as Holdfast errors."""
        try:
            yield
        except HoldfastError:
            raise
        except OSError as error:
            kind: type[MediaError] = MediaUnavailable
            if error.errno in _FULL:
                kind = MediaFull
            elif error.errno in _DENIED:
                kind = MediaDenied
            elif error.errno == errno.ELOOP:
                raise BadKey(
                    key=error.filename, location=self.location, problem="it is a symbolic link"
                ) from error
            raise kind(location=self.location, problem=str(error)) from error


_DESCRIBED: Final = {"sha256", "size", "media_type", "file_name"}


class _StagedFile(Stage):
    """A file that does not have its final name yet."""

    def __init__(self, media: DiskMedia, blob: Blob, file: IO[bytes]) -> None:
        self._media = media
        self._blob = blob
        self._file = file

    async def write(self, data: bytes) -> None:
        await self._media._in_thread(_write, self._file, data)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001

    async def place(self, blob: Blob) -> None:
        def work() -> None:
            _sync(self._file)
            self._file.close()
            self._media._place(blob)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001

        await self._media._in_thread(work)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001

    async def close(self) -> None:
        self._file.close()


def _sidecar(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _make(folder: Path) -> list[Path]:
    """Create a folder and its parents, and return the folders that have a new entry."""
    above: list[Path] = []
    missing = folder
    while not missing.exists():
        missing = missing.parent
        above.append(missing)
    folder.mkdir(parents=True, exist_ok=True)
    return above


def _write(file: IO[bytes], data: bytes) -> None:
    """Write all of the data: a single call may write less."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _sync(file: IO[bytes] | IO[str]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
