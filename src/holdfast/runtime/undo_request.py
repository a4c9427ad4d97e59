"""Decide that the effects of a turn are undone: in the same write that records its failure, or because a person requests it.

A turn that fails is not over until its effects are undone, if its agent says so: its submission is queued again, and its run is that of the undo.
"""

import json
from collections.abc import Sequence
from typing import Any

from holdfast.ids import new_id
from holdfast.jsontext import lenient_json
from holdfast.record.resume_point import continued_runs
from holdfast.record.undo_plan import Undoable, undo_plan
from holdfast.runtime.payloads import parse_payload
from holdfast.sentences import without_period
from holdfast.store import Store
from holdfast.types import Batch, NewEvent, Run, Submission, SubmissionChange

_LONGEST_CHAIN = 10_000
INTERRUPTED = "the undo of its effects was interrupted"


def joined(reason: str, undo: str) -> str:
    """Return why a turn failed, and how the undo of its effects ended."""
    return f"{without_period(reason)}; {undo}"


def undone_run(run: Run) -> str | None:
    """Return the last run of the turn whose effects a run undoes; None for any other run."""
    return json.loads(run.metadata).get("undoes")


def undo_reason(run: Run) -> str | None:
    """Return why the turn failed whose effects a run undoes; None if a person requested the undo."""
    return json.loads(run.metadata).get("reason")


def new_undo(turn: Run, reason: str | None = None) -> tuple[Run, NewEvent]:
    """Return a run that undoes the effects of a turn, and the event of its start. With a reason, the turn fails for it afterwards."""
    facts = {"undoes": turn.id} | ({} if reason is None else {"reason": reason})
    run = Run(id=new_id(), agent=turn.agent, metadata=lenient_json(facts))
    payload = lenient_json({"agent": turn.agent, "parent": None, "undoes": turn.id})
    return run, NewEvent(kind="run_started", run_id=run.id, payload=payload)


def undo_first(batch: Batch, submission_id: str, turn: Run, reason: str) -> None:
    """Change the batch that records the failure of a turn: its submission ends when its effects are undone."""
    run, started = new_undo(turn, reason)
    change = SubmissionChange(id=submission_id, state="queued", reason=reason, run_id=run.id, attempts=0)
    others = [other for other in batch.submissions if other.id != submission_id]
    batch.submissions = [*others, change]
    batch.runs = [*batch.runs, run]
    batch.events = [*batch.events, started]
    batch.status, batch.error = "idle", None


async def runs_of_turn(store: Store, run_id: str) -> list[Run]:
    """Return the runs of a turn, the last one first."""
    return await continued_runs(store, run_id, longest=_LONGEST_CHAIN)


async def plan_of_turn(store: Store, session_id: str, run_id: str) -> list[Undoable]:
    """Return the steps of a turn that have an undo, in the order in which they are undone."""
    runs = await runs_of_turn(store, run_id)
    return await undo_plan(store, session_id, [run.id for run in runs])


async def last_run(store: Store, submission: Submission) -> Run | None:
    """Return the last run of the turn itself, without the one that undoes its effects; None if it has not begun."""
    if submission.run_id is None:
        return None
    run = await store.run(submission.run_id)
    turn = undone_run(run)
    return run if turn is None else await store.run(turn)


async def latest_attempt(store: Store, turn: Submission) -> Submission:
    """Return the last retry of a turn that has begun, or the turn itself: the effects of a turn are those of all its attempts."""
    attempts, cursor = {turn.id}, None
    while True:
        page = await store.submissions(turn.session_id, cursor=cursor, limit=1000)
        for each in page.items:
            if each.kind == "retry" and each.run_id and _retried(each) in attempts:
                attempts.add(each.id)
                turn = each
        if (cursor := page.next_cursor) is None:
            return turn


def _retried(retry: Submission) -> Any:
    return parse_payload(retry).get("submission_id")


def left(plan: Sequence[Undoable]) -> list[Undoable]:
    """Return the steps that are not undone yet."""
    return [item for item in plan if not item.is_undone]
