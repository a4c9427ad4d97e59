"""Questions that expire: a deadline, and what happens if nobody answers in time."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import CallDeferred
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import holdfast
from holdfast import Turn, connect
from holdfast.approval import ApprovalRequest
from holdfast.client import SessionHandle
from holdfast.errors import TurnFailed
from holdfast.record.deadlines import MOST_REMINDERS
from holdfast.store import Store
from holdfast.types import Submission
from tests.builders import until
from tests.runtime.agents import ended, send, working

SOON = timedelta(seconds=1)
LATER = timedelta(hours=1)
done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done():
    done.clear()


def calling(*calls: ToolCallPart) -> FunctionModel:
    """Return a model that makes these calls, and then answers with their results."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        results = [p.content for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
        return ModelResponse(parts=[TextPart(", ".join(map(str, results)))] if results else [*calls])

    return FunctionModel(respond)


def paying(
    deadline: object, default: object, *others: ToolCallPart, **metadata: object
) -> Agent[object, Any]:
    """Return an agent that pays if it may, and one of its tools for each other call."""
    agent: Agent[object, Any] = Agent(
        calling(ToolCallPart("pay", {"amount": 5}, "c1"), *others), name="clerk"
    )

    async def pay(amount: int) -> str:
        done.append(f"paid {amount}")
        return done[-1]

    async def ship() -> str:
        done.append("shipped")
        return "shipped"

    async def nap() -> str:
        await holdfast.sleep(seconds=1)
        done.append("awake")
        return "awake"

    approval = {"deadline": deadline, "default": default}
    agent.tool_plain(requires_approval=True, metadata={"approval": approval, **metadata})(pay)
    agent.tool_plain(requires_approval=True)(ship)
    agent.tool_plain(metadata={"recovery": "steps"})(nap)
    return agent


def asking(deadline: Any, default: Any) -> Any:
    """Return a plain agent that pays if it may."""

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> str:
        decision = await turn.ask("Pay 5?", deadline=deadline, default=default)
        if not decision:
            return str(decision.feedback)
        done.append("paid 5")
        return f"paid for {decision.by}"

    return clerk


async def events(store: Store, kind: str) -> list[dict[str, Any]]:
    return [json.loads(e.payload) for e in await store.events("s", limit=1000) if e.kind == kind]


async def question(session: SessionHandle[Any]) -> ApprovalRequest:
    """Return the only open question of a session when there is one."""
    found: list[ApprovalRequest] = []

    async def asked() -> bool:
        found[:] = (await session.info()).approvals
        return bool(found)

    await until(asked)
    (only,) = found
    return only


async def passed(store: Store, moment: datetime | None) -> None:
    """Wait until a time has come on the clock of the database."""

    async def is_over() -> bool:
        return moment is not None and await store.now() > moment

    await until(is_over)


async def asked(store: Store, agent: Any) -> tuple[Submission, dict[str, Any]]:
    """Have the agent ask, stop its worker, and return the turn and the question."""
    await store.create_session(agent="clerk", owner="you", id="s")
    async with working(store, agent):
        turn = await send(store, "s", "Pay.")

        async def waits() -> bool:
            return (await store.session("s")).status == "waiting" and (
                await store.session("s")
            ).holder is None

        await until(waits)
    ((found,),) = [each["calls"] for each in await events(store, "approval_requested")]
    return turn, found


async def answer(store: Store, asked: dict[str, Any], *, approved: bool) -> Submission:
    payload = {"call_id": asked["call_id"], "digest": asked["digest"], "approved": approved}
    return await store.submit("s", "approval", json.dumps(payload), lane="control")


@pytest.mark.parametrize(
    ("default", "output", "acts"),
    [("approve", "paid 5", ["paid 5"]), ("deny", "Nobody answered before the deadline.", [])],
)
async def test_a_tool_is_approved_or_denied_at_its_deadline(
    store: Store, default: str, output: str, acts: list[str]
):
    async with connect(store, agents=paying(SOON, default)) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        pending = await question(session)
        assert pending.default == default
        assert pending.deadline is not None
        assert done == []

        async def is_over() -> bool:
            return (await turn.info()).state == "done"

        await until(is_over)
        assert await turn.result(timeout=20) == output
    assert done == acts
    (answered,) = await events(store, "approval_answered")
    assert (answered["by"], answered["approved"]) == ("deadline", default == "approve")
    (at,) = [e.at for e in await store.events("s", limit=1000) if e.kind == "approval_answered"]
    assert at >= pending.deadline
    (submission,) = (await store.submissions("s")).items
    assert (submission.state, submission.attempts) == ("done", 1)
    assert await store.check() == []


