"""Moving media and copying a store are killed at every step, and run again: they converge, and nothing is lost or done twice."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.errors import StoreInUse
from holdfast.media import move, open_media
from holdfast.retention import Copied, clean, copy
from holdfast.store import Store, open_store
from tests.builders import until
from tests.conftest import Boundaries, Engine
from tests.promises.driver import Cutters
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export
from tests.promises.test_retention_is_killed import freed
from tests.retention.test_copying import waiting_session

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
async def test_a_killed_move_of_media_is_continued(
    engine: Engine, cutters: Cutters, tmp_path: Path, boundaries: Boundaries
):
    folder = tmp_path / "media"
    async with open_store(engine.url) as store:
        media = open_media(store=store)
        session_id = await fill(store, media, ["hello"], blobs=[b"one", b"two" * 500_000])
        before = await export(store, session_id)
        killed, code = 0, -9
        for at in boundaries.steps(engine):
            code = await asyncio.to_thread(cutters.run, session_id, "move", at, folder)
            assert code in {0, -9}
            killed += code == -9
            assert await export(store, session_id) == before, "it is readable at every moment"
            target = open_media(f"disk://{folder}", store=store)
            await move(target)
            assert len((await target.list()).items) == 2
            assert (await media.list()).items == []
            assert await export(store, session_id) == before
            await move(media)
            leftovers = [blob for blob in (await store.blobs()).items if blob.state != "stored"]
            assert {blob.state for blob in leftovers} <= {"storing"}, "only what the collector takes"
            if code == 0:
                break
        assert code == 0
        assert killed >= 12 // boundaries.every


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
async def test_a_killed_copy_is_continued_and_no_session_is_open_twice(
    engine: Engine, cutters: Cutters, tmp_path: Path, boundaries: Boundaries
):
    async with open_store(engine.url) as store:
        media = open_media(store=store)
        plain = await fill(store, media, ["hello"], blobs=[b"one"])
        waiting, _ = await waiting_session(store)
        archived = await fill(store, media, ["archived"])
        await clean(store, media, archived, actor="test", force=True, archive="media")
        await store.add_token("0" * 64, owner="ada")
        before = {session_id: await export(store, session_id) for session_id in (plain, waiting)}
        killed, code = 0, -9
        for at in boundaries.steps(engine):
            file = tmp_path / f"target-{at}.db"
            code = await asyncio.to_thread(cutters.run, plain, "copy", at, file)
            assert code in {0, -9}
            killed += code == -9
            await freed(store, waiting)
            async with open_store(f"sqlite:///{file}") as target:
                is_there = waiting in {session.id for session in (await target.sessions()).items}
                status = (await store.session(waiting)).status
                assert status == "moved" or (status == "waiting" and not is_there)
                assert await export(store, waiting) == before[waiting], "whatever it is, it is readable"
                done = await unless_in_use(store, target)
                assert done.failed == ()
                assert {session_id: await export(target, session_id) for session_id in before} == before
                assert (await target.session(archived)).archive == (await store.session(archived)).archive
                assert await target.token("0" * 64) is not None
                assert (await store.session(waiting)).status == "moved"
                assert await target.check() == []
            assert await store.reopen_session(waiting)
            assert await store.check() == []
            if code == 0:
                break
        assert code == 0
        assert killed >= 20 // boundaries.every


async def unless_in_use(store: Store, target: Store) -> Copied:
    """Copy as soon as the process that was killed is known to be dead."""
    results: list[Copied] = []

    async def is_done() -> bool:
        with suppress(StoreInUse):
            results.append(await copy(store, target, actor="test"))
        return bool(results)

    await until(is_done)
    return results[0]
