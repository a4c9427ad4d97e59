"""Calls that run outside of the agent: their results are delivered to the waiting session."""

import json
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset

from holdfast import connect, sleep
from holdfast.client import SessionHandle
from holdfast.errors import ApprovalNeeded, BadInput, Conflict, TurnFailed
from holdfast.runtime.settling import settle_effect
from holdfast.store import Store
from tests.builders import until
from tests.runtime.agents import kinds

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"what": {"type": "string"}}}
did: list[str] = []


def shop(*calls: ToolCallPart) -> Agent[Any, str]:
    """Return an agent whose tool `order` runs outside, and whose tool `look` does not."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        results = [p for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
        if not results:
            return ModelResponse(parts=[*calls])
        return ModelResponse(parts=[TextPart(json.dumps([[p.tool_name, p.content] for p in results]))])

    outside = ExternalToolset([ToolDefinition(name="order", parameters_json_schema=SCHEMA)])
    agent = Agent(FunctionModel(respond), name="shop", toolsets=[outside])

    @agent.tool_plain
    async def look() -> str:
        did.append("look")
        return "seen"

    @agent.tool_plain(requires_approval=True)
    async def pay() -> str:
        did.append("pay")
        return "paid"

    return agent


def order(call_id: str, what: str) -> ToolCallPart:
    return ToolCallPart("order", {"what": what}, call_id)


@pytest.fixture(autouse=True)
def _nothing_done():
    did.clear()


async def asked(session: SessionHandle[Any], text: str = "go") -> Any:
    turn = await session.send(text)
    with pytest.raises(ApprovalNeeded):
        await turn.result(timeout=20)
    return turn


async def test_a_result_from_outside_continues_the_turn(store: Store):
    agent = shop(order("a", "tea"), ToolCallPart("look", {}, "b"))
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent=agent)
        turn = await asked(session)
        (call,) = (await session.info()).approvals
        assert (call.tool, call.arguments, call.external) == ("order", {"what": "tea"}, True)
        await (await session.tool_result(call, {"arrived": [1, None]})).result(timeout=20)
        assert json.loads(await turn.result(timeout=20)) == [
            ["order", {"arrived": [1, None]}],
            ["look", "seen"],
        ]
        # The same result again changes nothing; another one is refused.
        with pytest.raises(Conflict):
            await session.tool_result("a", "late")
    assert did == ["look"]
    (effect,) = [effect for effect in (await store.effects("s")).items if effect.tool == "order"]
    assert effect.state == "completed"
    events = await store.events("s", limit=1000)
    (delivered,) = [json.loads(e.payload) for e in events if '"manual": true' in e.payload]
    assert (delivered["call_id"], delivered["tool"]) == ("a", "order")
    assert await store.check() == []


async def test_an_error_from_outside_is_told_to_the_model(store: Store):
    agent = shop(order("a", "tea"))
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent=agent)
        turn = await asked(session)
        await (await session.tool_result("a", error="out of stock")).result(timeout=20)
        assert "out of stock" in await turn.result(timeout=20)
    (effect,) = (await store.effects("s")).items
    assert (effect.state, effect.error) == ("failed", "out of stock")


async def test_the_turn_continues_when_all_results_and_answers_are_there(store: Store):
    agent = shop(order("a", "tea"), order("b", "milk"), ToolCallPart("pay", {}, "c"))
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent=agent)
        turn = await asked(session)
        for call_id, still in (("b", "order (a), pay (c)"), ("a", "pay (c)")):
            await (await session.tool_result(call_id, call_id)).result(timeout=20)
            waiting = await store.session("s")
            assert (waiting.status, waiting.waiting_for) == ("waiting", still)
        assert did == []
        await session.approve("c")
        results = dict(json.loads(await turn.result(timeout=20))[:1])
        assert results == {"order": "a"}
    assert did == ["pay"]


async def test_a_repeated_result_is_delivered_once(store: Store):
    agent = shop(order("a", "tea"), order("b", "milk"))
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent=agent)
        turn = await asked(session)
        (first, second) = (await session.info()).approvals
        for _ in range(2):
            await (await session.tool_result(first, 1)).result(timeout=20)
        await (await session.tool_result(second, 2)).result(timeout=20)
        assert json.loads(await turn.result(timeout=20)) == [["order", 1], ["order", 2]]
        await (await session.tool_result(first, 1)).result(timeout=20)  # the worker had recorded it before
    assert (await kinds(store, "s")).count("tool_call_completed") == 2


@pytest.mark.parametrize("problem", ["other arguments", "an approval", "no such call"])
async def test_results_that_are_refused(store: Store, problem: str):
    agent = shop(order("a", "tea"), ToolCallPart("pay", {}, "c"))
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent=agent)
        await asked(session)
        calls = {call.call_id: call for call in (await session.info()).approvals}
        match problem:
            case "other arguments":
                wrong = calls["a"].model_copy(update={"digest": "0" * 64})
            case "an approval":
                wrong = calls["c"]
            case _:
                wrong = calls["a"].model_copy(update={"call_id": "z"})
        with pytest.raises(TurnFailed, match=r"does not wait for a result|different arguments"):
            await (await session.tool_result(wrong, 1)).result(timeout=20)
        assert [call.call_id for call in (await session.info()).approvals] == ["a", "c"]


async def test_a_tool_that_sleeps_waits_for_the_result_beside_it(store: Store):
    agent = shop(order("a", "tea"), ToolCallPart("nap", {}, "b"))

    @agent.tool_plain(metadata={"recovery": "steps"})
    async def nap() -> str:
        await sleep(seconds=1)
        did.append("nap")
        return "rested"

    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent=agent)
        turn = await asked(session)

        async def only_waits_for_the_result() -> bool:
            (sent,) = (await store.submissions("s")).items
            return sent.state == "waiting" and sent.deliver_at is None

        await until(only_waits_for_the_result)
        assert did == []
        await (await session.tool_result("a", "brewed")).result(timeout=20)
        assert sorted(json.loads(await turn.result(timeout=20))) == [["nap", "rested"], ["order", "brewed"]]
    assert did == ["nap"]


async def test_a_call_that_runs_outside_can_be_denied(store: Store):
    agent = shop(order("a", "tea"))
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent=agent)
        turn = await asked(session)
        await session.deny("a", feedback="too dear")
        assert "too dear" in await turn.result(timeout=20)


@pytest.mark.parametrize("beside", [True, False])
async def test_a_call_that_runs_outside_cannot_be_approved(store: Store, beside: bool):
    agent = shop(order("a", "tea"), *([ToolCallPart("pay", {}, "c")] if beside else []))
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent=agent)
        turn = await asked(session)
        with pytest.raises(TurnFailed, match="runs outside; deliver its result, or deny it"):
            await (await session.approve("a")).result(timeout=20)
        await (await session.tool_result("a", "brewed")).result(timeout=20)
        if beside:
            await session.approve("c")
        assert "brewed" in await turn.result(timeout=20)


async def test_a_call_that_is_settled_answers_its_question(store: Store):
    agent = shop(order("a", "tea"), order("b", "milk"))
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent=agent)
        turn = await asked(session)
        for effect in (await store.effects("s")).items:
            await settle_effect(store, effect.run_id, effect.call_id, actor="ada", result=effect.call_id)
        assert json.loads(await turn.result(timeout=20)) == [["order", "a"], ["order", "b"]]


async def test_an_error_that_cannot_be_stored_is_refused_at_once(store: Store):
    agent = shop(order("a", "tea"))
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent=agent)
        await asked(session)
        with pytest.raises(BadInput):
            await session.tool_result("a", error="out of \x00 stock")
