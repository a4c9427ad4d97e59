"""Retention policies as an operator writes them, and how the matching policy of a session is found. This module has no side effects.

Policies decide what is deleted, so anything unknown, ambiguous or missing in them is an error.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, Self, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

Action: TypeAlias = Literal["clean", "archive", "erase"]
Result: TypeAlias = Literal["cleaned", "erased", "dry_run", "refused", "failed"]
"""The result of a sweep for one session."""
ANY = "*"
"""As a policy's `agent`: every agent."""
_Days: TypeAlias = Annotated[float, Field(gt=0, le=36500, allow_inf_nan=False)]
_Value: TypeAlias = str | bool | int | float


class RetentionPolicy(BaseModel):
    """When matching sessions are cleaned, archived or erased. With `hold`, they never are."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[ -~]+$")] | None = None
    agent: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    metadata: Annotated[Mapping[str, _Value], Field(min_length=1)] | None = None
    idle_days: _Days | None = None
    max_age_days: _Days | None = None
    action: Action | None = None
    notice_days: _Days | None = None
    keep_last_runs: Annotated[int, Field(ge=1, le=100_000)] | None = None
    rehydrated_days: Annotated[float, Field(ge=0, le=36500, allow_inf_nan=False)] | None = None
    hold: bool = False

    @model_validator(mode="after")
    def _check_complete(self) -> Self:
        if self.agent is None and self.metadata is None:
            message = f'it matches no sessions: set agent, metadata, or agent = "{ANY}" for all'
            raise ValueError(message)
        if self.hold:
            given = {
                "idle_days",
                "max_age_days",
                "action",
                "keep_last_runs",
                "rehydrated_days",
                "notice_days",
            }
            given &= self.model_fields_set
            if given:
                message = f"hold keeps its sessions indefinitely, so it cannot be combined with {', '.join(sorted(given))}"
                raise ValueError(message)
            return self
        if self.action is None:
            message = "it has no action: set action to clean, archive or erase, or set hold = true"
            raise ValueError(message)
        if self.idle_days is None and self.max_age_days is None:
            message = "it has no time limit: set idle_days, max_age_days, or both"
            raise ValueError(message)
        return self

    def could_match(self, agent: str) -> bool:
        """Return whether a session of this agent may match."""
        return self.agent in {None, ANY, agent}

    def matches(self, agent: str, metadata: Mapping[str, Any]) -> bool:
        """Return whether it matches a session: the agent's name and every metadata pair must be equal."""
        return self.could_match(agent) and all(
            key in metadata and type(metadata[key]) is type(value) and metadata[key] == value
            for key, value in (self.metadata or {}).items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedPolicy:
    """The policy that applies to a session. `due_at` is the earliest time at which the session is due; None if never.

    `grace_days` is how long a session that was restored from an archive is skipped.
    """

    name: str
    policy: RetentionPolicy
    due_at: datetime | None
    grace_days: float = 0.0

    def is_due(self, now: datetime) -> bool:
        """Return whether the session is due."""
        return self.due_at is not None and self.due_at <= now


def named(policies: Sequence[RetentionPolicy]) -> list[tuple[str, RetentionPolicy]]:
    """Return policies with their names; a policy without a name is named by its index."""
    return [(policy.name or f"retention[{place}]", policy) for place, policy in enumerate(policies)]


def match_policy(
    policies: Sequence[RetentionPolicy],
    *,
    agent: str,
    metadata: str,
    created_at: datetime,
    active_at: datetime,
    rehydrated_at: datetime | None = None,
    rehydrated_days: float = 0.0,
    holds: bool = True,
) -> MatchedPolicy | None:
    """Return the first policy that matches a session, and when the session is due by the limit that is reached first.

    Without `holds`, policies that hold sessions are skipped. A session that was restored from an archive is not due before its
    grace period ends: the policy's own, else `rehydrated_days`.
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
            return MatchedPolicy(name=name, policy=policy, due_at=due_at, grace_days=grace)
    return None


def read_json(text: str) -> Any:
    """Read the JSON of a setting. Reject duplicate keys."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            message = f"a key is duplicated among {', '.join(key for key, _ in pairs)}"
            raise ValueError(message)
        return result

    try:
        return json.loads(text, object_pairs_hook=once)
    except RecursionError:
        message = "it is nested too deeply"
        raise ValueError(message) from None


def parse(text: str) -> list[Any]:
    """Read policies from JSON."""
    value = read_json(text)
    if not isinstance(value, list):
        message = 'it must be a list of policies: [{"agent": …, "idle_days": …, "action": …}]'
        raise ValueError(message)  # noqa: TRY004 - pydantic turns a ValueError into a validation error
    return value  # pyright: ignore[reportUnknownVariableType]


def check_names(policies: Sequence[RetentionPolicy]) -> None:
    """Reject policies with the same name, and a policy that never applies because an earlier one matches all its sessions."""
    names = [name for name, _ in named(policies)]
    for place, policy in enumerate(policies):
        if names[place] in names[:place]:
            message = f"two policies are named {names[place]}"
            raise ValueError(message)
        for earlier in policies[:place]:
            if _covers(earlier, policy):
                message = f"{names[place]} can never apply: {names[policies.index(earlier)]} comes first and matches all its sessions"
                raise ValueError(message)


def _covers(earlier: RetentionPolicy, later: RetentionPolicy) -> bool:
    agents = earlier.agent in {None, ANY} or earlier.agent == later.agent
    pairs = (later.metadata or {}).items()
    return agents and all(pair in pairs for pair in (earlier.metadata or {}).items())
