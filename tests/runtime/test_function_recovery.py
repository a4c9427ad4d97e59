"""A plain agent that runs again: it receives what it received before, and decisions that it does not need do no harm."""

import asyncio
from typing import Any

import pytest

from holdfast import FunctionAgent, Store, Turn, Worker, agent
from holdfast.questions import pending_approvals
from holdfast.testing.agents import ManualClock, killed_after, memory_store
from tests.runtime.agents import ended, is_kind, send, texts, until, working
from tests.runtime.test_approvals import answer


async def approve(store: Store, session: str) -> None:
    (question,) = await pending_approvals(store, session)
    await answer(store, session, call_id=question["call_id"], digest=question["digest"], approved=True)


async def work_until_killed(store: Store, agent: FunctionAgent, kind: str, number: int = 1) -> None:
    """Run a worker that is killed after an event, and return when it is dead."""
    before = await _last(store)
    with killed_after(store, kind, number=number):
        worker = asyncio.create_task(Worker(store, agent).run())
        try:
            while [event.kind for event in await store.events("s", after=before)].count(kind) < number:
                await asyncio.sleep(0.01)
        finally:
            worker.cancel()
            await asyncio.wait([worker])


async def test_a_message_sent_while_the_turn_waits_is_returned_after_the_answer(store: Store):
    """The function receives nothing new until it has repeated its question."""

    async def listen(turn: Turn, times: int) -> list[Any]:
        for _ in range(times):
            if heard := await turn.incoming():
                return heard
            await asyncio.sleep(0.02)
        return []

    @agent("clerk")
    async def clerk(turn: Turn) -> str:
        before = await listen(turn, 15)
        await turn.add(f"before {before}")
        await turn.ask(f"Continue after {before}?")
        return f"after {await listen(turn, 500)}"

    session = (await store.create_session(agent="clerk", owner="you")).id
    async with working(store, clerk):
        message = await send(store, session, "go")
        await until(store, session, is_kind("approval_requested"))
        steering = await send(store, session, "hurry", when_busy="steer")
        await approve(store, session)
        done = await ended(store, message)
        assert (done.state, done.reason) == ("done", None)
        assert (await ended(store, steering)).state == "done"
    assert "after ['hurry']" in await texts(store, session)


@pytest.mark.parametrize("again", [True, False])
async def test_a_decision_about_a_step_that_has_run_since_is_not_needed(again: bool):
    """The worker dies in the step, and after the person's decision once more: in a later step, or in the same one."""
    done: list[str] = []

    async def do(what: str) -> None:
        done.append(what)

    @agent("clerk")
    async def clerk(turn: Turn) -> str:
        await turn.step("pay", do, "pay", recovery="ask")
        await turn.step("after", do, "after", recovery="retry")
        return "paid"

    clock = ManualClock()
    async with memory_store(clock) as store:
        await store.create_session(agent="clerk", owner="you", id="s")
        message = await send(store, "s", "go")
        await work_until_killed(store, clerk, "step_started")
        clock.advance(60)
        async with working(store, clerk):
            await until(store, "s", is_kind("approval_requested"))
        await approve(store, "s")
        await work_until_killed(store, clerk, "step_started", 1 if again else 2)
        clock.advance(60)
        async with working(store, clerk):
            if again:
                await until(store, "s", is_kind("approval_requested"), after=await _last(store))
                await approve(store, "s")
            ending = await ended(store, message)
        assert (ending.state, ending.reason) == ("done", None)
        assert done == ["pay", "after"]
        assert await store.check() == []


async def _last(store: Store) -> int:
    return (await store.session("s")).seq
