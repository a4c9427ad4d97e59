"""The base of media stores: bytes that are uploaded once, named by their SHA-256, and verified when they are read completely.

The register in the session database records what is stored where. A media store only moves bytes: it never decides what
is kept, and no two uploads share a key.
"""

import asyncio
import hashlib
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from types import TracebackType
from typing import ClassVar, Final, Protocol, Self, TypeAlias, overload
from urllib.parse import quote

from holdfast.errors import BadInput, BadKey, BadUri, HoldfastError, MediaDamaged, MediaNotFound
from holdfast.ids import new_id
from holdfast.store import Store
from holdfast.types import Blob, Json, Page

CHUNK: Final = 1024 * 1024
"""The size of the pieces in which bytes are moved."""
_BEAT_SECONDS = 30.0
"""How often an upload in progress updates its entry."""
DEAD_SECONDS: Final = 120.0
"""An upload that has not updated its entry for this long counts as dead, and its leftovers are collected."""
_SMALL = 64 * 1024
_LONGEST_KEY = 800
_LONGEST_NAME = 200
_LONGEST_FILE_NAME = 1000
_LARGEST_METADATA = 16 * 1024
_ODD = re.compile(r'[\\:*?"<>|]')
_URI = re.compile(r"media\+sha256://([0-9a-f]{64})")
_MEDIA_TYPE = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,254}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaContext:
    """Facts about some content besides its bytes. Fields may be added; every field has a default."""

    media_type: str = "application/octet-stream"
    file_name: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])

    def checked(self) -> Json:
        """Return the metadata as JSON. Raise `BadInput` if a value is invalid or too long."""
        metadata = json.dumps(dict(self.metadata))
        if not _MEDIA_TYPE.fullmatch(self.media_type):
            raise BadInput(problem=f"{self.media_type!r:.200} is not a valid media type")
        if len(self.file_name or "") > _LONGEST_FILE_NAME:
            raise BadInput(problem=f"the file name of media may have at most {_LONGEST_FILE_NAME} characters")
        if len(metadata) > _LARGEST_METADATA:
            raise BadInput(
                problem=f"the metadata of media may have at most {_LARGEST_METADATA} bytes as JSON"
            )
        return metadata


ANY: Final = MediaContext()


def context_of(blob: Blob) -> MediaContext:
    """Return the context of some content from the register, to store it elsewhere."""
    metadata: dict[str, str] = json.loads(blob.metadata)
    return MediaContext(media_type=blob.media_type, file_name=blob.file_name, metadata=metadata)


KeyStrategy: TypeAlias = Callable[[str, MediaContext], str]
"""Returns the key for the content with this SHA-256; the store adds a unique suffix."""

PublicUrl: TypeAlias = str | Callable[[Blob], str | Awaitable[str | None] | None]
"""The public URL of blobs: a base URL to which the key is appended, or a function that returns the URL, if any."""


def to_uri(sha256: str) -> str:
    """Return the URI of the content with this digest."""
    return f"media+sha256://{sha256}"


