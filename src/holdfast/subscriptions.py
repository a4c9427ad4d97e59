"""Subscriptions: which notices are sent to which URL."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias, get_args

NoticeKind: TypeAlias = Literal[
    "waiting", "done", "failed", "given_up", "budget_reached", "retention_due", "worker_lost"
]
DeliveryKind: TypeAlias = Literal[
    "waiting", "done", "failed", "given_up", "budget_reached", "retention_due", "worker_lost", "test"
]
DeliveryState: TypeAlias = Literal["pending", "delivered", "undeliverable"]

NOTICE_KINDS: Final[tuple[NoticeKind, ...]] = get_args(NoticeKind)
DELIVERY_STATES: Final[tuple[DeliveryState, ...]] = get_args(DeliveryState)
MOST_SUBSCRIPTIONS: Final = 100
"""How many subscriptions an owner may have, so that matching a notice has a bounded cost."""
MOST_NAMES: Final = 100
"""How many agents or sessions a subscription may name."""
NO_SESSION: Final = ""
"""The session of a notice that is about no session."""

_KINDS: Final = {
    "approval_requested": "waiting",
    "approval_reminder": "waiting",
    "submission_done": "done",
    "submission_failed": "failed",
    "run_waiting": "budget_reached",
}
ANNOUNCING: Final = frozenset(_KINDS)
"""The kinds of events that a notice may announce."""


def kind_of_event(kind: str, payload: str) -> str | None:
    """Return the kind of notice that announces an event; None if no notice does.

    Only the event of a turn's end is announced, and not those of other submissions: that is decided when the notice is matched.
    """
    noticed = _KINDS.get(kind)
    if noticed == "budget_reached" and '"budget": ' not in payload:
        return None  # it waits for a time or a signal
    return "given_up" if noticed == "failed" and '"state": "dead"' in payload else noticed


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionTerms:
    """The part of a subscription that its owner can change.

    Without `agents` or `sessions` it applies to all of them. `content`: with the title, questions, output and reasons of failures.
    """

    url: str
    kinds: tuple[NoticeKind, ...]
    agents: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    content: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription(SubscriptionTerms):
    """A subscription. `everyone`: it applies to the sessions of all owners, and was created by an administrator.

    `problem` is the reason why it was paused, or why the last delivery failed. After a change of the secret, deliveries are also signed
    with the previous one until `previous_until`.
    """

    id: str
    owner: str
    everyone: bool
    secret: str
    previous_secret: str | None
    previous_until: datetime | None
    paused: bool
    problem: str | None
    created_at: datetime
    version: int

    def matches(self, kind: str, session_id: str, agent: str | None, owner: str | None) -> bool:
        """Return whether it applies to a notice of this kind, about this session of this agent and owner; None if it is about no session."""
        return (
            kind in self.kinds
            and (self.everyone or (owner is not None and owner == self.owner))
            and (not self.agents or agent in self.agents)
            and (not self.sessions or session_id in self.sessions)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One notice for one subscription. `seq` is the event that it announces; `result` describes the last attempt."""

    id: str
    subscription_id: str
    session_id: str
    seq: int
    kind: DeliveryKind
    at: datetime
    detail: str | None
    state: DeliveryState
    attempts: int
    result: str | None
    due_at: datetime | None
    since: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The result of sending a delivery: whether it arrived, what the receiver answered, and in how many seconds to send it again.

    Without `retry_in`, it is not sent again.
    """

    delivery: Delivery
    arrived: bool
    result: str
    retry_in: float | None = None
