"""The exit codes of `holdfast`. docs/reference/cli.md lists them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    FAILED = 1
    ERROR = 2
    CUT_OFF = 3
    FORCED = 4
    WAITING = 5
    TIMEOUT = 6
    COMMAND_TIMED_OUT = 124
    INTERRUPTED = 130
    COMMAND_STOPPED = 143