@pytest.mark.parametrize(
    ("default", "output"),
    [("approve", "paid for deadline"), ("deny", "Nobody answered before the deadline.")],
)
async def test_a_plain_agent_decides_at_the_deadline(store: Store, default: str, output: str):
    async with connect(store, agents=asking(SOON, default)) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        await question(session)

        async def is_over() -> bool:
            return (await turn.info()).state == "done"

        await until(is_over)
        assert await turn.result(timeout=20) == output


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (lambda: paying(SOON, "fail"), "the question about pay (c1)"),
        (lambda: asking(SOON, "fail"), "the question 'Pay 5?' (ask)"),
    ],
    ids=["tool", "plain"],
)
async def test_a_turn_fails_at_the_deadline_and_asks_anew_when_it_is_retried(
    store: Store, agent: Any, name: str
):
    async with connect(store, agents=agent()) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        first = await question(session)

        async def is_over() -> bool:
            return (await turn.info()).state == "failed"

        await until(is_over)
        with pytest.raises(TurnFailed) as failure:
            await turn.result(timeout=20)
        assert f"{name} was not answered before its deadline, 20" in str(failure.value)
        info = await session.info()
        assert (info.status, info.approvals) == ("failed", [])
        assert name in str(info.error)
        (run,) = (await store.runs(session_id="s")).items
        assert run.status == "failed"
        retried = await turn.retry()
        again = await question(session)
        assert first.deadline is not None
        assert again.deadline is not None
        assert again.deadline > first.deadline
        await session.approve(again)
        assert "paid" in str(await retried.result(timeout=20))
    assert done == ["paid 5"]
    assert await store.check() == []


@pytest.mark.parametrize("make", [paying, asking])
async def test_reminders_are_bounded_and_do_not_run_the_agent(store: Store, make: Any):
    async with connect(store, agents=make(timedelta(milliseconds=50), "remind")) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")

        async def reminded() -> bool:
            return len(await events(store, "approval_reminder")) == MOST_REMINDERS

        await until(reminded)
        pending = await question(session)
        assert (pending.deadline, pending.reminders) == (None, MOST_REMINDERS)
        reminders = await events(store, "approval_reminder")
        assert [each["number"] for each in reminders] == list(range(1, MOST_REMINDERS + 1))
        times = [datetime.fromisoformat(each["next"]) for each in reminders[:-1]]
        assert times == sorted(set(times))
        assert reminders[-1]["next"] is None
        assert len(await events(store, "run_started")) == 1
        info = await session.info()
        assert (info.status, info.waiting_for) == ("waiting", f"{pending.tool} ({pending.call_id})")
        await session.approve(pending)
        assert "paid" in str(await turn.result(timeout=20))
    assert done == ["paid 5"]


async def test_a_reminder_after_an_outage_comes_once(store: Store):
    interval = timedelta(milliseconds=100)
    _, pending = await asked(store, paying(interval, "remind"))
    await passed(store, datetime.fromisoformat(pending["deadline"]) + 5 * interval)
    restarted = await store.now()
    async with working(store, paying(interval, "remind")):

        async def is_reminded() -> bool:
            return bool(await events(store, "approval_reminder"))

        await until(is_reminded)
    first = (await events(store, "approval_reminder"))[0]
    assert first["number"] == 1
    assert datetime.fromisoformat(first["next"]) > restarted


async def test_an_answer_in_time_wins_although_no_worker_was_there(store: Store):
    agent = paying(SOON, "deny")
    turn, pending = await asked(store, agent)
    given = await answer(store, pending, approved=True)
    await passed(store, datetime.fromisoformat(pending["deadline"]))
    async with working(store, agent):
        assert (await ended(store, given)).state == "done"
        assert (await ended(store, turn)).state == "done"
    assert done == ["paid 5"]


async def test_a_late_answer_is_refused_even_if_the_default_is_not_recorded_yet(store: Store):
    agent = paying(SOON, "deny")
    turn, pending = await asked(store, agent)
    await passed(store, datetime.fromisoformat(pending["deadline"]))
    late = await answer(store, pending, approved=True)
    async with working(store, agent):
        refused = await ended(store, late)
        assert refused.state == "failed"
        assert "the deadline of call c1 passed at" in str(refused.reason)
        assert (await ended(store, turn)).state == "done"
        much_later = await ended(store, await answer(store, pending, approved=True))
        assert "it was denied by default" in str(much_later.reason)
    assert done == []
    assert [each["by"] for each in await events(store, "approval_answered")] == ["deadline"]


