"""The records of pydantic-ai-harness: runs, events, snapshots and effects."""

import json
from datetime import datetime
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, field_validator


class HarnessRecord(BaseModel):
    """A record in the harness's format. Unknown fields are kept, to be reported."""

    model_config = ConfigDict(extra="allow")

    run_id: str


class RunPart(HarnessRecord):
    """What belongs to a run, and names its conversation."""

    conversation_id: str | None = None
    parent_run_id: str | None = None
    agent_name: str | None = None
    metadata: dict[str, Any] = {}

    @field_validator("metadata", mode="before")
    @classmethod
    def _read(cls, value: object) -> object:
        return json.loads(value) if isinstance(value, str) else value or {}


class HarnessRun(RunPart):
    """The registration of a run."""

    started_at: datetime
    registration_id: str | None = None


class HarnessEvent(RunPart):
    """One event of a run."""

    kind: str
    step_index: int
    timestamp: datetime
    tool_call_id: str | None = None
    tool_name: str | None = None
    error: str | None = None
    idempotency_key: str | None = None


class HarnessSnapshot(RunPart):
    """The history at a step of a run."""

    step_index: int
    timestamp: datetime
    state: Literal["complete", "interrupted"] = "complete"
    messages: list[str]
    idempotency_key: str | None = None

    @field_validator("state", mode="before")
    @classmethod
    def _default(cls, value: object) -> object:
        return "complete" if value is None else value


class HarnessEffect(HarnessRecord):
    """The ledger entry of a tool call."""

    tool_call_id: str
    tool_name: str
    status: Literal["started", "completed", "failed"]
    started_at: datetime
    ended_at: datetime | None = None
    idempotency_key: str | None = None
    effect_summary: str | None = None


R = TypeVar("R", bound=HarnessRecord)
