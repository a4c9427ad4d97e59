"""Budgets: a run whose budget is used up stops before its next model request, waits, and continues when the budget is raised."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

import holdfast
from holdfast import AgentSetup, Holdfast, Turn
from holdfast.budgets import Budget, Limits, own_budgets
from holdfast.errors import BadInput, BudgetReached
from holdfast.record import resume
from holdfast.record.resume_point import find_resume_point
from holdfast.store import Store
from holdfast.types import Batch, Lease, Session
from tests.builders import until
from tests.runtime.agents import ended, kinds, send, working

done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done():
    done.clear()


def work(what: str) -> str:
    done.append(what)
    return what


def looping(rounds: int, tool: str = "work") -> FunctionModel:
    """Return a model that calls a tool as often in each turn, and then answers."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        done.append("request")
        calls = 0
        for message in messages:
            for part in message.parts:
                calls = 0 if part.part_kind == "user-prompt" else calls + isinstance(part, ToolCallPart)
        usage = RequestUsage(input_tokens=10, output_tokens=1)
        part: Any = (
            ToolCallPart(tool, {"what": str(calls)}, f"c{len(messages)}")
            if calls < rounds
            else TextPart("done")
        )
        return ModelResponse(parts=[part], usage=usage)

    return FunctionModel(respond)


async def waiting(store: Store, session_id: str = "s") -> Session:
    async def waits() -> bool:
        session = await store.session(session_id)
        return session.status == "sleeping" and "budget" in (session.waiting_for or "")

    await until(waits)
    return await store.session(session_id)


async def raised(store: Store, requests: int, *, per: Any = "session", name: str = "s") -> None:
    await store.set_budget(per, name, Limits(requests=requests), actor="root")
    await store.wake_for_budgets(per, name)


async def last_run(store: Store) -> str:
    return (await store.runs(session_id="s")).items[-1].id


async def counted(store: Store, kind: str) -> int:
    return (await kinds(store, "s")).count(kind)


async def test_a_run_waits_for_its_budget_and_continues_when_it_is_raised(store: Store):
    await store.create_session(agent="clerk", id="s", owner="ada")
    agent = AgentSetup(
        agent=Agent(looping(4), tools=[work]), name="clerk", budgets=[Budget(per="session", requests=2)]
    )
    async with working(store, agent):
        message = await send(store, "s", "hello")
        session = await waiting(store)
        assert session.waiting_for == "the budget of the session: 2 requests of 2 requests"
        assert done == ["request", "0", "request", "1"]
        assert await counted(store, "model_request_started") == 2
        await raised(store, 3)
        await until(lambda: _is(counted(store, "model_request_started"), 3))
        await waiting(store)
        await raised(store, 100)
        assert (await ended(store, message)).state == "done"
    assert done.count("request") == 5
    assert [each for each in done if each != "request"] == ["0", "1", "2", "3"]
    assert "recovered" not in await kinds(store, "s")
    waits = [event for event in await store.events("s", limit=1000) if event.kind == "run_waiting"]
    assert json.loads(waits[0].payload)["waits"][0]["wait"] == "budget"


async def _is(found: Any, expected: int) -> bool:
    return await found == expected


async def test_a_turn_whose_budget_is_used_up_waits_before_its_first_request(store: Store):
    await store.create_session(agent="clerk", id="s", owner="ada")
    await store.set_budget("owner", "ada", Limits(cost=0), daily=True, actor="root")
    async with working(store, AgentSetup(agent=Agent(looping(0), tools=[work]), name="clerk")):
        message = await send(store, "s", "hello")
        session = await waiting(store)
        assert "the budget of owner ada per day: $0 of $0" in (session.waiting_for or "")
        assert done == []
        await store.wake_for_budgets()
        await until(lambda: _is(counted(store, "submission_started"), 2))
        await waiting(store)
        await until(lambda: _is(counted(store, "run_waiting"), 2))
        assert await counted(store, "run_started") == 1, "a check that changes nothing starts nothing"
        await store.set_budget("owner", "ada", Limits(), daily=True, actor="root")
        await store.wake_for_budgets("owner", "ada")
        assert (await ended(store, message)).state == "done"


