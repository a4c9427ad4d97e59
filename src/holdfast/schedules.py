"""Schedules: a cron expression in a time zone, and the message that each of its ticks submits."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias, get_args

from holdfast.types import SubmissionState

Overlap: TypeAlias = Literal["skip", "queue", "interrupt"]
CatchUp: TypeAlias = Literal["once", "all", "none"]

OVERLAPS: tuple[str, ...] = get_args(Overlap)
CATCH_UPS: tuple[str, ...] = get_args(CatchUp)
MOST_CAUGHT_UP = 100
KEY = "schedule:"
"""The idempotency key of a schedule's submission begins with this. The id of the schedule and the tick follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTerms:
    """The part of a schedule that its owner can change.

    `overlap` applies if the turn of an earlier tick has not ended. `catch_up` applies to ticks that are late, because no worker ran;
    `all` submits the latest `catch_up_limit` of them.
    """

    cron: str
    text: str
    timezone: str = "UTC"
    title: str = ""
    overlap: Overlap = "skip"
    catch_up: CatchUp = "once"
    catch_up_limit: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(ScheduleTerms):
    """A schedule, its next tick and its last one. Without a `session_id`, each tick creates a session.

    `last_at` is the last tick that was handled; `problem` is the reason if it submitted nothing, or if the schedule was paused because
    it can no longer work. `moved`: it continues in another store. `version` counts its changes, including its ticks.
    """

    id: str
    owner: str
    agent: str
    session_id: str | None
    paused: bool
    moved: bool
    problem: str | None
    next_at: datetime | None
    last_at: datetime | None
    last_session_id: str | None
    last_submission_id: str | None
    last_state: SubmissionState | None = None
    """The state of the last submission; None if there is none, or if retention has deleted it."""
    last_reason: str | None = None
    created_at: datetime
    version: int


def schedule_of(idempotency_key: str | None) -> str | None:
    """Return the id of the schedule that created the submission with this idempotency key, if one did."""
    if idempotency_key is None or not idempotency_key.startswith(KEY):
        return None
    return idempotency_key.removeprefix(KEY).partition("/")[0]
