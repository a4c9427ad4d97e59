"""Questions of delegates: they reach the session at the root of the tree, and the answer continues the run that asked."""

import json
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset

import holdfast
from holdfast import Holdfast, connect
from holdfast.approval import ApprovalRequest
from holdfast.client import SessionHandle
from holdfast.errors import Conflict, RetentionRefused, TurnFailed
from holdfast.leases import hold_lease
from holdfast.media import open_media
from holdfast.retention import clean, erase
from holdfast.store import Store
from holdfast.types import Batch, NewEvent
from tests.builders import until
from tests.runtime.agents import working

LEVELS = 3
done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done():
    done.clear()


def calling(*responses: list[ToolCallPart]) -> FunctionModel:
    """Return a model that makes these calls, response by response, and then answers with the last results."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        number = sum(isinstance(message, ModelResponse) for message in messages)
        if number < len(responses):
            return ModelResponse(parts=[*responses[number]])
        results = [p.content for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
        return ModelResponse(parts=[TextPart(", ".join(map(str, results)))])

    return FunctionModel(respond)


def act(name: str) -> str:
    done.append(name)
    return name


def payer(store: Store, *, amounts: tuple[int, ...] = (5,), **metadata: Any) -> Agent[object, Any]:
    """Return an agent that looks once, and pays each amount if it may, each in a response of its own, always with the same call id."""
    responses = [
        [ToolCallPart("look", {}, "c0")],
        *([ToolCallPart("pay", {"amount": n}, "c1")] for n in amounts),
    ]
    agent = Agent(
        calling(*responses),
        name="payer",
        capabilities=[Holdfast(store)],
        output_type=[str, DeferredToolRequests],
    )

    @agent.tool_plain
    async def look() -> str:  # pyright: ignore[reportUnusedFunction]
        return act("looked")

    @agent.tool_plain(requires_approval=True, metadata=metadata)
    async def pay(amount: int) -> str:  # pyright: ignore[reportUnusedFunction]
        return act(f"paid {amount}")

    return agent  # pyright: ignore[reportReturnType]


def above(store: Store, delegate: Agent[object, Any], name: str, *others: ToolCallPart) -> Agent[object, Any]:
    """Return an agent whose tool runs the delegate."""
    agent: Agent[object, Any] = Agent(
        calling([ToolCallPart("ask", {}, "c1"), *others]),
        name=name,
        capabilities=[Holdfast(store)],
        output_type=[str, DeferredToolRequests],
    )

    @agent.tool(metadata={"recovery": "steps"})
    async def ask(ctx: RunContext[object]) -> str:  # pyright: ignore[reportUnusedFunction]
        before = await holdfast.step("before", act, f"{name} before")
        result = await delegate.run("help", conversation_id=ctx.conversation_id)
        after = await holdfast.step("after", act, f"{name} after")
        return f"{before}, {result.output}, {after}"

    @agent.tool_plain(requires_approval=True)
    async def ship() -> str:  # pyright: ignore[reportUnusedFunction]
        return act("shipped")

    @agent.tool_plain(metadata={"recovery": "steps"})
    async def nap() -> str:  # pyright: ignore[reportUnusedFunction]
        await holdfast.sleep(seconds=1)
        return await holdfast.step("wake", act, "awake")

    return agent


def tree(store: Store, **options: Any) -> Agent[object, Any]:
    """Return an agent that delegates to one that delegates to one that pays."""
    return above(store, above(store, payer(store, **options), "middle"), "clerk")


async def question(session: SessionHandle[Any], number: int = 1) -> ApprovalRequest:
    """Return the first of the open questions of a session when there are as many."""
    found: list[ApprovalRequest] = []

    async def asked() -> bool:
        found[:] = (await session.info()).approvals
        return len(found) == number

    await until(asked)
    return found[0]


async def events(store: Store, session_id: str, kind: str) -> list[dict[str, Any]]:
    return [json.loads(e.payload) for e in await store.events(session_id, limit=1000) if e.kind == kind]


BELOW = ["clerk before", "middle before", "looked"]


@pytest.mark.parametrize("approved", [True, False])
async def test_a_question_three_levels_deep_is_answered_at_the_root(store: Store, approved: bool):
    async with connect(store, agents=tree(store)) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        asked = await question(session)
        assert (asked.tool, asked.arguments) == ("pay", {"amount": 5})
        assert asked.origin is not None
        assert asked.origin.agents == ["middle", "payer"]
        assert asked.origin.call_id == "c1"
        assert (await session.info()).status == "waiting"
        assert done == BELOW
        decide = session.approve if approved else session.deny
        await (await decide(asked)).result(timeout=20)
        output = str(await turn.result(timeout=20))
    paid = ["paid 5"] if approved else []
    assert done == [*BELOW, *paid, "middle after", "clerk after"]
    assert ("paid 5" in output) == approved
    for session_id in ("s", asked.origin.session_id):
        (answered,) = await events(store, session_id, "approval_answered")
        assert answered["approved"] == approved
    sessions = (await store.sessions()).items
    assert len(sessions) == LEVELS
    assert {each.status for each in sessions} == {"idle"}
    assert [
        effect.call_id
        for each in sessions
        for effect in (await store.effects(each.id)).items
        if effect.state == "started"
    ] == []
    assert await store.check() == []


async def test_the_answer_continues_on_another_worker(store: Store):
    await store.create_session(agent="clerk", owner="local", id="s")
    turn = await store.submit("s", "message", '{"text": "Pay."}')
    async with working(store, tree(store)), connect(store) as hf:
        await question(await hf.session("s"))

    async def is_free() -> bool:
        return (await store.session("s")).holder is None

    await until(is_free)
    async with connect(store) as hf:
        session = await hf.session("s")
        await session.approve(await question(session))

    async def is_done() -> bool:
        return (await store.submission(turn.id)).state == "done"

    async with working(store, tree(store)):
        await until(is_done)
    assert done == [*BELOW, "paid 5", "middle after", "clerk after"]


async def test_each_question_of_a_delegate_needs_its_own_answer(store: Store):
    """The delegate's model uses the same id and the same arguments for another call."""
    async with connect(store, agents=tree(store, amounts=(5, 5))) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        first = await question(session)
        await (await session.approve(first)).result(timeout=20)

        async def asked_again() -> bool:
            approvals = (await session.info()).approvals
            return bool(approvals) and approvals[0].call_id != first.call_id

        await until(asked_again)
        assert done == [*BELOW, "paid 5"]
        await (await session.approve(first)).result(timeout=20)  # the same answer again changes nothing
        with pytest.raises(TurnFailed, match="different answer"):
            await (await session.deny(first)).result(timeout=20)
        second = await question(session)
        assert second.digest == first.digest
        await session.deny(second, feedback="once is enough")
        assert "once is enough" in str(await turn.result(timeout=20))
    assert done == [*BELOW, "paid 5", "middle after", "clerk after"]