async def test_each_turn_has_its_own_budget(store: Store):
    await store.create_session(agent="clerk", id="s", owner="ada")
    served = AgentSetup(
        agent=Agent(looping(1), tools=[work]), name="clerk", budgets=[Budget(per="turn", tokens=22)]
    )
    async with working(store, served):
        for text in ("one", "two"):
            assert (await ended(store, await send(store, "s", text))).state == "done"
    assert done.count("request") == 4


async def test_a_session_limits_itself(store: Store):
    metadata = json.dumps({"budgets": [{"per": "session", "requests": 1}]})
    await store.create_session(agent="clerk", id="s", owner="ada", metadata=metadata)
    async with working(store, AgentSetup(agent=Agent(looping(3), tools=[work]), name="clerk")):
        await send(store, "s", "hello")
        await waiting(store)
    assert done == ["request", "0"]


@pytest.mark.parametrize(
    "own",
    [
        [{"per": "session", "requests": -1}],
        [{"per": "owner", "requests": 1}],
        {"per": "session"},
        [{"per": "session"}],
    ],
)
async def test_bad_budgets_of_a_session_fail_its_turn(store: Store, own: Any):
    await store.create_session(agent="clerk", id="s", owner="ada", metadata=json.dumps({"budgets": own}))
    async with working(store, AgentSetup(agent=Agent(looping(0)), name="clerk")):
        failed = await ended(store, await send(store, "s", "hello"))
    assert failed.state == "failed"
    assert "metadata.budgets" in (failed.reason or "")


async def test_a_turn_that_waits_for_a_budget_can_be_interrupted(store: Store):
    await store.create_session(agent="clerk", id="s", owner="ada")
    served = AgentSetup(
        agent=Agent(looping(3), tools=[work]), name="clerk", budgets=[Budget(per="session", requests=1)]
    )
    async with working(store, served):
        message = await send(store, "s", "hello")
        await waiting(store)
        await store.submit("s", "interrupt", lane="control")
        assert (await ended(store, message)).state == "failed"
        await raised(store, 100)
        assert (await ended(store, await send(store, "s", "again"))).state == "done"


async def test_steps_of_a_plain_agent_wait_for_a_budget(store: Store):
    @holdfast.agent("clerk", budgets=[Budget(per="turn", tokens=20)])
    async def clerk(turn: Turn) -> str:
        async def ask(what: str) -> str:
            done.append(what)
            turn.count_request("m", input_tokens=5, output_tokens=5)
            return what

        answers = [await turn.step("ask", ask, what) for what in "abc"]
        return "".join(answers)

    await store.create_session(agent="clerk", id="s", owner="ada")
    async with working(store, clerk):
        message = await send(store, "s", "hello")
        await waiting(store)
        assert done == ["a", "b"]
        await store.set_budget("turn", "s", Limits(tokens=1000), actor="root")
        await store.wake_for_budgets("turn", "s")
        assert (await ended(store, message)).state == "done"
    assert done == ["a", "b", "c"]


async def test_a_delegate_counts_towards_the_budget_of_its_caller_and_continues(store: Store):
    inner: Agent[None, str] = Agent(looping(2), tools=[work], capabilities=[Holdfast(store, agent="inner")])

    async def delegate(what: str) -> str:
        return f"{what}: {(await inner.run('go')).output}"

    outer = Agent(looping(1, "delegate"))
    outer.tool_plain(metadata={"recovery": "steps"})(delegate)
    await store.create_session(agent="clerk", id="s", owner="ada")
    served = AgentSetup(agent=outer, name="clerk", budgets=[Budget(per="session", requests=2)])
    async with working(store, served):
        message = await send(store, "s", "hello")
        await waiting(store)
        assert done == ["request", "request", "0"], "one of the caller, one of the delegate"
        await raised(store, 100)
        assert (await ended(store, message)).state == "done"
    assert done == ["request", "request", "0", "request", "1", "request", "request"]


