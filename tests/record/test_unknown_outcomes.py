"""Steps and calls that a crash cut off: policies, probes and retry rules."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults

from holdfast import (
    Done,
    Holdfast,
    NotDone,
    Retry,
    Unknown,
    Unsettled,
    settle_effect,
    step,
)
from holdfast.errors import OutcomeUnknown, StepError
from holdfast.store import Store
from holdfast.testing.agents import Killed, ManualClock, killed_after, ledger
from tests.record.stepping import do, done, rerun, run, tool_agent


def paying(**options: Any) -> Agent[None, str]:
    """Return an agent whose tool has a step `pay` with these options, after a step that is recorded."""

    async def book(trip: str) -> str:
        seat = await step("seat", do, trip)
        return f"{seat}, {await step('pay', do, 'pay', **options)}"

    return tool_agent(book)


async def cut_off_in_pay(store: Store, **options: Any) -> Agent[None, str]:
    """Run such an agent until the start of its second step is durable, and kill it there."""
    agent = paying(**options)
    with pytest.raises(Killed), killed_after(store, "step_started", number=2):
        await run(agent, store)
    assert done == ["Rome"]
    return agent


async def test_a_step_with_an_unknown_outcome_is_reported_to_the_model(timed: Store, clock: ManualClock):
    agent = await cut_off_in_pay(timed)
    answer = await rerun(agent, timed, clock)
    assert "its step 'pay' was started" in answer
    assert done == ["Rome"]
    events = [e.payload for e in await timed.events("s") if e.kind == "tool_call_completed"]
    assert '"outcome": "unknown"' in events[0]


async def test_a_tool_can_handle_an_unknown_outcome_itself(timed: Store, clock: ManualClock):
    async def book(trip: str) -> str:
        try:
            return await step("pay", do, trip)
        except OutcomeUnknown as unknown:
            return f"unknown: {unknown.facts['step']}"

    with pytest.raises(Killed), killed_after(timed, "step_started"):
        await run(tool_agent(book), timed)
    assert await rerun(tool_agent(book), timed, clock) == "unknown: pay"


async def test_a_safe_step_runs_again(timed: Store, clock: ManualClock):
    agent = await cut_off_in_pay(timed, recovery="retry")
    assert await rerun(agent, timed, clock) == "Rome done, pay done"
    (pay,) = [entry for entry in await ledger(timed, "s") if entry.tool == "pay"]
    assert (pay.attempts, pay.state, done) == (2, "completed", ["Rome", "pay"])


@pytest.mark.parametrize("approved", [True, False])
async def test_a_person_decides_whether_a_step_runs_again(timed: Store, clock: ManualClock, approved: bool):
    agent = await cut_off_in_pay(timed, recovery="ask")
    options: dict[str, Any] = {"output_type": [str, DeferredToolRequests]}
    waiting = await rerun(agent, timed, clock, **options)
    assert [call.tool_call_id for call in waiting.approvals] == ["call-1"]
    assert waiting.metadata["call-1"] == {"step": "pay", "call_id": "call-1/pay"}
    answers = DeferredToolResults(approvals={"call-1": approved})
    answer = await rerun(agent, timed, clock, deferred_tool_results=answers, **options)
    (request,) = [e.payload for e in await timed.events("s") if e.kind == "approval_requested"]
    assert "Its step 'pay' was started before an interruption" in json.loads(request)["calls"][0]["note"]
    (pay,) = [entry for entry in await ledger(timed, "s") if entry.tool == "pay"]
    assert (pay.state, pay.result is None) == (("completed", False) if approved else ("started", False))
    book = await timed.effects("s", run_id=pay.run_id, call_id="call-1")
    assert approved or book.items[0].result is None  # it is unresolved, as before the question
    assert done == (["Rome", "pay"] if approved else ["Rome"])
    assert answer == ("Rome done, pay done" if approved else "The tool call was denied.")


@pytest.mark.parametrize(
    ("answer", "policy", "expected", "effects"),
    [
        (Done("paid before"), "report", "Rome done, paid before", ["Rome"]),
        (NotDone(), "report", "Rome done, pay done", ["Rome", "pay"]),
        (Unknown(), "retry", "Rome done, pay done", ["Rome", "pay"]),
        (Unknown(), "probe", "its step 'pay' was started", ["Rome"]),
        ("nonsense", "report", "its step 'pay' was started", ["Rome"]),
        (ValueError("no network"), "report", "its step 'pay' was started", ["Rome"]),
        (SystemExit(3), "report", "its step 'pay' was started", ["Rome"]),
    ],
)
async def test_a_probe_settles_an_unknown_outcome(
    timed: Store, clock: ManualClock, answer: Any, policy: Any, expected: str, effects: list[str]
):
    asked: list[Unsettled] = []

    async def find(call: Unsettled) -> Any:
        asked.append(call)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    agent = await cut_off_in_pay(timed, recovery=policy, probe=find)
    assert asked == []
    assert expected in await rerun(agent, timed, clock)
    assert done == effects
    (call,) = asked
    (pay,) = [entry for entry in await ledger(timed, "s") if entry.tool == "pay"]
    assert (call.name, call.arguments, call.attempts) == ("pay", ("pay",), 1)
    assert call.key == pay.idempotency_key
    (event,) = [e for e in await timed.events("s") if e.kind == "probe_answered"]
    name = "done" if isinstance(answer, Done) else "not_done" if isinstance(answer, NotDone) else "unknown"
    assert f'"answer": "{name}"' in event.payload


async def test_a_probe_that_hangs_does_not_know(timed: Store, clock: ManualClock):
    async def hang(call: Unsettled) -> Unknown:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if len(done) > 1:
                    raise

    agent = await cut_off_in_pay(timed, probe=hang, probe_timeout=0.01)
    assert "its step 'pay' was started" in await rerun(agent, timed, clock)
    (event,) = [e for e in await timed.events("s") if e.kind == "probe_answered"]
    assert "no answer within 0.01 seconds" in event.payload
    done.append("let the probe end")


@pytest.mark.parametrize("declared", ["tool", "capability"])
async def test_a_probe_can_belong_to_a_whole_tool(timed: Store, clock: ManualClock, declared: str):
    def find(call: Unsettled) -> Done[str]:
        assert call.arguments == {"trip": "Rome"}
        return Done(f"found {call.summary}")

    async def book(trip: str) -> str:
        return await do(trip)

    recorder = Holdfast(timed, probes={"book": find} if declared == "capability" else {})
    probe: dict[str, Any] = {"probe": find} if declared == "tool" else {}
    agent = tool_agent(book, recorder=recorder, recovery="ask", **probe)
    with pytest.raises(Killed), killed_after(timed, "tool_call_started"):
        await agent.run("Book.", conversation_id="s")
    assert await rerun(agent, timed, clock) == "found None"
    assert done == []
    kinds = [e.kind for e in await timed.events("s") if e.kind.startswith(("probe", "tool"))]
    assert kinds == ["tool_call_started", "probe_answered", "tool_call_completed"]


class Receipt(BaseModel):
    number: str


async def test_a_settled_step_has_the_declared_type(timed: Store, clock: ManualClock):
    async def pay() -> Receipt:
        return Receipt(number="1")

    async def book(trip: str) -> str:
        return (await step("pay", pay)).number

    with pytest.raises(Killed), killed_after(timed, "step_started"):
        await run(tool_agent(book), timed)
    clock.advance(60)
    (run_,) = (await timed.runs(session_id="s")).items
    await settle_effect(timed, run_.id, "call-1/pay", actor="ada", result={"number": "7"})
    assert await rerun(tool_agent(book), timed, clock) == "7"
    (event,) = [e.payload for e in await timed.events("s") if e.kind == "step_completed"]
    assert json.loads(event) == {"name": "pay", "call_id": "call-1/pay", "manual": True, "actor": "ada"}


async def test_a_person_can_settle_a_step(timed: Store, clock: ManualClock):
    agent = await cut_off_in_pay(timed)
    clock.advance(60)
    (run_,) = (await timed.runs(session_id="s")).items
    await settle_effect(timed, run_.id, "call-1/pay", actor="ada", result="paid by Ada")
    assert await rerun(agent, timed, clock) == "Rome done, paid by Ada"


class Flaky:
    """Fails with these errors, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "ok"