async def test_an_answer_at_the_deadline_and_the_default_exclude_each_other(store: Store):
    agent = asking(SOON, "deny")
    turn, pending = await asked(store, agent)
    async with working(store, agent):
        deadline, nearly = datetime.fromisoformat(pending["deadline"]), timedelta(milliseconds=30)
        given: list[Submission] = []
        await passed(store, deadline - nearly)
        while await store.now() < deadline + nearly:
            given.append(await answer(store, pending, approved=True))
        assert (await ended(store, turn)).state == "done"
        outcomes = [await ended(store, each) for each in given]
    (counted,) = await events(store, "approval_answered")
    assert done == (["paid 5"] if counted["approved"] else [])
    if counted["approved"]:
        assert {each.state for each in outcomes} == {"done"}
    else:
        assert counted["by"] == "deadline"
        assert {each.state for each in outcomes} == {"failed"}
        assert all("deadline of call ask" in str(each.reason) for each in outcomes)


async def test_a_deadline_does_not_disturb_another_question(store: Store):
    agent = paying(SOON, "approve", ToolCallPart("ship", {}, "c2"))
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")

        async def one_is_left() -> bool:
            return [each.call_id for each in (await session.info()).approvals] == ["c2"]

        await until(one_is_left)
        info = await session.info()
        assert (info.status, info.waiting_for) == ("waiting", "ship (c2)")
        assert (await turn.info()).deliver_at is None
        assert done == []
        assert len(await events(store, "approval_requested")) == len(await events(store, "run_started")) == 1
        await session.approve("c2")
        assert await turn.result(timeout=20) == "paid 5, shipped"
    assert sorted(done) == ["paid 5", "shipped"]


async def test_a_question_keeps_its_deadline_while_another_call_wakes_up(store: Store):
    agent = paying(LATER, "deny", ToolCallPart("nap", {}, "c2"))
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        before = await question(session)

        async def asked_again() -> bool:
            return len(await events(store, "approval_requested")) == 2

        await until(asked_again)
        assert done == ["awake"]
        assert await question(session) == before
        assert (await turn.info()).deliver_at == before.deadline
        await session.approve("c1")
        assert "paid 5" in str(await turn.result(timeout=20))


async def test_a_sleep_continues_after_a_deadline(store: Store):
    """The default answers the question while the other call still sleeps."""
    agent = paying(timedelta(milliseconds=200), "approve", ToolCallPart("nap", {}, "c2"))
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")

        async def is_over() -> bool:
            return (await turn.info()).state == "done"

        await until(is_over)
        assert sorted(str(await turn.result(timeout=20)).split(", ")) == ["awake", "paid 5"]
    assert done == ["paid 5", "awake"]
    assert await store.check() == []


async def test_a_signal_is_received_while_a_question_with_a_deadline_is_open(store: Store):
    async def wait() -> str:
        return await holdfast.signal("paid")

    calls = [ToolCallPart("wait", {}, "c1"), ToolCallPart("ship", {}, "c2")]
    agent: Agent[object, Any] = Agent(calling(*calls), name="clerk")
    agent.tool_plain(metadata={"recovery": "steps"})(wait)

    @agent.tool_plain(requires_approval=True, metadata={"approval": {"deadline": LATER, "default": "deny"}})
    async def ship() -> str:  # pyright: ignore[reportUnusedFunction]
        return "shipped"

    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        before = await question(session)
        await session.signal("paid", "by card")

        async def received() -> bool:
            return len(await events(store, "wait_ended")) == 1

        await until(received)
        assert await question(session) == before
        await session.approve("c2")
        assert await turn.result(timeout=20) == "by card, shipped"


async def test_an_interrupt_removes_the_deadline(store: Store):
    agent = paying(SOON, "approve")
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay.")
        pending = await question(session)
        await session.interrupt()
        with pytest.raises(TurnFailed, match="interrupted"):
            await turn.result(timeout=20)
        await passed(store, pending.deadline)
        assert (await store.ready_in(await store.join("test"))) is None
    assert done == []
    assert await events(store, "approval_answered") == []