async def test_a_question_can_be_answered_in_the_session_of_the_delegate(store: Store):
    async with connect(store, agents=tree(store)) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        asked = await question(session)
        assert asked.origin is not None
        below = await hf.session(asked.origin.session_id)
        own = await question(below)
        assert (own.call_id, own.digest, own.origin) == ("c1", asked.digest, None)
        inbox = await hf.inbox()
        assert [[call.call_id for call in item.approvals] for item in inbox.items] == [[asked.call_id]]
        sent = await below.approve("c1")
        assert sent.session_id == "s"
        await sent.result(timeout=20)
        assert "paid 5" in str(await turn.result(timeout=20))
        with pytest.raises(Conflict, match="does not wait for a decision"):
            await below.approve(own)  # no worker would take it from this session
        assert (await store.session(below.id)).pending == 0


async def test_answers_to_other_arguments_and_edits_are_refused(store: Store):
    async with connect(store, agents=tree(store, editable=True)) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        asked = await question(session)
        other = asked.model_copy(update={"digest": "0" * 64})
        with pytest.raises(TurnFailed, match="different arguments"):
            await (await session.approve(other)).result(timeout=20)
        with pytest.raises(TurnFailed, match="cannot be edited"):
            await (await session.approve(asked, arguments={"amount": 1})).result(timeout=20)
        await session.approve(asked)
        assert "paid 5" in str(await turn.result(timeout=20))


@pytest.mark.parametrize(("default", "paid"), [("approve", ["paid 5"]), ("deny", [])])
async def test_the_deadline_of_a_delegates_question_is_applied_at_the_root(
    store: Store, default: str, paid: list[str]
):
    approval = {"deadline": timedelta(seconds=1), "default": default}
    async with connect(store, agents=tree(store, approval=approval)) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        asked = await question(session)
        assert asked.deadline is not None

        async def is_over() -> bool:
            return (await turn.info()).state == "done"

        await until(is_over)
    assert done == [*BELOW, *paid, "middle after", "clerk after"]
    assert asked.origin is not None
    (answered,) = await events(store, asked.origin.session_id, "approval_answered")
    assert answered["by"] == "deadline"


