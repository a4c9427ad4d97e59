"""Promise 4. No blind repeat: a thread that works when its turn is stopped, or its worker is told to exit, is not run beside itself."""

import signal
from pathlib import Path

import pytest

from holdfast.store import open_store
from tests.builders import until
from tests.conftest import Engine
from tests.promises.workers import worker
from tests.runtime.agents import ended, send

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
_APP = "tests.promises.thread_agents:clerk"


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "notes"
    monkeypatch.setenv("THREAD_NOTES", str(file))
    file.touch()
    return file


def phases(notes: Path) -> list[str]:
    return [line.split()[0] for line in notes.read_text().splitlines()]


@pytest.mark.parametrize("signals", [1, 2])
async def test_a_worker_with_a_thread_that_hangs_exits_and_keeps_its_session_until_then(
    engine: Engine, notes: Path, signals: int
):
    async with open_store(engine.url) as store:
        session_id = (await store.create_session(agent="clerk", owner="you")).id
        async with worker(engine.url, "--grace", "0.2", hold=600, app=_APP) as first:
            await first.serving()
            sent = await send(store, session_id, "Pay!")

            async def has_begun() -> bool:
                return phases(notes) == ["begun"]

            await until(has_begun)
            async with worker(engine.url, hold=600, app=_APP) as second:
                await second.serving()
                first.signal(signal.SIGTERM)
                if signals == 2:

                    async def stops() -> bool:
                        return any("is stopping" in line for line in first.said)

                    await until(stops)
                    first.signal(signal.SIGTERM)
                assert await first.ended() == (3 if signals == 1 else 4)
                failed = await ended(store, sent)
        assert "unknown whether it took effect" in str(failed.reason)
        assert phases(notes) == ["begun"]
        assert await store.check() == []


async def test_a_turn_that_is_interrupted_and_killed_in_its_thread_is_not_repeated(
    engine: Engine, notes: Path
):
    async with open_store(engine.url) as store:
        session_id = (await store.create_session(agent="clerk", owner="you")).id
        async with worker(engine.url, hold=600, app=_APP) as first:
            await first.serving()
            sent = await send(store, session_id, "Pay!")

            async def has_begun() -> bool:
                return phases(notes) == ["begun"]

            await until(has_begun)
            await store.submit(session_id, "interrupt", "{}", lane="control")

            async def waits() -> bool:
                return "the thread of pay" in str((await store.session(session_id)).waiting_for)

            await until(waits)
            first.signal(signal.SIGKILL)
        async with worker(engine.url, hold=0, app=_APP):
            failed = await ended(store, sent)
        assert "unknown whether it took effect" in str(failed.reason)
        assert phases(notes) == ["begun"]
