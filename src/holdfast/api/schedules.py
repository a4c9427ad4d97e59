"""The models of schedules."""

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field, StrictBool

from holdfast.api.models import ID_PATTERN, Id, Line, Name, RequestBody, ResponseBody
from holdfast.schedules import MOST_CAUGHT_UP, CatchUp, Overlap
from holdfast.types import SubmissionState

Cron = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]
Zone = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[ -~]+$")]
ScheduledText = Annotated[str, Field(min_length=1, max_length=65_536, pattern=r"^[^\x00]*$")]
Limited = Annotated[int, Field(ge=1, le=MOST_CAUGHT_UP)]
_CRON = "Five fields: minute, hour, day of the month, month, day of the week."
_ZONE = "The time zone of the times, such as Europe/Berlin."
_TEXT = "The text of the message."
_TITLE = "By default the first line of the text. New sessions have this title."
_OVERLAP = "If the turn of the previous tick has not ended: skip this tick, queue its message, or interrupt that turn."
_CATCH_UP = (
    "After a time without workers: submit `once`, submit `all` missed ticks up to `catch_up_limit`, or `none` of those that are more"
    " than a minute late."
)
_LIMIT = "With `catch_up` all: how many missed ticks to submit, the latest ones."


class NewSchedule(RequestBody):
    """A schedule to create, for one of your sessions, or for an agent, which then gets a new session for each tick."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "agent": "agent",
                    "cron": "0 9 * * MON-FRI",
                    "timezone": "Europe/Berlin",
                    "text": "Write the report.",
                }
            ]
        }
    )
    cron: Cron = Field(description=_CRON)
    timezone: Zone = Field("UTC", description=_ZONE)
    text: ScheduledText = Field(description=_TEXT)
    agent: Name | None = Field(None, description="The agent of the new session of each tick.")
    session_id: Id | None = Field(None, description="The session, instead of a new one for each tick.")
    title: Line = Field("", description=_TITLE)
    overlap: Overlap = Field("skip", description=_OVERLAP)
    catch_up: CatchUp = Field("once", description=_CATCH_UP)
    catch_up_limit: Limited = Field(10, description=_LIMIT)
    id: Annotated[str, Field(pattern=ID_PATTERN, max_length=80)] | None = Field(
        None, description="The id of the schedule. By default a new one is generated."
    )
    owner: Name | None = Field(None, description="The owner, if not you. For administrators.")


class ScheduleChange(RequestBody):
    """The changes to a schedule. Other fields stay as they are."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"cron": "30 8 * * *", "paused": False}]})
    cron: Cron | None = Field(None, description=_CRON)
    timezone: Zone | None = Field(None, description=_ZONE)
    text: ScheduledText | None = Field(None, description=_TEXT)
    title: Line | None = Field(None, description=_TITLE)
    overlap: Overlap | None = Field(None, description=_OVERLAP)
    catch_up: CatchUp | None = Field(None, description=_CATCH_UP)
    catch_up_limit: Limited | None = Field(None, description=_LIMIT)
    paused: StrictBool | None = Field(None, description="Whether the schedule is paused.")


class ScheduleInfo(ResponseBody):
    """A schedule, its next tick, and the outcome of the last one."""

    id: str
    owner: str
    agent: str
    session_id: str | None = Field(description="The session; null if each tick creates one.")
    title: str
    text: str
    cron: str
    timezone: str
    overlap: Overlap
    catch_up: CatchUp
    catch_up_limit: int
    paused: bool
    moved: bool = Field(description="Whether the schedule continues in another store.")
    next_at: datetime | None = Field(description="The next tick; null while the schedule is paused.")
    last_at: datetime | None = Field(description="The last tick that was handled.")
    problem: str | None = Field(
        description="The reason if the last tick submitted nothing, or if the schedule was paused because it can no longer work."
    )
    last_session_id: str | None
    last_submission_id: str | None = Field(description="The last submission of the schedule.")
    last_state: SubmissionState | None = Field(
        description="The state of the last submission; null if there is none, or if retention has deleted it."
    )
    last_reason: str | None = Field(description="The reason if the last submission failed.")
    created_at: datetime


class ScheduleTimes(ResponseBody):
    """The next times of a schedule. If it is paused, those that it would have if it were resumed now."""

    items: list[datetime]
