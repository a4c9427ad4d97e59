"""Steps inside tools: recorded results return after a crash, unknown outcomes follow their policy, bad use is refused."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import (
    Holdfast,
    Retry,
    annotate_effect,
    idempotency_key,
    step,
)
from holdfast.errors import BadInput, Conflict, StepError, StepsDiffer, StoreClosed
from holdfast.record.steps import current_steps
from holdfast.store import Store
from holdfast.testing.agents import Killed, ManualClock, killed_after, ledger
from holdfast.types import Batch
from tests.record.stepping import do, done, rerun, run, tool_agent


async def test_steps_return_their_results_and_are_in_the_ledger(timed: Store):
    async def book(trip: str) -> str:
        seat = await step("seat", do, f"seat {trip}")
        paid = await step("pay", do, "pay")
        return f"{seat}, {paid}"

    assert await run(tool_agent(book), timed) == "seat Rome done, pay done"
    entries = await ledger(timed, "s")
    assert {(e.call_id, e.tool, e.state, e.attempts) for e in entries} == {
        ("call-1", "book", "completed", 1),
        ("call-1/seat", "seat", "completed", 1),
        ("call-1/pay", "pay", "completed", 1),
    }
    kinds = [event.kind for event in await timed.events("s") if event.kind.startswith("step")]
    assert kinds == ["step_started", "step_completed"] * 2


@pytest.mark.parametrize("number", range(1, 7))
async def test_a_recorded_step_never_runs_again(timed: Store, clock: ManualClock, number: int):
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
    with suppress(Killed, StoreClosed), killed_after(timed, "step_completed", number=number):
        await run(tool_agent(book), timed)
    completed = [entry.tool for entry in await ledger(timed, "s") if entry.state == "completed"]
    before = list(done)
    assert await rerun(tool_agent(book), timed, clock) == whole
    repeated = done[len(before) :]
    assert len(repeated) == len(set(repeated))
    for name, what in {"left": "left", "right": "right", "inner": "inner"}.items():
        assert not (name in completed and what in repeated)
    assert len(completed) >= number


async def test_the_message_of_a_tool_for_the_model_remains_one(timed: Store):
    async def unclear() -> str:
        message = "Which Rome?"
        raise ModelRetry(message)

    async def book(trip: str) -> str:
        return await step("find", unclear)

    assert await run(tool_agent(book), timed) == "Which Rome?"


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
async def test_results_are_exact_also_from_the_record(timed: Store, clock: ManualClock, function: Any):
    seen: list[Any] = []

    async def book(trip: str) -> str:
        seen.append(await step("make", function))
        await step("after", do, "after", recovery="retry")
        return "made"

    with pytest.raises(Killed), killed_after(timed, "step_started", number=2):
        await run(tool_agent(book), timed)
    assert await rerun(tool_agent(book), timed, clock) == "made"
    first, second = seen
    assert first == second == await function()
    assert type(first) is type(second)


@pytest.mark.parametrize("value", [object(), (1, 2), {1: 2}, float("nan"), b"bytes"])
async def test_a_result_that_cannot_be_recorded_is_refused_now_and_later(
    timed: Store, clock: ManualClock, value: Any
):
    def untyped():
        done.append("made")
        return value

    async def book(trip: str) -> str:
        with pytest.raises(BadInput, match="'make' has ended, but its result cannot be recorded"):
            await step("make", untyped)
        await step("after", do, "after", recovery="retry")
        return "refused"

    with pytest.raises(Killed), killed_after(timed, "step_started", number=2):
        await run(tool_agent(book), timed)
    assert await rerun(tool_agent(book), timed, clock) == "refused"
    assert done.count("made") == 1


async def test_other_arguments_than_on_record_are_refused(timed: Store, clock: ManualClock):
    def booking(price: int) -> Agent[None, str]:
        async def book(trip: str) -> str:
            await step("pay", partial(do, what=f"pay {price}"))
            return await step("after", do, "after", recovery="retry")

        return tool_agent(book)

    with pytest.raises(Killed), killed_after(timed, "step_started", number=2):
        await run(booking(1), timed)
    with pytest.raises(StepsDiffer, match="calls step 'pay' with other arguments"):
        await rerun(booking(2), timed, clock)
    assert done == ["pay 1"]


async def test_other_steps_than_on_record_are_refused(timed: Store, clock: ManualClock):
    def booking(*names: str) -> Agent[None, str]:
        async def book(trip: str) -> str:
            for name in names:
                await step(name, do, name, recovery="retry")
            return "done"

        return tool_agent(book)

    with pytest.raises(Killed), killed_after(timed, "step_started", number=3):
        await run(booking("a", "b", "c"), timed)
    with pytest.raises(StepsDiffer, match="calls step 'x', but the next recorded entry is step 'b'"):
        await rerun(booking("a", "x"), timed, clock)
    with pytest.raises(StepsDiffer, match="it has ended, but the next recorded entry is step 'b'"):
        await rerun(booking("a"), timed, clock)
    assert done == ["a", "b"]
    assert await rerun(booking("a", "b", "c"), timed, clock) == "done"


async def test_concurrent_steps_wait_for_the_recorded_ones(timed: Store, clock: ManualClock):
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

    with pytest.raises(Killed), killed_after(timed, "step_started", number=3):
        await run(tool_agent(book), timed)
    assert await rerun(tool_agent(book), timed, clock) == "slow done fast again done"
    assert sorted(done) == ["fast", "fast again", "slow"]


async def test_steps_that_run_when_another_one_fails_are_waited_for(timed: Store):
    """`gather` raises the first error and leaves the others running."""

    async def slow() -> str:
        await asyncio.sleep(0.1)
        return await step("inner", do, "inner") + "!"

    async def broken() -> str:
        raise ConnectionError

    async def book(trip: str) -> str:
        with suppress(StepError):
            await asyncio.gather(step("slow", slow), step("broken", broken))
        message = "one failed"
        raise ModelRetry(message)

    await run(tool_agent(book), timed)
    states = {entry.tool: entry.state for entry in await ledger(timed, "s")}
    assert states == {"book": "completed", "slow": "completed", "inner": "completed", "broken": "failed"}


async def test_an_error_of_a_write_is_no_outcome_of_a_step(timed: Store):
    """A step that is about to start while its run ends gets the error of the write. It has not failed, and neither has its tool."""

    async def book(trip: str) -> str:
        await step("one", do, "one")
        steps = current_steps()
        assert steps is not None
        steps.buffer.start(Batch())  # while a write is under way
        ending = asyncio.create_task(steps.buffer.finish())
        try:
            return await step("two", do, "two")
        finally:
            await ending

    with pytest.raises(Conflict, match="the run ended while"):
        await run(tool_agent(book), timed)
    assert [(entry.tool, entry.state) for entry in await ledger(timed, "s")] == [
        ("book", "started"),
        ("one", "completed"),
        ("two", "started"),
    ]
    assert done == ["one"]


async def test_a_step_has_its_own_key_and_note(timed: Store):
    keys: list[str] = []

    async def pay() -> None:
        keys.append(idempotency_key())
        await annotate_effect(summary="5 euros")

    async def book(trip: str) -> str:
        await step("pay", pay)
        await step("pay", pay)
        return "paid"

    await run(tool_agent(book), timed)
    entries = [entry for entry in await ledger(timed, "s") if entry.tool == "pay"]
    assert sorted(keys) == sorted(entry.idempotency_key or "" for entry in entries)
    assert len(set(keys)) == 2
    assert [entry.summary for entry in entries] == ["5 euros", "5 euros"]


@pytest.mark.parametrize("name", ["", " ", "a/b", "a~2", "x" * 101, "a\n", 7])
async def test_bad_names_are_refused(timed: Store, name: Any):
    async def book(trip: str) -> str:
        with pytest.raises(BadInput, match="name"):
            await step(name, do, "x")
        return "refused"

    assert await run(tool_agent(book), timed) == "refused"
    assert done == []


async def test_a_step_needs_a_place(timed: Store):
    with pytest.raises(BadInput, match="outside a recorded turn"):
        await step("pay", do, "x")
    escaped: list[Any] = []

    async def book(trip: str) -> str:
        async def later() -> str:
            await asyncio.sleep(0.05)
            return await step("late", do, "late")

        escaped.append(asyncio.create_task(later()))
        return "booked"

    await run(tool_agent(book), timed)
    with pytest.raises(BadInput, match="after its tool call or turn had ended"):
        await escaped[0]

    async def without(trip: str) -> str:
        with pytest.raises(BadInput, match=r"metadata=\{'recovery': 'steps'\}"):
            await step("pay", do, "x")
        return "refused"

    agent = tool_agent(without, recovery="report")
    result = await agent.run("Book.", capabilities=[Holdfast(timed)])
    assert result.output == "refused"
    assert done == []


async def test_bad_options_are_refused(timed: Store):
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

    assert await run(tool_agent(book), timed) == "refused"
    cases: list[dict[str, Any]] = [{"recovery": "sometimes"}, {"recovery": "probe"}, {"probe": "find"}]
    for metadata in cases:
        with pytest.raises(BadInput):
            await tool_agent(book, **metadata).run("Book.", capabilities=[Holdfast(timed)])
    assert done == []


async def test_a_call_id_with_a_slash_is_not_a_step(timed: Store, clock: ManualClock):
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

    # The end of a call may be written by a timer: then the next write of the run is rejected.
    with pytest.raises((Killed, StoreClosed)), killed_after(timed, "tool_call_completed", number=2):
        await run(agent, timed)
    names = sorted(entry.call_id for entry in await ledger(timed, "s"))
    assert names == ["a", "a%2Fpay", "a/pay"]
    assert await rerun(agent, timed, clock) == "done"
    assert sorted(done) == ["mail", "pay"]
