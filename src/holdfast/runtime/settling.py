"""Record the outcome of a tool call or step that a person has determined."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pydantic_ai.messages import ToolReturnPart

from holdfast.errors import Conflict, NotFound
from holdfast.jsontext import lenient_json
from holdfast.leases import hold_lease
from holdfast.media import MediaStore
from holdfast.questions import ANSWERED, ApprovalAnswer, pending_approvals, requeued, waiting_turn
from holdfast.record import ledger
from holdfast.record.offloader import MediaOffloader
from holdfast.store import Store
from holdfast.types import Batch, Effect, EffectState, NewEvent

_PATIENCE_SECONDS: Final = 2.0
"""A worker frees a session a moment after everybody can see that its turn has failed."""


async def settle_effect(
    store: Store,
    run_id: str,
    call_id: str,
    *,
    actor: str,
    result: Any = None,
    error: str | None = None,
    media: MediaStore | None = None,
) -> Effect:
    """Record the outcome of a call whose outcome is unknown: its result, or its error.

    If the session waits for a decision about this call, the outcome replaces the decision, and the turn continues when no other
    question is open. The event and the audit log name the `actor`. Raises `Conflict` if an outcome is already recorded or the call
    waits for its approval, `NotFound` if there is no such call, and `SessionBusy` while the session is in use.
    """
    run = await store.run(run_id)
    async with hold_lease(store, run.session_id, patience=_PATIENCE_SECONDS) as lease:
        entries = (await store.effects(run.session_id, run_id=run_id, call_id=call_id)).items
        if not entries:
            raise NotFound(what=f"tool call of run {run_id} with the id", id=call_id)
        effect = entries[0]
        if effect.state != "started":
            raise Conflict(problem=f"call {call_id} of run {run_id} is already {effect.state}")
        if ledger.waits_for(effect) == "approval":
            raise Conflict(problem=f"call {call_id} of run {run_id} was not started; approve or deny it")
        settled, event = settled_as(effect, actor, result=result, error=error)
        batch = Batch(effects=[settled], events=[event])
        if ledger.waits_for(effect) in {"again", "external"}:
            await _answer_question(store, effect, batch, actor)
        # Before the change: an audit entry without a change is better than a change without an audit entry.
        facts = {"run_id": run_id, "call_id": call_id, "tool": settled.tool, "state": settled.state}
        detail = json.dumps(facts)
        await store.audit(actor=actor, action="settle effect", session_id=run.session_id, detail=detail)
        await MediaOffloader(store, media).write(batch, partial(store.write, lease))
    return (await store.effects(run.session_id, run_id=run_id, call_id=call_id)).items[0]


def settled_as(
    effect: Effect, actor: str, *, result: Any = None, error: str | None = None
) -> tuple[Effect, NewEvent]:
    """Return a call or step with an outcome, and the event of it."""
    recorded = None
    if error is None and ledger.is_step(effect):
        recorded = lenient_json({"kind": "value", "value": result})
    elif error is None:
        recorded = ledger.returned(ToolReturnPart(effect.tool, result, effect.call_id))
    state: EffectState = "completed" if error is None else "failed"
    settled = replace(effect, state=state, result=recorded, error=error)
    return settled, _settled_event(settled, actor)


def _settled_event(settled: Effect, actor: str) -> NewEvent:
    what, name = ("step", "name") if ledger.is_step(settled) else ("tool_call", "tool")
    kind, facts = f"{what}_{settled.state}", {name: settled.tool, "call_id": settled.call_id}
    if (step := settled.undoes) is not None:
        kind = "effect_undone" if settled.state == "completed" else "undo_failed"
        facts["undoes"] = step
    payload = json.dumps({**facts, "manual": True, "actor": actor})
    return NewEvent(kind=kind, run_id=settled.run_id, payload=payload)


async def _answer_question(store: Store, effect: Effect, batch: Batch, actor: str) -> None:
    """Add to the batch that the question about a call is answered. If it was the last one, queue the waiting turn again.

    The answer allows the call to run, but a call or step with a recorded outcome does not run again.
    """
    waiting = await waiting_turn(store, effect.session_id)
    questions = await pending_approvals(store, effect.session_id)
    about = ledger.asked_about(effect)
    question = next(
        (each for each in questions if each.get("unsettled") == about or _runs_outside(each, effect)), None
    )
    if waiting is None or question is None:
        return
    if (
        ledger.is_step(effect) and "/" not in question["call_id"]
    ):  # the answer counts for all steps of the tool
        call_id = effect.call_id.partition("/")[0]
        steps = await ledger.step_entries(store, effect.session_id, effect.run_id, call_id)
        if any(ledger.waits_for(step) == "again" for name, step in steps.items() if name != effect.call_id):
            return
    answer = ApprovalAnswer(call_id=question["call_id"], digest=question["digest"], approved=True, by=actor)
    answered = NewEvent(kind=ANSWERED, run_id=waiting.run_id, payload=answer.as_json())
    batch.events = [*batch.events, answered]
    if len(questions) == 1:
        batch.submissions, batch.status = [requeued(waiting)], "idle"


def _runs_outside(question: Mapping[str, Any], effect: Effect) -> bool:
    """Return whether a question waits for the result of this call, which runs outside. The entry has a number if the id was used before."""
    entries = {effect.call_id, effect.call_id.rpartition("~")[0]}
    return bool(question.get("external")) and ledger.entry(question["call_id"], 0) in entries