def digest_of(uri: str) -> str:
    """Return the digest that a URI names. Raises `BadUri`."""
    match = _URI.fullmatch(uri) if isinstance(uri, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if match is None:
        raise BadUri(uri=uri)
    return match[1]


def by_digest(sha256: str, context: MediaContext) -> str:
    """Return the default key: the digest, in folders by its first two digits."""
    del context
    return f"{sha256[:2]}/{sha256}"


def check_key(key: str, location: str) -> str:
    """Return the key if it is a safe relative path on every system, else raise `BadKey`."""
    problem = None
    if not isinstance(key, str) or not key or len(key) > _LONGEST_KEY:  # pyright: ignore[reportUnnecessaryIsInstance]
        problem = f"it must have 1 to {_LONGEST_KEY} characters"
    elif key.startswith("/"):
        problem = "it is an absolute path"
    elif not key.isprintable() or _ODD.search(key):
        problem = 'it has a control character or one of \\ : * ? " < > |'
    else:
        for part in key.split("/"):
            if not part or part.startswith(".") or part[-1] in ". " or len(part.encode()) > _LONGEST_NAME:
                problem = f"{part!r} is not a valid name of a file or folder"
    if problem:
        raise BadKey(key=key, location=location, problem=problem)
    return key


def own_key(key: str, blob_id: str) -> str:
    """Return the key with a suffix that makes it unique to this upload, before the file extension."""
    path = PurePosixPath(key)
    return str(path.with_name(f"{path.stem}~{blob_id.replace('-', '')}{path.suffix}"))


class Digest(Protocol):
    """An object that digests bytes incrementally."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add bytes."""
        ...


async def add_to(digest: Digest, data: bytes | memoryview) -> None:
    """Digest the bytes, on a thread if there are many."""
    if len(data) < _SMALL:
        digest.update(data)
    else:
        await asyncio.to_thread(digest.update, data)


class Stage(ABC):
    """Bytes of an upload, invisible until they are placed."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Add bytes."""

    @abstractmethod
    async def place(self, blob: Blob) -> None:
        """Move them durably to the blob's key."""

    async def close(self) -> None:  # noqa: B027
        """Release temporary resources; the bytes themselves are removed with the blob."""


class MediaStore(ABC):
    """Content by its SHA-256. `store` has the register of all blobs; see `open_media`."""

    opener: ClassVar[Callable[..., "MediaStore"]]
    """Opens the media store at a URL. The package sets it to `open_media`, which imports the engines; this module imports none."""

    def __init__(
        self,
        store: Store,
        location: str,
        *,
        key_strategy: KeyStrategy = by_digest,
        public_url: PublicUrl | None = None,
    ) -> None:
        self.store = store
        self.location = location
        self._key_strategy = key_strategy
        self._public_url = public_url

    async def put(self, data: bytes, context: MediaContext = ANY) -> str:
        """Store the bytes durably and return their URI. Content that is already stored is not stored again.

        If the same content is put several times, the context of the first is kept.
        """
        digest = hashlib.sha256()
        await add_to(digest, data)
        blob = self._named(self._new(context), digest.hexdigest(), len(data), context)
        return await self._put(blob, data)

    async def get(self, uri: str, context: MediaContext = ANY) -> bytes:
        """Return the bytes. Raises `MediaNotFound`, or `MediaDamaged` if they have changed."""
        async with self.open(uri, context=context) as chunks:
            return b"".join([chunk async for chunk in chunks])

    @overload
    def open(
        self, uri: str, *, context: MediaContext = ANY
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...

    @overload
    def open(self, uri: None = None, *, context: MediaContext = ANY) -> "MediaWriter": ...

    def open(
        self, uri: str | None = None, *, context: MediaContext = ANY
    ) -> "AbstractAsyncContextManager[AsyncIterator[bytes]] | MediaWriter":
        """Stream: `async with media.open(uri) as chunks` reads, `async with media.open() as writer` writes.

        A reader gets the last chunk only if the digest of the whole is correct. Written content is stored when the
        block has ended without an error; `writer.uri` is its URI.
        """
        return MediaWriter(self, context) if uri is None else self._reading(digest_of(uri))

    def at(self, location: str) -> "MediaStore":
        """Return the media store of a location in the register: this one, or that of an earlier setting."""
        if location == self.location:
            return self
        scheme, _, rest = location.partition("://")
        url = f"disk://{quote(rest)}" if scheme == "disk" else location
        return type(self).opener(url, store=self.store)

    @asynccontextmanager
    async def part(
        self, uri: str, start: int, stop: int, *, context: MediaContext = ANY
    ) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """Stream the bytes from `start` up to, but not including, `stop`, without reading the others.

        A part cannot be checked against the digest; only the length of the content is checked.
        Raises `MediaNotFound`, or `MediaDamaged` if the length is wrong.
        """
        del context
        blob = await self.metadata(uri)
        if not 0 <= start < stop <= blob.size:
            raise BadInput(
                problem=f"{uri} has bytes 0 to {blob.size - 1}, so it has no part {start} to {stop - 1}"
            )
        media = self.at(blob.location)
        async with aclosing(
            self._content(blob) if (start, stop) == (0, blob.size) else media._read_part(blob, start, stop)  # noqa: SLF001
        ) as chunks:
            yield chunks

    async def exists(self, uri: str, context: MediaContext = ANY) -> bool:
        """Return whether the content is stored and its bytes exist in full length."""
        del context
        try:
            blob = await self.metadata(uri)
        except MediaNotFound:
            return False
        return await self.at(blob.location)._present(blob)  # noqa: SLF001

    async def metadata(self, uri: str, context: MediaContext = ANY) -> Blob:
        """Return the blob of the content in any location of the register. Raises `MediaNotFound`."""
        del context
        return await self.store.blob(self.location, digest_of(uri), elsewhere=True)

    async def public_url(self, uri: str, context: MediaContext = ANY) -> str | None:
        """Return a public URL of the content, if this store has one. Raises `MediaNotFound`."""
        del context
        blob = await self.metadata(uri)
        if self._public_url is None or blob.location != self.location:
            return None
        if isinstance(self._public_url, str):
            return f"{self._public_url.rstrip('/')}/{quote(blob.key or blob.sha256)}"
        result = self._public_url(blob)
        return await result if inspect.isawaitable(result) else result

    async def delete(self, uri: str, context: MediaContext = ANY) -> None:
        """Delete content that no session refers to, else raise `Conflict`. Raises `MediaNotFound`."""
        del context
        await self.remove(await self.store.mark_blob_for_deletion(self.location, digest_of(uri)))

    async def list(
        self, *, cursor: str | None = None, limit: int = 50, context: MediaContext = ANY
    ) -> Page[Blob]:
        """List the stored blobs in the order in which they were first uploaded."""
        del context
        return await self.store.blobs(location=self.location, state="stored", cursor=cursor, limit=limit)

    async def remove(self, blob: Blob) -> None:
        """Delete the bytes of a blob that the register has marked for deletion, then its entry. Idempotent."""
        await self._remove(blob)
        await self.store.delete_blob_entry(blob.id)

    # Implemented by each media store

    @abstractmethod
    async def _write(self, blob: Blob, data: bytes) -> None:
        """Store all bytes durably under the blob's key, or none."""

    @abstractmethod
    async def _stage(self, blob: Blob) -> Stage:
        """Return a stage for the bytes of a blob that is streamed in."""

    @abstractmethod
    def _read(self, blob: Blob) -> AsyncGenerator[bytes, None]:
        """Yield the stored bytes. Raises `MediaNotFound`."""

    @abstractmethod
    def _read_part(self, blob: Blob, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Yield this part of the stored bytes. Raises `MediaNotFound`, or the error of `_resized`."""

    @abstractmethod
    async def _present(self, blob: Blob) -> bool:
        """Return whether the bytes exist in full length, without reading them."""

    @abstractmethod
    async def _remove(self, blob: Blob) -> None:
        """Delete all bytes of the blob, including staged ones, if any."""

    # Keep the bytes and the register consistent

    async def _put(self, blob: Blob, data: bytes) -> str:
        result = await self.store.put_blob(blob)
        replaces = None
        if result.id != blob.id:
            if await self._present(result):
                return result.uri
            replaces = result.id  # its bytes are lost, and stored again here
            await self.store.put_blob(blob, reuse=False)
        return await self.settle(blob, lambda: self._write(blob, data), replaces=replaces)

    async def settle(
        self, blob: Blob, work: Callable[[], Awaitable[None]], *, replaces: str | None = None
    ) -> str:
        """Store the bytes of a registered blob and record that in the register; if that fails, clean up."""
        beating = self.beat(blob)
        try:
            await work()
            kept = await self.store.mark_blob_stored(blob, replaces=replaces)
        except BaseException:
            await self._give_up(blob)
            raise
        finally:
            beating.cancel()
        if kept.id != blob.id:
            await self.discard(blob)
        return kept.uri

    async def discard(self, blob: Blob) -> None:
        """Delete the bytes of a blob that is not kept. If that fails, the collector deletes them later."""
        with suppress(HoldfastError):
            if await self.store.abandon_blob(blob.id):
                await self.remove(blob)

    async def _give_up(self, blob: Blob) -> None:
        """Clean up after a failed upload."""
        await self.discard(blob)

    def beat(self, blob: Blob) -> "asyncio.Task[None]":
        """Start a task that regularly updates the entry of a blob that is being uploaded, until it is cancelled."""

        async def update() -> None:
            while True:
                await asyncio.sleep(_BEAT_SECONDS)
                with suppress(HoldfastError):  # if this matters, the end of the upload fails
                    await self.store.touch_blob(blob.id)

        return asyncio.create_task(update())

    def _new(self, context: MediaContext) -> Blob:
        return Blob(
            id=new_id(),
            location=self.location,
            media_type=context.media_type,
            file_name=context.file_name,
            metadata=context.checked(),
        )

    def _named(self, blob: Blob, sha256: str, size: int, context: MediaContext) -> Blob:
        key = own_key(check_key(self._key_strategy(sha256, context), self.location), blob.id)
        return replace(blob, sha256=sha256, size=size, key=check_key(key, self.location))

    async def _find(self, uri: str) -> Blob:
        return await self.store.blob(self.location, digest_of(uri))

    @asynccontextmanager
    async def _reading(self, sha256: str) -> AsyncGenerator[AsyncIterator[bytes], None]:
        blob = await self.metadata(to_uri(sha256))
        async with aclosing(self._content(blob)) as chunks:
            yield chunks

    async def _content(self, blob: Blob) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from their location in the register; if they are moved meanwhile, continue at the new location."""
        sent = 0
        while True:
            left = sent
            try:
                async with aclosing(self.at(blob.location)._verified(blob)) as chunks:  # noqa: SLF001
                    async for chunk in chunks:
                        new = chunk[left:]
                        left = max(0, left - len(chunk))
                        if new:
                            sent += len(new)
                            yield new
            except MediaNotFound:
                now = await self.metadata(blob.uri)
                if now.id == blob.id:
                    raise
                blob = now
            else:
                return

    async def _verified(self, blob: Blob) -> AsyncGenerator[bytes, None]:
        digest = hashlib.sha256()
        size = 0
        last: bytes | None = None
        async with aclosing(self._read(blob)) as chunks:
            async for chunk in chunks:
                if last is not None:
                    yield last
                last = chunk
                size += len(chunk)
                await add_to(digest, chunk)
        if size != blob.size:
            raise await self._resized(blob, size)
        if digest.hexdigest() != blob.sha256:
            raise await self._damaged(blob, "they have a different SHA-256")
        if last is not None:
            yield last

    async def _resized(self, blob: Blob, size: int) -> HoldfastError:
        return await self._damaged(blob, f"it has {size} bytes, not {blob.size}")

    async def _damaged(self, blob: Blob, problem: str) -> HoldfastError:
        """Return the error for wrong bytes, which may have been deleted while they were read."""
        try:
            now = await self._find(blob.uri)
        except MediaNotFound as gone:
            return gone
        if now.id != blob.id:
            return MediaNotFound(uri=blob.uri, location=self.location)
        return MediaDamaged(uri=blob.uri, location=self.location, problem=problem)


class MediaWriter:
    """A stream that stores content. After the block, `uri` is its URI; after an error, nothing is stored."""

    def __init__(self, media: MediaStore, context: MediaContext) -> None:
        self.uri = ""
        self._media = media
        self._context = context
        self._digest = hashlib.sha256()
        self._size = 0
        self._waiting = bytearray()

    async def __aenter__(self) -> Self:
        media = self._media
        self._blob = await media.store.put_blob(media._new(self._context))  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        try:
            self._stage = await media._stage(self._blob)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        except BaseException:
            await media.discard(self._blob)
            raise
        self._beating = media.beat(self._blob)
        return self

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Add any number of bytes."""
        view = memoryview(data)
        while view:
            room = CHUNK - len(self._waiting)
            self._waiting += view[:room]
            view = view[room:]
            if len(self._waiting) == CHUNK:
                await self._flush()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self._finish()
            else:
                await self._media.discard(self._blob)
        finally:
            self._beating.cancel()
            await self._stage.close()

    async def _flush(self) -> None:
        if self._waiting:
            chunk = bytes(self._waiting)
            self._waiting.clear()
            self._size += len(chunk)
            await add_to(self._digest, chunk)
            await self._stage.write(chunk)

    async def _finish(self) -> None:
        media = self._media
        replaces = None
        try:
            await self._flush()
            blob = media._named(self._blob, self._digest.hexdigest(), self._size, self._context)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
            result = await media.store.set_blob_digest(blob)
            if result.id != blob.id:
                if await media._present(result):  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
                    await media.discard(self._blob)
                    self.uri = result.uri
                    return
                replaces = result.id
                await media.store.set_blob_digest(blob, reuse=False)
        except BaseException:
            await media.discard(self._blob)
            raise
        self.uri = await media.settle(blob, lambda: self._stage.place(blob), replaces=replaces)
