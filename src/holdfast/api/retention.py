"""The request and response models of retention."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.api.models import ResponseBody
from holdfast.policy import Action, Result


class CleanRequest(BaseModel):
    """The options of a clean."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"idle_days": 30, "archive": "media"}]},
    )

    idle_days: float = Field(
        7.0, ge=0, le=36500, description="The minimum number of days that the session must have been idle."
    )
    force: bool = Field(
        False,
        description="Override the pending, cursor and idle checks. Sessions that are running or on hold are never cleaned. For administrators.",
    )
    archive: Literal["media"] | None = Field(None, description="Store a verified archive in the media store.")
    dry_run: bool = Field(False, description="Only report what would be deleted.")


class CleanResult(ResponseBody):
    """The result of a clean."""

    session_id: str
    cleaned_at: datetime | None
    archive: str | None
    deleted: dict[str, int]
    dry_run: bool
    files_pending: bool = Field(
        False,
        description="Whether files of a mirror are not deleted yet. A worker with the mirror deletes them.",
    )


class RehydrateResult(BaseModel):
    """The result of a rehydration."""

    session_id: str
    archive_sha256: str
    restored: dict[str, int] = Field(description="The number of restored records by kind.")


class EraseResult(BaseModel):
    """The result of an erasure."""

    session_id: str
    erased_at: datetime
    deleted: dict[str, int]
    children: list[str]
    files_pending: bool = Field(
        False,
        description="Whether files of a mirror are not deleted yet. A worker with the mirror deletes them.",
    )


class RetentionStatus(BaseModel):
    """The retention policy of a session, and when it is due."""

    session_id: str
    policy: str | None = Field(description="The first matching policy. Null if no policy matches.")
    action: Action | None
    idle_days: float | None
    max_age_days: float | None
    keep_last_runs: int | None
    rehydrated_at: datetime | None = Field(description="When the session was last restored from an archive.")
    due_at: datetime | None = Field(
        description="The earliest time at which the session is due. Null if never."
    )
    held_by: Literal["session", "policy"] | None
    guard: str | None = Field(description="The check that currently prevents the action.")
    problem: str | None = Field(description="A description of that check, and how to satisfy it.")
    cleaned_at: datetime | None
    archive: str | None


class SweepRequest(BaseModel):
    """The options of a sweep."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"dry_run": True}]},
    )

    dry_run: bool = Field(False, description="Only report what would be done.")
    limit: int = Field(1000, ge=1, le=10000, strict=False, description="The maximum number of sessions.")


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
    usage: int = Field(description="Deleted sums of usage.")
    dry_run: bool
    more: bool = Field(
        description="Whether more sessions may be due, because the limit was reached or the sweep ended early."
    )
    problem: str | None = Field(description="The reason if the sweep ended early.")