async def test_a_delegate_and_its_caller_ask_at_the_same_time(store: Store):
    agent = above(store, payer(store), "clerk", ToolCallPart("ship", {}, "c2"))
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        await question(session, 2)
        approvals = (await session.info()).approvals
        assert sorted(call.tool for call in approvals) == ["pay", "ship"]
        for call in approvals:
            await (await session.approve(call)).result(timeout=20)
        assert sorted(str(await turn.result(timeout=20)).split(", "))[-2:] == ["paid 5", "shipped"]
    assert sorted(done) == sorted(["clerk before", "looked", "paid 5", "clerk after", "shipped"])


async def test_a_question_of_a_delegate_stays_open_while_another_call_wakes_up(store: Store):
    agent = above(store, payer(store), "clerk", ToolCallPart("nap", {}, "c2"))
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        before = await question(session)

        async def asked_again() -> bool:
            return len(await events(store, "s", "approval_requested")) == 2

        await until(asked_again)
        assert "awake" in done
        after = await question(session)
        assert (after.call_id, after.digest) == (before.call_id, before.digest)
        await session.approve(after)
        assert "paid 5" in str(await turn.result(timeout=20))
    assert sorted(done) == sorted(["clerk before", "looked", "awake", "paid 5", "clerk after"])


async def test_a_delegate_sleeps(store: Store):
    sleeper: Agent[object, Any] = Agent(
        calling([ToolCallPart("nap", {}, "c1")]),
        name="sleeper",
        capabilities=[Holdfast(store)],
        output_type=[str, DeferredToolRequests],
    )

    @sleeper.tool_plain(metadata={"recovery": "steps"})
    async def nap() -> str:  # pyright: ignore[reportUnusedFunction]
        await holdfast.sleep(seconds=1)
        return await holdfast.step("wake", act, "awake")

    async with connect(store, agents=above(store, sleeper, "clerk")) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Sleep.")

        async def sleeps() -> bool:
            return (await store.session("s")).status == "sleeping"

        await until(sleeps)
        assert "awake" in str(await turn.result(timeout=20))
    assert done == ["clerk before", "awake", "clerk after"]


class Receipt(BaseModel):
    """The output of a delegate."""

    amount: int


async def test_a_delegate_that_has_completed_is_not_repeated(store: Store):
    """The tool runs again from its top because of its second delegate. The first one returns its recorded output."""
    asked = 0

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal asked
        asked += 1
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"amount": 7}, "r1")])

    first = Agent(
        FunctionModel(respond),
        name="first",
        capabilities=[Holdfast(store)],
        output_type=[Receipt, DeferredToolRequests],
    )
    second = payer(store)
    agent: Agent[object, Any] = Agent(calling([ToolCallPart("both", {}, "c1")]), name="clerk")

    @agent.tool(metadata={"recovery": "steps"})
    async def both(ctx: RunContext[object]) -> str:  # pyright: ignore[reportUnusedFunction]
        one = await first.run("help", conversation_id=ctx.conversation_id)
        assert isinstance(one.output, Receipt)
        two = await second.run("help", conversation_id=ctx.conversation_id)
        return f"{one.output.amount} {len(one.all_messages()) > 0} {two.output}"

    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        await session.approve(await question(session))
        assert await turn.result(timeout=20) == "7 True looked, paid 5"
    assert asked == 1
    assert done == ["looked", "paid 5"]


async def test_a_delegate_of_a_tool_without_steps_returns_its_questions(store: Store):
    """Its tool cannot run again, and decides itself what to do."""
    delegate = payer(store)
    agent: Agent[object, Any] = Agent(calling([ToolCallPart("ask", {}, "c1")]), name="clerk")

    @agent.tool
    async def ask(ctx: RunContext[object]) -> str:  # pyright: ignore[reportUnusedFunction]
        result = await delegate.run("help", conversation_id=ctx.conversation_id)
        return type(result.output).__name__

    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent="clerk")
        assert await (await session.send("Pay.")).result(timeout=20) == "DeferredToolRequests"


