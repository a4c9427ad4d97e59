"""Compaction: replace the history of a session with a shorter one. The old history remains recorded."""

import json
from collections.abc import Awaitable
from copy import deepcopy

from holdfast.errors import Conflict
from holdfast.ids import new_id
from holdfast.record.history import open_history
from holdfast.record.resume_point import find_resume_point
from holdfast.runtime.leased_session import LeasedSession
from holdfast.runtime.turn import WorkerTurn
from holdfast.types import Batch, Checkpoint, NewEvent, Session, Submission


async def prepare_compaction(
    leased: LeasedSession, session: Session, submission: Submission
) -> tuple[WorkerTurn, Awaitable[Batch]]:
    """Return a turn for the compaction, and the agent code that produces its batch. Raises `Conflict`."""
    point = await find_resume_point(leased.store, leased.id, None)
    at, messages = point.checkpoint, point.messages
    if at is None or not messages:
        raise Conflict(problem="the session has no messages to compact")
    if len(messages) != at.length:
        raise Conflict(problem="the last run was interrupted; send a message before you compact the session")
    runner = leased.runner(session)
    turn = WorkerTurn(
        lease=leased.lease,
        submission=submission,
        checkpoint=at,
        recorded=messages,
        limit=runner.run_timeout,
    )

    async def compact() -> Batch:
        # A copy: the compactor may change messages in place, and changes are found by comparison.
        shorter, requests = await runner.compact(session, deepcopy(messages))
        history = await open_history(leased.store, leased.id, at, messages)
        growth = history.grow(list(shorter))
        payload = json.dumps({"before": len(messages), "after": len(shorter)})
        return Batch(
            segments=growth.segments,
            messages=growth.messages,
            checkpoints=[Checkpoint(id=new_id(), segment=history.segment, length=len(shorter))],
            events=[*requests, NewEvent(kind="compacted", payload=payload)],
        )

    return turn, compact()
