"""The conformance suite of media stores. Subclass `MediaConformance` in your tests and define the fixture `media`."""

import asyncio
import hashlib
import os
import re
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from holdfast.errors import BadInput, BadUri, Conflict, MediaNotFound
from holdfast.media import MediaContext, MediaStore, to_uri
from holdfast.media.media_store import CHUNK
from holdfast.types import Batch

Stored = Callable[[], Awaitable[int]]
NOT_KNOWN: Final = -1
NOWHERE: Final = to_uri("0" * 64)
_SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 7]


@pytest.mark.asyncio
class MediaConformance:
    """The tests that every media store passes.

    A subclass defines the fixture `media`, which returns a new and empty media store on an open store. It may define the fixture
    `stored`: a coroutine function that returns the number of bytes in the media store's location, measured without the media
    store.
    """

    @pytest.fixture
    def stored(self) -> Stored:
        """Return a function that counts the stored bytes. By default they are not counted."""

        async def unknown() -> int:
            return NOT_KNOWN

        return unknown

    @pytest.mark.parametrize("size", _SIZES)
    async def test_content_comes_back(self, media: MediaStore, stored: Stored, size: int) -> None:
        data = os.urandom(size)
        context = MediaContext(media_type="image/png", file_name="zoë (1).png", metadata={"from": "ada ü"})
        uri = await media.put(data, context)
        assert uri == f"media+sha256://{hashlib.sha256(data).hexdigest()}"
        assert await media.get(uri) == data
        assert await media.exists(uri)
        blob = await media.metadata(uri)
        assert (blob.uri, blob.size, blob.media_type, blob.file_name) == (
            uri,
            size,
            "image/png",
            "zoë (1).png",
        )
        assert blob.metadata == '{"from": "ada \\u00fc"}'
        assert [found.uri for found in (await media.list()).items] == [uri]
        assert await stored() in {NOT_KNOWN, size}
        await media.delete(uri)
        assert not await media.exists(uri)
        assert await stored() in {NOT_KNOWN, 0}
        assert (await media.store.blobs()).items == []

    @pytest.mark.parametrize("size", [0, 1, CHUNK, 9 * CHUNK + 1])
    async def test_streams_in_both_directions(self, media: MediaStore, stored: Stored, size: int) -> None:
        data = os.urandom(size)
        async with media.open(context=MediaContext(media_type="audio/wav")) as writer:
            for start in range(0, size, 333_333):
                await writer.write(data[start : start + 333_333])
            assert not await media.exists(to_uri(hashlib.sha256(data).hexdigest()))
        assert await media.get(writer.uri) == data
        assert (await media.metadata(writer.uri)).media_type == "audio/wav"
        async with media.open(writer.uri) as chunks:
            read = [chunk async for chunk in chunks]
        assert b"".join(read) == data
        assert len(read) <= 1 or max(map(len, read)) < size
        assert await stored() in {NOT_KNOWN, size}

    async def test_the_same_content_is_stored_once(self, media: MediaStore, stored: Stored) -> None:
        data = os.urandom(2 * CHUNK)
        first = await media.put(data, MediaContext(media_type="image/png"))
        assert await media.put(data, MediaContext(media_type="image/jpeg")) == first
        async with media.open() as writer:
            await writer.write(data)
        assert writer.uri == first
        assert (await media.metadata(first)).media_type == "image/png"
        assert len((await media.list()).items) == 1
        assert await stored() in {NOT_KNOWN, len(data)}

    async def test_concurrent_puts_of_the_same_content_store_it_once(
        self, media: MediaStore, stored: Stored
    ) -> None:
        data = os.urandom(CHUNK + 1)

        async def stream() -> str:
            async with media.open() as writer:
                await writer.write(data)
            return writer.uri

        uris = await asyncio.gather(*(media.put(data) for _ in range(8)), *(stream() for _ in range(4)))
        assert len(set(uris)) == 1
        assert await media.get(uris[0]) == data
        assert await stored() in {NOT_KNOWN, len(data)}
        assert len((await media.store.blobs()).items) == 1

    async def test_a_stream_that_breaks_off_leaves_nothing(self, media: MediaStore, stored: Stored) -> None:
        async def feed(cancel: bool) -> None:
            async with media.open() as writer:
                await writer.write(os.urandom(6 * CHUNK))
                if cancel:
                    await asyncio.Event().wait()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await feed(False)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(feed(True), 1)
        assert (await media.store.blobs()).items == []
        assert await stored() in {NOT_KNOWN, 0}

    async def test_lists_in_pages(self, media: MediaStore) -> None:
        uris = [await media.put(bytes([n])) for n in range(7)]
        found: list[str] = []
        cursor = None
        while True:
            page = await media.list(cursor=cursor, limit=3)
            found += [blob.uri for blob in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == uris

    @pytest.mark.parametrize(
        "uri",
        [
            "",
            "media+sha256://",
            to_uri("A" * 64),
            to_uri("0" * 63),
            to_uri("0" * 64) + "\n",
            "file:///etc/passwd",
        ],
    )
    async def test_a_bad_uri_is_refused(self, media: MediaStore, uri: str) -> None:
        calls: list[Callable[[str], Awaitable[object]]] = [
            media.get,
            media.exists,
            media.metadata,
            media.public_url,
            media.delete,
        ]
        for call in calls:
            with pytest.raises(BadUri):
                await call(uri)
        with pytest.raises(BadUri):
            media.open(uri)

    async def test_missing_content_is_named(self, media: MediaStore) -> None:
        calls: list[Callable[[str], Awaitable[object]]] = [
            media.get,
            media.metadata,
            media.public_url,
            media.delete,
        ]
        for call in calls:
            with pytest.raises(MediaNotFound, match=re.escape(NOWHERE)):
                await call(NOWHERE)
        with pytest.raises(MediaNotFound):
            async with media.open(NOWHERE):
                pass
        assert not await media.exists(NOWHERE)

    async def test_content_that_a_session_refers_to_cannot_be_deleted(self, media: MediaStore) -> None:
        uri = await media.put(b"kept")
        store = media.store
        session = await store.create_session(agent="agent", owner="ada")
        lease = await store.acquire(session.id, await store.join("test", ttl=60))
        sha256 = uri.removeprefix("media+sha256://")
        for _ in range(2):
            await store.write(lease, Batch(blobs=[sha256, sha256]))
        assert (await media.metadata(uri)).references == 1
        assert await store.references(sha256=sha256) == [(lease.session_id, sha256)]
        assert await store.references(session_id=lease.session_id) == [(lease.session_id, sha256)]
        with pytest.raises(Conflict, match="refers to"):
            await media.delete(uri)
        while await store.delete_content(lease):
            pass
        await media.delete(uri)

    @pytest.mark.parametrize("size", [1000, 3 * CHUNK + 7])
    async def test_a_part_is_exact(self, media: MediaStore, size: int) -> None:
        data = os.urandom(size)
        uri = await media.put(data)
        borders = sorted(
            {0, 1, size // 2, size - 1, size, *(n for n in (CHUNK, CHUNK + 1, 2 * CHUNK) if n < size)}
        )
        for start in borders:
            for stop in (stop for stop in borders if stop > start):
                async with media.part(uri, start, stop) as chunks:
                    assert b"".join([chunk async for chunk in chunks]) == data[start:stop], (start, stop)
        for start, stop in ((-1, 5), (5, 5), (6, 5), (0, size + 1)):
            with pytest.raises(BadInput):
                await media.part(uri, start, stop).__aenter__()
        with pytest.raises(MediaNotFound):
            await media.part(NOWHERE, 0, 1).__aenter__()
