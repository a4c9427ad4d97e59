"""What a replay found: the differences between the record and what today's code would do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

DifferenceKind: TypeAlias = Literal[
    "model",
    "settings",
    "instructions",
    "message",
    "tool_added",
    "tool_removed",
    "tool_changed",
    "output",
    "call_rejected",
    "call_waits",
    "output_rejected",
    "ends_early",
    "fails",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference, at the first request of a run at which it was found. `before` is the record, `after` what today's code would do."""

    kind: DifferenceKind
    run_id: str
    step: int
    name: str = ""
    """The tool, the setting or the part of a message that differs."""
    before: Any = None
    after: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The result of a replay. `requests` is how many recorded model requests were compared, `runs` of how many runs.

    `unchecked` says what could not be compared, and why. `touched` lists the files, sockets and processes that the code opened.
    """

    session_id: str
    agent: str
    runs: int = 0
    requests: int = 0
    differences: Sequence[Difference] = ()
    unchecked: Sequence[str] = ()
    touched: Sequence[str] = ()

    @property
    def is_same(self) -> bool:
        """Whether no difference was found."""
        return not self.differences
