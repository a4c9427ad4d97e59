"""The seam between a worker and the agents that it serves: a runner runs the turns of one agent.

`AgentSetup` runs a Pydantic AI agent, `FunctionAgent` a plain function. No other module of the runtime depends on the kind of agent.
"""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from pydantic_ai.messages import ModelMessage, ModelResponse, UserContent

from holdfast.budgets import Budget
from holdfast.questions import ApprovalAnswer
from holdfast.record.resume_point import ResumePoint
from holdfast.record.undo import OnFailure, Undo
from holdfast.runtime.attachment import Attachment
from holdfast.runtime.turn import WorkerTurn
from holdfast.store import Store
from holdfast.types import Session

Requests: TypeAlias = Sequence[tuple[str, ModelResponse]]
"""Model requests that are not part of a run: the model that was requested, and its response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStart:
    """A turn that is about to run: its message, and where the session continues."""

    store: Store
    session: Session
    host: WorkerTurn
    content: str | list[UserContent]
    """The message that the turn answers."""
    point: ResumePoint
    """The history, and the runs of this turn so far if it was interrupted or waited."""
    answers: Mapping[str, ApprovalAnswer]
    """The answers to the questions of those runs, by call id."""


class Runner(Protocol):
    """Runs the turns of an agent."""

    @property
    def run_timeout(self) -> float | None:
        """How many seconds a run may take."""
        ...

    @property
    def attached(self) -> bool | Attachment:
        """Whether sessions created over HTTP are attached to their watchers."""
        ...

    @property
    def budgets(self) -> Sequence[Budget]:
        """The budgets of the agent."""
        ...

    @property
    def undos(self) -> Mapping[str, Undo]:
        """The functions that undo its steps, by name."""
        ...

    @property
    def on_failure(self) -> OnFailure | None:
        """What happens when a turn fails or is interrupted."""
        ...

    async def prepare(self, start: TurnStart) -> Awaitable[Any]:
        """Return the code that runs a turn and records it. Raises `BadInput` and `Conflict` if it cannot run."""
        ...

    async def compact(
        self, session: Session, messages: list[ModelMessage]
    ) -> tuple[Sequence[ModelMessage], Requests]:
        """Return a shorter history, and the model requests that this took. May change the list. Raises `Conflict`."""
        ...

    def allows_edits(self, tool: str) -> bool:
        """Return whether a person who approves a call of this tool may edit its arguments."""
        ...