async def test_the_model_is_told_about_a_delegate_that_cannot_wait(store: Store):
    inner: Agent[None, str] = Agent(looping(2), tools=[work], capabilities=[Holdfast(store, agent="inner")])

    async def delegate(what: str) -> str:
        return f"{what}: {(await inner.run('go')).output}"

    outer = Agent(looping(1, "delegate"))
    outer.tool_plain(delegate)
    await store.create_session(agent="clerk", id="s", owner="ada")
    served = AgentSetup(agent=outer, name="clerk", budgets=[Budget(per="session", requests=2)])
    async with working(store, served):
        message = await send(store, "s", "hello")
        await waiting(store)
        await raised(store, 100)
        assert (await ended(store, message)).state == "done"
    messages = "\n".join(event.message or "" for event in await store.events("s", limit=1000))
    assert "The budget of the session is used up" in messages


async def test_a_run_outside_a_worker_raises_and_is_resumed(store: Store):
    recorder = Holdfast(store, agent="clerk", owner="ada", budgets=[Budget(per="session", requests=1)])
    agent = Agent(looping(2), tools=[work], capabilities=[recorder])
    with pytest.raises(BudgetReached, match="the session is used up: 1 request of 1 request") as caught:
        await agent.run("hello", conversation_id="s")
    assert (caught.value.facts["session_id"], caught.value.facts["run_id"]) == ("s", await last_run(store))
    assert done == ["request", "0"]
    assert (await store.session("s")).status == "sleeping"
    with pytest.raises(BudgetReached):
        await resume(agent, store, await last_run(store))
    assert done == ["request", "0"]
    await store.set_budget("session", "s", Limits(requests=10), actor="root")
    result = await resume(agent, store, await last_run(store))
    assert result is not None
    assert done == ["request", "0", "request", "1", "request"]
    assert (await store.session("s")).status == "idle"


async def test_large_results_survive_a_refused_request(store: Store):
    """They are moved to the media store before the write that is refused, and must not be changed twice."""
    large = "x" * 200_000 + '{"$media": "fake"}'

    def look(what: str) -> str:
        return work(what) + large

    await store.create_session(agent="clerk", id="s", owner="ada")
    served = AgentSetup(
        agent=Agent(looping(2, "look"), tools=[look]), name="clerk", budgets=[Budget(per="turn", requests=1)]
    )
    async with working(store, served):
        message = await send(store, "s", "hello")
        await waiting(store)
        await store.set_budget("turn", "s", Limits(requests=10), actor="root")
        await store.wake_for_budgets("turn", "s")
        assert (await ended(store, message)).state == "done"
    assert done == ["request", "0", "request", "1", "request"]
    point = await find_resume_point(store, "s", None)
    results = [
        part.content for each in point.messages for part in each.parts if isinstance(part, ToolReturnPart)
    ]
    assert results == ["0" + large, "1" + large]


async def test_bad_own_budgets_name_the_place():
    with pytest.raises(BadInput, match=r"metadata\.budgets\[0\]\.cost"):
        own_budgets('{"budgets": [{"per": "turn", "cost": -1}]}')


async def test_many_waiting_sessions_are_each_woken_once(store: Store):
    await store.set_budget("owner", "ada", Limits(requests=0), actor="root")
    for number in range(20):
        await store.create_session(agent="clerk", id=f"s{number}", owner="ada")
        await send(store, f"s{number}", "hello")
    async with working(store, AgentSetup(agent=Agent(looping(0)), name="clerk")):
        for number in range(20):
            await waiting(store, f"s{number}")
        async with asyncio.timeout(20):
            assert await store.wake_for_budgets() <= 20


