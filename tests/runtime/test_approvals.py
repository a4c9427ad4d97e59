"""Approvals: a durable question that holds no worker, and its answer."""

import asyncio
import json
from typing import Any

import pytest
from pydantic_ai import Agent

from holdfast import Store
from holdfast.jsontext import parse_json
from holdfast.record.open_calls import is_provider_valid
from holdfast.record.resume_point import find_resume_point
from tests.record.agents import call, scripted
from tests.runtime.agents import ended, is_kind, send, texts, until, working


@pytest.fixture
async def session(store: Store) -> str:
    return (await store.create_session(agent="agent", owner="you")).id


def paying(*, editable: bool = False) -> tuple[Agent[None, Any], list[int]]:
    paid: list[int] = []
    agent: Agent[None, Any] = Agent(scripted([call("pay", "c1", amount=5)]))

    @agent.tool_plain(requires_approval=True, metadata={"editable": editable})
    def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    return agent, paid


async def ask(store: Store, session: str) -> dict[str, Any]:
    """Have the agent ask, and return the one call it asks about."""
    await send(store, session, "pay")
    asked = (await until(store, session, is_kind("approval_requested")))[-1]
    (found,) = json.loads(asked.payload)["calls"]
    return found


async def answer(store: Store, session: str, **facts: Any) -> Any:
    return await store.submit(session, "approval", json.dumps(facts), lane="control")


async def test_an_approval_is_durable_and_holds_no_worker(store: Store, session: str):
    agent, paid = paying()
    async with working(store, agent):
        asked = await ask(store, session)
    assert (asked["tool"], asked["arguments"]) == ("pay", {"amount": 5})
    waiting = await store.session(session)
    assert (waiting.status, waiting.waiting_for, waiting.holder) == ("waiting", "pay (c1)", None)
    assert paid == []
    later = await send(store, session, "are you there?")  # waits behind the question
    async with working(store, agent):  # another worker, much later
        given = await answer(store, session, call_id="c1", digest=asked["digest"], approved=True)
        assert (await ended(store, given)).state == "done"
        assert (await ended(store, later)).state == "done"
    assert paid == [5]
    assert "paid 5" in await texts(store, session)
    assert [run.status for run in (await store.runs(session_id=session)).items] == ["completed"] * 3
    assert (await store.effects(session, unresolved=True)).items == []


async def test_a_denial_tells_the_model_why(store: Store, session: str):
    agent, paid = paying()
    async with working(store, agent):
        asked = await ask(store, session)
        await answer(
            store, session, call_id="c1", digest=asked["digest"], approved=False, feedback="too expensive"
        )
        await until(store, session, is_kind("submission_done"), after=0)
        await until(store, session, is_kind("run_completed"))
    assert paid == []
    assert "too expensive" in await texts(store, session)


async def test_an_answer_to_something_else_is_refused(store: Store, session: str):
    agent, paid = paying()
    async with working(store, agent):
        asked = await ask(store, session)
        wrong = await answer(store, session, call_id="c1", digest="0" * 64, approved=True)
        assert "different arguments" in str((await ended(store, wrong)).reason)
        stranger = await answer(store, session, call_id="c9", digest=asked["digest"], approved=True)
        assert "does not wait for an answer" in str((await ended(store, stranger)).reason)
        edited = await answer(
            store, session, call_id="c1", digest=asked["digest"], approved=True, arguments={"amount": 1}
        )
        assert "cannot be edited" in str((await ended(store, edited)).reason)
        assert (await store.session(session)).status == "waiting"
        await answer(store, session, call_id="c1", digest=asked["digest"], approved=True)
        await until(store, session, is_kind("run_completed"))
        again = await answer(store, session, call_id="c1", digest=asked["digest"], approved=False)
        assert "already has a different answer" in str((await ended(store, again)).reason)
    assert paid == [5]


async def test_the_same_answer_again_changes_nothing(store: Store, session: str):
    """Two people press the same button: before, while and after the turn continues."""
    running, go_on = asyncio.Event(), asyncio.Event()
    paid: list[int] = []
    agent: Agent[None, Any] = Agent(scripted([call("pay", "c1", amount=5)], [call("pay", "c2", amount=6)]))

    @agent.tool_plain(requires_approval=True)
    async def pay(amount: int) -> str:
        paid.append(amount)
        running.set()
        await go_on.wait()
        return f"paid {amount}"

    async with working(store, agent):
        asked = await ask(store, session)
        same = {"call_id": "c1", "digest": asked["digest"], "approved": True}
        both = [await answer(store, session, **same, by=person) for person in ("ada", "bob")]
        assert [(await ended(store, each)).state for each in both] == ["done", "done"]
        await asyncio.wait_for(running.wait(), 20)
        assert (await ended(store, await answer(store, session, **same))).state == "done"
        other = await ended(store, await answer(store, session, **(same | {"approved": False})))
        assert (other.state, "already has a different answer" in str(other.reason)) == ("failed", True)
        go_on.set()
        await until(
            store, session, lambda event: event.kind == "approval_requested" and "c2" in event.payload
        )
        assert (await ended(store, await answer(store, session, **same))).state == "done"
        assert (await store.session(session)).status == "waiting"
        await ended(store, await store.submit(session, "interrupt", lane="control"))
        assert (await ended(store, await answer(store, session, **same))).state == "done"
    answered = [event for event in await store.events(session) if event.kind == "approval_answered"]
    assert (paid, len(answered)) == ([5], 1)


async def test_edited_arguments_where_the_tool_allows_it(store: Store, session: str):
    agent, paid = paying(editable=True)
    async with working(store, agent):
        asked = await ask(store, session)
        await answer(
            store, session, call_id="c1", digest=asked["digest"], approved=True, arguments={"amount": 1}
        )
        await until(store, session, is_kind("run_completed"))
    assert paid == [1]


async def test_several_calls_wait_until_all_are_answered(store: Store, session: str):
    paid: list[int] = []
    agent: Agent[None, Any] = Agent(scripted([call("pay", "c1", amount=1), call("pay", "c2", amount=2)]))

    @agent.tool_plain(requires_approval=True)
    def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    async with working(store, agent):
        await send(store, session, "pay")
        asked = (await until(store, session, is_kind("approval_requested")))[-1]
        first, second = json.loads(asked.payload)["calls"]
        one = await answer(store, session, call_id="c1", digest=first["digest"], approved=True)
        assert (await ended(store, one)).state == "done"
        assert (await store.session(session)).status == "waiting"
        await answer(store, session, call_id="c2", digest=second["digest"], approved=False)
        await until(store, session, is_kind("run_completed"))
    assert paid == [1]


async def test_an_interrupt_ends_a_turn_that_waits(store: Store, session: str):
    agent, paid = paying()
    async with working(store, agent):
        await ask(store, session)
        await ended(store, await store.submit(session, "interrupt", lane="control"))
        assert (await ended(store, await send(store, session, "never mind"))).state == "done"
    assert paid == []
    assert is_provider_valid((await find_resume_point(store, session, None)).messages)


async def test_nan_in_a_models_arguments_does_not_get_into_the_journal(store: Store, session: str):
    agent: Agent[None, Any] = Agent(scripted([call("weigh", "c1", grams=float("nan"))]))

    @agent.tool_plain(requires_approval=True)
    def weigh(grams: float) -> str:
        return f"{grams}"

    async with working(store, agent):
        asked = await ask(store, session)
    assert asked["arguments"] == {"grams": None}
    after = 0
    while page := await store.events(session, after=after):
        after = page[-1].seq
        for event in page:
            parse_json(event.payload, "payload")
            parse_json(event.message or "null", "message")
