"""A turn that a worker cut off, and another one continues: answers, outcomes and interrupts stay with what they were given for."""

import asyncio
import json
import random
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast.errors import Conflict, SessionBusy, StoreFull
from holdfast.questions import pending_approvals
from holdfast.record import is_provider_valid, load_history, step
from holdfast.record.ledger import latest_entries
from holdfast.runtime import AgentSetup, Turn, settle_effect
from holdfast.runtime import agent as function_agent
from holdfast.store import Store
from holdfast.types import Batch, Effect, Lease, Run, Submission, SubmissionChange
from tests.builders import until as holds
from tests.record.agents import scripted
from tests.runtime.agents import ended, is_kind, kinds, send, until, working


@pytest.fixture
async def session(store: Store) -> str:
    return (await store.create_session(agent="agent", owner="you")).id


def responses(messages: list[ModelMessage]) -> int:
    return sum(isinstance(message, ModelResponse) for message in messages)


async def questions(store: Store, session_id: str) -> list[list[dict[str, Any]]]:
    events = await store.events(session_id, limit=1000)
    return [json.loads(event.payload)["calls"] for event in events if event.kind == "approval_requested"]


async def answer(store: Store, call: dict[str, Any], session_id: str, *, approved: bool) -> Submission:
    facts = {"call_id": call["call_id"], "digest": call["digest"], "approved": approved}
    return await ended(store, await store.submit(session_id, "approval", json.dumps(facts), lane="control"))


async def reached(condition: Any) -> None:
    async def is_reached() -> bool:
        return bool(condition())

    await holds(is_reached)


async def test_an_approval_is_not_used_for_a_later_call_with_the_same_id(store: Store, session: str):
    """Some models give ids by index: `call_1` of the second step is another call than that of the first."""
    paid: list[int] = []
    looked: list[int] = []

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        steps: list[list[tuple[str, dict[str, int]]]] = [
            [("pay", {"amount": 1}), ("pay", {"amount": 2})],
            [("look", {}), ("pay", {"amount": 1_000_000})],
        ]
        if responses(messages) == len(steps):
            return ModelResponse(parts=[TextPart("done")])
        calls = steps[responses(messages)]
        return ModelResponse(parts=[ToolCallPart(t, a, f"call_{n}") for n, (t, a) in enumerate(calls)])

    agent = Agent(FunctionModel(respond))

    @agent.tool_plain(requires_approval=True)
    async def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    @agent.tool_plain(metadata={"recovery": "retry"})
    async def look() -> str:
        looked.append(1)
        if len(looked) == 1:
            await asyncio.sleep(60)
        return "seen"

    message = await send(store, session, "pay 1 and 2")
    async with working(store, agent, grace=0.1):
        await until(store, session, is_kind("approval_requested"))
        for call in (await questions(store, session))[0]:
            await answer(store, call, session, approved=True)
        await reached(lambda: looked)
    assert sorted(paid) == [1, 2]
    async with working(store, agent):
        await holds(lambda: _asked_again(store, session))
        assert sorted(paid) == [1, 2]
        ((call,),) = (await questions(store, session))[1:]
        assert call["arguments"] == {"amount": 1_000_000}
        assert (await answer(store, call, session, approved=False)).state == "done"
        assert (await ended(store, message)).state == "done"
    assert sorted(paid) == [1, 2]


async def _asked_again(store: Store, session_id: str) -> bool:
    return len(await questions(store, session_id)) > 1


async def test_whether_to_repeat_a_call_is_asked_anew(store: Store, session: str):
    """That a call was approved says nothing about running it a second time."""
    wired: list[str] = []

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if responses(messages):
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("wire", {"to": to}, f"c-{to}") for to in "ab"])

    agent = Agent(FunctionModel(respond))

    @agent.tool_plain(requires_approval=True)
    async def wire(to: str) -> str:
        wired.append(to)
        if len(wired) <= 2:
            await asyncio.sleep(60)
        return "wired"

    setup = AgentSetup(agent=agent, policies={"wire": "ask"})
    message = await send(store, session, "wire")
    async with working(store, setup, grace=0.1):
        await until(store, session, is_kind("approval_requested"))
        for call in (await questions(store, session))[0]:
            await answer(store, call, session, approved=True)
        await reached(lambda: len(wired) == 2)
    async with working(store, setup):
        await holds(lambda: _asked_again(store, session))
        a, b = (await questions(store, session))[1]
        assert (await answer(store, a, session, approved=False)).state == "done"
        assert (await answer(store, b, session, approved=True)).state == "done"
        assert (await ended(store, message)).state == "done"
    assert sorted(wired) == ["a", "b", "b"]