async def test_a_budget_that_is_raised_while_the_wait_is_recorded_is_noticed(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    await store.create_session(agent="clerk", id="s", owner="ada")
    write = store.write

    async def raise_first(lease: Lease, batch: Batch) -> int:
        if batch.status == "sleeping":
            await raised(store, 100)
        return await write(lease, batch)

    monkeypatch.setattr(store, "write", raise_first)
    served = AgentSetup(
        agent=Agent(looping(1), tools=[work]), name="clerk", budgets=[Budget(per="session", requests=1)]
    )
    async with working(store, served):
        assert (await ended(store, await send(store, "s", "hello"))).state == "done"


async def test_delegates_two_levels_deep_wait_and_continue(store: Store):
    leaf: Agent[None, str] = Agent(looping(2), tools=[work], capabilities=[Holdfast(store, agent="leaf")])

    async def ask_leaf(what: str) -> str:
        return f"{what}: {(await leaf.run('go')).output}"

    middle: Agent[None, Any] = Agent(
        looping(1, "ask_leaf"),
        output_type=[str, DeferredToolRequests],
        capabilities=[Holdfast(store, agent="middle")],
    )
    middle.tool_plain(metadata={"recovery": "steps"})(ask_leaf)

    async def ask_middle(what: str) -> str:
        return f"{what}: {(await middle.run('go')).output}"

    outer = Agent(looping(1, "ask_middle"))
    outer.tool_plain(metadata={"recovery": "steps"})(ask_middle)
    await store.create_session(agent="clerk", id="s", owner="ada")
    served = AgentSetup(agent=outer, name="clerk", budgets=[Budget(per="session", requests=3)])
    async with working(store, served):
        message = await send(store, "s", "hello")
        await waiting(store)
        await raised(store, 100)
        assert (await ended(store, message)).state == "done"
    assert [each for each in done if each != "request"] == ["0", "1"]


async def test_a_delegate_of_a_caller_that_cannot_wait_fails_for_the_model(store: Store):
    leaf: Agent[None, str] = Agent(looping(2), tools=[work], capabilities=[Holdfast(store, agent="leaf")])

    async def ask_leaf(what: str) -> str:
        return f"{what}: {(await leaf.run('go')).output}"

    recorder = Holdfast(store, agent="clerk", owner="ada", budgets=[Budget(per="session", requests=2)])
    caller = Agent(looping(1, "ask_leaf"), capabilities=[recorder])
    caller.tool_plain(metadata={"recovery": "steps"})(ask_leaf)
    with pytest.raises(BudgetReached):
        await caller.run("hello", conversation_id="s")
    await store.set_budget("session", "s", Limits(requests=100), actor="root")
    assert (await resume(caller, store, await last_run(store))).output == "done"
    assert "The budget of the session is used up" in "".join(
        event.message or "" for event in await store.events("s", limit=1000)
    )


def _plain(body: Callable[[Turn, Callable[[str], Awaitable[str]]], Awaitable[Any]], tokens: int) -> Any:
    @holdfast.agent("clerk", budgets=[Budget(per="turn", tokens=tokens)])
    async def clerk(turn: Turn) -> Any:
        async def ask(what: str) -> str:
            if what == "slow":
                await asyncio.sleep(0.3)
            done.append(what)
            turn.count_request("m", input_tokens=5, output_tokens=5)
            return what

        return await body(turn, ask)

    return clerk


async def _nested(turn: Turn, ask: Callable[[str], Awaitable[str]]) -> str:
    async def outer() -> str:
        return await turn.step("in", ask, "a") + await turn.step("in", ask, "b")

    return await turn.step("outer", outer) + await turn.step("after", ask, "c")


async def _gathered(turn: Turn, ask: Callable[[str], Awaitable[str]]) -> str:
    async def two() -> str:
        first = await turn.step("quick", ask, "a")
        await asyncio.sleep(0.05)
        return first + await turn.step("quick", ask, "b")

    return "".join(await asyncio.gather(turn.step("slow", ask, "slow"), two()))


async def _grouped(turn: Turn, ask: Callable[[str], Awaitable[str]]) -> str:
    async def two() -> str:
        first = await turn.step("quick", ask, "a")
        await asyncio.sleep(0.05)
        return first + await turn.step("quick", ask, "b")

    async with asyncio.TaskGroup() as group:
        slow = group.create_task(turn.step("slow", ask, "slow"))
        other = group.create_task(two())
    return slow.result() + other.result()


@pytest.mark.parametrize("body", [_nested, _gathered, _grouped])
async def test_steps_within_and_beside_others_wait_for_a_budget(store: Store, body: Any):
    await store.create_session(agent="clerk", id="s", owner="ada")
    async with working(store, _plain(body, 10)):
        message = await send(store, "s", "hello")
        await waiting(store)
        await store.set_budget("turn", "s", Limits(tokens=1000), actor="root")
        await store.wake_for_budgets("turn", "s")
        found = await ended(store, message)
    assert (found.state, found.reason) == ("done", None)
    assert len(done) == len(set(done)) == 3, "each request was made once"


async def test_a_question_beside_a_budget_keeps_its_deadline(store: Store):
    """A parallel call asks, with a default; when that applies, the turn continues up to its next model request."""

    async def danger() -> str:
        return work("danger")

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        if len(messages) > 1:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("danger", {}, "c1"), ToolCallPart("nap", {}, "c2")])

    agent = Agent(FunctionModel(respond))
    agent.tool_plain(
        requires_approval=True, metadata={"approval": {"deadline": timedelta(seconds=1.5), "default": "deny"}}
    )(danger)

    async def nap() -> str:
        await holdfast.sleep(seconds=0.5)
        return work("nap")

    agent.tool_plain(metadata={"recovery": "steps"})(nap)
    await store.create_session(agent="clerk", id="s", owner="ada")
    async with working(
        store, AgentSetup(agent=agent, name="clerk", budgets=[Budget(per="session", requests=1)])
    ):
        message = await send(store, "s", "hello")
        await waiting(store)
        assert done == ["nap"]
        assert "approval_answered" in await kinds(store, "s")
        await raised(store, 100)
        assert (await ended(store, message)).state == "done"


