"""Steps inside tools: recorded results return after a crash, unknown outcomes follow their policy, bad use is refused."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelRetry
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import (
    Done,
    Holdfast,
    NotDone,
    Retry,
    Unknown,
    Unsettled,
    annotate_effect,
    idempotency_key,
    resume,
    settle_effect,
    step,
)
from holdfast.errors import BadInput, OutcomeUnknown, StepFailed, StepsDiffer
from holdfast.record.validity import is_provider_valid
from holdfast.store import Store
from holdfast.testing.agents import Killed, ManualClock, killed_after, ledger, memory_store

done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done():
    done.clear()


async def do(what: str) -> str:
    done.append(what)
    return f"{what} done"


def tool_agent(tool: Callable[..., Awaitable[Any]], **metadata: Any) -> Agent[None, str]:
    """Return an agent whose model calls the tool once and reports its result."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        last = messages[-1].parts[-1]
        if last.part_kind == "user-prompt":
            return ModelResponse(parts=[ToolCallPart("book", {"trip": "Rome"}, "call-1")])
        return ModelResponse(parts=[TextPart(f"{getattr(last, 'content', '')}")])

    agent = Agent(FunctionModel(model), name="clerk")
    agent.tool_plain(name="book", metadata={"recovery": "steps", **metadata})(tool)
    return agent


async def run(agent: Agent[None, Any], store: Store) -> str:
    result = await agent.run("Book.", conversation_id="s", capabilities=[Holdfast(store)])
    return result.output


async def rerun(agent: Agent[None, Any], store: Store, clock: ManualClock, **options: Any) -> Any:
    clock.advance(60)
    (last,) = (await store.checkpoints(session_id="s", limit=1)).items
    result = await resume(agent, store, last.run_id or "", **options)
    waits = isinstance(result.output, DeferredToolRequests)
    assert waits or is_provider_valid(result.all_messages())
    return result.output


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def memory(clock: ManualClock):
    async with memory_store(clock) as store:
        yield store


async def test_steps_return_their_results_and_are_in_the_ledger(memory: Store):
    async def book(trip: str) -> str:
        seat = await step("seat", do, f"seat {trip}")
        paid = await step("pay", do, "pay")
        return f"{seat}, {paid}"

    assert await run(tool_agent(book), memory) == "seat Rome done, pay done"
    entries = await ledger(memory, "s")
    assert {(e.call_id, e.tool, e.state, e.attempts) for e in entries} == {
        ("call-1", "book", "completed", 1),
        ("call-1/seat", "seat", "completed", 1),
        ("call-1/pay", "pay", "completed", 1),
    }
    kinds = [event.kind for event in await memory.events("s") if event.kind.startswith("step")]
    assert kinds == ["step_started", "step_completed"] * 2


@pytest.mark.parametrize("number", range(1, 7))
async def test_a_recorded_step_never_runs_again(memory: Store, clock: ManualClock, number: int):
    async def book(trip: str) -> str:
        first = await step("seat", do, trip, recovery="retry")
        both = await asyncio.gather(
            step("left", do, "left", recovery="retry"), step("right", do, "right", recovery="retry")
        )

        async def outer() -> str:
            return await step("inner", do, "inner", recovery="retry") + "!"

        nested = await step("outer", outer, recovery="retry")
        again = await step("seat", do, "second", recovery="retry")
        return " ".join([first, *both, nested, again])

    whole = "Rome done left done right done inner done! second done"
    with suppress(Killed), killed_after(memory, "step_completed", number=number):
        await run(tool_agent(book), memory)
    completed = [entry.tool for entry in await ledger(memory, "s") if entry.state == "completed"]
    before = list(done)
    assert await rerun(tool_agent(book), memory, clock) == whole
    repeated = done[len(before) :]
    assert len(repeated) == len(set(repeated))
    for name, what in {"left": "left", "right": "right", "inner": "inner"}.items():
        assert not (name in completed and what in repeated)
    assert len(completed) >= number


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


