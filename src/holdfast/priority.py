"""The priority of a submission, which orders the sessions of its owner."""

from typing import Final, Literal, TypeAlias, get_args

Priority: TypeAlias = Literal["low", "normal", "high"]
PRIORITIES: tuple[str, ...] = get_args(Priority)
RANKS: Final[dict[Priority, int]] = {"low": -1, "normal": 0, "high": 1}
"""The priorities as the numbers by which sessions are ordered."""