async def test_a_budget_that_is_set_later_holds_for_the_next_message_of_the_same_claim(store: Store):
    await store.create_session(agent="clerk", id="s", owner="ada")
    go_on = asyncio.Event()

    async def hold() -> str:
        await store.set_budget("owner", "ada", Limits(requests=0), actor="root")
        go_on.set()
        return work("hold")

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        return ModelResponse(parts=[ToolCallPart("hold", {})] if len(messages) == 1 else [TextPart("done")])

    first = await send(store, "s", "one")
    await send(store, "s", "two")
    async with working(store, AgentSetup(agent=Agent(FunctionModel(respond), tools=[hold]), name="clerk")):
        await ended(store, first)
        await waiting(store)
    assert done == ["hold"]


async def test_a_compaction_is_charged_and_refused(store: Store):
    await store.create_session(agent="clerk", id="s", owner="ada")
    served = AgentSetup(agent=Agent(looping(0)), name="clerk", budgets=[Budget(per="session", requests=2)])
    async with working(store, served):
        await ended(store, await send(store, "s", "hello"))
        assert (await ended(store, await store.submit("s", "compact"))).state == "done"
        refused = await ended(store, await store.submit("s", "compact"))
    assert "2 requests of 2 requests" in (refused.reason or "")


async def test_a_turn_of_an_application_has_one_budget_over_all_its_runs(store: Store):
    recorder = Holdfast(store, agent="clerk", owner="ada", budgets=[Budget(per="turn", requests=1)])
    agent = Agent(looping(2), tools=[work], capabilities=[recorder])
    with pytest.raises(BudgetReached):
        await agent.run("hello", conversation_id="s")
    for _ in range(2):
        with pytest.raises(BudgetReached):
            await resume(agent, store, await last_run(store))
    assert done == ["request", "0"]
    statuses = [run.status for run in (await store.runs(session_id="s")).items]
    assert statuses == ["completed", "completed", "waiting"]


@pytest.mark.parametrize("bad", [Budget(per="turn", requests=1), [{"per": "turn", "requests": 1}], "turn"])
def test_bad_budgets_in_code_are_refused_at_once(bad: Any):
    with pytest.raises(BadInput, match="list of"):
        AgentSetup(agent=Agent(looping(0)), budgets=bad)
    with pytest.raises(BadInput, match="list of"):
        Holdfast("sqlite:///unused.db", budgets=bad)
    with pytest.raises(BadInput, match="list of"):
        holdfast.agent("clerk", budgets=bad)(clerk_of_nothing)


async def clerk_of_nothing(turn: Turn) -> None:
    del turn
