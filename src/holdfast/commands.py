"""Shell commands and their output, as every layer uses them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias, get_args

CommandState: TypeAlias = Literal["running", "done", "timed_out", "stopped", "killed", "lost"]


ShellKind: TypeAlias = Literal["command", "output"]


COMMAND_STATES: tuple[str, ...] = get_args(CommandState)


SHELL_KINDS: tuple[str, ...] = get_args(ShellKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One shell command and its result, which is kept longer than its output. The store sets `outputs` and the times.

    `done` means that it ended by itself; its exit code is 128 + n if signal n ended it. Otherwise the exit code is -1 and the
    state is `timed_out`, `stopped` on request, `killed` with its service, or `lost` if its end was not observed.
    Purging deletes the command's text and directory. Sizes count all bytes that it wrote, kept or not. `service` is the name of
    the live holder that runs it; a running command without one is an orphan. `owner` is the principal that may see it: the
    owner of its session if it has one, regardless of the owner requested. `call_id` is the tool call that started it.
    """

    id: str
    command: str
    cwd: str | None = None
    timeout: float | None = None
    owner: str = ""
    session_id: str | None = None
    call_id: str | None = None
    holder: str = ""
    host: str = ""
    pid: int = 0
    pid_started: int | None = None
    state: CommandState = "running"
    stop_requested: bool = False
    exit_code: int | None = None
    outputs: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    left_out_bytes: int = 0
    damaged: bool = False
    started_at: datetime | None = None
    ended_at: datetime | None = None
    purged_at: datetime | None = None
    service: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A chunk of a command's output. `order` counts from 0 within its command; the last chunk has the exit code.

    `damaged` means that NUL or bytes that are not UTF-8 were replaced. The store sets the fields after it.
    """

    id: str
    stdout: str | None = None
    stderr: str | None = None
    exit_code: int | None = None
    damaged: bool = False
    command_id: str = ""
    order: int = 0
    at: datetime | None = None
