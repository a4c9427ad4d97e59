"""Media is read from where the register has it, and moves to another location without a reader or a session noticing."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from holdfast.config import load_settings
from holdfast.errors import MediaNotFound
from holdfast.media import MediaStore, collect, move, open_media
from holdfast.media.media_store import CHUNK
from holdfast.record.offloader import MediaOffloader
from holdfast.retention import clean, rehydrate
from holdfast.store import Store, open_store
from holdfast.types import Batch, Message, Segment
from tests.builders import held_session
from tests.conftest import Engine
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export

LARGE = json.dumps("a long text " * 20_000)


def on_disk(store: Store, folder: Path) -> MediaStore:
    return open_media(f"disk://{folder}/a%20folder", store=store)


def files(folder: Path) -> list[Path]:
    found = (folder / "a folder").rglob("*")
    return [file for file in found if file.is_file() and file.suffix != ".json"]


@pytest.fixture
async def store(engine: Engine) -> AsyncGenerator[Store, None]:
    async with open_store(engine.url) as store:
        yield store
        assert await store.check() == []


async def test_content_of_an_earlier_setting_is_read_from_where_it_is(engine: Engine, tmp_path: Path):
    if not engine.shared:
        pytest.skip("the store is opened twice")
    async with open_store(engine.url) as store:
        lease, holder = await held_session(store)
        batch = Batch(segments=[Segment(number=1)], messages=[Message(segment=1, position=0, body=LARGE)])
        await MediaOffloader(store).write(batch, lambda whole: store.write(lease, whole))
        await store.leave(holder)
        archived = await fill(store, open_media(store=store), ["hello"], blobs=[b"picture"])
        before = await export(store, archived)
        await clean(store, open_media(store=store), archived, actor="test", force=True, archive="media")
    settings = load_settings(store=engine.url, media=f"disk://{tmp_path}/media")
    async with open_store(settings=settings) as store:
        (message,) = await store.history(lease.session_id, segment=1, length=1)
        assert message.body != LARGE
        assert await MediaOffloader(store).back([message.body]) == [LARGE]
        media = open_media(store=store)
        await rehydrate(store, media, archived, actor="test")
        assert await export(store, archived) == before
        (uri,) = {
            f"media+sha256://{digest}" for _, digest in await store.references(session_id=lease.session_id)
        }
        assert (await media.metadata(uri)).location == "database"
        assert await media.exists(uri)
        async with media.part(uri, 1, 4) as chunks:
            assert b"".join([chunk async for chunk in chunks]) == b" lo"
        await clean(store, media, lease.session_id, actor="test", force=True)
        await collect(media.at("database"), grace=0)
        with pytest.raises(MediaNotFound):
            await media.get(uri)


async def test_everything_moves_and_the_old_bytes_go(store: Store, tmp_path: Path):
    old = open_media(store=store)
    session_id = await fill(store, old, ["hello"], blobs=[b"one", b"two" * CHUNK])
    await clean(store, old, await fill(store, old, ["archived"]), actor="test", force=True, archive="media")
    before = await export(store, session_id)
    blobs = (await old.list()).items
    assert len(blobs) == 3
    target = on_disk(store, tmp_path)
    told: list[int] = []
    done = await move(target, progress=lambda now: told.append(now.blobs))
    assert (done.blobs, done.failed, told) == (3, (), [1, 2, 3])
    assert done.bytes == sum(blob.size for blob in blobs)
    assert len(files(tmp_path)) == 3
    assert (await old.list()).items == []
    assert [await store.chunks(blob.id, first=0, limit=1) for blob in blobs] == [[], [], []]
    kept = {
        (blob.sha256, blob.media_type, blob.file_name, blob.metadata) for blob in (await target.list()).items
    }
    assert kept == {(blob.sha256, blob.media_type, blob.file_name, blob.metadata) for blob in blobs}
    assert await export(store, session_id) == before
    assert (await move(target)).blobs == 0
    assert (await move(old)).blobs == 3, "and back"
    assert await export(store, session_id) == before
    assert files(tmp_path) == []


async def test_the_media_of_one_session_moves(store: Store, tmp_path: Path):
    old = open_media(store=store)
    one = await fill(store, old, ["hello"], blobs=[b"one", b"shared"])
    other = await fill(store, old, ["hello"], blobs=[b"other", b"shared"])
    before = [await export(store, session_id) for session_id in (one, other)]
    assert (await move(on_disk(store, tmp_path), session_id=one)).blobs == 2
    assert len((await old.list()).items) == 1
    assert [await export(store, session_id) for session_id in (one, other)] == before


async def test_a_reader_continues_while_its_content_moves(store: Store, tmp_path: Path):
    old = open_media(store=store)
    data = bytes(range(256)) * 4096 * 6
    session_id = await fill(store, old, ["hello"], blobs=[data])
    ((_, digest),) = await store.references(session_id=session_id)
    async with old.open(f"media+sha256://{digest}") as chunks:
        read = [await anext(chunks)]
        assert (await move(on_disk(store, tmp_path))).blobs == 1
        read += [chunk async for chunk in chunks]
    assert b"".join(read) == data


async def test_damaged_content_is_named_and_stays(store: Store, tmp_path: Path):
    disk = on_disk(store, tmp_path)
    session_id = await fill(store, disk, ["hello"], blobs=[b"one", b"two"])
    broken, *_ = files(tmp_path)
    broken.write_bytes(b"xyz")
    done = await move(open_media(store=store))
    assert done.blobs == 1
    assert ["SHA-256" in problem for problem in done.failed] == [True]
    assert files(tmp_path) == [broken]
    assert len(await store.references(session_id=session_id)) == 2
