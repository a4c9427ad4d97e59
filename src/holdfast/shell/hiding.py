"""Hide the environment and memory of a process from shell commands, which run as the same user."""

import ctypes
import sys

_PR_SET_DUMPABLE = 4


def hide_process() -> None:
    """Let no other process of the same user read the environment or memory of this one. Only on Linux, and not from root.

    Programs that this process starts are not hidden.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
