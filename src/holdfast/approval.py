"""The question that a tool call waits for, as events, errors and responses contain it."""

from datetime import datetime
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, Field

Default: TypeAlias = Literal["deny", "approve", "fail", "remind"]
"""What happens if a question is not answered before its deadline: it is denied or approved, its turn fails, or it is asked for again."""


class UnsettledCall(BaseModel):
    """The ledger entry of a call or step whose outcome is unknown."""

    run_id: str
    call_id: str


class QuestionOrigin(BaseModel):
    """The delegate that asks a question: its session and run, its own id of the call, and the agents from the session's tool to it."""

    session_id: str
    run_id: str
    call_id: str
    agents: list[str]


class ApprovalRequest(BaseModel):
    """A tool call that waits for a decision. The decision names its digest."""

    call_id: str = Field(description="The id of the call.")
    tool: str = Field(description="The name of the tool.")
    arguments: dict[str, Any] = Field(description="The arguments of the call.")
    digest: str = Field(description="The digest of the arguments, which an answer must name.")
    note: str | None = Field(
        default=None, description="What to know before the decision, if the call was started before."
    )
    unsettled: UnsettledCall | None = Field(
        default=None,
        description="The call or step that was started before. Settle it instead of a decision if you know its outcome.",
    )
    deadline: datetime | None = Field(
        default=None,
        description="The time before which the decision must be sent. For `remind`: the time of the next reminder.",
    )
    default: Default | None = Field(
        default=None,
        description="What happens at the deadline: `deny` or `approve` decides, `fail` ends the turn, `remind` only records a reminder.",
    )
    interval: float | None = Field(
        default=None, description="The seconds between reminders, if the default is `remind`."
    )
    external: bool = Field(
        default=False,
        description="Whether the call runs outside of the agent, and waits for its result instead of a decision. It can also be denied.",
    )
    origin: QuestionOrigin | None = Field(
        default=None,
        description="The delegate that asks, if the question does not come from the session's own agent.",
    )
    reminders: int = Field(default=0, description="How many reminders were recorded.")