async def test_an_interrupt_closes_the_question_of_a_delegate(store: Store):
    async with connect(store, agents=tree(store)) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        asked = await question(session)
        await session.interrupt()
        with pytest.raises(TurnFailed, match="interrupted"):
            await turn.result(timeout=20)
        assert (await session.info()).approvals == []
        assert asked.origin is not None
        assert (await (await hf.session(asked.origin.session_id)).info()).approvals == []
        assert (await hf.inbox()).items == []
        assert {each.status for each in (await store.sessions()).items} == {"idle"}
        assert (await store.runs(session_id=asked.origin.session_id)).items[-1].status == "interrupted"
        assert "its delegate waited for a decision about pay" in str(
            await (await session.send("Pay.")).result(timeout=20)
        )


async def test_the_question_is_closed_if_the_root_is_erased(store: Store):
    async with connect(store, agents=tree(store)) as hf:
        session = await hf.session("s", agent="clerk")
        await session.send("Pay.")
        asked = await question(session)

        async def is_free() -> bool:
            return (await store.session("s")).holder is None

        await until(is_free)
        await erase(store, open_media(store=store), "s", actor="you")
        assert asked.origin is not None
        below = await hf.session(asked.origin.session_id)
        assert (await below.info()).approvals == []
    assert done == BELOW


async def test_an_answer_waits_while_the_session_of_the_delegate_is_held(store: Store):
    async with connect(store, agents=tree(store)) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        asked = await question(session)
        assert asked.origin is not None
        async with hold_lease(store, asked.origin.session_id):
            sent = await session.approve(asked)

            async def is_taken() -> bool:
                return (await sent.info()).started_at is not None

            await until(is_taken)
            assert (await sent.info()).state == "claimed"
        await sent.result(timeout=20)
        assert "paid 5" in str(await turn.result(timeout=20))


async def test_the_session_of_a_delegate_is_kept_until_the_turn_at_the_root_has_ended(store: Store):
    """It has no submission of its own, so it counts as idle while its question waits for days."""
    media = open_media(store=store)
    async with connect(store, agents=tree(store)) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        asked = await question(session)
        assert asked.origin is not None
        below = asked.origin.session_id
        with pytest.raises(RetentionRefused, match="a delegate of session s, which has submissions"):
            await clean(store, media, below, idle_days=0, actor="policy")
        await session.approve(asked)
        assert "paid 5" in str(await turn.result(timeout=20))

        async def ended() -> bool:
            return (await store.session("s")).pending == 0

        await until(ended)
        await clean(store, media, below, idle_days=0, actor="policy")


async def test_a_result_for_the_call_of_a_delegate_is_refused(store: Store):
    """No worker serves the session of the delegate: the result would stay queued."""
    outside = ExternalToolset([ToolDefinition(name="order")])
    orderer = Agent(
        calling([ToolCallPart("order", {}, "o1")]),
        name="orderer",
        capabilities=[Holdfast(store)],
        toolsets=[outside],
        output_type=[str, DeferredToolRequests],
    )
    async with connect(store, agents=above(store, orderer, "clerk")) as hf:
        session = await hf.session("s", agent="clerk")
        await session.send("Order.")
        asked = await question(session)
        assert asked.origin is not None
        with pytest.raises(Conflict, match="does not wait for a result"):
            await (await hf.session(asked.origin.session_id)).tool_result("o1", "late")
        with pytest.raises(TurnFailed, match="does not wait for a result"):
            await (await session.tool_result(asked, "late")).result(timeout=20)


async def test_a_question_with_the_origin_of_another_session_changes_nothing_there(store: Store):
    """As in an archive that its owner has changed before it was restored."""
    async with connect(store, agents=tree(store)) as hf:
        theirs = await hf.session("theirs", agent="clerk")
        await theirs.send("Pay.")
        asked = await question(theirs)
        assert asked.origin is not None
        mine = await hf.session("mine", agent="clerk")
        await mine.send("Pay.")
        own = await question(mine)
        theirs_before = await store.events(asked.origin.session_id, limit=1000)
        forged = own.model_copy(update={"origin": asked.origin}).model_dump(mode="json", exclude_none=True)
        (waiting,) = (await store.submissions("mine", state="waiting")).items
        payload = json.dumps({"calls": [forged]})
        async with hold_lease(store, "mine") as lease:
            event = NewEvent(kind="approval_requested", run_id=waiting.run_id, payload=payload)
            await store.write(lease, Batch(events=[event]))
        await (await mine.approve(await question(mine))).result(timeout=20)
        assert await store.events(asked.origin.session_id, limit=1000) == theirs_before
