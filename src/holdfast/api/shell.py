"""The request and response models of shell commands. Most have the format of existing agent servers."""

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from holdfast.api.models import Id, ResponseBody
from holdfast.commands import CommandState

HexId = Annotated[str, BeforeValidator(lambda uuid: uuid.replace("-", ""))]
UUID_PATTERN: Final = "^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$"
Uuid = Annotated[str, Field(pattern=UUID_PATTERN)]


class NewCommand(BaseModel):
    """A command to run. Unknown fields are ignored, because clients of other agent servers may send more."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"command": "echo hello", "timeout": 60}]})
    command: str = Field(
        min_length=1, max_length=1_000_000, pattern=r"^[^\x00]+$", description="The command line for bash."
    )
    cwd: Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")] | None = Field(
        None, description="The working directory, relative to the server's working directory."
    )
    timeout: Annotated[
        int, Field(gt=0, le=86_400, description="The time limit in seconds. The command is then stopped.")
    ] = 300
    session_id: Id | None = Field(
        None,
        description="The session that the command belongs to. The command is deleted with the session.",
    )


class BashCommand(ResponseBody):
    """A command that was started."""

    id: HexId
    timestamp: datetime = Field(validation_alias=AliasChoices("timestamp", "started_at"))
    kind: Literal["BashCommand"] = "BashCommand"
    command: str
    cwd: str | None
    timeout: Annotated[int, BeforeValidator(lambda seconds: round(seconds or 0))]


class BashOutput(ResponseBody):
    """A piece of a command's output. The last piece has the exit code."""

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
    """One page of the log."""

    items: list[BashEvent]
    next_page_id: str | None = None


class Cleared(BaseModel):
    """The number of deleted entries."""

    cleared_count: int


class CommandResult(ResponseBody):
    """The state of a command. It is kept after its output is purged."""

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
    """The reason why a client's request failed."""

    id: str
    timestamp: datetime
    kind: Literal["BashError"] = "BashError"
    code: str
    detail: str
