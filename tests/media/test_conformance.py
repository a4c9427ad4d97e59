"""What every media store does: one suite, on disk, SQLite, PostgreSQL and a real S3 server."""

import asyncio
import os
import re
from dataclasses import replace

import pytest

from holdfast.errors import Conflict, MediaDamaged
from holdfast.media import MediaStore
from holdfast.media.media_store import CHUNK
from holdfast.store import Store
from holdfast.testing.media import MediaConformance, Stored
from holdfast.types import Batch, Blob
from tests.builders import held_session
from tests.media.conftest import Medium


class TestConformance(MediaConformance):
    @pytest.fixture
    def stored(self, medium: Medium) -> Stored:
        return medium.stored


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
async def test_the_length_of_a_part_is_checked(medium: Medium, media: MediaStore, size: int):
    data = os.urandom(size)
    uri = await media.put(data)
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
    await store.delete_blob_entry("half")
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
