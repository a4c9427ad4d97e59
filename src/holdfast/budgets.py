"""Budgets: how much a turn, a session, an owner, an agent or the whole store may use. When one is used up, the run waits."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal, Self, TypeAlias, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from holdfast.errors import BadInput
from holdfast.usage import NANOS

Per: TypeAlias = Literal["turn", "session", "owner", "agent", "store"]
BUDGET_KINDS: Final[tuple[str, ...]] = get_args(Per)
MEASURES: Final = ("requests", "tokens", "cost_nanos", "working_us")
"""What a budget limits, as it is stored."""
KEY: Final = "budgets"
"""The key of a session's own budgets in its metadata."""
_MICROSECONDS: Final = 1_000_000


class Limits(BaseModel):
    """The limits of a budget. A run stops when any of them is reached."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests: int | None = Field(default=None, ge=0, le=10**12, description="Completed model requests.")
    tokens: int | None = Field(default=None, ge=0, le=10**15, description="Input and output tokens.")
    cost: float | None = Field(
        default=None, ge=0, le=10**6, description="Dollars. Requests without a known price cost 0."
    )
    seconds: float | None = Field(default=None, ge=0, le=10**8, description="How long runs work.")

    @property
    def numbers(self) -> tuple[int | None, ...]:
        """The limits in the order and the units of `MEASURES`."""
        cost = None if self.cost is None else round(Decimal(str(self.cost)) * NANOS)
        return self.requests, self.tokens, cost, _microseconds(self.seconds)

    @property
    def is_empty(self) -> bool:
        """Whether there is no limit."""
        return self.numbers == (None,) * len(MEASURES)


class Budget(Limits):
    """How much each turn, session, owner or agent, or all together, may use: for good, or `daily`. `agent` restricts it to that agent."""

    per: Per = Field(description="Whose use is added up.")
    daily: StrictBool = Field(default=False, description="Whether it begins again each day, in UTC.")
    agent: str | None = Field(
        default=None, min_length=1, max_length=256, pattern=r"^[^\x00]*$", description="Only for this agent."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.is_empty:
            message = "it has no limit: set requests, tokens, cost or seconds"
            raise ValueError(message)
        if self.per == "turn" and self.daily:
            message = "a budget for a turn cannot be daily; use per = session"
            raise ValueError(message)
        if self.agent is not None and self.per in {"owner", "store"}:
            message = f"a budget per {self.per} is for all agents; use per = agent"
            raise ValueError(message)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What counts towards a budget: the key of its sums, and the limits that no administrator has set."""

    per: Per
    name: str
    """The id of the session, also for a turn; the owner; the agent; or empty for the store."""
    daily: bool = False
    turn: str = ""
    """The turn, whose sums begin at zero."""
    most: tuple[int | None, ...] = (None,) * len(MEASURES)
    """The limits, in the order of `MEASURES`."""

    @property
    def key(self) -> tuple[str, str, bool]:
        """The key of its row."""
        return self.per, self.name, self.daily


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSums:
    """A budget that an administrator has set, or the sums of one from the settings, in the current period."""

    per: Per
    name: str
    daily: bool
    spent: tuple[int, ...]
    most: tuple[int | None, ...]


def accounts(
    budgets: Iterable[Budget],
    rows: Iterable[BudgetSums],
    *,
    session_id: str,
    owner: str,
    agent: str,
    turn: str,
) -> list[Account]:
    """Return the accounts of a turn: of all budgets that apply, the strictest limits. `rows` has those of administrators."""
    names = {"turn": session_id, "session": session_id, "owner": owner, "agent": agent, "store": ""}
    strictest: dict[tuple[Per, bool], list[int | None]] = {}
    for budget in budgets:
        if budget.agent in {None, agent}:
            most = strictest.setdefault((budget.per, budget.daily), [None] * len(MEASURES))
            most[:] = [_least(*pair) for pair in zip(most, budget.numbers, strict=True)]
    for row in rows:
        if any(limit is not None for limit in row.most):
            strictest.setdefault((row.per, row.daily), [None] * len(MEASURES))
    return [
        Account(
            per=per,
            name=names[per],
            daily=daily,
            turn=turn if per == "turn" else "",
            most=tuple(most),
        )
        for (per, daily), most in sorted(strictest.items())
    ]


def check_budgets(given: Iterable[Any]) -> tuple[Budget, ...]:
    """Return the budgets that code declares. Raises `BadInput`."""
    if isinstance(given, Budget) or not all(isinstance(each, Budget) for each in given):
        raise BadInput(problem="`budgets` must be a list of `holdfast.Budget`")
    return tuple(given)


def own_budgets(metadata: str) -> list[Budget]:
    """Return the budgets in a session's metadata. Raises `BadInput`."""
    given = json.loads(metadata).get(KEY) if f'"{KEY}"' in metadata else None
    if given is None:
        return []
    try:
        found = TypeAdapter(list[Budget]).validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        raise BadInput(problem=f"metadata.{KEY}{where}: {first['msg']}") from None
    if other := sorted({each.per for each in found} - {"turn", "session"}):
        problem = f"metadata.{KEY}: a session can limit itself and its turns, not per {other[0]}"
        raise BadInput(problem=problem)
    return found


def used_up(
    spent: Sequence[int], most: Sequence[int | None], set_by_administrator: Sequence[int | None]
) -> tuple[str, int, int] | None:
    """Return the first measure that has reached its limit, with the sum and the limit. A limit of an administrator replaces others."""
    for measure, used, ours, theirs in zip(MEASURES, spent, most, set_by_administrator, strict=True):
        limit = ours if theirs is None else theirs
        if limit is not None and used >= limit:
            return measure, used, limit
    return None


def describe(per: str, name: str, daily: bool) -> str:
    """Return which budget it is, such as `owner ada per day`."""
    what = {"turn": "the turn", "session": "the session", "store": "all sessions"}.get(per, f"{per} {name}")
    return f"{what} per day" if daily else what


def amount(measure: str, number: int) -> str:
    """Return a sum or a limit as messages show it."""
    match measure:
        case "cost_nanos":
            return f"${number / NANOS:,.9f}".rstrip("0").rstrip(".")
        case "working_us":
            return f"{number / _MICROSECONDS:,.15g} s"
        case _:
            return f"{number:,} {measure if number != 1 else measure[:-1]}"


def readable(numbers: Sequence[int | None]) -> Mapping[str, Any]:
    """Return limits or sums in the units of a budget."""
    requests, tokens, cost, working = numbers
    return {
        "requests": requests,
        "tokens": tokens,
        "cost": None if cost is None else cost / NANOS,
        "seconds": None if working is None else working / _MICROSECONDS,
    }


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _microseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * _MICROSECONDS)
