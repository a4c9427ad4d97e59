"""Tools and plain agents that sleep, or wait for a signal, without a process."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

import holdfast
from holdfast import Turn, connect
from holdfast.errors import BadInput, SignalTimeout, TurnFailed
from holdfast.record import wait_requests
from holdfast.record.open_calls import is_provider_valid
from holdfast.record.resume_point import find_resume_point
from holdfast.store import Store
from holdfast.types import SUSPENDED, Session, Work
from tests.builders import until
from tests.runtime.agents import ended, working

SOON = 1.0
done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done():
    done.clear()


async def do(what: str) -> str:
    done.append(what)
    return what


def called(messages: list[ModelMessage]) -> list[Any]:
    return [
        part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)
    ]


def calling(*calls: ToolCallPart) -> FunctionModel:
    """Return a model that makes these calls, and then answers with their results."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        results = called(messages)
        return ModelResponse(parts=[TextPart(", ".join(map(str, results)))] if results else [*calls])

    return FunctionModel(respond)


async def waiting(store: Store, session_id: str = "s") -> Session:
    async def waits() -> bool:
        return (await store.session(session_id)).status in SUSPENDED

    await until(waits)
    return await store.session(session_id)


async def kinds(store: Store) -> list[str]:
    return [event.kind for event in await store.events("s", limit=1000)]


async def signal(store: Store, name: str, data: Any = None) -> None:
    await store.submit("s", "signal", json.dumps({"name": name, "data": data}), lane="control")


async def test_a_plain_agent_sleeps_and_continues_where_it_was(store: Store):
    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> str:
        await turn.step("before", do, "before")
        await turn.sleep(seconds=SOON)
        await turn.step("after", do, "after")
        return "slept"

    async with connect(store, agents=clerk) as hf:
        session = await hf.session("s", agent=clerk)
        turn = await session.send("Hello")
        asleep = await waiting(store)
        assert asleep.status == "sleeping"
        assert asleep.holder is None
        assert asleep.waiting_for is not None
        assert asleep.waiting_for.startswith("timer until 20")
        (submission,) = (await store.submissions("s")).items
        assert submission.deliver_at is not None
        assert await turn.result(timeout=20) == "slept"
        woken = (await store.submission(submission.id)).started_at
        assert woken is not None
        assert woken >= submission.deliver_at
    assert done == ["before", "after"]
    happened = await kinds(store)
    for kind in ("wait_started", "run_waiting", "wait_ended", "run_completed"):
        assert happened.count(kind) == 1
    assert [effect.state for effect in (await store.effects("s")).items] == ["completed"] * 3
    assert (await store.submissions("s")).items[0].attempts == 1


async def test_a_turn_that_reached_a_wait_has_all_its_attempts_again(store: Store):
    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> str:
        await turn.sleep(seconds=SOON)
        return "slept"

    await store.create_session(agent="clerk", owner="ada", id="s")
    sent = await store.submit("s", "message", '{"text": "Hello"}')
    for attempt in range(1, 4):
        claimed: list[Work] = []
        while (
            not claimed
        ):  # on a slow machine, the holder expires before; and an expired one may not be reclaimed yet
            await store.reclaim()
            claimed = await store.next_work(await store.join("killed", ttl=2))
        (work,) = claimed
        assert work.submission is not None
        assert work.submission.attempts == attempt

        async def is_free() -> bool:
            await store.reclaim()
            return (await store.session("s")).holder is None

        await until(is_free)
    async with working(store, clerk):
        assert (await waiting(store)).status == "sleeping"
        assert (await store.submission(sent.id)).attempts == 1
        done = await ended(store, sent)
    assert (done.state, done.reason, done.attempts) == ("done", None, 1)


async def test_a_time_in_the_past_is_over(store: Store):
    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> str:
        await turn.sleep_until(datetime(2020, 1, 1, tzinfo=UTC))
        return "at once"

    async with connect(store, agents=clerk) as hf:
        session = await hf.session("s", agent=clerk)
        assert await (await session.send("Hello")).result(timeout=20) == "at once"
    assert "run_waiting" not in await kinds(store)


@pytest.mark.parametrize(
    ("wait", "problem"),
    [
        (lambda: holdfast.sleep_until(datetime(2030, 1, 1)), "has no time zone"),  # noqa: DTZ001
        (lambda: holdfast.sleep_until(datetime(2100, 1, 1, tzinfo=UTC)), "more than ten years ahead"),
        (lambda: holdfast.sleep(days=4000), "0 seconds to ten years"),
        (lambda: holdfast.sleep(seconds=-1), "0 seconds to ten years"),
        (lambda: holdfast.signal("a/b"), "signal name"),
        (lambda: holdfast.step("inner", holdfast.sleep), "cannot be used within a step"),
    ],
)
async def test_waits_that_are_refused(store: Store, wait: Any, problem: str):
    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> None:
        await wait()

    async with connect(store, agents=clerk) as hf:
        session = await hf.session("s", agent=clerk)
        with pytest.raises(TurnFailed, match=problem):
            await (await session.send("Hello")).result(timeout=20)