async def test_a_step_is_retried_by_its_rule(timed: Store):
    flaky = Flaky(OSError("one"), OSError("two"))

    async def book(trip: str) -> str:
        return await step("fetch", flaky, retry=Retry(on=OSError, backoff=0))

    assert await run(tool_agent(book), timed) == "ok"
    (entry,) = [entry for entry in await ledger(timed, "s") if entry.tool == "fetch"]
    assert (flaky.calls, entry.attempts, entry.state) == (3, 3, "completed")


@pytest.mark.parametrize(
    ("rule", "errors", "calls"),
    [
        (Retry(on=OSError, backoff=0, attempts=2), [OSError("one"), OSError("two")], 2),
        (Retry(on=OSError, backoff=0), [ValueError("other")], 1),
        (Retry(on=OSError, backoff=10, deadline=4), [OSError("late")], 1),
        (None, [OSError("no rule")], 1),
    ],
)
async def test_a_step_fails_when_its_rule_ends(
    timed: Store, clock: ManualClock, rule: Retry | None, errors: list[Exception], calls: int
):
    flaky = Flaky(*errors)
    last = f"{type(errors[-1]).__name__}: {errors[-1]}"

    async def book(trip: str) -> str:
        with pytest.raises(StepError, match=str(errors[-1])):
            await step("fetch", flaky, retry=rule)
        await step("after", do, "after", recovery="retry")
        return "handled"

    with pytest.raises(Killed), killed_after(timed, "step_started", number=calls + 1):
        await run(tool_agent(book), timed)
    assert (
        await rerun(tool_agent(book), timed, clock) == "handled"
    )  # the failure is recorded and raised again
    (entry,) = [entry for entry in await ledger(timed, "s") if entry.tool == "fetch"]
    assert (flaky.calls, entry.state, entry.error) == (calls, "failed", last)