async def test_a_call_is_found_in_the_ledger_although_the_history_was_cut(store: Store, session: str):
    charged: list[int] = []
    steps: list[int] = []

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        steps.append(1)
        match len(steps):
            case 1:
                part = ToolCallPart("look", {}, "call_0")
            case 2:
                part = ToolCallPart("charge", {"amount": "a lot"}, "call_0")  # bad arguments: no tool runs
            case 3:
                part = ToolCallPart("charge", {"amount": 5}, "call_0")
            case _:
                part = TextPart(str(messages[-1].parts[0]))
        return ModelResponse(parts=[part])

    def window(messages: list[ModelMessage]) -> list[ModelMessage]:
        return messages if len(messages) <= 3 else [messages[0], *messages[-2:]]

    agent = Agent(FunctionModel(respond), capabilities=[ProcessHistory(window)])

    @agent.tool_plain
    async def look() -> str:
        return "seen"

    @agent.tool_plain
    async def charge(amount: int) -> str:
        charged.append(amount)
        if len(charged) == 1:
            await asyncio.sleep(60)
        return "charged"

    message = await send(store, session, "charge 5")
    async with working(store, agent, grace=0.1):
        await reached(lambda: charged)
    async with working(store, agent):
        assert (await ended(store, message)).state == "done"
    assert charged == [5]


async def test_odd_ids_are_found_in_the_ledger(store: Store, session: str):
    lease = await store.acquire(session, await store.join("test"))
    names = ["a", "a~2", "a~10", "a~" + "9" * 5000, "a~b", "~", "b~2"]
    await store.write(
        lease, Batch(runs=[Run(id="r")], effects=[Effect(run_id="r", call_id=n, tool="t") for n in names])
    )
    latest = await latest_entries(store, session, "r", ["a", "a~b", "~", "b", "c"])
    assert {call_id: (number, effect.call_id) for call_id, (number, effect) in latest.items()} == {
        "a": (10, "a~10"),
        "a~b": (1, "a~b"),
        "~": (1, "~"),
        "b": (2, "b~2"),
    }


async def test_an_interrupt_ends_a_turn_that_was_cut_off(store: Store, session: str):
    done: list[int] = []

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = responses(messages)
        return ModelResponse(parts=[ToolCallPart("step", {"number": number}, f"c{number}")])

    agent = Agent(FunctionModel(respond))

    @agent.tool_plain
    async def step(number: int) -> str:
        done.append(number)
        await asyncio.sleep(60)
        return "deleted"

    message = await send(store, session, "delete everything")
    async with working(store, agent, grace=0.1):
        await reached(lambda: done)
    later = await send(store, session, "hello?", when_busy="queue")
    stop = await store.submit(session, "interrupt", lane="control")
    async with working(store, Agent(scripted())):
        assert (await ended(store, stop)).state == "done"
        assert (await ended(store, message)).reason == "interrupted"
        assert (await ended(store, later)).state == "done"
    assert done == [0]
    assert "run_interrupted" in await kinds(store, session)


async def test_a_store_without_room_for_a_moment_costs_no_message(
    store: Store, session: str, monkeypatch: pytest.MonkeyPatch
):
    """Small writes succeed, so the session can be claimed again at once: its attempts must not run out in a blink."""
    write = store.write
    refused: list[float] = []
    loop = asyncio.get_running_loop()

    async def no_room(lease: Lease, batch: Batch) -> int:
        if batch.messages and (not refused or loop.time() < refused[0] + 1.5):
            refused.append(loop.time())
            raise StoreFull(url=store.url)
        return await write(lease, batch)

    monkeypatch.setattr(store, "write", no_room)
    async with working(store, Agent(scripted())):
        assert (await ended(store, await send(store, session, "important"))).state == "done"
    assert len(refused) <= 3


@pytest.mark.thorough("postgres")
async def test_a_call_that_is_known_to_have_failed_is_not_asked_about(store: Store, session: str):
    """Otherwise the question would come back after every answer: an answer does not change a call that has ended."""
    wired: list[str] = []
    waited: list[int] = []
    told: list[str] = []

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if responses(messages):
            told.append(str(messages[-1]))
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("wire", {}, "c1"), ToolCallPart("wait", {}, "c2")])

    agent = Agent(FunctionModel(respond))

    @agent.tool_plain
    async def wire() -> str:
        wired.append("x")
        message = "no funds"
        raise RuntimeError(message)

    @agent.tool_plain(metadata={"recovery": "retry"})
    async def wait() -> str:
        waited.append(1)
        if len(waited) == 1:
            with suppress(asyncio.CancelledError):  # a call that takes long to end
                await asyncio.sleep(60)
            await asyncio.sleep(60)
        return "waited"

    setup = AgentSetup(agent=agent, policies={"wire": "ask"})
    message = await send(store, session, "wire")
    async with working(store, setup, grace=0.1):
        await reached(lambda: wired and waited)
        await holds(lambda: _is_on_record(store, session))
    async with working(store, setup):
        assert (await ended(store, message)).state == "done"
    assert await questions(store, session) == []
    assert wired == ["x"]
    assert "no funds" in told[-1]


