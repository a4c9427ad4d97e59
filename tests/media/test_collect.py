"""Garbage collection: what nobody refers to goes, on every store, whoever puts, pauses or dies meanwhile."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import Conflict
from holdfast.media import MediaStore, collect
from holdfast.media.media_store import CHUNK
from holdfast.store import Store, open_store
from holdfast.types import Batch, Lease
from tests.builders import held_session, new_session, until
from tests.media.conftest import Medium


def child(medium: Medium, verb: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.media.children", verb, medium.store_url, medium.url, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def facts(text: str | None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (text or "").splitlines()]


async def refer(store: Store, lease: Lease, uri: str) -> None:
    await store.write(lease, Batch(blobs=[uri.removeprefix("media+sha256://")]))


async def test_only_what_nobody_refers_to_goes(medium: Medium, store: Store, media: MediaStore):
    lease, holder = await held_session(store)
    other = await store.acquire(await new_session(store), holder)
    shared, own, loose = [await media.put(os.urandom(CHUNK + n)) for n in range(3)]
    for uri in (shared, own):
        await refer(store, lease, uri)
    await refer(store, other, shared)
    dry = await collect(media, grace=0, dry_run=True)
    assert (dry.blobs, dry.bytes, dry.dry_run) == (1, CHUNK + 2, True)
    assert await media.exists(loose)
    assert (await collect(media, grace=0)).blobs == 1
    assert [await media.exists(uri) for uri in (shared, own, loose)] == [True, True, False]
    while await store.delete_content(lease):
        pass
    assert (await collect(media, grace=0, limit=1)).blobs == 1
    assert [await media.exists(uri) for uri in (shared, own)] == [True, False]
    assert await medium.stored() == CHUNK
    assert await media.get(shared)


async def test_a_collection_leaves_the_content_of_other_databases_alone(
    medium: Medium, store: Store, media: MediaStore, tmp_path: Path
):
    """Two databases may share a folder or a bucket: what is deleted is what the register has a key of."""
    if media.location == "database":
        pytest.skip("it is in the database itself")
    lease, _ = await held_session(store)
    uri = await media.put(b"the same in both")
    await refer(store, lease, uri)
    async with open_store(f"sqlite:///{tmp_path}/other.db") as other:
        elsewhere = medium.open(other)
        assert await elsewhere.put(b"the same in both") == uri
        assert (await collect(elsewhere, grace=0)).blobs == 1
        assert not await elsewhere.exists(uri)
    assert await media.get(uri) == b"the same in both"


async def test_what_was_put_lately_is_left_alone(media: MediaStore):
    uri = await media.put(b"young")
    assert (await collect(media, grace=60)).blobs == 0
    assert (await collect(media)).blobs == 0
    # Putting it again makes it young again, before the bytes are relied on.
    before = (await media.metadata(uri)).at
    await media.put(b"young")
    after = (await media.metadata(uri)).at
    assert before is not None
    assert after is not None
    assert after > before


async def test_a_collector_that_was_paused_harms_nothing_that_came_later(medium: Medium, media: MediaStore):
    uri = await media.put(os.urandom(0) + b"again and again")
    paused = (await media.store.mark_blobs_for_deletion(media.location, grace=0)).items
    assert len(paused) == 1
    assert not await media.exists(uri)
    assert await media.put(b"again and again") == uri  # while it is being deleted
    assert await media.get(uri) == b"again and again"
    # Another collector finishes what the paused one has begun; then the same content comes once more.
    assert (await collect(media, grace=3600)).blobs == 1
    await media.delete(uri)
    assert await media.put(b"again and again") == uri
    for blob in paused:
        await media.remove(blob)  # and now the first one goes on
    assert await media.get(uri) == b"again and again"
    assert await medium.stored() == len(b"again and again")


async def test_a_collection_that_was_cut_off_is_finished_by_the_next(medium: Medium, media: MediaStore):
    for n in range(5):
        await media.put(bytes([n]) * 2000)
    marked = (await media.store.mark_blobs_for_deletion(media.location, grace=0, limit=3)).items
    await media._remove(marked[0])  # its bytes are gone, its entry is not
    done = await collect(media, grace=0)
    assert (done.blobs, done.failed) == (5, ())
    assert await medium.stored() == 0
    assert (await media.store.blobs()).items == []


async def test_a_put_that_was_killed_is_invisible_and_collected(medium: Medium, media: MediaStore):
    process = child(medium, "hang")
    assert process.stdout is not None
    line = await asyncio.to_thread(process.stdout.readline)
    assert facts(line) == [{"begun": True}]
    (blob,) = (await media.store.blobs()).items
    assert blob.state == "storing"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (await media.list()).items == []
    assert (await collect(media, grace=0)).blobs == 0  # it may still be alive
    assert (await collect(media, grace=0, dead_after=0)).blobs == 1
    assert await medium.stored() == 0


async def test_a_put_that_was_taken_for_a_leftover_says_so_and_leaves_nothing(
    medium: Medium, media: MediaStore
):
    with pytest.raises(Conflict, match="upload it again"):  # noqa: PT012
        async with media.open() as writer:
            await writer.write(os.urandom(2 * CHUNK))
            assert (await collect(media, grace=0, dead_after=0)).blobs == 1
            await writer.write(os.urandom(4 * CHUNK))
    assert await medium.stored() == 0
    assert (await media.store.blobs()).items == []


async def test_puts_references_and_collections_at_once(medium: Medium, store: Store, media: MediaStore):
    """Tasks put and refer to the same few contents while two collectors with no grace at all go round."""
    stop = asyncio.Event()
    refused = 0

    async def work(number: int) -> Lease:
        nonlocal refused
        lease, _ = await held_session(store)
        for turn in range(12):
            while True:
                uri = await media.put(b"%d" % ((turn + number) % 3) * 20_000)
                try:
                    await refer(store, lease, uri)
                except Conflict:
                    refused += 1
                    continue
                break
            assert await media.get(uri) == b"%d" % ((turn + number) % 3) * 20_000
            if turn % 4 == 3 and turn < 11:
                while await store.delete_content(lease):
                    pass
        return lease

    async def gather() -> int:
        gone = 0
        while not stop.is_set():
            done = await collect(media, grace=0, limit=2)
            assert done.failed == ()
            gone += done.blobs
        return gone

    collectors = [asyncio.create_task(gather()) for _ in range(2)]
    leases = await asyncio.gather(*map(work, range(4)))
    stop.set()
    await asyncio.gather(*collectors)
    for lease in leases:
        for _, sha256 in await store.references(session_id=lease.session_id):
            assert await media.get(f"media+sha256://{sha256}")
    await collect(media, grace=0)
    kept = (await media.list()).items
    assert await medium.stored() == sum(blob.size for blob in kept)
    assert all(blob.references for blob in kept)


@pytest.mark.thorough
async def test_processes_that_put_refer_and_collect(medium: Medium, store: Store, media: MediaStore):
    sessions = [await new_session(store) for _ in range(3)]
    collectors = [child(medium, "gather") for _ in range(2)]
    writers = [child(medium, "refer", session_id, "9") for session_id in sessions]
    said = [facts((await asyncio.to_thread(writer.communicate))[0]) for writer in writers]
    gone = [facts((await asyncio.to_thread(collector.communicate, "stop\n"))[0]) for collector in collectors]
    assert [writer.returncode for writer in (*writers, *collectors)] == [0] * 5
    assert all(len(lines) == 12 for lines in said)
    assert sum(lines[0]["blobs"] for lines in gone) > 0
    await collect(media, grace=0)
    for session_id in sessions:
        for _, sha256 in await store.references(session_id=session_id):
            assert await media.get(f"media+sha256://{sha256}")
    assert await medium.stored() == sum(blob.size for blob in (await media.list()).items)


async def test_processes_that_put_the_same_at_once(medium: Medium, media: MediaStore):
    processes = [child(medium, "put", "same", "5") for _ in range(3)]
    said = [facts((await asyncio.to_thread(process.communicate))[0]) for process in processes]
    (uri,) = {line["uri"] for lines in said for line in lines}
    assert await media.get(uri) == b"same" * 100_000
    assert await medium.stored() == 400_000
    assert len((await media.store.blobs()).items) == 1


async def test_the_file_shrinks(medium: Medium, media: MediaStore):
    if medium.name != "sqlite":
        return
    file = medium.folder / "store.db"
    await media.put(os.urandom(20 * CHUNK))
    await media.store.shrink(limit=1)
    assert file.stat().st_size > 20 * CHUNK
    await collect(media, grace=0)

    async def is_small() -> bool:
        return file.stat().st_size < CHUNK

    await until(is_small)
