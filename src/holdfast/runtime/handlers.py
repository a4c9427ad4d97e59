"""Handlers for submissions that need no agent run, one per kind.

A handler returns the batch that processes its submission. The submission ends in the same batch.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from holdfast.errors import BadInput, Conflict, NotFound
from holdfast.ids import new_id
from holdfast.record import forking, ledger
from holdfast.record.open_calls import pending_calls
from holdfast.record.partial import partial_response
from holdfast.record.recovery import ResumePoint, find_resume_point, last_prompt
from holdfast.runtime import approvals
from holdfast.runtime.leased_session import LeasedSession
from holdfast.runtime.payloads import parse_payload
from holdfast.runtime.questions import is_repeated, requeued, waiting_turn
from holdfast.types import Batch, Checkpoint, NewEvent, Submission, SubmissionChange

Handler: TypeAlias = Callable[[LeasedSession, Submission], Awaitable[Batch]]


async def approval(session: LeasedSession, submission: Submission) -> Batch:
    """Record a person's answers. When no question is open any longer, queue the waiting turn again.

    An answer that was already given to an earlier question changes nothing.
    """
    answers = approvals.parse_answers(parse_payload(submission))
    waiting = await waiting_turn(session.store, session.id)
    point = ResumePoint(messages=[])
    if waiting is not None and waiting.run_id is not None:
        point = await find_resume_point(session.store, session.id, waiting.run_id)
    pending = pending_calls(point.messages)
    asked = {(call.tool_call_id, ledger.digest(call.args_as_dict())) for call in pending}
    answers = [
        answer
        for answer in answers
        if (answer.call_id, answer.digest) in asked
        or not await is_repeated(session.store, session.id, answer, before=submission.position)
    ]
    if not answers:
        return Batch()
    if waiting is None or waiting.run_id is None:
        raise Conflict(problem="the session does not wait for an answer")
    runner = session.runner(await session.read())
    given = await approvals.recorded_answers(session.store, session.id, point.chain)
    new = approvals.new_answers(answers, pending=pending, given=given, runner=runner)
    events = [
        NewEvent(kind=approvals.ANSWERED, run_id=waiting.run_id, payload=answer.as_json()) for answer in new
    ]
    if {call.tool_call_id for call in pending} - set(given) - {answer.call_id for answer in new}:
        return Batch(events=events)
    return Batch(events=events, submissions=[requeued(waiting)], status="idle")


async def interrupt(session: LeasedSession, submission: Submission) -> Batch:
    """End a turn that waits for a person, or that was interrupted and is queued to continue. Otherwise do nothing."""
    if (cancelled := await cancel_queued(session, submission)) is not None:
        return cancelled
    batch = Batch()
    turn = await waiting_turn(session.store, session.id) or await _cut_off_turn(session, submission)
    if turn is not None or (await session.read()).status == "waiting":
        batch.status = "idle"
    if turn is not None:
        batch.submissions = [SubmissionChange(id=turn.id, state="failed", reason="interrupted")]
        if turn.run_id is not None:
            run = await session.store.run(turn.run_id)
            batch.runs = [replace(run, status="interrupted", error="interrupted")]
            streamed = await partial_response(session.store, session.id, run.id)
            batch.events = [*streamed, NewEvent(kind="run_interrupted", run_id=run.id)]
            batch.drafts_done = [run.id]
    return batch


async def cancel_queued(session: LeasedSession, interrupt: Submission) -> Batch | None:
    """Return the batch for an interrupt of a submission that has not started or has ended; None if it is for the current turn."""
    submission_id = parse_payload(interrupt).get("submission_id")
    if submission_id is None:
        return None
    try:
        target = await session.store.submission(str(submission_id))
    except (NotFound, BadInput):
        return Batch()
    if target.session_id != session.id or target.ended_at is not None:
        return Batch()
    if target.started_at is not None:
        return None
    return Batch(submissions=[SubmissionChange(id=target.id, state="failed", reason="interrupted")])


async def undo(session: LeasedSession, submission: Submission) -> Batch:
    """Go back to the point before the user's last message."""
    latest = (await session.store.checkpoints(session_id=session.id, limit=1)).items
    position = await last_prompt(session.store, latest[0]) if latest else None
    if position is None:
        raise Conflict(problem="there is nothing to undo")
    return _rewound(submission, Checkpoint(id=new_id(), segment=latest[0].segment, length=position))


async def rewind(session: LeasedSession, submission: Submission) -> Batch:
    """Go back to a checkpoint."""
    to = await _checkpoint(session, parse_payload(submission))
    return _rewound(submission, Checkpoint(id=new_id(), segment=to.segment, length=to.length, kind=to.kind))


async def fork(session: LeasedSession, submission: Submission) -> Batch:
    """Copy the history up to a checkpoint into a new session."""
    payload = parse_payload(submission)
    forked = await forking.fork(
        session.store,
        await _checkpoint(session, payload),
        session_id=payload.get("session_id") or submission.id,
        submission_id=submission.id,
        lease=session.lease,
    )
    return Batch(events=[NewEvent(kind="forked", payload=json.dumps({"session_id": forked}))])


async def nothing(session: LeasedSession, submission: Submission) -> Batch:
    """Do nothing: there is no turn to stop or detach."""
    del session, submission
    return Batch()


HANDLERS: Mapping[str, Handler] = {
    "approval": approval,
    "interrupt": interrupt,
    "undo": undo,
    "rewind": rewind,
    "fork": fork,
    "background": nothing,
    "shutdown": nothing,
}


def _rewound(submission: Submission, to: Checkpoint) -> Batch:
    payload = json.dumps({"by": submission.kind, "length": to.length})
    return Batch(checkpoints=[to], events=[NewEvent(kind="rewound", payload=payload)])


async def _cut_off_turn(session: LeasedSession, interrupt: Submission) -> Submission | None:
    """Return the queued submission whose turn began before the interrupt was sent, and was cut off."""
    page = await session.store.submissions(session.id, state="queued", payloads=False, limit=1000)
    for queued in page.items:
        if queued.lane == "main":
            begun = queued.started_at is not None and queued.position < interrupt.position
            return queued if begun else None
    return None


async def _checkpoint(session: LeasedSession, payload: Mapping[str, Any]) -> Checkpoint:
    """Return the checkpoint that the payload names, by default the last one."""
    if "checkpoint_id" in payload:
        checkpoint = await session.store.checkpoint(str(payload["checkpoint_id"]))
        if checkpoint.session_id != session.id:
            raise NotFound(what="checkpoint", id=checkpoint.id)  # as if it did not exist
        return checkpoint
    latest = (await session.store.checkpoints(session_id=session.id, limit=1)).items
    if not latest:
        raise Conflict(problem=f"session {session.id} has no history yet")
    return latest[0]
