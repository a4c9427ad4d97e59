"""Media in the session database itself, in chunks: no setup, and any size on every engine."""

from collections.abc import AsyncGenerator
from dataclasses import replace

from holdfast.media.media_store import CHUNK, MediaContext, MediaStore, PublicUrl, Stage
from holdfast.store import Store
from holdfast.types import Blob

_AT_ONCE = 4
"""How many chunks are written or read in one transaction."""


class DatabaseMedia(MediaStore):
    """Content in the tables of the session database. A blob becomes visible with its last chunk."""

    def __init__(self, store: Store, *, public_url: PublicUrl | None = None) -> None:
        super().__init__(store, "database", public_url=public_url)

    async def _put(self, blob: Blob, data: bytes) -> str:
        if len(data) > CHUNK:
            return await super()._put(blob, data)
        return (await self.store.put_blob(blob, body=data)).uri

    async def _write(self, blob: Blob, data: bytes) -> None:
        await _send(self.store, blob.id, 0, data)

    async def _stage(self, blob: Blob) -> Stage:
        return _Chunks(self.store, blob.id)

    async def _read(self, blob: Blob) -> AsyncGenerator[bytes, None]:
        first = 0
        while chunks := await self.store.chunks(blob.id, first=first, limit=_AT_ONCE):
            for chunk in chunks:
                yield chunk
            first += len(chunks)
            if len(chunks) < _AT_ONCE:
                break

    async def _read_part(self, blob: Blob, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        number = start // CHUNK
        while number * CHUNK < stop:
            wanted = min(_AT_ONCE, -(-stop // CHUNK) - number)
            for chunk in (chunks := await self.store.chunks(blob.id, first=number, limit=wanted)):
                at = number * CHUNK
                if len(chunk) != min(CHUNK, blob.size - at):
                    raise await self._damaged(blob, f"chunk {number} has {len(chunk)} bytes")
                yield chunk[max(0, start - at) : stop - at]
                number += 1
            if len(chunks) < wanted:
                raise await self._damaged(blob, f"chunk {number} is missing")

    async def _present(self, blob: Blob) -> bool:
        """Return True: the chunks are in the same database as the register."""
        del blob
        return True

    async def _remove(self, blob: Blob) -> None:
        while await self.store.delete_chunks(blob.id):
            pass

    def _named(self, blob: Blob, sha256: str, size: int, context: MediaContext) -> Blob:
        """Return the blob without a key: its chunks are found by its id."""
        del context
        return replace(blob, sha256=sha256, size=size)


class _Chunks(Stage):
    """Chunks of a blob that is not visible yet."""

    def __init__(self, store: Store, blob_id: str) -> None:
        self._store = store
        self._blob_id = blob_id
        self._number = 0
        self._waiting: list[bytes] = []

    async def write(self, data: bytes) -> None:
        self._waiting.append(data)
        if len(self._waiting) == _AT_ONCE:
            await self._flush()

    async def place(self, blob: Blob) -> None:
        del blob  # the chunks are already in place
        await self._flush()

    async def _flush(self) -> None:
        if self._waiting:
            await self._store.put_chunks(self._blob_id, self._number, self._waiting)
            self._number += len(self._waiting)
            self._waiting = []


async def _send(store: Store, blob_id: str, number: int, data: bytes) -> None:
    step = CHUNK * _AT_ONCE
    for start in range(0, len(data), step):
        part = data[start : start + step]
        bodies = [part[at : at + CHUNK] for at in range(0, len(part), CHUNK)]
        await store.put_chunks(blob_id, number + start // CHUNK, bodies)
