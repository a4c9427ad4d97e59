"""Handlers for submissions that need no agent run, one per kind.

A handler returns the batch that processes its submission. The submission ends in the same batch.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from holdfast.errors import BadInput, Conflict, NotFound
from holdfast.ids import check_id, new_id
from holdfast.jsontext import lenient_json, strict_json
from holdfast.questions import (
    ANSWERED,
    ApprovalAnswer,
    Questions,
    already_answered,
    is_repeated,
    parse_answers,
    read_questions,
    requeued,
    waiting_turn,
)
from holdfast.record import forking, ledger
from holdfast.record.deadlines import deadline_of
from holdfast.record.ending import describe_waiting
from holdfast.record.open_calls import pending_calls, pending_effects
from holdfast.record.partial import partial_response
from holdfast.record.recovery import last_prompt
from holdfast.record.resume_point import ResumePoint, find_resume_point
from holdfast.record.waits import Wait, open_waits
from holdfast.runtime.delivery import deliver, stop_delegates
from holdfast.runtime.leased_session import LeasedSession
from holdfast.runtime.payloads import parse_payload
from holdfast.runtime.runner import Runner
from holdfast.runtime.settling import settled_as
from holdfast.runtime.undo_request import INTERRUPTED, joined, undo_first, undo_reason, undone_run
from holdfast.types import (
    SIGNAL,
    SUSPENDED,
    Batch,
    Checkpoint,
    Effect,
    NewEvent,
    Record,
    Submission,
    SubmissionChange,
)

_MOST_SIGNALS = 1000
"""How many signals a session keeps until they are received."""

Handler: TypeAlias = Callable[[LeasedSession, Submission], Awaitable[Batch]]


async def approval(session: LeasedSession, submission: Submission) -> Batch:
    """Record a person's answers. When no question is open any longer, queue the waiting turn again.

    An answer that was already given to an earlier question changes nothing.
    """
    answers = parse_answers(parse_payload(submission))
    waiting = await waiting_turn(session.store, session.id)
    point = ResumePoint(messages=[])
    undoes = False
    if waiting is not None and waiting.run_id is not None:
        run = await session.store.run(waiting.run_id)
        undoes = undone_run(run) is not None
        point = ResumePoint(messages=[], chain=[run])
        if not undoes:
            point = await find_resume_point(session.store, session.id, run.id)
    questions = await read_questions(session.store, session.id, point.chain)
    # Questions that are not calls of the history: those of delegates, and those about the undo of a step.
    apart = {key: question for key, question in questions.asked.items() if undoes or question.get("origin")}
    tools = {call.tool_call_id: call.tool_name for call in pending_calls(point.messages)}
    digests = {
        **{call.tool_call_id: ledger.digest(call.args_as_dict()) for call in pending_calls(point.messages)},
        **{call_id: question["digest"] for call_id, question in apart.items()},
    }
    answers = [
        answer
        for answer in answers
        if digests.get(answer.call_id) == answer.digest
        or not await is_repeated(session.store, session.id, answer, before=submission.position)
    ]
    if not answers:
        return Batch()
    if waiting is None or waiting.run_id is None:
        raise Conflict(problem="the session does not wait for an answer")
    runner = session.runner(await session.read())
    given = questions.answers
    new = _new_answers(answers, digests=digests, tools=tools, given=given, runner=runner)
    for answer in new:
        asked = questions.asked.get(answer.call_id, {})
        if answer.approved and asked.get("external"):
            raise Conflict(problem=f"call {answer.call_id} runs outside; deliver its result, or deny it")
        _refuse_late(asked, submission)
    for answer in new:
        recorded = await deliver(session.store, session.id, questions.asked.get(answer.call_id, {}), answer)
        if recorded != answer:
            raise Conflict(problem=already_answered(recorded))
    events = [NewEvent(kind=ANSWERED, run_id=waiting.run_id, payload=answer.as_json()) for answer in new]
    effects = await pending_effects(session.store, session.id, point.messages)
    own = {key for key, effect in effects.items() if effect is None or Wait.of(effect) is None}
    if (own | apart.keys()) - set(given) - {answer.call_id for answer in new}:
        batch = Batch(events=events)
        _wait_on(batch, questions, effects, {answer.call_id for answer in new})
        return batch
    return Batch(events=events, submissions=[requeued(waiting)], status="idle")


async def tool_result(session: LeasedSession, submission: Submission) -> Batch:
    """Record the result of a call that ran outside. When no question is open any longer, queue the waiting turn again.

    A result that was already recorded for the call changes nothing.
    """
    facts = parse_payload(submission)
    call_id, digest = facts["call_id"], facts["digest"]
    waiting = await waiting_turn(session.store, session.id)
    answer = ApprovalAnswer(call_id=call_id, digest=digest, approved=True, by=facts.get("by"))
    if waiting is None or waiting.run_id is None:
        if await is_repeated(session.store, session.id, answer, before=submission.position):
            return Batch()
        raise Conflict(problem=f"call {call_id} does not wait for a result")
    point = await find_resume_point(session.store, session.id, waiting.run_id)
    questions = await read_questions(session.store, session.id, point.chain)
    if questions.answers.get(call_id) == answer:
        return Batch()
    asked = questions.open.get(call_id)
    pending = await pending_effects(session.store, session.id, point.messages)
    effect = pending.get(call_id)
    if asked is None or effect is None or ledger.waits_for(effect) != "external":
        raise Conflict(problem=f"call {call_id} does not wait for a result")
    if asked["digest"] != digest:
        raise Conflict(problem=f"call {call_id} has different arguments from those that the result is for")
    _refuse_late(asked, submission)
    actor = str(facts.get("by"))
    settled, event = settled_as(effect, actor, result=facts.get("result"), error=facts.get("error"))
    payload = lenient_json({**json.loads(answer.as_json()), "external": True})
    answered = NewEvent(kind=ANSWERED, run_id=waiting.run_id, payload=payload)
    batch = Batch(effects=[settled], events=[event, answered])
    if questions.open.keys() == {call_id}:
        batch.submissions, batch.status = [requeued(waiting)], "idle"
    else:
        _wait_on(batch, questions, pending, {call_id})
    return batch


def _wait_on(
    batch: Batch, questions: Questions, effects: Mapping[str, Effect | None], answered: set[str]
) -> None:
    """Let the session name what it still waits for after these answers."""
    still = [question for key, question in questions.open.items() if key not in answered]
    waits = [wait for effect in effects.values() if effect is not None and (wait := Wait.of(effect))]
    batch.status, batch.waiting_for = "waiting", describe_waiting(still, waits)


def _new_answers(
    answers: Sequence[ApprovalAnswer],
    *,
    digests: Mapping[str, str],
    tools: Mapping[str, str],
    given: Mapping[str, ApprovalAnswer],
    runner: Runner,
) -> list[ApprovalAnswer]:
    """Return the answers that are new. Raise `Conflict` for an answer to another question, or one that contradicts an earlier answer.

    `digests` are those of the calls that wait, `tools` the tools of those that the session's own agent made.
    """
    new: list[ApprovalAnswer] = []
    for answer in answers:
        digest = digests.get(answer.call_id)
        if digest is None:
            raise Conflict(problem=f"call {answer.call_id} does not wait for an answer")
        if digest != answer.digest:
            raise Conflict(
                problem=f"call {answer.call_id} has different arguments from those that were approved or denied"
            )
        before = given.get(answer.call_id)
        if before is not None and before != answer:
            raise Conflict(problem=already_answered(before))
        tool = tools.get(answer.call_id)
        if answer.arguments is not None and not (tool and runner.allows_edits(tool)):
            raise Conflict(
                problem=f"the arguments of {tool or 'this call'} cannot be edited, because the tool does not allow it"
            )
        if before is None:
            new.append(answer)
    return new


def _refuse_late(question: Mapping[str, Any], submission: Submission) -> None:
    """Raise `Conflict` if an answer was sent after the deadline of its question, even if the default is not recorded yet."""
    deadline = deadline_of(question)
    if deadline is None or question["default"] == "remind" or submission.created_at < deadline:
        return
    at = deadline.isoformat(timespec="seconds")
    raise Conflict(
        problem=f"the deadline of call {question['call_id']} passed at {at}, and its default applies: {question['default']}"
    )


async def interrupt(session: LeasedSession, submission: Submission) -> Batch:
    """End a turn that waits for a person, or that was interrupted and is queued to continue. Otherwise do nothing."""
    if (cancelled := await cancel_queued(session, submission)) is not None:
        return cancelled
    batch = Batch()
    turn = await waiting_turn(session.store, session.id) or await _cut_off_turn(session, submission)
    if turn is not None or (await session.read()).status in SUSPENDED:
        batch.status = "idle"
    if turn is not None:
        batch.submissions = [SubmissionChange(id=turn.id, state="failed", reason="interrupted")]
        if turn.run_id is not None:
            run = await session.store.run(turn.run_id)
            if undone_run(run) is not None and turn.state == "queued":
                return Batch()  # the turn has ended, and its undo is interrupted when it runs
            await stop_delegates(session.store, run.id)
            batch.runs = [replace(run, status="interrupted", error="interrupted")]
            streamed = await partial_response(session.store, session.id, run.id)
            batch.events = [*streamed, NewEvent(kind="run_interrupted", run_id=run.id)]
            batch.drafts_done = [run.id]
            if await session.undoable_turn(turn) is not None:
                undo_first(batch, turn.id, run, "interrupted")
            elif (reason := undo_reason(run)) is not None:
                batch.status, batch.error = "failed", joined(reason, INTERRUPTED)
                change = replace(batch.submissions[0], reason=batch.error, run_id=undone_run(run))
                batch.submissions = [change]
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
    # One that was claimed, and whose run has not begun, is not the current turn if it is queued again: a message for later may overtake it.
    if target.state != "queued" or target.run_id is not None:
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


async def signal(session: LeasedSession, submission: Submission) -> Batch:
    """Keep a signal until a wait of the session receives it, and let a turn that waits for it continue."""
    facts = parse_payload(submission)
    name, data = check_id(str(facts.get("name")), "signal name"), facts.get("data")
    kept = await session.store.records(session.id, SIGNAL, bodies=False, limit=_MOST_SIGNALS)
    if len(kept) >= _MOST_SIGNALS:
        raise Conflict(problem=f"{_MOST_SIGNALS} signals to this session have not been received yet")
    body = strict_json({"data": data}, "data")
    event = NewEvent(kind="signal_arrived", payload=strict_json({"name": name, "data": data}, "data"))
    batch = Batch(
        events=[event], records=[Record(kind=SIGNAL, key=f"{name}/{submission.position:020}", body=body)]
    )
    waiting = await waiting_turn(session.store, session.id)
    waits = await open_waits(session.store, session.id)
    if waiting is not None and any(wait.name == name for wait in waits):
        batch.submissions, batch.status = [requeued(waiting)], "idle"
    return batch


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
    "signal": signal,
    "tool_result": tool_result,
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
