"""Clean, rehydrate and erase are killed at every step, and tried again: they converge, and nothing is lost."""

import asyncio
from pathlib import Path

import pytest

from holdfast.errors import SessionNotFound
from holdfast.media import collect, open_media
from holdfast.retention import clean, erase, import_archive, rehydrate
from holdfast.store import Store, open_store
from tests.builders import until
from tests.conftest import Boundaries, Engine
from tests.promises.driver import Cutters
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


async def freed(store: Store, session_id: str) -> None:
    """Wait until the dead holder is known to be dead: a server that has just started takes its time to tell."""

    async def is_free() -> bool:
        await store.reclaim()
        found = [s for s in (await store.sessions(limit=1000)).items if s.id == session_id]
        return not found or found[0].holder is None

    await until(is_free)


async def whole(store: Store, session_id: str, before: bytes) -> None:
    assert await export(store, session_id) == before
    assert await store.check() == []


@pytest.mark.parametrize("action", ["clean", "rehydrate"])
async def test_a_killed_one_is_tried_again(
    engine: Engine, cutters: Cutters, tmp_path: Path, action: str, boundaries: Boundaries
):
    steps = boundaries.steps(engine)
    file = tmp_path / "archive"
    async with open_store(engine.url) as store:
        media = open_media(store=store)
        session_id = await fill(store, media, ["hello"] * 8, blobs=[b"one", b"two"])
        before = await export(store, session_id)
        file.write_bytes(before)
        killed, code = 0, -9
        for at in steps:
            if action == "rehydrate":
                await clean(store, media, session_id, actor="test", force=True)
            code = await asyncio.to_thread(cutters.run, session_id, action, at, file)
            assert code in {0, -9}
            await freed(store, session_id)
            killed += code == -9
            status = (await store.session(session_id)).status
            if action == "clean":
                # Whatever is left of it, the same command finishes it, and the archive has everything.
                await clean(store, media, session_id, actor="test", force=True, archive="media")
                await rehydrate(store, media, session_id, actor="test")
            else:
                # It is back, or as if nothing had been tried.
                assert status in {"cleaned", "idle"}
                if status == "cleaned":
                    assert await store.content_counts(session_id) == {}
                    with file.open("rb") as archive:
                        await rehydrate(store, media, session_id, archive, actor="test")
            await whole(store, session_id, before)
            if code == 0:
                break
        assert code == 0
        assert killed >= (20 if action == "clean" else 12) // steps.step


async def test_a_killed_import_is_whole_or_not_there(
    engine: Engine, cutters: Cutters, tmp_path: Path, boundaries: Boundaries
):
    steps = boundaries.steps(engine)
    file = tmp_path / "archive"
    async with open_store("sqlite://:memory:") as source, open_store(engine.url) as store:
        media = open_media(store=store)
        killed, code = 0, -9
        for at in steps:
            session_id = await fill(source, open_media(store=source), ["hello"] * 8, blobs=[b"one", b"two"])
            before = await export(source, session_id)
            file.write_bytes(before)
            code = await asyncio.to_thread(cutters.run, session_id, "import", at, file)
            assert code in {0, -9}
            killed += code == -9
            try:
                await store.session(session_id)
            except SessionNotFound:
                with file.open("rb") as archive:
                    await import_archive(store, media, archive, actor="test")
            await whole(store, session_id, before)
            if code == 0:
                break
        assert code == 0
        assert killed >= 12 // steps.step


async def test_a_killed_erasure_is_finished(
    engine: Engine, cutters: Cutters, tmp_path: Path, boundaries: Boundaries
):
    async with open_store(engine.url) as store:
        media = open_media(store=store)
        code = -9
        for at in boundaries.steps(engine):
            session_id = await fill(store, media, ["hello"] * 10, blobs=[b"one"])
            code = await asyncio.to_thread(cutters.run, session_id, "erase", at, tmp_path)
            await freed(store, session_id)
            await erase(store, media, session_id, actor="test")
            await collect(media, grace=0)
            assert (await media.list()).items == []
            assert await store.content_counts(session_id) == {}
            assert await store.check() == []
            assert await store.erased_at(session_id) is not None
            if code == 0:
                break
        assert code == 0
