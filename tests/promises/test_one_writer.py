"""Promise 2: only the newest lease writes, however long the one before it was paused."""

import asyncio
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import Store, open_store
from tests.builders import within
from tests.conftest import Engine
from tests.promises.workers import WorkerProcess, lines, worker
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
            async with within(store, 20):
                while not any("is lost" in line or "is not valid" in line for line in first.said):
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


async def test_a_tool_that_blocks_its_worker_for_long_does_not_freeze_other_sessions(
    engine: Engine, store: Store, tmp_path: Path
):
    """Its worker stops renewing, and another one continues all its sessions while it is still blocked."""
    blocking, beside = [(await store.create_session(agent="agent", owner="you")).id for _ in range(2)]
    async with worker(engine.url, hold=60, loop_timeout_seconds="1", **SHORT) as blocked:
        other = await send(store, beside, f"work 1 {tmp_path / 'beside'}")
        await lines(tmp_path / "beside", 1)
        message = await send(store, blocking, f"stall {tmp_path / 'stalled'}")
        await lines(tmp_path / "stalled", 1)
        async with worker(engine.url, **SHORT):
            for sent in (other, message):
                assert (await ended(store, sent)).state == "done"
        blocked.signal(signal.SIGKILL)
        await blocked.ended()
    assert any("has been blocked for" in line for line in blocked.said)
    assert "takeover" in await kinds(store, beside)
    assert len((tmp_path / "stalled").read_text().splitlines()) == 1


@pytest.mark.thorough("postgres")
@pytest.mark.parametrize("engine", ["postgres", "mongodb"], indirect=True)
@pytest.mark.parametrize("skew", ["3600", "-3600"])
async def test_a_worker_whose_clock_is_wrong_by_an_hour(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, skew: str
):
    """Deadlines are on the database's clock: a wrong one neither takes what others hold nor loses what it holds."""
    url = engine.url
    async with open_store(url) as store:
        sessions = [(await store.create_session(agent="agent", owner="you")).id for _ in range(2)]
        async with worker(url, "--concurrency", "1", hold=1, **SHORT) as right:
            held = await send(store, sessions[0], f"work 5 {tmp_path / 'right'}")
            await lines(tmp_path / "right", 1)
            monkeypatch.setenv("SKEW", skew)
            monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "skewed"))
            async with worker(url, "--concurrency", "1", "--name", "skewed", hold=1, **SHORT) as skewed:
                assert abs((_said_at(skewed) - _said_at(right)).total_seconds()) > 3000
                own = await send(store, sessions[1], f"work 5 {tmp_path / 'wrong'}")
                for message in (held, own):
                    assert (await ended(store, message)).state == "done"
                (wrong,) = [holder for holder in await store.holders() if holder.name == "skewed"]
                assert (
                    abs((wrong.deadline - (await store.session(sessions[1])).active_at).total_seconds()) < 60
                )
        for session in sessions:
            assert not {"takeover", "recovered", "run_failed"} & set(await kinds(store, session))
        assert await store.check() == []
    for name in ("right", "wrong"):
        assert [line.split()[0] for line in (tmp_path / name).read_text().splitlines()] == list("01234")


def _said_at(process: WorkerProcess) -> datetime:
    """Return the time that a worker gave its first line."""
    return datetime.strptime(process.said[0][:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
