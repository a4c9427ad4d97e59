"""Compaction: replace the history of a session with a shorter one. The old history remains recorded."""

import json
from collections.abc import Awaitable
from copy import deepcopy

from holdfast.errors import Conflict
from holdfast.ids import new_id
from holdfast.jsontext import lenient_json
from holdfast.record.history import open_history
from holdfast.record.resume_point import find_resume_point
from holdfast.record.usage import UsageMeter
from holdfast.runtime.leased_session import LeasedSession
from holdfast.runtime.message import accounts_of
from holdfast.runtime.turn import WorkerTurn
from holdfast.types import Batch, Checkpoint, NewEvent, Session, Submission


async def prepare_compaction(
    leased: LeasedSession, session: Session, submission: Submission
) -> tuple[WorkerTurn, Awaitable[Batch]]:
    """Return a turn for the compaction, and the agent code that produces its batch. Raises `Conflict`, and `BudgetReached` if a budget is used up."""
    point = await find_resume_point(leased.store, leased.id, None)
    at, messages = point.checkpoint, point.messages
    if at is None or not messages:
        raise Conflict(problem="the session has no messages to compact")
    if len(messages) != at.length:
        raise Conflict(problem="the last run was interrupted; send a message before you compact the session")
    runner = leased.runner(session)
    accounts, reached = await accounts_of(leased, session, submission, runner.budgets, budgeted=True)
    if reached is not None:
        raise reached
    turn = WorkerTurn(
        lease=leased.lease,
        submission=submission,
        checkpoint=at,
        recorded=messages,
        limit=runner.run_timeout,
    )

    async def compact() -> Batch:
        # A copy: the compactor may change messages in place, and changes are found by comparison.
        meter = UsageMeter(session.agent, leased.store.settings.prices)
        shorter, requests = await runner.compact(session, deepcopy(messages))
        history = await open_history(leased.store, leased.id, at, messages)
        growth = history.grow(list(shorter))
        measured = [meter.measure(response, model) for model, response in requests]
        for counted in measured:
            meter.add(counted)
        completed = [
            NewEvent(kind="model_request_completed", payload=lenient_json(counted.facts))
            for counted in measured
        ]
        payload = json.dumps({"before": len(messages), "after": len(shorter)})
        return Batch(
            segments=growth.segments,
            messages=growth.messages,
            checkpoints=[Checkpoint(id=new_id(), segment=history.segment, length=len(shorter))],
            events=[*completed, NewEvent(kind="compacted", payload=payload)],
            usage=meter.take(),
            accounts=accounts,
        )

    return turn, compact()