async def _is_on_record(store: Store, session_id: str) -> bool:
    effects = (await store.effects(session_id)).items
    return any(effect.state == "failed" for effect in effects)


@pytest.mark.parametrize("outcome", ["result", "error"])
async def test_an_outcome_that_a_person_found_out_counts_more_than_an_answer(
    store: Store, session: str, outcome: str
):
    """Asked whether to run a call again, one person finds out that it was done, and another says no."""
    wired: list[str] = []
    told: list[str] = []

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if responses(messages):
            told.append(str(messages[-1]))
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("wire", {}, "c1")])

    agent = Agent(FunctionModel(respond))

    @agent.tool_plain
    async def wire() -> str:
        wired.append("x")
        await asyncio.sleep(60)
        return "wired"

    setup = AgentSetup(agent=agent, policies={"wire": "ask"})
    message = await send(store, session, "wire")
    async with working(store, setup, grace=0.1):
        await reached(lambda: wired)
    async with working(store, setup):
        await until(store, session, is_kind("approval_requested"))
        ((call,),) = await questions(store, session)
        run_id = (await store.runs(session_id=session)).items[0].id
        await holds(lambda: _is_waiting(store, session))
        assert call["unsettled"] == {"run_id": run_id, "call_id": "c1"}
        found_out: dict[str, Any] = {outcome: "it was wired"}
        await settle_effect(store, run_id, "c1", actor="ada", **found_out)
        assert (await ended(store, message)).state == "done"
        assert (await answer(store, call, session, approved=False)).state == "failed"
    assert wired == ["x"]
    assert "it was wired" in told[-1]
    assert (await store.session(session)).waiting_for is None
    assert await store.check() == []


@pytest.mark.parametrize("seed", range(4))
async def test_answers_and_outcomes_that_race_decide_once(store: Store, session: str, seed: int):
    """Two people settle a call that was cut off, and two allow it to run again, all at the same moment."""
    wired: list[str] = []
    told: list[str] = []

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if responses(messages):
            told.append(str(messages[-1]))
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("wire", {}, "c1")])

    agent = Agent(FunctionModel(respond))

    @agent.tool_plain
    async def wire() -> str:
        wired.append("x")
        if len(wired) == 1:
            await asyncio.Event().wait()
        return "wired"

    setup = AgentSetup(agent=agent, policies={"wire": "ask"})
    message = await send(store, session, "wire")
    async with working(store, setup, grace=0.1):
        await reached(lambda: wired)
    async with working(store, setup):
        await until(store, session, is_kind("approval_requested"))
        ((call,),) = await questions(store, session)
        run_id = (await store.runs(session_id=session)).items[0].id
        await holds(lambda: _is_waiting(store, session))

        async def settle() -> bool:
            try:
                await settle_effect(store, run_id, "c1", actor="ada", result="it was wired")
            except (Conflict, SessionBusy):
                return False
            return True

        async def allow() -> bool:
            return (await answer(store, call, session, approved=True)).state == "done"

        attempts = [settle, settle, allow, allow]
        random.Random(seed).shuffle(attempts)
        outcomes = await asyncio.gather(*(attempt() for attempt in attempts))
        assert (await ended(store, message)).state == "done"
    settled = [done for attempt, done in zip(attempts, outcomes, strict=True) if attempt is settle]
    effects = (await store.effects(session)).items
    assert (sum(settled), len(wired)) in {(1, 1), (0, 2)}
    assert [effect.state for effect in effects] == ["completed"]
    assert ["it was wired" in text for text in told] == [len(wired) == 1]
    assert await store.check() == []


