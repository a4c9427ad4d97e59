"""What every media store does: one suite, on disk, SQLite, PostgreSQL and a real S3 server."""

import asyncio
import hashlib
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import BadInput, BadUri, Conflict, MediaDamaged, MediaNotFound
from holdfast.media import MediaContext, MediaStore, to_uri
from holdfast.media.base import CHUNK
from holdfast.store import Store
from holdfast.types import Batch, Blob
from tests.builders import held_session
from tests.media.conftest import Medium

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NOWHERE = to_uri("0" * 64)
SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 7]


@pytest.mark.parametrize("size", SIZES)
async def test_what_was_put_comes_back(medium: Medium, media: MediaStore, size: int):
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
    assert await medium.stored() == size
    await media.delete(uri)
    assert not await media.exists(uri)
    assert await medium.stored() == 0
    assert (await media.store.blobs()).items == []


@pytest.mark.parametrize("size", [0, 1, CHUNK, 9 * CHUNK + 1])
async def test_streams_in_both_directions(medium: Medium, media: MediaStore, size: int):
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
    assert await medium.stored() == size


async def test_the_same_content_is_stored_once(medium: Medium, media: MediaStore):
    data = os.urandom(2 * CHUNK)
    first = await media.put(data, MediaContext(media_type="image/png"))
    assert await media.put(data, MediaContext(media_type="image/jpeg")) == first
    async with media.open() as writer:
        await writer.write(data)
    assert writer.uri == first
    assert (await media.metadata(first)).media_type == "image/png"
    assert len((await media.list()).items) == 1
    assert await medium.stored() == len(data)


async def test_many_who_put_the_same_at_once_store_it_once(medium: Medium, media: MediaStore):
    data = os.urandom(CHUNK + 1)

    async def stream() -> str:
        async with media.open() as writer:
            await writer.write(data)
        return writer.uri

    uris = await asyncio.gather(*(media.put(data) for _ in range(8)), *(stream() for _ in range(4)))
    assert len(set(uris)) == 1
    assert await media.get(uris[0]) == data
    assert await medium.stored() == len(data)
    assert len((await media.store.blobs()).items) == 1


async def test_a_stream_that_breaks_off_leaves_nothing(medium: Medium, media: MediaStore):
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
    assert await medium.stored() == 0


async def test_lists_in_pages(media: MediaStore):
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
async def test_a_bad_uri_is_refused(media: MediaStore, uri: str):
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


async def test_what_is_not_there_is_said_by_name(media: MediaStore):
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


@pytest.mark.parametrize("size", [1000, 3 * CHUNK])
async def test_damage_is_an_error_that_names_it_and_never_wrong_bytes(
    medium: Medium, media: MediaStore, size: int
):
    data = os.urandom(size)
    uri = await media.put(data)
    blob = await media.metadata(uri)
    other = bytes([data[0] ^ 1]) + data[1:]
    for wrong in (other, data[:-1], data + b"x", b""):
        await medium.damage(blob, wrong)
        with pytest.raises(MediaDamaged, match=re.escape(uri)):
            await media.get(uri)
        handed_out = b""
        with pytest.raises(MediaDamaged):  # noqa: PT012
            async with media.open(uri) as chunks:
                async for chunk in chunks:
                    handed_out += chunk
        assert len(handed_out) < max(len(wrong), 1)
    await medium.damage(blob, data)
    assert await media.get(uri) == data


@pytest.mark.parametrize("size", [1000, 3 * CHUNK + 7])
async def test_a_part_is_exact_and_its_length_is_checked(medium: Medium, media: MediaStore, size: int):
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
    await medium.damage(await media.metadata(uri), data[:-1])
    with pytest.raises(MediaDamaged):  # noqa: PT012
        async with media.part(uri, 1, size) as chunks:
            async for _ in chunks:
                pass


async def test_lost_bytes_are_seen_and_putting_them_again_heals(medium: Medium, media: MediaStore):
    data = os.urandom(1000)
    uri = await media.put(data)
    await medium.damage(await media.metadata(uri), data[:-1])
    if medium.url == "database":  # bytes and register are one: it takes a person to say that they are not
        await media.delete(uri)
        assert await media.put(data) == uri
        assert await media.get(uri) == data
        return
    assert not await media.exists(uri)
    assert await media.put(data) == uri
    assert await media.get(uri) == data
    await medium.damage(await media.metadata(uri), data[:-1])
    async with media.open() as writer:
        await writer.write(data)
    assert await media.get(writer.uri) == data


async def test_what_a_session_refers_to_cannot_be_deleted(store: Store, media: MediaStore):
    uri = await media.put(b"kept")
    lease, _ = await held_session(store)
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


async def test_a_reference_is_found_by_content_and_owner(store: Store, media: MediaStore):
    sha256 = (await media.put(b"shared")).removeprefix("media+sha256://")
    holder = await store.join("test")
    for number, owner in enumerate(("ada", "ada", "eve", "joe")):
        session_id = (await store.create_session(agent="agent", owner=owner)).id
        if number in {1, 2}:
            lease = await store.acquire(session_id, holder)
            await store.write(lease, Batch(blobs=[sha256]))
            await store.release(lease)
    owners = (None, "ada", "eve", "joe", "nobody")
    found = [await store.is_referenced(sha256, owner=owner) for owner in owners]
    assert found == [True, True, True, False, False]
    assert [await store.is_referenced("0" * 64, owner=owner) for owner in owners] == [False] * 5


async def test_a_reference_to_what_is_not_stored_is_refused(store: Store, media: MediaStore):
    lease, _ = await held_session(store)
    stored = (await media.put(b"there")).removeprefix("media+sha256://")
    with pytest.raises(Conflict, match="0000"):
        await store.write(lease, Batch(blobs=[stored, "0" * 64]))
    assert await store.references(session_id=lease.session_id) == []
    half = replace(await media.store.blob(media.location, stored), id="half", sha256="1" * 64)
    await store.put_blob(half)
    with pytest.raises(Conflict):
        await store.write(lease, Batch(blobs=["1" * 64]))
    await store.forget_blob("half")
    await store.write(lease, Batch(blobs=[stored]))


async def test_public_urls(medium: Medium, media: MediaStore):
    uri = await media.put(b"seen")
    assert await media.public_url(uri) is None
    blob = await media.metadata(uri)
    media._public_url = "https://cdn.example/m/"
    url = await media.public_url(uri)
    assert url == f"https://cdn.example/m/{blob.key or blob.sha256}"

    def at_once(found: Blob) -> str:
        return f"https://a.example/{found.sha256}"

    media._public_url = at_once
    assert await media.public_url(uri) == f"https://a.example/{blob.sha256}"

    async def later(found: object) -> str | None:
        await asyncio.sleep(0)
        return None

    media._public_url = later
    assert await media.public_url(uri) is None
