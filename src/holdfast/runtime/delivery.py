"""Deliver the answer to a question of a delegate: record it in the session that asked, where the delegate's next run finds it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.errors import Conflict, SessionNotFound
from holdfast.leases import hold_lease
from holdfast.questions import ANSWERED, ApprovalAnswer, already_answered, read_questions
from holdfast.record.resume_point import continued_runs
from holdfast.store import Store
from holdfast.types import Batch, NewEvent


async def deliver(store: Store, question: Mapping[str, Any], answer: ApprovalAnswer) -> None:
    """Record an answer in the session of the delegate that asked; do nothing for another question, or if it is recorded there.

    It is delivered before the session at the root records it: then it is only sent again if the process dies in between. Raises
    `Conflict` if a different answer is recorded, and `SessionBusy`. The answer of a delegate that was erased has no effect.
    """
    origin = question.get("origin")
    if origin is None:
        return
    own = replace(answer, call_id=origin["call_id"])
    try:
        async with hold_lease(store, origin["session_id"]) as lease:
            chain = await continued_runs(store, origin["run_id"])
            before = (await read_questions(store, lease.session_id, chain)).answers.get(own.call_id)
            if before is None:
                event = NewEvent(kind=ANSWERED, run_id=origin["run_id"], payload=own.as_json())
                await store.write(lease, Batch(events=[event]))
            elif before != own:
                raise Conflict(problem=already_answered(before))
    except SessionNotFound:
        return
