"""Promise 5: every accepted submission ends, whatever happens to the workers and the database."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast import Store, open_store
from tests.builders import within
from tests.conftest import ONLY_WITH_MONGOD, Engine
from tests.promises.workers import lines, worker
from tests.runtime.agents import ended, kinds, reread, send, texts
from tests.servers import mongo, postgres

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


async def test_a_killed_worker_is_replaced_at_once(engine: Engine, store: Store, tmp_path: Path):
    """Killed inside of a tool: another goes on, and the tool's effect is there once."""
    session = (await store.create_session(agent="agent", owner="you")).id
    log = tmp_path / "log"
    async with worker(engine.url, hold=60) as first:
        message = await send(store, session, f"work 2 {log}")
        await lines(log, 1)
        async with worker(engine.url):
            first.signal(signal.SIGKILL)
            killed = time.monotonic()
            assert (await ended(store, message)).state == "done"
            assert (
                time.monotonic() - killed < 8
            )  # not the deadline, which is 10 s away: its process is seen to be gone
    done = [line.split()[0] for line in log.read_text().splitlines()]
    assert done == ["0", "1"]
    told = await kinds(store, session)
    assert ("takeover" in told, "recovered" in told, "run_failed" in told) == (True, True, False)


async def test_a_clean_stop_hands_over_without_an_error(engine: Engine, store: Store, tmp_path: Path):
    session = (await store.create_session(agent="agent", owner="you")).id
    log = tmp_path / "log"
    async with worker(engine.url, hold=0.5) as first:
        message = await send(store, session, f"work 40 {log}")
        await lines(log, 1)
        first.signal(signal.SIGTERM)
        assert await first.ended() == 0
    async with worker(engine.url):
        assert (await ended(store, message)).state == "done"
    assert [line.split()[0] for line in log.read_text().splitlines()] == [str(n) for n in range(40)]
    told = await kinds(store, session)
    assert "handover" in told
    assert not {"takeover", "recovered", "run_failed", "run_interrupted"} & set(told)
    assert (await reread(store, message)).attempts == 1


async def test_a_stop_that_takes_too_long_is_cut_off(engine: Engine, store: Store, tmp_path: Path):
    session = (await store.create_session(agent="agent", owner="you")).id
    log = tmp_path / "log"
    async with worker(engine.url, "--grace", "0.3", hold=60) as first:
        message = await send(store, session, f"work 1 {log}")
        await lines(log, 1)
        first.signal(signal.SIGTERM)
        assert await first.ended() == 3
    async with worker(engine.url):
        assert (await ended(store, message)).state == "done"
    assert len(log.read_text().splitlines()) == 1  # its outcome is unknown, and the model was told so
    assert "handover" in await kinds(store, session)


async def test_a_poison_message_does_not_loop(engine: Engine, store: Store, tmp_path: Path):
    """A message whose run kills its worker, again and again, is given up with a reason; the session goes on."""
    session = (await store.create_session(agent="agent", owner="you")).id
    log = tmp_path / "log"
    message = await send(store, session, f"work 9 {log}")
    for attempt in range(
        1, 7
    ):  # the first one does not count: it made progress, and its tool was cut off once
        async with worker(engine.url, hold=60) as doomed:
            await lines(log, attempt)
            doomed.signal(signal.SIGKILL)
            await doomed.ended()
    async with worker(engine.url):
        dead = await ended(store, message)
        assert dead.state == "dead"
        assert "5 attempts" in str(dead.reason)
        assert (await ended(store, await send(store, session, "hello"))).state == "done"
    assert "running" not in {run.status for run in (await store.runs(session_id=session)).items}


async def test_a_tool_that_exits_fails_its_own_call_only(engine: Engine, store: Store, tmp_path: Path):
    """`sys.exit()` in one session neither ends the worker nor touches the turns of the others."""
    beside = (await store.create_session(agent="agent", owner="you")).id
    log = tmp_path / "log"
    async with worker(engine.url, hold=0.5) as only:
        other = await send(store, beside, f"work 6 {log}")
        await lines(log, 1)
        for how in ("exit", "interrupt", "close", "dynamic", "gather", "callback"):
            leaving = (await store.create_session(agent="agent", owner="you")).id
            left = await ended(store, await send(store, leaving, f"leave {how}"))
            assert (left.state, left.attempts) == ("failed", 1), how
            assert "tried to exit the process" in str(left.reason), how
            assert (await ended(store, await send(store, leaving, "hello"))).state == "done", how
            told = await kinds(store, leaving)
            assert ("run_failed" in told, "run_interrupted" in told) == (True, False), how
            assert ("tool_call_failed" in told) == (how != "dynamic"), how
        done = await ended(store, other)
        assert (done.state, done.attempts) == ("done", 1)
        assert only.process.returncode is None
    assert "run_interrupted" not in await kinds(store, beside)


@pytest.mark.thorough
async def test_many_sessions_while_workers_die(engine: Engine, store: Store, tmp_path: Path, long: bool):
    """A message each to 200 sessions on three workers, one of which is killed every second: all done, none twice."""
    number_of_sessions = 30 if engine.name == "mongodb" and not long else 200
    sessions = [
        (await store.create_session(agent="agent", owner="you")).id for _ in range(number_of_sessions)
    ]
    async with AsyncExitStack() as stack:
        alive = [
            await stack.enter_async_context(worker(engine.url, "--concurrency", "20", hold=0.2))
            for _ in range(3)
        ]
        sent = [await send(store, session, f"work 3 {tmp_path / session}") for session in sessions]
        for number in range(4):
            await asyncio.sleep(1)
            alive[number % 3].signal(signal.SIGKILL)
            alive[number % 3] = await stack.enter_async_context(
                worker(engine.url, "--concurrency", "20", hold=0.2)
            )
        async with within(store, 120):
            states = Counter([(await ended(store, message)).state for message in sent])
    assert states == {"done": number_of_sessions}
    for session in sessions:
        done = Counter(line.split()[0] for line in (tmp_path / session).read_text().splitlines())
        assert max(done.values()) == 1, session
        if (
            len(done) < 3
        ):  # killed between the call's record and the call: it is not known, and so not repeated
            assert "it is unknown whether it took effect" in await texts(store, session)


@pytest.mark.parametrize(
    "start", [postgres, pytest.param(mongo, marks=ONLY_WITH_MONGOD)], ids=["postgres", "mongodb"]
)
@pytest.mark.thorough
async def test_the_database_goes_away_for_a_while(tmp_path: Path, start: Callable[[], Any]):
    """The server is stopped hard for five seconds in the middle of turns: no lost work, no double work."""
    with start() as server:
        async with open_store(server.url()) as store:
            sessions = [(await store.create_session(agent="agent", owner="you")).id for _ in range(10)]
            async with worker(server.url(), hold=0.5), worker(server.url(), hold=0.5):
                sent = [await send(store, session, f"work 3 {tmp_path / session}") for session in sessions]
                await lines(tmp_path / sessions[0], 1)
                server.kill()
                await asyncio.sleep(5)
                server.start()
                async with within(store, 100):
                    states = Counter([(await ended(store, message)).state for message in sent])
            assert states == {"done": 10}
            for session in sessions:
                done = Counter(line.split()[0] for line in (tmp_path / session).read_text().splitlines())
                assert max(done.values()) == 1, (session, done)
            assert await store.check() == []
