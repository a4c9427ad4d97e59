"""Promise 2: only the newest lease writes, however long the one before it was paused."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast import Store
from tests.conftest import Engine
from tests.promises.workers import lines, worker
from tests.runtime.agents import ended, is_kind, kinds, send, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
SHORT: dict[str, Any] = {"lease_ttl_seconds": 2, "lease_renew_seconds": 0.5}


async def test_a_paused_worker_is_fenced_and_notices(engine: Engine, store: Store, tmp_path: Path):
    session = (await store.create_session(agent="agent", owner="you")).id
    log = tmp_path / "log"
    async with worker(engine.url, hold=1, **SHORT) as first:
        message = await send(store, session, f"work 3 {log}")
        await lines(log, 1)
        first.signal(signal.SIGSTOP)
        async with worker(engine.url, **SHORT):
            assert (await ended(store, message)).state == "done"
            before = await kinds(store, session)
            first.signal(signal.SIGCONT)
            # It goes on with what it was doing, and is refused: nothing is written twice, and it serves again.
            async with asyncio.timeout(20):
                while not any("is lost" in line or "is not ours" in line for line in first.said):
                    await asyncio.sleep(0.05)
            assert (await ended(store, await send(store, session, "still there?"))).state == "done"
    found = log.read_text().split("\n")
    assert [line.split()[0] for line in found if line] == ["0", "1", "2"]
    after = await kinds(store, session)
    assert after[: len(before)] == before
    assert "takeover" in before
    assert "recovered" in before
    assert await store.check() == []


async def test_a_tool_that_blocks_the_loop_keeps_its_lease(engine: Engine, store: Store, tmp_path: Path):
    session = (await store.create_session(agent="agent", owner="you")).id
    log = tmp_path / "log"
    async with worker(engine.url, hold=5, **SHORT), worker(engine.url, **SHORT):
        message = await send(store, session, f"stall {log}")
        assert (await ended(store, message)).state == "done"
    assert len(log.read_text().splitlines()) == 1
    assert "takeover" not in await kinds(store, session)
    await until(store, session, is_kind("run_completed"))