async def test_a_step_with_an_unknown_outcome_is_reported_to_the_model(memory: Store, clock: ManualClock):
    agent = await cut_off_in_pay(memory)
    answer = await rerun(agent, memory, clock)
    assert "its step 'pay' was started" in answer
    assert done == ["Rome"]
    events = [e.payload for e in await memory.events("s") if e.kind == "tool_call_completed"]
    assert '"outcome": "unknown"' in events[0]


async def test_a_tool_can_handle_an_unknown_outcome_itself(memory: Store, clock: ManualClock):
    async def book(trip: str) -> str:
        try:
            return await step("pay", do, trip)
        except OutcomeUnknown as unknown:
            return f"unknown: {unknown.facts['step']}"

    with pytest.raises(Killed), killed_after(memory, "step_started"):
        await run(tool_agent(book), memory)
    assert await rerun(tool_agent(book), memory, clock) == "unknown: pay"


async def test_a_safe_step_runs_again(memory: Store, clock: ManualClock):
    agent = await cut_off_in_pay(memory, recovery="retry")
    assert await rerun(agent, memory, clock) == "Rome done, pay done"
    (pay,) = [entry for entry in await ledger(memory, "s") if entry.tool == "pay"]
    assert (pay.attempts, pay.state, done) == (2, "completed", ["Rome", "pay"])


@pytest.mark.parametrize("approved", [True, False])
async def test_a_person_decides_whether_a_step_runs_again(memory: Store, clock: ManualClock, approved: bool):
    agent = await cut_off_in_pay(memory, recovery="ask")
    options: dict[str, Any] = {"output_type": [str, DeferredToolRequests]}
    waiting = await rerun(agent, memory, clock, **options)
    assert [call.tool_call_id for call in waiting.approvals] == ["call-1"]
    assert waiting.metadata["call-1"] == {"step": "pay", "call_id": "call-1/pay"}
    answers = DeferredToolResults(approvals={"call-1": approved})
    answer = await rerun(agent, memory, clock, deferred_tool_results=answers, **options)
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
    memory: Store, clock: ManualClock, answer: Any, policy: Any, expected: str, effects: list[str]
):
    asked: list[Unsettled] = []

    async def find(call: Unsettled) -> Any:
        asked.append(call)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    agent = await cut_off_in_pay(memory, recovery=policy, probe=find)
    assert asked == []
    assert expected in await rerun(agent, memory, clock)
    assert done == effects
    (call,) = asked
    (pay,) = [entry for entry in await ledger(memory, "s") if entry.tool == "pay"]
    assert (call.name, call.arguments, call.attempts) == ("pay", ("pay",), 1)
    assert call.key == pay.idempotency_key
    (event,) = [e for e in await memory.events("s") if e.kind == "probe_answered"]
    name = "done" if isinstance(answer, Done) else "not_done" if isinstance(answer, NotDone) else "unknown"
    assert f'"answer": "{name}"' in event.payload


