"""The shapes of retention on the wire."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.api.models import ResponseBody
from holdfast.policy import Action, Result


class CleanRequest(BaseModel):
    """How to clean a session."""

    model_config = ConfigDict(extra="forbid", strict=True)

    idle_days: float = Field(7.0, ge=0, le=36500, description="How long it must have been idle.")
    force: bool = Field(
        False, description="Whatever waits; never what runs or is on hold. For administrators."
    )
    archive: Literal["media"] | None = Field(None, description="Keep a verified archive in the media store.")
    dry_run: bool = Field(False, description="Only report what would be deleted.")


class CleanResult(ResponseBody):
    """The result of a clean."""

    session_id: str
    cleaned_at: datetime | None
    archive: str | None
    deleted: dict[str, int]
    dry_run: bool


class RehydrateResult(BaseModel):
    """The result of a rehydrate."""

    session_id: str
    archive_sha256: str
    restored: dict[str, int] = Field(description="How many records of each kind came back.")


class EraseResult(BaseModel):
    """The result of an erasure."""

    session_id: str
    erased_at: datetime
    deleted: dict[str, int]
    children: list[str]


class RetentionStatus(BaseModel):
    """The retention policy of a session, and when it is due."""

    session_id: str
    policy: str | None = Field(description="The first policy that matches it; none: it stays.")
    action: Action | None
    idle_days: float | None
    max_age_days: float | None
    keep_last_runs: int | None
    rehydrated_at: datetime | None = Field(description="When it last came from an archive.")
    due_at: datetime | None = Field(description="When its time comes at the earliest, if it does.")
    held_by: Literal["session", "policy"] | None
    guard: str | None = Field(description="The check that prevents it at this moment.")
    problem: str | None = Field(description="The same for people, with what would lift it.")
    cleaned_at: datetime | None
    archive: str | None


class SweepRequest(BaseModel):
    """How to sweep."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dry_run: bool = Field(False, description="Only report what would be done.")
    limit: int = Field(1000, ge=1, le=10000, strict=False, description="How many sessions at most.")


class SweepOutcome(ResponseBody):
    """The result for one session that was due."""

    session_id: str
    policy: str
    action: Action
    outcome: Result
    guard: str | None
    problem: str | None
    deleted: dict[str, int]


class SweepResult(BaseModel):
    """The result of a sweep."""

    items: list[SweepOutcome]
    outcomes: dict[str, int]
    submissions: int
    shell_events: int
    blobs: int
    dry_run: bool
    more: bool = Field(description="The limit was reached, or it ended early: there may be more.")
    problem: str | None = Field(description="Why it ended early.")
