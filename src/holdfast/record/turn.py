"""What a run carries out for a worker: the lease it writes under, and the submission it answers."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from holdfast.errors import StoreError
from holdfast.types import Checkpoint, Lease, Run

if TYPE_CHECKING:
    import asyncio

    from pydantic_ai.messages import ModelMessage

Stop: TypeAlias = Literal["interrupt", "handover", "lost", "timeout"]
"""Why a run is stopped from outside: a person wants it, another worker goes on with it, the lease is gone, time is up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steered:
    """A message that enters the turn while it runs, and the submission that it came with."""

    submission_id: str
    content: Sequence[Any]


async def _nothing() -> Sequence[Steered]:
    return ()


@dataclass(slots=True, kw_only=True)
class Turn:
    """One run for one submission. The recorder writes the run's end and the submission's end together."""

    lease: Lease
    submission_id: str
    replaces: Run | None = None
    """The run that this one goes on for; it is ended when this one begins."""
    checkpoint: Checkpoint | None
    """Where the session stands; None if it has no history yet."""
    recorded: "Sequence[ModelMessage]"
    """The messages up to there."""
    last: bool = False
    """Whether nothing else is to be taken: the session is let go with the end of the run."""
    recovered: bool = False
    """Whether that run was cut off, so that going on is worth an event."""
    steered: Callable[[], Awaitable[Sequence[Steered]]] = _nothing
    """Asked before each model request."""
    began_at: datetime
    """When it began: a message that was sent later may interrupt it."""
    limit: float | None = None
    """How many seconds it may take."""
    draining: bool = False
    """Hand over at the next settled point."""
    failed: StoreError | None = None
    """Why what is on record is not what the run got to. One that was cancelled does not say so itself."""
    stop: Stop | None = None
    waits: bool = False
    """Whether it ended with calls that a person decides on."""
    ended: bool = False
    """Whether the end of the run and of the submission is on record."""
    run_id: str | None = None
    task: "asyncio.Task[Any] | None" = field(default=None, repr=False)
    recording: "asyncio.Task[Any] | None" = field(default=None, repr=False)
    """The task that records the run. It may end after the one that runs it."""

    def cancel(self, stop: Stop) -> None:
        """Stop the run. The first reason counts, except that a lost lease is stronger than all."""
        if self.stop is None or stop == "lost":
            self.stop = stop
        if self.task is not None:
            self.task.cancel()

    def timed_out(self) -> TimeoutError:
        """Return the error of a run that took too long."""
        return TimeoutError(f"the run took longer than {self.limit:g} seconds")
