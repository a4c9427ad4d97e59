"""Undos in the ledger: what is kept of a step, what its undo receives, and which steps are undone in which order."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import CompletedStep, Holdfast, Store, Undo, annotate_effect, step
from holdfast.api.models import EffectInfo
from holdfast.errors import BadInput
from holdfast.record.step_results import Unserializable
from holdfast.record.undo import UndoFunction, completed_step, undos_by_name
from holdfast.record.undo_plan import undo_plan
from holdfast.testing.agents import ledger
from holdfast.types import Effect
from tests.record.stepping import do, tool_agent


class Booking(BaseModel):
    seat: str


async def book(trip: str, *, seats: int, client: object = None) -> Booking:
    await annotate_effect(summary=f"{seats} to {trip}")
    return Booking(seat="A12")


async def cancel(step: CompletedStep[Booking]) -> None:
    raise NotImplementedError


async def run(store: Store, tool: Any, *undo: Any) -> str:
    agent = tool_agent(tool)
    result = await agent.run("Book.", conversation_id="s", capabilities=[Holdfast(store, undo=undo)])
    return result.output


async def test_the_ledger_keeps_what_an_undo_needs(timed: Store):
    async def tool(trip: str) -> str:
        return (await step("book", partial(book, seats=2, client=object()), trip, undo=cancel)).seat

    assert await run(timed, tool, cancel) == "A12"
    entry = next(entry for entry in await ledger(timed, "s") if entry.undo is not None)
    completed = completed_step(entry, cancel)
    assert completed == CompletedStep(
        name="book",
        key=entry.idempotency_key or "",
        arguments=["Rome"],
        keywords={"seats": 2, "client": "<builtins.object>"},
        result=Booking(seat="A12"),
        summary="2 to Rome",
        started_at=entry.started_at,
        ended_at=entry.ended_at,
    )
    assert (EffectInfo.of(entry).undo, EffectInfo.of(entry).undoes) == ("cancel", None)
    assert (await timed.events("s"))[-1].kind == "run_completed"


async def _any(step: CompletedStep[Any]) -> None: ...


async def _untyped(step):  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
    ...


async def _bare(step: CompletedStep) -> None:  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType]
    ...


FUNCTIONS: list[Any] = [_any, _untyped, _bare]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_without_a_declared_result_gets_json(function: UndoFunction):
    step = Effect(run_id="r", call_id="c/book", tool="book", state="completed", undo='{"undo":"x"}')
    json = replace(step, result='{"kind":"value","value":{"seat":"A12"}}')
    assert completed_step(json, function).result == {"seat": "A12"}
    assert completed_step(step, function).result is None


def test_a_result_of_another_type_is_an_error():
    step = Effect(run_id="r", call_id="c/book", tool="book", state="completed", undo='{"undo":"x"}')
    with pytest.raises(Unserializable, match="Booking"):
        completed_step(replace(step, result='{"kind":"value","value":5}'), cancel)


async def test_without_a_registered_undo_the_step_is_refused(timed: Store):
    async def tool(trip: str) -> str:
        with pytest.raises(BadInput, match=r"no undo 'cancel', which step 'book' names \(it has none\)"):
            await step("book", do, trip, undo=cancel)
        return "refused"

    assert await run(timed, tool) == "refused"


async def test_steps_are_undone_in_the_reverse_order_of_their_completion(timed: Store):
    async def tool(trip: str) -> str:
        async def outer() -> None:
            await step("inner", do, "inner", undo="cancel")

        await step("first", do, "first", undo="cancel")
        await step("outer", outer)
        await step("covering", outer, undo="cancel")
        await step("without", do, "without")
        return "done"

    await run(timed, tool, cancel)
    (run_id,) = {entry.run_id for entry in await ledger(timed, "s")}
    plan = await undo_plan(timed, "s", [run_id])
    assert [(item.step.call_id, item.entry) for item in plan] == [
        ("call-1/covering", "call-1/covering~undo"),
        ("call-1/outer/inner", "call-1/outer/inner~undo"),
        ("call-1/first", "call-1/first~undo"),
    ]
    assert not any(item.is_undone or item.is_unknown or item.has_stopped for item in plan)


@pytest.mark.parametrize(
    ("call_id", "undoes"),
    [
        ("turn/book~undo", "turn/book"),
        ("turn/book~2~undo~again1", "turn/book~2"),
        ("turn/book~again1~undo", "turn/book~again1"),
        ("turn/book~undo/refund", None),
        ("turn/book", None),
        ("call~undo", None),
        ("call~undo/book", None),
    ],
)
def test_an_entry_names_the_step_that_it_undoes(call_id: str, undoes: str | None):
    effect = Effect(run_id="r", call_id=call_id, tool="t")
    assert effect.undoes == undoes
    assert EffectInfo.of(effect).undoes == undoes


def test_undos_are_registered_by_name():
    undos = undos_by_name([cancel, Undo(cancel, name="again", recovery="retry")])
    assert {name: undo.recovery for name, undo in undos.items()} == {"cancel": "report", "again": "retry"}
