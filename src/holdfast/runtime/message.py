"""Prepare a turn: find its message and where the session continues, and let the runner of its agent run it."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.budgets import Account, Budget, own_budgets
from holdfast.errors import BudgetReached, NotFound, TurnNotRetriable
from holdfast.questions import read_questions
from holdfast.record import ledger
from holdfast.record.resume_point import ResumePoint, continued_runs, find_resume_point
from holdfast.record.run_host import open_accounts
from holdfast.runtime.attachment import attachment
from holdfast.runtime.leased_session import LeasedSession
from holdfast.runtime.payloads import check_retriable, parse_content, parse_payload, step_to_repeat
from holdfast.runtime.runner import TurnStart
from holdfast.runtime.turn import Steered, WorkerTurn
from holdfast.runtime.undo_request import last_run, left, plan_of_turn
from holdfast.runtime.waiting_turn import WaitingTurn, wait_for_budget
from holdfast.types import Session, Submission

_TWICE = 2


async def prepare_turn(
    leased: LeasedSession,
    session: Session,
    submission: Submission,
    *,
    fresh: bool,
    last: bool,
    take_steered: Callable[[], Awaitable[Sequence[Steered]]],
    begun: Callable[[], None],
    budgeted: bool = False,
) -> tuple[WorkerTurn, Awaitable[Any]] | None:
    """Return the turn of a message, and the run that processes it. An interrupted turn continues, and so does a retried one.

    Return None if the turn waits on for answers or for a budget, or failed because an answer did not arrive in time. `budgeted` is whether
    administrators have set budgets. A `fresh` session has no history yet.
    After the `last` message the session is released. Raises `BadInput` and `Conflict`.
    """
    runner = leased.runner(session)
    message, run_id = await _origin(leased, submission)
    content = parse_content(message)
    point = ResumePoint(messages=[])
    if not fresh:
        point = await find_resume_point(leased.store, leased.id, run_id)
    if submission.kind == "retry" and submission.run_id is None:
        await _check_unchanged(leased, message, point)
        await _check_undone(leased, message, point)
    questions = await read_questions(leased.store, leased.id, point.chain)
    if point.chain and point.chain[0].status == "waiting" and questions.open:
        origin = ledger.origin(point.messages, point.chain[0].id)
        waiting = WaitingTurn(
            leased=leased, submission=submission, run=point.chain[0], origin=origin, questions=questions
        )
        if not await waiting.continues():
            return None
    accounts, reached = await accounts_of(leased, session, submission, runner.budgets, budgeted=budgeted)
    if reached is not None and point.chain and point.chain[0].status == "waiting" and not questions.open:
        await wait_for_budget(leased, submission, reached, accounts)
        return None
    turn = WorkerTurn(
        lease=leased.lease,
        submission=submission,
        take_steered=take_steered,
        begun=begun,
        checkpoint=point.checkpoint,
        recorded=point.recorded,
        last=last,
        limit=runner.run_timeout,
        undo_on_failure=runner.on_failure is not None,
        attached=attachment(session.metadata, leased.store.settings.attached_grace_seconds),
        asked=questions.open,
        accounts=accounts,
    )
    if point.chain:
        turn.continue_run(point.chain[0])
        if turn.undo_on_failure:
            turn.undoable = bool(left(await plan_of_turn(leased.store, leased.id, point.chain[0].id)))
        if turn.recovered and submission.attempts > 1:
            turn.exclude_attempt = await _is_blameless(leased, point)
    start = TurnStart(
        store=leased.store,
        session=session,
        host=turn,
        content=content,
        point=point,
        answers=questions.answers,
    )
    return turn, await runner.prepare(start)


async def accounts_of(
    leased: LeasedSession,
    session: Session,
    submission: Submission,
    budgets: Sequence[Budget],
    *,
    budgeted: bool,
) -> tuple[Sequence[Account], BudgetReached | None]:
    """Return what a turn counts towards, and the first budget that is used up. Usually there are none, and nothing is read."""
    if not (budgeted or budgets or leased.store.settings.budgets or own_budgets(session.metadata)):
        return (), None
    return await open_accounts(leased.store, session, budgets, turn=submission.id)


async def _origin(leased: LeasedSession, submission: Submission) -> tuple[Submission, str | None]:
    """Return the message that a turn answers, and the run that it continues. A retry names the turn that it continues."""
    message, run_id = submission, submission.run_id
    while message.kind == "retry":
        from_step = step_to_repeat(message)
        message = await leased.store.submission(str(parse_payload(message).get("submission_id")))
        if message.session_id != leased.id:
            raise NotFound(what="submission", id=message.id)  # as if it did not exist
        check_retriable(message, from_step)
        if run_id is None and (run := await last_run(leased.store, message)) is not None:
            run_id = run.id
    return message, run_id


async def _check_unchanged(leased: LeasedSession, message: Submission, point: ResumePoint) -> None:
    """Raise `TurnNotRetriable` if the session has continued since its turn failed, or another retry has continued the turn."""
    latest, runs = point.checkpoint, {run.id for run in point.chain}
    if latest is None or latest.seq < message.position or latest.run_id in runs:
        return
    problem = "the session has continued since it failed; send the message again"
    if runs & {run.id for run in await continued_runs(leased.store, latest.run_id)}:
        problem = "another retry has continued it; retry the last turn of the session if that failed"
    raise TurnNotRetriable(submission_id=message.id, problem=problem)


async def _check_undone(leased: LeasedSession, message: Submission, point: ResumePoint) -> None:
    """Raise `TurnNotRetriable` if the undo of the effects of a turn has stopped: it is not known which of its steps still count."""
    plan = await plan_of_turn(leased.store, leased.id, point.chain[0].id) if point.chain else []
    for item in plan:
        if item.has_stopped:
            problem = f"the undo of its effects has stopped at step {item.step.call_id}; undo its effects again first"
            raise TurnNotRetriable(submission_id=message.id, problem=problem)


async def _is_blameless(leased: LeasedSession, point: ResumePoint) -> bool:
    """Return whether the interrupted run had made progress, and no tool of its turn was cut off twice: then it did not end its worker.

    Workers that die often must not use up the attempts of a long turn.
    """
    run = point.chain[0]
    if point.checkpoint is None or point.checkpoint.run_id != run.id or point.checkpoint.seq == run.first_seq:
        return False
    cut_off = Counter[str]()
    for each in point.chain:
        calls = await leased.store.effects(leased.id, run_id=each.id, unresolved=True)
        if calls.next_cursor:
            return False
        for call in calls.items:
            if call.result is None:
                cut_off[call.tool] += call.attempts
    return all(times < _TWICE for times in cut_off.values())
