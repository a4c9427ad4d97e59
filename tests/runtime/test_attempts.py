"""Attempts: which ends of a turn count, and when a submission is given up."""

import asyncio
import time

import pytest
from pydantic_ai import Agent

from holdfast.config import load_settings
from holdfast.errors import StoreUnavailable
from holdfast.store import Store, open_store
from holdfast.types import Batch, Lease
from tests.conftest import Engine
from tests.record.agents import call, scripted
from tests.runtime.agents import ended, send, working


@pytest.fixture
async def session(store: Store) -> str:
    return (await store.create_session(agent="agent", owner="you")).id


async def test_an_attempt_that_the_store_ended_does_not_count(
    store: Store, session: str, monkeypatch: pytest.MonkeyPatch
):
    write, failures = store.write, 6

    async def fail(lease: Lease, batch: Batch) -> int:
        nonlocal failures
        if failures and batch.runs:
            failures -= 1
            lease.lost = True
            raise StoreUnavailable(url="", problem="the server went away")
        return await write(lease, batch)

    monkeypatch.setattr(store, "write", fail)
    async with working(store, Agent(scripted()), max_attempts=2):
        done = await ended(store, await send(store, session, "hello"))
    assert (failures, done.state, done.attempts) == (0, "done", 1)


async def test_an_attempt_that_ended_because_the_worker_could_not_renew_does_not_count(
    store: Store, session: str
):
    inside = asyncio.Event()

    async def wait() -> str:
        if not inside.is_set():
            inside.set()
            await asyncio.Event().wait()
        return "went on"

    setup = Agent(scripted([call("wait")]), tools=[wait])
    async with working(store, setup, max_attempts=1, renew=0.05):
        sent = await send(store, session, "hello")
        await asyncio.wait_for(inside.wait(), 10)
        (holder,) = await store.holders()
        await store.leave(holder)  # as if its deadline had passed
        done = await ended(store, sent)
    assert (done.state, done.attempts) == ("done", 1)


@pytest.mark.thorough("postgres")
async def test_an_attempt_that_blocked_the_event_loop_counts(engine: Engine):
    if engine.name == "memory":
        pytest.skip("a store in memory has no twin to renew from a thread")

    async def block() -> str:
        time.sleep(3)
        return "went on"

    async with open_store(engine.url, settings=load_settings(loop_timeout_seconds=1)) as store:
        session = (await store.create_session(agent="agent", owner="you")).id
        agent = Agent(scripted([call("block")]), tools=[block])
        async with working(store, agent, max_attempts=1, renew=0.05, ttl=1.0):
            given_up = await ended(store, await send(store, session, "hello"))
    assert (given_up.state, given_up.attempts) == ("dead", 1)