async def test_a_settled_call_leaves_the_other_questions_open(store: Store, session: str):
    agent = Agent(scripted([ToolCallPart("wire", {}, "c1"), ToolCallPart("pay", {}, "c2")]))
    wired: list[str] = []

    @agent.tool_plain
    async def wire() -> str:
        wired.append("x")
        await asyncio.sleep(60)
        return "wired"

    @agent.tool_plain(requires_approval=True)
    async def pay() -> str:
        return "paid"

    setup = AgentSetup(agent=agent, policies={"wire": "ask"})
    message = await send(store, session, "wire and pay")
    async with working(store, setup, grace=0.1):
        await reached(lambda: wired)
    async with working(store, setup):
        await until(store, session, is_kind("approval_requested"))
        await holds(lambda: _is_waiting(store, session))
        run_id = (await store.runs(session_id=session)).items[0].id
        await settle_effect(store, run_id, "c1", actor="ada", result="it was wired")
        (question,) = await pending_approvals(store, session)
        assert question["call_id"] == "c2"
        assert await _is_waiting(store, session)
        await answer(store, question, session, approved=True)
        assert (await ended(store, message)).state == "done"
    assert wired == ["x"]
    assert {e.call_id: e.state for e in (await store.effects(session)).items} == dict.fromkeys(
        ("c1", "c2"), "completed"
    )


@pytest.mark.parametrize("plain", [False, True])
async def test_settling_a_step_ends_the_question_about_it(store: Store, session: str, plain: bool):
    begun: list[str] = []

    async def wire() -> str:
        begun.append("x")
        await asyncio.sleep(60 if len(begun) == 1 else 0)
        return "wired"

    async def work() -> str:
        return f"{await step('wire', wire, recovery='ask')} and told"

    @function_agent("agent")
    async def by_itself(turn: Turn) -> str:
        return await work()

    by_model = Agent(scripted([ToolCallPart("work", {}, "c1")]), name="agent")
    by_model.tool_plain(metadata={"recovery": "steps"})(work)
    agent = by_itself if plain else AgentSetup(agent=by_model)
    message = await send(store, session, "go")
    async with working(store, agent, grace=0.1):
        await reached(lambda: begun)
    async with working(store, agent):
        await until(store, session, is_kind("approval_requested"))
        await holds(lambda: _is_waiting(store, session))
        (question,) = await pending_approvals(store, session)
        run_id, call_id = question["unsettled"]["run_id"], question["unsettled"]["call_id"]
        assert call_id == ("turn/wire" if plain else "c1/wire")
        await settle_effect(store, run_id, call_id, actor="ada", result="settled")
        assert (await ended(store, message)).state == "done"
        assert begun == ["x"]
        (latest,) = (await store.checkpoints(session_id=session, limit=1)).items
        messages = await load_history(store, latest)
        assert "settled and told" in str(messages)
        assert is_provider_valid(messages)
        assert (await ended(store, await send(store, session, "and now?"))).state == "done"
    assert await store.check() == []


async def _is_waiting(store: Store, session_id: str) -> bool:
    session = await store.session(session_id)
    return session.status == "waiting" and session.holder is None


async def test_a_reason_that_no_engine_stores_is_stored_readably(store: Store, session: str):
    """A reason quotes what a client sent."""
    agent = Agent(scripted([ToolCallPart("pay", {}, "c1")]))

    @agent.tool_plain(requires_approval=True)
    async def pay() -> str:
        return "paid"

    await send(store, session, "pay")
    async with working(store, agent):
        await until(store, session, is_kind("approval_requested"))
        odd = {"call_id": "a\x00b", "digest": "0", "approved": True}
        refused = await ended(store, await store.submit(session, "approval", json.dumps(odd), lane="control"))
    assert (refused.state, refused.attempts) == ("failed", 1)
    assert "a\ufffdb" in str(refused.reason)


async def test_an_interrupt_of_a_turn_that_was_cut_off_leaves_another_turn_alone(store: Store, session: str):
    """Its run had not begun, so a message for later, which has its place in the queue from before, runs first."""
    entered, leave = asyncio.Event(), asyncio.Event()

    @function_agent("agent")
    async def respond(turn: Turn) -> str:
        entered.set()
        await leave.wait()
        return turn.text

    later = await send(store, session, "later", deliver_at=await store.now() + timedelta(seconds=1))
    cut_off = await send(store, session, "now")
    holder = await store.join("dying", ttl=60)
    (work,) = await store.next_work(holder)
    assert work.submission is not None
    assert work.submission.id == cut_off.id
    again = SubmissionChange(id=cut_off.id, state="queued")
    await store.write(work.lease, Batch(submissions=[again], status="idle"))
    await asyncio.sleep(1)
    await store.release(work.lease)
    async with working(store, respond):
        await asyncio.wait_for(entered.wait(), 20)
        assert (await store.submission(later.id)).state == "claimed"
        target = json.dumps({"submission_id": cut_off.id})
        await ended(store, await store.submit(session, "interrupt", target, lane="control"))
        leave.set()
        assert (await ended(store, later)).state == "done"
        removed = await store.submission(cut_off.id)
        assert (removed.state, removed.reason) == ("failed", "interrupted")
