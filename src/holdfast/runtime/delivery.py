"""Write to the sessions of delegates that wait: the answer to a question, where the delegate's next run finds it, or that nothing is awaited."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from holdfast.errors import NotFound, SessionBusy, SessionNotFound
from holdfast.leases import acquire, joined
from holdfast.questions import ANSWERED, DEEPEST, ApprovalAnswer, read_questions
from holdfast.record.resume_point import continued_runs
from holdfast.store import Store
from holdfast.types import SUSPENDED, Batch, NewEvent, Run

_TRIES: Final = 50
_PAUSE_SECONDS: Final = 0.2
"""How long to wait for the session of the delegate, which another process may hold for a moment, in all ten seconds."""


async def deliver(
    store: Store, session_id: str, question: Mapping[str, Any], answer: ApprovalAnswer
) -> ApprovalAnswer:
    """Record an answer in the session of the delegate that asked, and return the answer that is recorded there.

    It is delivered before the session at the root records it: if the process dies in between, it is delivered again. The answer to a
    question of the session's own agent, or of a delegate that was erased, is returned unchanged. So is one to a question of a run that is
    no delegate of `session_id`: its events may come from an archive, which can name the session of anybody. Raises `SessionBusy`.
    """
    origin = question.get("origin")
    if origin is None or not await _is_below(store, session_id, origin):
        return answer
    own = replace(answer, call_id=origin["call_id"])
    try:
        async with joined(store) as holder:
            lease = await acquire(store, origin["session_id"], holder, tries=_TRIES, pause=_PAUSE_SECONDS)
            chain = await continued_runs(store, origin["run_id"])
            before = (await read_questions(store, lease.session_id, chain)).answers.get(own.call_id)
            if before is not None:
                return replace(before, call_id=answer.call_id)
            event = NewEvent(kind=ANSWERED, run_id=origin["run_id"], payload=own.as_json())
            await store.write(lease, Batch(events=[event]))
    except SessionNotFound:
        pass
    return answer


async def stop_delegates(store: Store, run_id: str) -> None:
    """End the waits of the delegates of a turn that will not continue: their sessions no longer wait, nor do those of their own delegates.

    This comes before the end of the turn: if the process dies in between, it is done again. A session that another process holds keeps
    its status.
    """
    for above in await continued_runs(store, run_id):
        cursor: str | None = None
        while True:
            page = await store.runs(parent_id=above.id, cursor=cursor)
            for run in page.items:
                if run.status == "waiting" and run.session_id != above.session_id:
                    await stop_delegates(store, run.id)
                    await _stop(store, run)
            if (cursor := page.next_cursor) is None:
                break


async def _stop(store: Store, run: Run) -> None:
    ended = replace(run, status="interrupted", error="interrupted")
    event = NewEvent(kind="run_interrupted", run_id=run.id)
    with suppress(SessionBusy, SessionNotFound):
        async with joined(store) as holder:
            lease = await acquire(store, run.session_id, holder)
            if (await store.session(run.session_id)).status in SUSPENDED:
                await store.write(lease, Batch(events=[event], runs=[ended], status="idle"))


async def _is_below(store: Store, session_id: str, origin: Mapping[str, Any]) -> bool:
    """Return whether the run that asks is in the session that is named, and was started by the session, through any delegates."""
    with suppress(NotFound):
        run = await store.run(origin["run_id"])
        if run.session_id != origin["session_id"]:
            return False
        for _ in range(DEEPEST):
            if run.parent_id is None:
                return False
            run = await store.run(run.parent_id)
            if run.session_id == session_id:
                return True
    return False