@pytest.mark.parametrize("answer", [Done("found"), Unknown()])
async def test_steps_within_an_interrupted_step_are_not_expected_if_it_does_not_run_again(
    memory: Store, clock: ManualClock, answer: Any
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

    with pytest.raises(Killed), killed_after(memory, "step_started", number=3):
        await run(tool_agent(book), memory)
    expected = "found" if isinstance(answer, Done) else "unknown"
    assert await rerun(tool_agent(book), memory, clock) == f"{expected}, after done"
    assert done == ["inner", "after"]


async def test_a_probe_that_hangs_does_not_know(memory: Store, clock: ManualClock):
    async def hang(call: Unsettled) -> Unknown:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if len(done) > 1:
                    raise

    agent = await cut_off_in_pay(memory, probe=hang, probe_timeout=0.01)
    assert "its step 'pay' was started" in await rerun(agent, memory, clock)
    (event,) = [e for e in await memory.events("s") if e.kind == "probe_answered"]
    assert "no answer within 0.01 seconds" in event.payload
    done.append("let the probe end")


async def test_a_probe_can_belong_to_a_whole_tool(memory: Store, clock: ManualClock):
    def find(call: Unsettled) -> Done[str]:
        assert call.arguments == {"trip": "Rome"}
        return Done(f"found {call.summary}")

    async def book(trip: str) -> str:
        return await do(trip)

    agent = tool_agent(book, recovery="ask", probe=find)
    with pytest.raises(Killed), killed_after(memory, "tool_call_started"):
        await run(agent, memory)
    assert await rerun(agent, memory, clock) == "found None"
    assert done == []
    kinds = [e.kind for e in await memory.events("s") if e.kind.startswith(("probe", "tool"))]
    assert kinds == ["tool_call_started", "probe_answered", "tool_call_completed"]


async def test_a_person_can_settle_a_step(memory: Store, clock: ManualClock):
    agent = await cut_off_in_pay(memory)
    clock.advance(60)
    (run_,) = (await memory.runs(session_id="s")).items
    await settle_effect(memory, run_.id, "call-1/pay", actor="ada", result="paid by Ada")
    assert await rerun(agent, memory, clock) == "Rome done, paid by Ada"


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


async def test_a_step_is_retried_by_its_rule(memory: Store):
    flaky = Flaky(OSError("one"), OSError("two"))

    async def book(trip: str) -> str:
        return await step("fetch", flaky, retry=Retry(on=OSError, backoff=0))

    assert await run(tool_agent(book), memory) == "ok"
    (entry,) = [entry for entry in await ledger(memory, "s") if entry.tool == "fetch"]
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
    memory: Store, clock: ManualClock, rule: Retry | None, errors: list[Exception], calls: int
):
    flaky = Flaky(*errors)
    last = f"{type(errors[-1]).__name__}: {errors[-1]}"

    async def book(trip: str) -> str:
        with pytest.raises(StepFailed, match=str(errors[-1])):
            await step("fetch", flaky, retry=rule)
        await step("after", do, "after", recovery="retry")
        return "handled"

    with pytest.raises(Killed), killed_after(memory, "step_started", number=calls + 1):
        await run(tool_agent(book), memory)
    assert (
        await rerun(tool_agent(book), memory, clock) == "handled"
    )  # the failure is recorded and raised again
    (entry,) = [entry for entry in await ledger(memory, "s") if entry.tool == "fetch"]
    assert (flaky.calls, entry.state, entry.error) == (calls, "failed", last)


async def test_a_pause_between_attempts_survives_a_crash(memory: Store, clock: ManualClock):
    flaky = Flaky(OSError("busy"))

    async def book(trip: str) -> str:
        return await step("fetch", flaky, retry=Retry(on=OSError, backoff=1000, max_backoff=1000))

    with pytest.raises(Killed), killed_after(memory, "step_failed"):
        await run(tool_agent(book), memory)
    waiting = asyncio.create_task(rerun(tool_agent(book), memory, clock))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.2)
    assert flaky.calls == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    clock.advance(1000)
    assert await rerun(tool_agent(book), memory, clock) == "ok"
    assert flaky.calls == 2


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
async def test_another_attempt_repeats_no_recorded_step_within(
    memory: Store, clock: ManualClock, number: int
):
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

    with suppress(Killed), killed_after(memory, "step_started", number=number):
        await run(tool_agent(book), memory)
    assert await rerun(tool_agent(book), memory, clock) == "seat done, pay done, after done"
    assert done == ["seat", "outer", "pay", "after"]


async def test_the_message_of_a_tool_for_the_model_remains_one(memory: Store):
    async def unclear() -> str:
        message = "Which Rome?"
        raise ModelRetry(message)

    async def book(trip: str) -> str:
        return await step("find", unclear)

    assert await run(tool_agent(book), memory) == "Which Rome?"


class Seat(BaseModel):
    row: int
    data: bytes = b""


@dataclass
class Point:
    x: float