async def test_a_pause_between_attempts_survives_a_crash(timed: Store, clock: ManualClock):
    flaky = Flaky(OSError("busy"))

    async def book(trip: str) -> str:
        return await step("fetch", flaky, retry=Retry(on=OSError, backoff=1000, max_backoff=1000))

    with pytest.raises(Killed), killed_after(timed, "step_failed"):
        await run(tool_agent(book), timed)
    waiting = asyncio.create_task(rerun(tool_agent(book), timed, clock))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.2)
    assert flaky.calls == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    clock.advance(1000)
    assert await rerun(tool_agent(book), timed, clock) == "ok"
    assert flaky.calls == 2


@pytest.mark.parametrize("answer", [Done("found"), Unknown()])
async def test_steps_within_an_interrupted_step_are_not_expected_if_it_does_not_run_again(
    timed: Store, clock: ManualClock, answer: Any
):
    async def outer() -> str:
        await step("inner", do, "inner")
        return await step("inner", do, "inner again")

    async def book(trip: str) -> str:
        try:
            result = await step("outer", outer, probe=lambda _: answer)
        except OutcomeUnknown:
            result = "unknown"
        return f"{result}, {await step('after', do, 'after')}"

    with pytest.raises(Killed), killed_after(timed, "step_started", number=3):
        await run(tool_agent(book), timed)
    expected = "found" if isinstance(answer, Done) else "unknown"
    assert await rerun(tool_agent(book), timed, clock) == f"{expected}, after done"
    assert done == ["inner", "after"]


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
async def test_another_attempt_repeats_no_recorded_step_within(timed: Store, clock: ManualClock, number: int):
    async def outer() -> str:
        seat = await step("inner", do, "seat", recovery="retry")
        if done.count("outer") == 0:
            done.append("outer")
            raise OSError
        return f"{seat}, {await step('inner', do, 'pay', recovery='retry')}"

    async def book(trip: str) -> str:
        rule = Retry(on=OSError, backoff=0)
        booked = await step("outer", outer, recovery="retry", retry=rule)
        return f"{booked}, {await step('after', do, 'after', recovery='retry')}"

    with suppress(Killed), killed_after(timed, "step_started", number=number):
        await run(tool_agent(book), timed)
    assert await rerun(tool_agent(book), timed, clock) == "seat done, pay done, after done"
    assert done == ["seat", "outer", "pay", "after"]