async def test_a_wait_outside_a_turn_is_refused():
    with pytest.raises(BadInput, match="`sleep` was called outside a recorded turn"):
        await holdfast.sleep(days=1)


@pytest.mark.parametrize(
    ("wait", "problem"),
    [
        (lambda: holdfast.sleep(seconds=-5), "0 seconds to ten years, not -5 seconds"),
        (lambda: holdfast.sleep(days=float("nan")), "`sleep` takes numbers"),
        (lambda: holdfast.sleep(days=1e300), "`sleep` takes numbers"),
        (lambda: holdfast.sleep_until(cast("Any", "tomorrow")), "must be a datetime with a time zone"),
        (lambda: holdfast.signal("paid", timeout=cast("Any", 5)), "must be a timedelta"),
    ],
)
async def test_a_bad_duration_is_refused_with_a_reason(
    store: Store, wait: Callable[[], Awaitable[Any]], problem: str
):
    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> None:
        await wait()

    async with connect(store, agents=[clerk]) as client:
        session = await client.session(agent=clerk)
        with pytest.raises(TurnFailed, match=f"BadInput: Invalid input: .*{problem}"):
            await (await session.send("go")).result(timeout=20)


async def test_a_tool_that_sleeps_without_steps_names_the_remedy(store: Store):
    tired = Agent(TestModel(), name="tired")

    @tired.tool_plain
    async def rest() -> None:
        await holdfast.sleep(days=1)

    async with connect(store, agents=[tired]) as client:
        session = await client.session(agent=tired)
        with pytest.raises(TurnFailed, match=r"in the tool 'rest', .*{'recovery': 'steps'}"):
            await (await session.send("go")).result(timeout=20)


@pytest.mark.parametrize("early", [True, False])
async def test_a_signal_is_received_even_if_it_arrives_first(store: Store, early: bool):
    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> Any:
        return [await turn.signal("paid"), await turn.signal("paid")]

    async with connect(store, agents=clerk) as hf:
        session = await hf.session("s", agent=clerk)
        if early:
            await signal(store, "paid", 1)
            await signal(store, "other", 0)
        turn = await session.send("Hello")
        assert (await waiting(store)).waiting_for == "signal 'paid'"
        if not early:
            await signal(store, "other", 0)
            await signal(store, "paid", 1)
        await signal(store, "paid", {"n": 2})
        assert await turn.result(timeout=20) == [1, {"n": 2}]
        assert [record.key.split("/")[0] for record in await store.records("s", "signal")] == ["other"]
    assert (await kinds(store)).count("signal_arrived") == 3


async def test_a_signal_that_does_not_arrive_in_time(store: Store):
    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> str:
        try:
            await turn.signal("paid", timeout=timedelta(seconds=SOON))
        except SignalTimeout as error:
            return str(error)
        return "paid"

    async with connect(store, agents=clerk) as hf:
        session = await hf.session("s", agent=clerk)
        turn = await session.send("Hello")
        assert await turn.result(timeout=20) == "The signal 'paid' did not arrive in time."


async def test_a_signal_during_a_turn_is_received_by_it(store: Store):
    begun, may_wait = asyncio.Event(), asyncio.Event()

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> Any:
        begun.set()
        await may_wait.wait()
        return await turn.signal("paid")

    async with connect(store, agents=clerk) as hf:
        session = await hf.session("s", agent=clerk)
        turn = await session.send("Hello")
        await begun.wait()
        await signal(store, "paid", "now")
        may_wait.set()
        assert await turn.result(timeout=20) == "now"


async def test_a_tool_sleeps_while_the_others_end(store: Store):
    async def slow() -> str:
        await holdfast.step("before", do, "before")
        await holdfast.sleep(seconds=SOON)
        return await holdfast.step("after", do, "slow")

    async def quick() -> str:
        return await do("quick")

    model = calling(ToolCallPart("slow", {}, "c1"), ToolCallPart("quick", {}, "c2"))
    agent = Agent(model, name="clerk")
    agent.tool_plain(metadata={"recovery": "steps"})(slow)
    agent.tool_plain(quick)
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Hello")
        assert (await waiting(store)).waiting_for is not None
        assert sorted(done) == ["before", "quick"]
        assert await turn.result(timeout=20) == "slow, quick"
    assert sorted(done) == ["before", "quick", "slow"]


