"""What a session and its worker do with too much of something, and with what never ends."""

import asyncio
import json
from pathlib import Path

import pytest
from pydantic_ai import Agent

from holdfast import Store, open_store
from holdfast.config import load_settings
from holdfast.errors import PayloadTooLarge, QueueFull
from holdfast.record.resume_point import find_resume_point
from holdfast.runtime import AgentSetup
from tests.conftest import Engine
from tests.record.agents import call, scripted
from tests.runtime.agents import ended, is_kind, kinds, send, texts, until, working


@pytest.fixture
async def session(store: Store) -> str:
    return (await store.create_session(agent="agent", owner="you")).id


@pytest.mark.thorough("postgres")
async def test_a_thousand_submissions_to_one_session(store: Store, session: str):
    """As many as may wait are accepted and end in their order; one more is refused, and nothing of it is kept."""
    sent = [await send(store, session, f"number {n}") for n in range(1000)]
    with pytest.raises(QueueFull):
        await send(store, session, "one too many")
    stop = await store.submit(session, "interrupt", lane="control")  # the control lane is never full
    assert (await store.session(session)).pending == 1001
    assert [s.position for s in sent] == list(range(1, 1001))
    limited = AgentSetup(agent=Agent(scripted()), run_timeout=60)
    async with working(store, limited):
        assert (await ended(store, stop)).state == "done"
        for submission in sent[:20]:
            assert (await ended(store, submission)).state == "done"
    begun = [
        e for e in await store.events(session, after=1001, limit=10_000) if e.kind == "submission_started"
    ]
    order = [json.loads(event.payload)["submission_id"] for event in begun]
    assert order[: 1 + 20] == [stop.id, *(s.id for s in sent[:20])]


async def test_a_submission_of_ten_megabytes(engine: Engine, store: Store, session: str):
    """It is carried out where the limit allows it; where not, the error says the size and the limit."""
    large = "x" * 10_000_000
    async with working(store, Agent(scripted())):
        assert (await ended(store, await send(store, session, large))).state == "done"
    place = await find_resume_point(store, session, None)
    assert large in str(place.messages[0])
    assert large not in await texts(store, session)  # its rows only refer to it
    if engine.name == "memory":
        return
    settings = load_settings(store=engine.url, max_payload_bytes=1_000_000)
    async with open_store(settings=settings) as strict:
        with pytest.raises(PayloadTooLarge, match=r"has 10000012 bytes; the limit is 1000000"):
            await send(strict, session, large)
        assert (await strict.session(session)).pending == 0


async def test_a_tool_that_never_returns_is_cut_off_by_its_own_limit(store: Store, session: str):
    cancelled = asyncio.Event()

    async def never() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    agent = Agent(scripted([call("never")]), tools=[never], tool_timeout=0.2)
    async with working(store, agent):
        assert (await ended(store, await send(store, session, "wait"))).state == "done"
    assert cancelled.is_set()
    assert "timed out" in (await texts(store, session)).lower()


async def test_a_tool_that_never_returns_is_cut_off_by_the_limit_of_the_run(store: Store, session: str):
    async def never() -> str:
        await asyncio.Event().wait()
        return "never"

    setup = AgentSetup(agent=Agent(scripted([call("never")]), tools=[never]), run_timeout=0.3)
    async with working(store, setup):
        failed = await ended(store, await send(store, session, "wait"))
        told = "TimeoutError: the run took longer than 0.3 seconds"
        assert (failed.state, failed.reason) == ("failed", told)
        assert (await ended(store, await send(store, session, "and now?"))).state == "done"
    assert "run_failed" in await kinds(store, session)
    assert (await store.session(session)).status == "idle"


async def test_an_interrupt_reaches_a_run_whose_tool_blocks_in_a_thread(
    store: Store, session: str, tmp_path: Path
):
    """A synchronous tool cannot be stopped; when it returns, the run has ended all the same."""
    release = tmp_path / "release"

    def block() -> str:
        import time

        (tmp_path / "inside").touch()
        while not release.exists():
            time.sleep(0.01)
        return "late"

    async with working(store, Agent(scripted([call("block")]), tools=[block])):
        message = await send(store, session, "block")
        await until(store, session, is_kind("tool_call_started"))
        async with asyncio.timeout(20):
            while not (tmp_path / "inside").exists():
                await asyncio.sleep(0.01)
        stop = await store.submit(session, "interrupt", lane="control")
        assert (await ended(store, stop)).state == "done"
        release.touch()
        stopped = await ended(store, message)
    assert (stopped.state, stopped.reason) == ("failed", "interrupted")
