"""The shapes of shell commands on the wire, most of them as existing agent servers have them."""

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field

from holdfast.api.models import Id, ResponseBody
from holdfast.commands import CommandState

HexId = Annotated[str, BeforeValidator(lambda uuid: uuid.replace("-", ""))]
UUID_PATTERN: Final = "^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$"
Uuid = Annotated[str, Field(pattern=UUID_PATTERN)]


class NewCommand(BaseModel):
    """A command to run. Unknown fields are ignored, because clients of other agent servers may send more."""

    command: str = Field(
        min_length=1, max_length=1_000_000, pattern=r"^[^\x00]+$", description="The command line for bash."
    )
    cwd: Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")] | None = Field(
        None, description="The working directory, relative to that of the server."
    )
    timeout: Annotated[int, Field(gt=0, le=86_400, description="Seconds; then it is ended.")] = 300
    session_id: Id | None = Field(None, description="The session that it belongs to, and goes with.")


class BashCommand(ResponseBody):
    """A command that was started."""

    id: HexId
    timestamp: datetime = Field(validation_alias=AliasChoices("timestamp", "started_at"))
    kind: Literal["BashCommand"] = "BashCommand"
    command: str
    cwd: str | None
    timeout: Annotated[int, BeforeValidator(lambda seconds: round(seconds or 0))]


class BashOutput(ResponseBody):
    """A piece of the output of a command. The last one has its exit code."""

    id: HexId
    timestamp: datetime = Field(validation_alias=AliasChoices("timestamp", "at"))
    kind: Literal["BashOutput"] = "BashOutput"
    command_id: HexId
    order: int
    exit_code: int | None
    stdout: str | None
    stderr: str | None


BashEvent = BashCommand | BashOutput


class BashPage(BaseModel):
    """A part of the log."""

    items: list[BashEvent]
    next_page_id: str | None = None


class Cleared(BaseModel):
    """How much is gone."""

    cleared_count: int


class CommandResult(ResponseBody):
    """How a command stands; this outlives its output."""

    id: HexId
    state: CommandState
    exit_code: int | None
    stdout_bytes: int
    stderr_bytes: int
    left_out_bytes: int
    session_id: str | None
    started_at: datetime | None
    ended_at: datetime | None


class SessionCommand(CommandResult):
    """A command of a session, and the tool call that started it."""

    command: str
    cwd: str | None
    call_id: str | None
    purged_at: datetime | None


class BashError(BaseModel):
    """Why something that a client sent was not done."""

    id: str
    timestamp: datetime
    kind: Literal["BashError"] = "BashError"
    code: str
    detail: str
