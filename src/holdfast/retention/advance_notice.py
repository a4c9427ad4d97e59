"""Announce the sessions that a policy with `notice_days` will clean or erase soon, each once for each time at which it would be due.

A pass reads only the sessions that have come into the time of notice since the last pass.
"""

import json
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta

from holdfast.policy import MatchedPolicy, RetentionPolicy, named
from holdfast.retention.clean import DAY
from holdfast.retention.due import kept_sessions, match_due
from holdfast.store import Store
from holdfast.store.rows import microseconds, to_cursor
from holdfast.types import Due, DueBy

_PAGE = 100


async def announce_retention(store: Store, since: datetime | None) -> int:
    """Write a notice for each session that a policy will process within its `notice_days`, and return how many these are.

    With `since`, the time of the last pass, sessions that it has announced are not announced again.
    """
    policies = store.settings.retention
    noticed = [(name, policy) for name, policy in named(policies) if policy.notice_days is not None]
    if not noticed:
        return 0
    kept = await kept_sessions(store)
    agents = await store.agents()
    announced = 0
    for name, policy in noticed:
        for agent in filter(policy.could_match, agents):
            async for due, rule in _coming(store, policy, agent, since):
                if rule.name == name and due.session_id not in kept.get(name, ()):
                    facts = {"policy": name, "action": policy.action, "due_at": str(rule.due_at)}
                    await store.announce_retention(due.session_id, json.dumps(facts))
                    announced += 1
    return announced


async def _coming(
    store: Store, policy: RetentionPolicy, agent: str, since: datetime | None
) -> AsyncGenerator[tuple[Due, MatchedPolicy], None]:
    """Yield the sessions that are due within the policy's `notice_days`, with the policy that applies to each."""
    notice = timedelta(days=policy.notice_days or 0)
    limits: tuple[tuple[DueBy, float | None], ...] = (
        ("idle", policy.idle_days),
        ("age", policy.max_age_days),
    )
    for by, days in limits:
        if days is None:
            continue
        ahead = max(timedelta(), timedelta(days=days) - notice)
        cursor = None if since is None else to_cursor(microseconds(since - ahead), "", 0)
        while True:
            older_than = ahead / timedelta(days=1) * DAY
            page = await store.due(by, agent=agent, older_than=older_than, cursor=cursor, limit=_PAGE)
            for due in page.items:
                rule = match_due(store.settings.retention, due, store.settings.retention_rehydrated_days)
                if rule is not None and rule.due_at is not None and due.now < rule.due_at <= due.now + notice:
                    yield due, rule
            cursor = page.next_cursor
            if cursor is None:
                break