async def seat() -> Seat:
    return Seat(row=3)


async def raw() -> bytes:
    return b"\xff\x00"


async def point() -> Point:
    return Point(0.1)


async def large() -> list[str]:
    return ["x" * 200_000]


@pytest.mark.parametrize("function", [seat, raw, point, large])
async def test_results_are_exact_also_from_the_record(memory: Store, clock: ManualClock, function: Any):
    seen: list[Any] = []

    async def book(trip: str) -> str:
        seen.append(await step("make", function))
        await step("after", do, "after", recovery="retry")
        return "made"

    with pytest.raises(Killed), killed_after(memory, "step_started", number=2):
        await run(tool_agent(book), memory)
    assert await rerun(tool_agent(book), memory, clock) == "made"
    first, second = seen
    assert first == second == await function()
    assert type(first) is type(second)


@pytest.mark.parametrize("value", [object(), (1, 2), {1: 2}, float("nan"), b"bytes"])
async def test_a_result_that_cannot_be_recorded_is_refused_now_and_later(
    memory: Store, clock: ManualClock, value: Any
):
    def untyped():
        done.append("made")
        return value

    async def book(trip: str) -> str:
        with pytest.raises(BadInput, match="'make' has ended, but its result cannot be recorded"):
            await step("make", untyped)
        await step("after", do, "after", recovery="retry")
        return "refused"

    with pytest.raises(Killed), killed_after(memory, "step_started", number=2):
        await run(tool_agent(book), memory)
    assert await rerun(tool_agent(book), memory, clock) == "refused"
    assert done.count("made") == 1


async def test_other_arguments_than_on_record_are_refused(memory: Store, clock: ManualClock):
    def booking(price: int) -> Agent[None, str]:
        async def book(trip: str) -> str:
            await step("pay", partial(do, what=f"pay {price}"))
            return await step("after", do, "after", recovery="retry")

        return tool_agent(book)

    with pytest.raises(Killed), killed_after(memory, "step_started", number=2):
        await run(booking(1), memory)
    with pytest.raises(StepsDiffer, match="calls step 'pay' with other arguments"):
        await rerun(booking(2), memory, clock)
    assert done == ["pay 1"]


async def test_other_steps_than_on_record_are_refused(memory: Store, clock: ManualClock):
    def booking(*names: str) -> Agent[None, str]:
        async def book(trip: str) -> str:
            for name in names:
                await step(name, do, name, recovery="retry")
            return "done"

        return tool_agent(book)

    with pytest.raises(Killed), killed_after(memory, "step_started", number=3):
        await run(booking("a", "b", "c"), memory)
    with pytest.raises(StepsDiffer, match="calls step 'x', while the next one on record is step 'b'"):
        await rerun(booking("a", "x"), memory, clock)
    with pytest.raises(StepsDiffer, match="it has ended, while the next one on record is step 'b'"):
        await rerun(booking("a"), memory, clock)
    assert done == ["a", "b"]
    assert await rerun(booking("a", "b", "c"), memory, clock) == "done"


async def test_concurrent_steps_wait_for_the_recorded_ones(memory: Store, clock: ManualClock):
    async def book(trip: str) -> str:
        async def slow() -> str:
            await asyncio.sleep(0.05)  # asks later than the other one asks for its second step
            return await step("slow", do, "slow", recovery="retry")

        async def fast() -> str:
            await step("fast", do, "fast", recovery="retry")
            if "slow" not in done:
                await asyncio.sleep(0.1)
            return await step("fast", do, "fast again", recovery="retry")

        return " ".join(await asyncio.gather(slow(), fast()))

    with pytest.raises(Killed), killed_after(memory, "step_started", number=3):
        await run(tool_agent(book), memory)
    assert await rerun(tool_agent(book), memory, clock) == "slow done fast again done"
    assert sorted(done) == ["fast", "fast again", "slow"]


