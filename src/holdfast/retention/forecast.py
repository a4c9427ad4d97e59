"""Estimate what the policies would delete now, with bounded work. Read-only; `sweep` with `dry_run` is exact, and takes longer."""

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.policy import Action
from holdfast.retention.due import candidates, kept_sessions
from holdfast.store import Store

_EXAMINED = 10_000
_SAMPLED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Sessions that are due by policy, by action. Guards are not checked, except holds.

    With `more`, not all sessions were examined, and more may be due. `bytes` is an estimate of their content in the database, from
    `sampled` of them.
    """

    due: Mapping[Action, int]
    more: bool
    bytes: int
    sampled: int


async def forecast(store: Store, *, limit: int = _EXAMINED, sample: int = _SAMPLED) -> Forecast | None:
    """Return which sessions the next sweep would find; None if no policy deletes sessions. Examines up to `limit` sessions."""
    if not any(policy.action for policy in store.settings.retention):
        return None
    actions: Counter[Action] = Counter({"clean": 0, "archive": 0, "erase": 0})
    ids: list[str] = []
    more = False
    examined = 0
    kept = await kept_sessions(store, limit=limit)
    for agent in await store.agents():
        async for due, rule in candidates(store, agent, kept, held=False):
            more = examined >= limit
            if more:
                break
            examined += 1
            if rule is not None and rule.policy.action is not None:
                actions[rule.policy.action] += 1
                ids.append(due.session_id)
        if more:
            break
    chosen = ids if len(ids) <= sample else random.sample(ids, sample)
    sizes = [await store.content_bytes(session_id) for session_id in chosen]
    mean = math.fsum(sizes) / len(sizes) if sizes else 0.0
    return Forecast(due=dict(actions), more=more, bytes=round(mean * len(ids)), sampled=len(sizes))
