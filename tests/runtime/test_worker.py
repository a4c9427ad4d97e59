"""The worker itself: when it stops, and what it leaves behind."""

import asyncio

import pytest
from pydantic_ai import Agent

from holdfast import Store
from holdfast.runtime import Worker
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
