"""Attempts: which ends of a turn count, and when a submission is given up."""

import asyncio
import time

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import holdfast
from holdfast import Turn
from holdfast.config import load_settings
from holdfast.errors import StoreUnavailable
from holdfast.runtime import Worker
from holdfast.store import Store, open_store
from holdfast.types import Batch, Lease
from tests.builders import until
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


@pytest.mark.parametrize(
    ("place", "state"),
    [("before a request", "done"), ("in a tool", "dead"), ("before the first request", "dead")],
)
async def test_an_attempt_counts_if_the_turn_can_be_what_ended_its_worker(
    store: Store, session: str, place: str, state: str, monkeypatch: pytest.MonkeyPatch
):
    """Its worker dies often. A turn is not to blame if it made progress each time, and no tool was cut off twice."""
    deaths = 5

    async def count(_: Worker) -> None:
        """A worker that has died takes nothing back."""

    monkeypatch.setattr(Worker, "_uncount_attempts", count)

    async def die() -> None:
        nonlocal deaths
        if deaths:
            deaths -= 1
            for holder in await store.holders():
                await store.leave(holder)
            await asyncio.Event().wait()

    async def step() -> str:
        if place == "in a tool":
            await die()
        return "went on"

    async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        steps = sum(isinstance(message, ModelResponse) for message in messages)
        if place == "before the first request" or (place == "before a request" and steps == 6 - deaths):
            await die()
        return ModelResponse(parts=[call("step", call_id=f"c{steps}") if steps < 7 else TextPart("done")])

    async with working(store, Agent(FunctionModel(model), tools=[step]), max_attempts=3, renew=0.05):
        given = await ended(store, await send(store, session, "hello"))
    assert (given.state, given.attempts) == (state, 1 if state == "done" else 3)
    assert deaths == {"before a request": 0, "in a tool": 1, "before the first request": 2}[place]
    assert await store.check() == []


@pytest.mark.thorough("postgres")
async def test_an_attempt_that_blocked_the_event_loop_counts(engine: Engine):
    if engine.name == "memory":
        pytest.skip("a store in memory cannot be cloned for the thread that renews")

    async def block() -> str:
        time.sleep(3)
        return "went on"

    async with open_store(engine.url, settings=load_settings(loop_timeout_seconds=1)) as store:
        session = (await store.create_session(agent="agent", owner="you")).id
        agent = Agent(scripted([call("block")]), tools=[block])
        async with working(store, agent, max_attempts=1, renew=0.05, ttl=1.0):
            given_up = await ended(store, await send(store, session, "hello"))
    assert (given_up.state, given_up.attempts) == ("dead", 1)


async def test_a_turn_that_sleeps_keeps_its_attempt_when_the_worker_releases_another_session(
    store: Store, session: str
):
    @holdfast.agent("agent")
    async def napper(turn: Turn) -> None:
        await turn.sleep(minutes=1)

    async with working(store, napper):
        sleeping = await send(store, session, "hello")

        async def is_asleep() -> bool:
            return (await store.session(session)).status == "sleeping"

        await until(is_asleep)
        other = (await store.create_session(agent="agent", owner="you")).id
        await ended(store, await store.submit(other, "interrupt", lane="control"))

        async def is_free() -> bool:
            return (await store.session(other)).holder is None

        await until(is_free)
        assert (await store.submission(sleeping.id)).attempts == 1