async def test_tools_that_sleep_for_different_times(store: Store):
    async def nap(name: str, seconds: float) -> str:
        await holdfast.sleep(seconds=seconds)
        return await holdfast.step("wake", do, name)

    calls = [ToolCallPart("nap", {"name": n, "seconds": s}, n) for n, s in (("long", 3.0), ("short", SOON))]
    agent = Agent(calling(*calls), name="clerk")
    agent.tool_plain(metadata={"recovery": "steps"})(nap)
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent="clerk")
        assert await (await session.send("Hello")).result(timeout=20) in {"short, long", "long, short"}
    assert done == ["short", "long"]
    assert (await kinds(store)).count("run_waiting") == 2


@pytest.mark.parametrize("others", [0, 1])
async def test_waking_up_does_not_approve(store: Store, others: int):
    """A tool that slept runs again. That must not look like the approval that it has not got."""

    async def pay(ctx: RunContext[object]) -> str:
        await holdfast.sleep(seconds=SOON)
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return await holdfast.step("pay", do, "paid")

    async def quick() -> str:
        return "quick"

    calls = [ToolCallPart("pay", {}, "c1"), ToolCallPart("quick", {}, "c2")]
    agent = Agent(calling(*calls[: 1 + others]), name="clerk")
    agent.tool(metadata={"recovery": "steps"})(pay)
    agent.tool_plain()(quick)
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Hello")

        async def asks() -> bool:
            return bool((await session.info()).approvals)

        await until(asks)
        assert done == []
        (question,) = (await session.info()).approvals
        await session.approve(question)
        assert "paid" in str(await turn.result(timeout=20))
    assert done == ["paid"]


async def test_an_approval_outlasts_a_sleep(store: Store):
    async def pay(ctx: RunContext[object]) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        await holdfast.sleep(seconds=SOON)
        assert ctx.tool_call_approved
        return await holdfast.step("pay", do, "paid")

    agent = Agent(calling(ToolCallPart("pay", {}, "c1")), name="clerk")
    agent.tool(metadata={"recovery": "steps"})(pay)
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Hello")
        await waiting(store)
        (question,) = (await session.info()).approvals
        await session.approve(question)
        assert await turn.result(timeout=20) == "paid"
    assert done == ["paid"]


async def test_a_question_stays_open_while_another_call_wakes_up(store: Store):
    async def nap() -> str:
        await holdfast.sleep(seconds=SOON)
        return await holdfast.step("wake", do, "awake")

    async def pay() -> str:
        return await do("paid")

    agent = Agent(calling(ToolCallPart("nap", {}, "c1"), ToolCallPart("pay", {}, "c2")), name="clerk")
    agent.tool_plain(metadata={"recovery": "steps"})(nap)
    agent.tool_plain(requires_approval=True)(pay)
    async with connect(store, agents=agent) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Hello")

        async def awake() -> bool:
            return done == ["awake"] and (await store.session("s")).status == "waiting"

        await until(awake)
        (question,) = (await session.info()).approvals
        assert question.call_id == "c2"
        await session.approve(question)
        assert await turn.result(timeout=20) == "awake, paid"
    assert done == ["awake", "paid"]


async def test_a_sleeping_turn_can_be_interrupted(store: Store):
    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> str:
        if turn.text == "Sleep":
            await turn.sleep(days=3)
        return "awake"

    async with connect(store, agents=clerk) as hf:
        session = await hf.session("s", agent=clerk)
        turn = await session.send("Sleep")
        await waiting(store)
        await session.interrupt()
        with pytest.raises(TurnFailed, match="interrupted"):
            await turn.result(timeout=20)
        assert await (await session.send("Hello")).result(timeout=20) == "awake"


async def test_a_question_beside_a_sleep_is_in_the_history_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """The turn continues at the end of the sleep, while the question is still open."""
    begun, asked = asyncio.Event(), asyncio.Event()
    outcome = wait_requests._outcome  # pyright: ignore[reportPrivateUsage]

    async def outcome_beside_question(*args: Any) -> Any:
        begun.set()
        await asked.wait()
        return await outcome(*args)

    monkeypatch.setattr(wait_requests, "_outcome", outcome_beside_question)

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> str:
        async def ask() -> bool:
            await begun.wait()
            try:
                return bool(await turn.ask("Really?"))
            finally:
                asked.set()

        _, answer = await asyncio.gather(turn.sleep(seconds=0.3), ask())
        return f"{answer}"

    async with connect(store, agents=clerk) as hf:
        session = await hf.session("s", agent=clerk)
        turn = await session.send("Hello")

        async def asked_again() -> bool:
            return (await kinds(store)).count("approval_requested") == 2

        await until(asked_again)
        (question,) = (await session.info()).approvals
        await session.approve(question.call_id)
        assert await turn.result(timeout=20) == "True"
    history = (await find_resume_point(store, "s", None)).messages
    assert is_provider_valid(history), history
    assert sum(isinstance(part, ToolCallPart) for each in history for part in each.parts) == 1