async def test_a_call_that_is_carried_out_elsewhere_is_never_approved_by_default(store: Store):
    agent: Agent[object, Any] = Agent(calling(ToolCallPart("order", {}, "c1")), name="clerk")

    @agent.tool_plain(metadata={"approval": {"deadline": SOON, "default": "approve"}})
    async def order() -> str:  # pyright: ignore[reportUnusedFunction]
        raise CallDeferred

    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent="clerk")
        await session.send("Order.")
        assert (await question(session)).deadline is None


async def test_a_call_that_may_have_taken_effect_is_denied_at_its_deadline(store: Store):
    """The question whether it runs again has the deadline of its tool."""
    begun = asyncio.Event()

    async def pay() -> str:
        done.append("begun")
        begun.set()
        await asyncio.sleep(60)
        return "paid"

    agent: Agent[object, Any] = Agent(calling(ToolCallPart("pay", {}, "c1")), name="clerk")
    approval = {"deadline": SOON, "default": "deny"}
    agent.tool_plain(metadata={"recovery": "ask", "approval": approval})(pay)
    await store.create_session(agent="clerk", owner="you", id="s")
    turn = await send(store, "s", "Pay.")
    async with working(store, agent, grace=0.1):
        await begun.wait()
    async with working(store, agent):
        assert (await ended(store, turn)).state == "done"
    assert done == ["begun"]
    (pending,) = [each["calls"][0] for each in await events(store, "approval_requested")]
    assert pending["note"]
    (answered,) = await events(store, "approval_answered")
    assert (answered["by"], answered["approved"]) == ("deadline", False)


IN_2100 = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("deadline", "default", "problem"),
    [
        (datetime(2020, 1, 1, tzinfo=UTC), "deny", "2020-01-01T00:00:00.00:00, is in the past"),
        (IN_2100, "deny", "is more than ten years ahead"),
        (datetime(2030, 1, 1), "deny", "the deadline of `turn.ask` has no time zone"),  # noqa: DTZ001
        (timedelta(seconds=-1), "deny", "more than 0 seconds and at most ten years"),
        (timedelta(0), "deny", "more than 0 seconds and at most ten years"),
        (timedelta(days=4000), "deny", "more than 0 seconds and at most ten years"),
        (60, "deny", "must be a timedelta or a datetime, not int"),
        (
            SOON,
            "maybe",
            "'maybe' is not a valid default of `turn.ask`; use one of deny, approve, fail, remind",
        ),
        (SOON, None, "needs both a `deadline` and a `default`"),
        (None, "deny", "needs both a `deadline` and a `default`"),
    ],
)
async def test_deadlines_of_questions_that_are_refused(
    store: Store, deadline: Any, default: Any, problem: str
):
    async with connect(store, agents=asking(deadline, default)) as hf:
        session = await hf.session("s", agent="clerk")
        with pytest.raises(TurnFailed, match=problem):
            await (await session.send("Pay.")).result(timeout=20)
    assert await events(store, "approval_requested") == []


@pytest.mark.parametrize(
    ("approval", "problem"),
    [
        ({"deadline": SOON}, "must be an object with a `deadline` and a `default`"),
        ({"default": "deny"}, "must be an object with a `deadline` and a `default`"),
        ({"deadline": SOON, "default": "deny", "to": "me"}, "and nothing else"),
        ("deny", "must be an object"),
        ({"deadline": IN_2100, "default": "deny"}, "must be a timedelta: it begins with each question"),
        (
            {"deadline": timedelta(days=-1), "default": "deny"},
            "the deadline of tool 'pay' must be more than 0",
        ),
        ({"deadline": 3600, "default": "deny"}, "must be a timedelta or a datetime, not int"),
        ({"deadline": SOON, "default": "allow"}, "'allow' is not a valid default of tool 'pay'"),
        ({"deadline": SOON, "default": "approve"}, "would repeat a call that may have taken effect"),
    ],
)
async def test_deadlines_of_tools_that_are_refused(store: Store, approval: Any, problem: str):
    agent: Agent[object, Any] = Agent(calling(ToolCallPart("pay", {}, "c1")), name="clerk")

    @agent.tool_plain(requires_approval=True, metadata={"approval": approval, "recovery": "ask"})
    async def pay() -> str:  # pyright: ignore[reportUnusedFunction]
        return "paid"

    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent="clerk")
        with pytest.raises(TurnFailed, match=problem):
            await (await session.send("Pay.")).result(timeout=20)
    assert await events(store, "approval_requested") == []
    assert [run.status for run in (await store.runs(session_id="s")).items] == ["failed"]
