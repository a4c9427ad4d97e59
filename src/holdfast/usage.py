"""Usage: what agents used with models. Its sums per session and day remain when sessions are cleaned or erased."""

from dataclasses import dataclass, fields, replace
from datetime import date
from typing import Final, Literal, TypeAlias, get_args

DAY_US: Final = 86_400_000_000
NANOS: Final = 1_000_000_000
MOST: Final = 10**15
"""The largest number that is added to a sum at once: thousands of them fit into 64 bits."""

UsageGroup: TypeAlias = Literal["day", "owner", "agent", "model", "session_id"]
USAGE_GROUPS: Final[tuple[str, ...]] = get_args(UsageGroup)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSums:
    """The numbers. `unpriced` counts the requests without a known cost, `cost_nanos` is in 10⁻⁹ dollars, `working_us` in microseconds."""

    requests: int = 0
    unpriced: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_nanos: int = 0
    tool_calls: int = 0
    working_us: int = 0


USAGE_SUMS: Final = tuple(each.name for each in fields(UsageSums))


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(UsageSums):
    """What an agent used with a model. The store adds it to the sums of the session and the day."""

    agent: str
    model: str

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum of both, which have the same agent and model."""
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in USAGE_SUMS})


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFilter:
    """Which usage to add up. `last` is the last day, included."""

    first: date | None = None
    last: date | None = None
    owner: str | None = None
    agent: str | None = None
    model: str | None = None
    session_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageOf(UsageSums):
    """The sums of one day, owner, agent, model or session, or of a combination of these. What it was not grouped by is None."""

    day: date | None = None
    owner: str | None = None
    agent: str | None = None
    model: str | None = None
    session_id: str | None = None
