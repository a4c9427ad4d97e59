"""The worker itself: when it stops, and what it leaves behind."""

import asyncio
from contextlib import suppress

import pytest
from pydantic_ai import Agent

from holdfast import Store
from holdfast.runtime import Worker
from holdfast.types import Lease
from tests.record.agents import call, scripted
from tests.runtime.agents import ended, reread, send, working


@pytest.mark.thorough("postgres")
async def test_a_tool_that_swallows_its_cancellation_does_not_keep_its_worker_from_stopping(store: Store):
    session = (await store.create_session(agent="agent", owner="you")).id
    inside, release = asyncio.Event(), asyncio.Event()

    async def stubborn() -> str:
        inside.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    worker = Worker(store, Agent(scripted([call("stubborn")]), tools=[stubborn]), grace=0)
    serving = asyncio.create_task(worker.run())
    asked = await send(store, session, "go")
    await asyncio.wait_for(inside.wait(), 10)
    worker.stop()
    try:
        assert not await asyncio.wait_for(serving, 20)
        assert (await store.session(session)).holder is None
        assert (await reread(store, asked)).ended_at is None
    finally:
        release.set()
    async with working(
        store, Agent(scripted(), tools=[stubborn])
    ):  # its outcome is unknown: the model is told
        assert (await ended(store, asked)).state == "done"


async def test_a_session_whose_release_was_cut_off_takes_no_place(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """The holder is lost while the store does not answer. The worker goes on as another holder, and stops cleanly."""
    session = (await store.create_session(agent="agent", owner="you")).id
    hangs, release = asyncio.Event(), store.release

    async def hang_once(lease: Lease) -> None:
        if not hangs.is_set():
            hangs.set()
            await asyncio.Event().wait()
        await release(lease)

    monkeypatch.setattr(store, "release", hang_once)
    await store.submit(session, "approval", "{}", lane="control")
    worker = Worker(store, Agent(scripted(), name="agent"), concurrency=1, ttl=1)
    serving = asyncio.create_task(worker.run())
    await asyncio.wait_for(hangs.wait(), 20)
    worker._lost.set()  # pyright: ignore[reportPrivateUsage]
    other = (await store.create_session(agent="agent", owner="you")).id
    assert (await ended(store, await send(store, other, "hello"))).state == "done"
    worker.stop()
    assert await asyncio.wait_for(serving, 20)


async def test_a_turn_ends_although_its_store_swallows_a_cancellation(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """As a driver may while it waits for a server. The turn would hold its session, and its place, forever."""
    session = (await store.create_session(agent="agent", owner="you")).id
    reading, urgent = asyncio.Event(), store.urgent

    async def swallow(session_id: str) -> object:
        reading.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return await urgent(session_id)

    monkeypatch.setattr(store, "urgent", swallow)

    async def wait() -> str:
        await asyncio.wait_for(reading.wait(), 20)
        return "read"

    agent = Agent(scripted([call("wait")]), tools=[wait], name="agent")
    async with working(store, agent, concurrency=1):
        for text in ("one", "two"):
            assert (await ended(store, await send(store, session, text))).state == "done"
