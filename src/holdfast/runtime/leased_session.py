"""A session whose lease a worker holds, as needed to process its submissions."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

from holdfast.errors import Conflict, NotFound
from holdfast.record.offloader import MediaOffloader
from holdfast.runtime.runner import Runner
from holdfast.runtime.undo_request import left, plan_of_turn, undo_first, undone_run
from holdfast.store import Store
from holdfast.types import (
    TURNS,
    UNDO_EFFECTS,
    Batch,
    Lease,
    Run,
    Session,
    Submission,
    SubmissionChange,
)


@dataclass(frozen=True, slots=True)
class LeasedSession:
    """A session, the right to write to it, and the agents that the worker serves."""

    store: Store
    lease: Lease
    agents: Mapping[str, Runner]

    @property
    def id(self) -> str:
        """The session's id."""
        return self.lease.session_id

    async def read(self) -> Session:
        """Return the session as it is now."""
        return await self.store.session(self.id)

    def runner(self, session: Session) -> Runner:
        """Return the session's agent. Raises `Conflict` if the worker does not serve it."""
        runner = self.agents.get(session.agent)
        if runner is None:
            raise Conflict(problem=f"this worker does not serve the agent {session.agent!r}")
        return runner

    async def end(
        self,
        submission: Submission,
        state: Literal["done", "failed"],
        reason: str | None = None,
        *,
        batch: Batch | None = None,
        run_id: str | None = None,
    ) -> None:
        """Record the end of a submission and of its run, if it began one, together with its other changes."""
        batch = batch or Batch()
        reason = None if reason is None else _storable(reason)
        change = SubmissionChange(id=submission.id, state=state, reason=reason, run_id=run_id)
        batch.submissions = [change, *batch.submissions]
        await MediaOffloader(self.store).write(batch, partial(self.store.write, self.lease))

    async def fail(self, submission: Submission, reason: str, *, run_id: str | None = None) -> None:
        """Record that a submission failed. If it is a turn, the session shows this outcome, unless a person interrupted it.

        A retry without a run was refused: the session still shows the outcome of the turn before it.
        """
        batch = Batch()
        begun = submission.kind in {*TURNS, UNDO_EFFECTS} and (run_id or submission.run_id)
        if submission.kind == "message" or begun:
            failed = reason != "interrupted"
            batch = Batch(status="failed", error=_storable(reason)) if failed else Batch(status="idle")
        turn = await self.undoable_turn(submission, run_id)
        if turn is None:
            await self.end(submission, "failed", reason, batch=batch, run_id=run_id)
            return
        undo_first(batch, submission.id, turn, _storable(reason))
        await self.store.write(self.lease, batch)

    async def undoable_turn(self, turn: Submission, run_id: str | None = None) -> Run | None:
        """Return the last run of a turn that fails if its effects are undone before its submission ends: if its agent declares that, and it has any."""
        runner = self.agents.get((await self.read()).agent)
        if turn.kind not in TURNS or runner is None or runner.on_failure is None:
            return None
        for begun in filter(None, (run_id, turn.run_id)):
            with suppress(NotFound):  # it was stopped before its start was written
                run = await self.store.run(begun)
                is_turn = undone_run(run) is None
                return run if is_turn and left(await plan_of_turn(self.store, self.id, run.id)) else None
        return None


def _storable(text: str) -> str:
    """Return a text from anywhere in a form that every engine can store."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
