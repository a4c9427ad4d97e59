"""Find the sessions that are due by the policies, at a cost proportional to how many there are. Read-only."""

import math
from collections.abc import AsyncGenerator, Mapping, Sequence

from holdfast.policy import MatchedPolicy, RetentionPolicy, match_policy, named
from holdfast.retention.clean import DAY
from holdfast.store import Store
from holdfast.types import Due, DueBy

_PAGE = 100


async def candidates(
    store: Store, agent: str, kept: Mapping[str, set[str]], *, held: bool
) -> AsyncGenerator[tuple[Due, MatchedPolicy | None], None]:
    """Yield the sessions of an agent that may be due, with their policy; with None if they are not. Each due session has its policy once.

    With `held`, those on hold are included, and policies that hold sessions are skipped.
    """
    policies, grace = store.settings.retention, store.settings.retention_rehydrated_days
    for by, days in _scans(policies, agent, holds=not held):
        cursor: str | None = None
        while True:
            page = await store.due(
                by, agent=agent, older_than=days * DAY, held=held, cursor=cursor, limit=_PAGE
            )
            for due in page.items:
                rule = match_due(policies, due, grace, holds=not held)
                is_due = (
                    rule is not None
                    and rule.is_due(due.now)
                    and (by != "cleaned" or rule.policy.action == "erase")
                    and not (by == "age" and is_idle(rule.policy, due))  # already yielded by `idle`
                    and due.session_id not in kept.get(rule.name, ())
                )
                yield due, rule if is_due else None
            cursor = page.next_cursor
            if cursor is None:
                break


def match_due(
    policies: Sequence[RetentionPolicy], due: Due, grace_days: float = 0.0, *, holds: bool = True
) -> MatchedPolicy | None:
    """Return the policy that applies to a session, and when it is due."""
    return match_policy(
        policies,
        agent=due.agent,
        metadata=due.metadata,
        created_at=due.created_at,
        active_at=due.active_at,
        rehydrated_at=due.rehydrated_at,
        rehydrated_days=grace_days,
        holds=holds,
    )


def is_idle(policy: RetentionPolicy, due: Due) -> bool:
    """Return whether a session was idle for as long as the policy requires."""
    idle = (due.now - due.active_at).total_seconds()
    return policy.idle_days is not None and idle >= policy.idle_days * DAY


def _scans(
    policies: Sequence[RetentionPolicy], agent: str, *, holds: bool = True
) -> list[tuple[DueBy, float]]:
    """Return which of an agent's sessions the policies can match, as kinds of due sessions with their shortest limits in days."""
    reachable: list[RetentionPolicy] = []
    for policy in policies:
        if policy.could_match(agent) and (holds or not policy.hold):
            reachable.append(policy)
            if policy.metadata is None:
                break  # it matches all remaining sessions
    idle = [policy.idle_days for policy in reachable if policy.idle_days is not None]
    age = [policy.max_age_days for policy in reachable if policy.max_age_days is not None]
    erasing = [
        days
        for policy in reachable
        if policy.action == "erase"
        for days in (policy.idle_days, policy.max_age_days)
        if days is not None
    ]
    scans: tuple[tuple[DueBy, list[float]], ...] = (("idle", idle), ("age", age), ("cleaned", erasing))
    return [(by, min(days)) for by, days in scans if days]


async def kept_sessions(store: Store, *, limit: float = math.inf) -> Mapping[str, set[str]]:
    """Return, by policy, the sessions with the last runs that the policy keeps. Reads up to `limit` sessions, most recently active first."""
    policies = store.settings.retention
    wanted = {name: policy.keep_last_runs for name, policy in named(policies) if policy.keep_last_runs}
    kept: dict[str, set[str]] = {name: set() for name in wanted}
    cursor: str | None = None
    examined = 0
    while examined < limit and any(left > 0 for left in wanted.values()):
        page = await store.sessions(cursor=cursor, limit=_PAGE)
        examined += _PAGE
        for session in page.items:
            rule = match_policy(
                policies,
                agent=session.agent,
                metadata=session.metadata,
                created_at=session.created_at,
                active_at=session.active_at,
            )
            left = 0 if rule is None else wanted.get(rule.name, 0)
            if rule is None or left <= 0 or session.status == "cleaned":
                continue
            runs = len((await store.runs(session_id=session.id, limit=min(left, 1000))).items)
            if runs:
                kept[rule.name].add(session.id)
                wanted[rule.name] = left - runs
        cursor = page.next_cursor
        if cursor is None:
            break
    return kept
