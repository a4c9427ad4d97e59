"""The question that a tool call waits for, as events, errors and responses contain it."""

from typing import Any

from pydantic import BaseModel, Field


class UnsettledCall(BaseModel):
    """The ledger entry of a call or step whose outcome is unknown."""

    run_id: str
    call_id: str


class ApprovalRequest(BaseModel):
    """A tool call that waits for a decision. The decision names its digest."""

    call_id: str
    tool: str
    arguments: dict[str, Any]
    digest: str
    note: str | None = Field(
        default=None, description="What to know before the decision, if the call was started before."
    )
    unsettled: UnsettledCall | None = Field(
        default=None,
        description="The call or step that was started before. Settle it instead of a decision if you know its outcome.",
    )
