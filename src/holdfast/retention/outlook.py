"""The retention outlook of one session: its policy, the time when it is due, and any check that prevents it. Read-only."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from holdfast.errors import RetentionRefused
from holdfast.guards import refuse_cleaning
from holdfast.policy import RetentionPolicy, match_policy
from holdfast.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """`due_at` is the earliest time at which the policy applies; `guard` is the guard that would refuse the sweep now.

    All values are None if no policy applies: then the session stays until it is cleaned or erased on request.
    """

    session_id: str
    policy: str | None
    terms: RetentionPolicy | None
    rehydrated_at: datetime | None
    due_at: datetime | None
    held_by: Literal["session", "policy"] | None
    guard: str | None
    problem: str | None
    cleaned_at: datetime | None
    archive: str | None


async def outlook(store: Store, session_id: str) -> Outlook:
    """Return the retention outlook of a session. Raises `SessionNotFound`."""
    session = await store.session(session_id)
    state = await store.retention_state(session_id)
    rule = match_policy(
        store.settings.retention,
        agent=session.agent,
        metadata=session.metadata,
        created_at=session.created_at,
        active_at=session.active_at,
        rehydrated_at=state.rehydrated_at,
        rehydrated_days=store.settings.retention_rehydrated_days,
    )
    terms = None if rule is None else rule.policy
    held_by = "session" if session.hold else "policy" if terms is not None and terms.hold else None
    is_over = session.status == "cleaned" and (terms is None or terms.action != "erase")
    guard = problem = None
    if terms is not None and terms.action is not None and session.status != "cleaned":
        try:
            refuse_cleaning(state, idle=0.0)  # the idle time is part of `due_at`
        except RetentionRefused as error:
            guard, problem = str(error.facts["guard"]), str(error)
    return Outlook(
        session_id=session_id,
        policy=None if rule is None else rule.name,
        terms=terms,
        rehydrated_at=state.rehydrated_at,
        due_at=None if rule is None or held_by or is_over else rule.due_at,
        held_by=held_by,
        guard=guard,
        problem=problem,
        cleaned_at=session.cleaned_at,
        archive=session.archive,
    )
