"""A move of media is killed at every step, and run again: it converges, and no content is lost or left twice."""

import asyncio
from pathlib import Path

import pytest

from holdfast.media import move, open_media
from holdfast.store import open_store
from tests.conftest import Boundaries, Engine
from tests.promises.driver import Cutters
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


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
