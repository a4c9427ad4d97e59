"""Retention policies as an operator writes them, and which of them applies to a session. Pure: never reads or deletes.

What is read here decides what is deleted: whatever is unknown, ambiguous or left open is an error, never a guess.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, Self, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

Action: TypeAlias = Literal["clean", "archive", "erase"]
ANY = "*"
"""As a policy's `agent`: every agent."""
_Days: TypeAlias = Annotated[float, Field(gt=0, le=36500, allow_inf_nan=False)]
_Value: TypeAlias = str | bool | int | float


class Policy(BaseModel):
    """When the sessions it matches are cleaned, archived or erased; or, with `hold`, that they never are."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[ -~]+$")] | None = None
    agent: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    metadata: Annotated[Mapping[str, _Value], Field(min_length=1)] | None = None
    idle_days: _Days | None = None
    max_age_days: _Days | None = None
    action: Action | None = None
    keep_last_runs: Annotated[int, Field(ge=1, le=100_000)] | None = None
    rehydrated_days: Annotated[float, Field(ge=0, le=36500, allow_inf_nan=False)] | None = None
    hold: bool = False

    @model_validator(mode="after")
    def _says_all(self) -> Self:
        if self.agent is None and self.metadata is None:
            message = f'say which sessions it is for: agent, metadata, or agent = "{ANY}" for all'
            raise ValueError(message)
        if self.hold:
            given = {"idle_days", "max_age_days", "action", "keep_last_runs", "rehydrated_days"}
            given &= self.model_fields_set
            if given:
                message = f"hold keeps its sessions for ever, so it cannot have {', '.join(sorted(given))}"
                raise ValueError(message)
            return self
        if self.action is None:
            message = "say what happens to its sessions: action = clean, archive or erase; or hold = true"
            raise ValueError(message)
        if self.idle_days is None and self.max_age_days is None:
            message = "say when: idle_days, max_age_days, or both"
            raise ValueError(message)
        return self

    def could_match(self, agent: str) -> bool:
        """Say whether some session of this agent may match it."""
        return self.agent in {None, ANY, agent}

    def matches(self, agent: str, metadata: Mapping[str, Any]) -> bool:
        """Say whether it is for such a session: the agent's name, and every pair of its metadata, to the letter."""
        return self.could_match(agent) and all(
            key in metadata and type(metadata[key]) is type(value) and metadata[key] == value
            for key, value in (self.metadata or {}).items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The policy that applies to a session. `due_at` is when it is due at the earliest; None if never.

    `grace_days` is how long a session that came from an archive is left alone.
    """

    name: str
    policy: Policy
    due_at: datetime | None
    grace_days: float = 0.0

    def is_due(self, now: datetime) -> bool:
        """Say whether the time has come."""
        return self.due_at is not None and self.due_at <= now


def named(policies: Sequence[Policy]) -> list[tuple[str, Policy]]:
    """Return policies with what they are called: their name, or their place."""
    return [(policy.name or f"retention[{place}]", policy) for place, policy in enumerate(policies)]


def applied(
    policies: Sequence[Policy],
    *,
    agent: str,
    metadata: str,
    created_at: datetime,
    active_at: datetime,
    rehydrated_at: datetime | None = None,
    rehydrated_days: float = 0.0,
    holds: bool = True,
) -> Applied | None:
    """Return the first policy that matches a session, and when the session is due: by whichever limit comes first.

    Without `holds`, policies that hold sessions do not count. One that came from an archive is not due before its grace period ends: the policy's own, else `rehydrated_days`.
    """
    result: Any = json.loads(metadata)
    pairs = cast("dict[str, Any]", result) if isinstance(result, dict) else {}
    for name, policy in named(policies):
        if policy.matches(agent, pairs) and (holds or not policy.hold):
            limits = ((policy.idle_days, active_at), (policy.max_age_days, created_at))
            due = [since + timedelta(days=days) for days, since in limits if days is not None]
            grace = rehydrated_days if policy.rehydrated_days is None else policy.rehydrated_days
            due_at = min(due, default=None)
            if due_at is not None and rehydrated_at is not None:
                due_at = max(due_at, rehydrated_at + timedelta(days=grace))
            return Applied(name=name, policy=policy, due_at=due_at, grace_days=grace)
    return None


def parse(text: str) -> list[Any]:
    """Read policies from JSON. A key that is there twice is a mistake, not a choice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            message = f"a key is there twice among {', '.join(key for key, _ in pairs)}"
            raise ValueError(message)
        return result

    try:
        value: Any = json.loads(text, object_pairs_hook=once)
    except RecursionError:
        message = "it is nested too deeply"
        raise ValueError(message) from None
    if not isinstance(value, list):
        message = 'it must be a list of policies: [{"agent": …, "idle_days": …, "action": …}]'
        raise ValueError(message)  # noqa: TRY004 - pydantic takes this one for a mistake in what was given
    return value  # pyright: ignore[reportUnknownVariableType]


def check_names(policies: Sequence[Policy]) -> None:
    """Refuse two policies of one name, and one that can never apply because an earlier one takes all its sessions."""
    names = [name for name, _ in named(policies)]
    for place, policy in enumerate(policies):
        if names[place] in names[:place]:
            message = f"two policies are called {names[place]}"
            raise ValueError(message)
        for earlier in policies[:place]:
            if _covers(earlier, policy):
                message = f"{names[place]} can never apply: {names[policies.index(earlier)]} comes first"
                raise ValueError(message)


def _covers(earlier: Policy, later: Policy) -> bool:
    agents = earlier.agent in {None, ANY} or earlier.agent == later.agent
    pairs = (later.metadata or {}).items()
    return agents and all(pair in pairs for pair in (earlier.metadata or {}).items())