async def test_a_step_has_its_own_key_and_note(memory: Store):
    keys: list[str] = []

    async def pay() -> None:
        keys.append(idempotency_key())
        await annotate_effect(summary="5 euros")

    async def book(trip: str) -> str:
        await step("pay", pay)
        await step("pay", pay)
        return "paid"

    await run(tool_agent(book), memory)
    entries = [entry for entry in await ledger(memory, "s") if entry.tool == "pay"]
    assert sorted(keys) == sorted(entry.idempotency_key or "" for entry in entries)
    assert len(set(keys)) == 2
    assert [entry.summary for entry in entries] == ["5 euros", "5 euros"]


@pytest.mark.parametrize("name", ["", " ", "a/b", "a~2", "x" * 101, "a\n", 7])
async def test_bad_names_are_refused(memory: Store, name: Any):
    async def book(trip: str) -> str:
        with pytest.raises(BadInput, match="name"):
            await step(name, do, "x")
        return "refused"

    assert await run(tool_agent(book), memory) == "refused"
    assert done == []


async def test_a_step_needs_a_place(memory: Store):
    with pytest.raises(BadInput, match="outside a recorded turn"):
        await step("pay", do, "x")
    escaped: list[Any] = []

    async def book(trip: str) -> str:
        async def later() -> str:
            await asyncio.sleep(0.05)
            return await step("late", do, "late")

        escaped.append(asyncio.create_task(later()))
        return "booked"

    await run(tool_agent(book), memory)
    with pytest.raises(BadInput, match="after its tool call or turn had ended"):
        await escaped[0]

    async def without(trip: str) -> str:
        with pytest.raises(BadInput, match="recovery `steps`"):
            await step("pay", do, "x")
        return "refused"

    agent = tool_agent(without, recovery="report")
    result = await agent.run("Book.", capabilities=[Holdfast(memory)])
    assert result.output == "refused"
    assert done == []


async def test_bad_options_are_refused(memory: Store):
    async def book(trip: str) -> str:
        for options in (
            {"recovery": "steps"},
            {"recovery": "sometimes"},
            {"recovery": "probe"},
            {"probe": 7},
        ):
            with pytest.raises(BadInput):
                await step("pay", do, "x", **options)  # pyright: ignore[reportArgumentType, reportCallIssue]
        with pytest.raises(BadInput, match="needs a function"):
            await step("pay", 7)  # pyright: ignore[reportArgumentType, reportCallIssue]
        with pytest.raises(BadInput, match="attempt"):
            Retry(on=OSError, attempts=0)
        with pytest.raises(BadInput, match="exception class"):
            Retry(on=7)  # pyright: ignore[reportArgumentType]
        return "refused"

    assert await run(tool_agent(book), memory) == "refused"
    for metadata in ({"recovery": "sometimes"}, {"recovery": "probe"}, {"probe": "find"}):
        with pytest.raises(BadInput):
            await tool_agent(book, **metadata).run("Book.", capabilities=[Holdfast(memory)])
    assert done == []


async def test_a_call_id_with_a_slash_is_not_a_step(memory: Store, clock: ManualClock):
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last = messages[-1].parts[-1]
        if last.part_kind == "user-prompt":
            calls = [ToolCallPart("book", {}, "a"), ToolCallPart("mail", {}, "a/pay")]
            return ModelResponse(parts=calls)
        return ModelResponse(parts=[TextPart("done")])

    agent = Agent(FunctionModel(model), name="clerk")

    @agent.tool_plain(metadata={"recovery": "steps"})
    async def book() -> str:
        return await step("pay", do, "pay")

    @agent.tool_plain
    async def mail() -> str:
        return await do("mail")

    with pytest.raises(Killed), killed_after(memory, "tool_call_completed", number=2):
        await run(agent, memory)
    names = sorted(entry.call_id for entry in await ledger(memory, "s"))
    assert names == ["a", "a%2Fpay", "a/pay"]
    assert await rerun(agent, memory, clock) == "done"
    assert sorted(done) == ["mail", "pay"]
