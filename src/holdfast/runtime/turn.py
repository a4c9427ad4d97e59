"""A worker's turn: one run for one submission, and the reasons to stop it.

The recorder writes to the journal; the turn adds the changes of the submission, so that both end in one batch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, TypeAlias

from pydantic_ai.messages import ModelMessage

from holdfast.budgets import Account
from holdfast.errors import StoreError
from holdfast.jsontext import lenient_json
from holdfast.record.run_host import CANCELLATIONS, Failure, RunHost, RunStart
from holdfast.runtime.attachment import Attachment
from holdfast.runtime.undo_request import undo_first
from holdfast.types import Batch, Checkpoint, Lease, NewEvent, Run, Submission, SubmissionChange

Stop: TypeAlias = Literal["interrupt", "handover", "lost", "timeout"]
"""Why a run is stopped: a person interrupts it, another worker continues it, the lease is lost, or it times out."""

_CANCEL_SECONDS = 1.0
"""How long to wait for a cancellation: it passes through all tasks between the turn and the code that it stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steered:
    """A message that enters the running turn, and its submission."""

    submission_id: str
    content: Sequence[Any]


async def _nothing() -> Sequence[Steered]:
    return ()


@dataclass(slots=True, kw_only=True)
class WorkerTurn(RunHost):
    """The host of a run on a worker."""

    handles_interrupts = True  # a worker has its own signal handlers

    lease: Lease
    submission: Submission
    replaces: Run | None = None
    """The run that this one continues; it ends when this one begins."""
    recovered: bool = False
    """Whether that run was interrupted, so that an event records the recovery."""
    exclude_attempt: bool = False
    """Whether the interrupted attempt is excluded from the count."""
    checkpoint: Checkpoint | None
    """The last checkpoint of the session; None if it has no history yet."""
    recorded: Sequence[ModelMessage]
    """The messages up to that checkpoint."""
    last: bool = False
    """Whether this is the last submission: then the session is released at the end of the run."""
    unanswered: Collection[str] = ()
    asked: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    take_steered: Callable[[], Awaitable[Sequence[Steered]]] = _nothing
    """Called before each model request."""
    begun: Callable[[], None] = lambda: None
    """Called when the start of the run is about to be recorded."""
    accounts: Sequence[Account] = ()
    """What the turn counts towards."""
    limit: float | None = None
    """How many seconds the run may take."""
    attached: Attachment | None = None
    """How long the turn may run without a watcher."""
    undo_on_failure: bool = False
    """Whether the effects of the turn are undone if it fails or is interrupted."""
    undoable: bool = False
    """Whether a step of the turn can be undone."""
    draining: bool = False
    """Hand over at the next settled point."""
    stop: Stop | None = None
    run_id: str | None = None
    ended: bool = False
    """Whether the end of the run and of the submission is recorded."""
    waits: bool = False
    """Whether it ended with calls that wait for a person."""
    failed: StoreError | None = None
    """Why the end of the run is not recorded. A cancelled run does not raise it."""
    task: asyncio.Task[Any] | None = field(default=None, repr=False)
    supervisor: asyncio.Task[Any] | None = field(default=None, repr=False)
    """The task that waits for `task`. It is cancelled only with the worker."""
    """The task that runs the agent."""
    recording: asyncio.Task[Any] | None = field(default=None, repr=False)
    """The task that records the run. It may end after the one that runs it."""
    _ending: bool = False
    """Whether the end of the run is being recorded. A second stop must not cut that off."""
    _steered: list[str] = field(default_factory=list[str])
    """The submissions of messages that have entered the run and are not recorded yet."""

    @property
    def attempts(self) -> int:
        """The number of attempts that count, including this one."""
        return self.submission.attempts - self.exclude_attempt

    @property
    def began_at(self) -> datetime:
        """When the turn began: a message sent later may interrupt it. An interrupted attempt counts."""
        if self.submission.attempts > 1 or self.submission.started_at is None:
            return self.submission.created_at
        return self.submission.started_at

    def continue_run(self, run: Run) -> None:
        """Continue a run that waited, was handed over or was interrupted. It ends when the run of this turn begins."""
        self.replaces = run
        if run.status == "waiting":
            self.replaces = replace(run, status="completed")
        elif run.status == "running":
            self.replaces = replace(run, status="interrupted", error="its worker ended")
            self.recovered = True

    def cancel(self, stop: Stop) -> None:
        """Stop the run. The first reason counts, but a lost lease overrides every other reason."""
        if self.stop is None or stop == "lost":
            self.stop = stop
        if self.task is not None and (stop == "lost" or not self._ending):
            self.task.cancel()

    def timed_out(self) -> TimeoutError:
        """Return the error for a run that exceeded its time limit."""
        return TimeoutError(f"the run took longer than {self.limit:g} seconds")

    def enter(self, session_id: str, run_id: str, agent: str) -> AbstractAsyncContextManager[RunStart]:
        """Record under the lease of the worker, which has already read the session."""
        del session_id, run_id, agent
        self.recording = asyncio.current_task()
        return nullcontext(RunStart(self.lease, self.checkpoint, self.recorded))

    async def incoming(self) -> Sequence[Sequence[Any]]:
        """Take the messages that steer the turn."""
        steered = await self.take_steered()
        self._steered += [message.submission_id for message in steered]
        return [message.content for message in steered]

    def amend(self, batch: Batch, run: Run, *, begins: bool, responded: bool) -> None:
        """Add the submission that the run processes, the run that it continues, and the steering messages that entered it."""
        if begins:
            self._begin(batch, run)
        if responded:
            batch.drafts_done = [*batch.drafts_done, run.id]
        if self._steered:
            done = [SubmissionChange(id=steered, state="done", run_id=run.id) for steered in self._steered]
            batch.submissions = [*batch.submissions, *done]
            self._steered.clear()

    def _begin(self, batch: Batch, run: Run) -> None:
        self.begun()
        self.run_id = run.id
        attempts = self.attempts if self.exclude_attempt else None
        batch.submissions = [
            SubmissionChange(id=self.submission.id, state="claimed", run_id=run.id, attempts=attempts)
        ]
        if self.replaces is not None:
            batch.runs = [run, self.replaces]
            batch.drafts_done = [self.replaces.id]  # the model generates this text again
            if self.recovered:
                payload = lenient_json({"run_id": self.replaces.id})
                batch.events = [NewEvent(kind="recovered", run_id=run.id, payload=payload), *batch.events]

    def is_stopping(self) -> bool:
        """Return whether the worker is draining, or a tool swallowed a cancellation."""
        return self.draining or self.stop is not None

    async def settled(self) -> None:
        """Hand over here if the worker is draining. Cancel again if a tool swallowed the cancellation."""
        if self.is_stopping():
            self.cancel(self.stop or "handover")
            await asyncio.sleep(_CANCEL_SECONDS)  # until the cancellation arrives
            raise asyncio.CancelledError  # it takes longer, on a busy machine

    def failure(self, error: BaseException, unwritten: Exception | None) -> Failure | None:
        """Record a failure only if it ends the turn. Otherwise the next worker of the session decides."""
        self._ending = True
        if self.stop == "lost" or isinstance(error, StoreError) or isinstance(unwritten, StoreError):
            return None
        if self.stop is None and _is_cancelled(self.supervisor):
            return None  # the worker is being torn down
        if self.stop is None and isinstance(error, CANCELLATIONS) and _is_cancelled(self.task):
            return None  # the code of the agent cancelled the run
        if self.stop == "handover":
            return Failure(None, error)
        if self.stop == "timeout":
            return Failure("failed", self.timed_out())
        interrupted = self.stop == "interrupt" and isinstance(error, CANCELLATIONS)
        return Failure("interrupted" if interrupted else "failed", error)

    def end(self, batch: Batch, run: Run) -> None:
        """End the submission with the run."""
        if run.status in {"completed", "waiting"}:
            waits = run.status == "waiting"
            change = SubmissionChange(
                id=self.submission.id,
                state="waiting" if waits else "done",
                reason=batch.waiting_for,
                run_id=run.id,
                deliver_at=batch.continue_at,
                attempts=1 if waits else None,  # it came this far: earlier attempts no longer count
            )
            others = [other for other in batch.submissions if other.id != change.id]
            batch.submissions = [*others, change]
            batch.release = self.last
        else:
            reason = "interrupted" if run.status == "interrupted" else run.error
            change = SubmissionChange(id=self.submission.id, state="failed", reason=reason, run_id=run.id)
            batch.submissions = [change]
            batch.drafts_done = [run.id]
            if self.undo_on_failure and self.undoable:
                undo_first(batch, self.submission.id, run, reason or "")

    def close(self, run: Run | None, unwritten: Exception | None) -> None:
        """Store whether the end is recorded, and if not, why."""
        self.ended = run is not None
        self.waits = run is not None and run.status == "waiting"
        if isinstance(unwritten, StoreError):
            self.failed = unwritten


def _is_cancelled(task: asyncio.Task[Any] | None) -> bool:
    return task is not None and task.cancelling() > 0
