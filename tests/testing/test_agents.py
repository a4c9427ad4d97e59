"""The helpers with which users test their own agents."""

import asyncio

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from holdfast import Holdfast, connect, resume
from holdfast.testing.agents import Killed, ManualClock, killed_after, ledger, memory_store

PLACES = [
    ("run_started", 1),
    ("model_request_started", 1),
    ("message", 1),
    ("tool_call_started", 1),
    ("model_request_started", 2),
    ("message", 3),
]


def new_agent(sent: list[str], recovery: str = "report") -> Agent[None, str]:
    agent = Agent(TestModel(), name="clerk")

    @agent.tool_plain(metadata={"recovery": recovery})
    async def send_letter(to: str) -> str:
        sent.append(to)
        return "sent"

    assert send_letter is not None
    return agent


@pytest.mark.parametrize(("kind", "number"), PLACES)
async def test_after_a_kill_the_run_is_resumed_and_no_letter_is_sent_twice(kind: str, number: int):
    sent: list[str] = []
    agent, clock = new_agent(sent), ManualClock()
    async with memory_store(clock) as store:
        with pytest.raises(Killed), killed_after(store, kind, number=number):
            await agent.run("Write.", conversation_id="letters", capabilities=[Holdfast(store)])
        (run,) = (await store.runs(session_id="letters")).items
        assert run.status == "running"  # nothing was recorded after the kill
        clock.advance(60)
        await resume(agent, store, run.id)
        # After `tool_call_started` nobody knows whether the tool ran: by default it does not run again.
        assert len(sent) == (0 if kind == "tool_call_started" else 1)
        (call,) = await ledger(store, "letters")
        assert (call.tool, call.attempts) == ("send_letter", 1)
        assert await store.check() == []


async def test_the_lease_of_a_killed_process_ends_with_the_clock():
    agent, clock = new_agent([]), ManualClock()
    async with memory_store(clock) as store:
        with pytest.raises(Killed), killed_after(store, "tool_call_started"):
            await agent.run("Write.", conversation_id="letters", capabilities=[Holdfast(store)])
        assert (await store.session("letters")).status == "running"
        clock.advance(60)
        async with connect(store, agents=[new_agent([])]) as hf:
            session = await hf.session("letters")
            assert await (await session.send("And now?"))


async def test_a_worker_on_a_store_in_memory_answers():
    sent: list[str] = []
    async with memory_store() as store, connect(store, agents=[new_agent(sent)]) as hf:
        session = await hf.session(agent="clerk")
        assert await (await session.send("Write.")) == '{"send_letter":"sent"}'
        (call,) = await ledger(store, session.id)
        assert (call.tool, call.state, call.attempts, len(sent)) == ("send_letter", "completed", 1, 1)


async def test_time_passes_only_by_hand():
    clock = ManualClock(1_000_000_000)
    async with memory_store(clock) as store:
        before = await store.now()
        await asyncio.sleep(0.01)
        assert await store.now() == before
        clock.advance(86_400)
        assert ((await store.now()) - before).days == 1
