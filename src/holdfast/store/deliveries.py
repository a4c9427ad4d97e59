"""Deliveries: match notices with subscriptions, and record what their receivers answered.

One worker at a time sends the deliveries of a subscription: it has a claim, which another worker may replace after half a minute. The
deliveries of a session form a line. Only the first of them is due, so they arrive in order. A transaction that adds to a line, or ends its
first delivery, locks the subscription first.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from holdfast.errors import Conflict, NotFound
from holdfast.ids import check_id, new_id
from holdfast.jsontext import read_recorded
from holdfast.store.rows import Row, from_row, microseconds, page_limit
from holdfast.store.subscriptions import SubscriptionMethods, to_subscription
from holdfast.store.transactions import Tx, op, reading, writing
from holdfast.subscriptions import NO_SESSION, Attempt, Delivery, Subscription
from holdfast.types import TURNS, Json

DELIVERY_DAYS: Final = 14
"""How long a delivery that has ended is kept."""
_LEASE_US: Final = 30 * 1_000_000
"""Longer than a batch of attempts. An attempt takes at most ten seconds."""
_SECOND_US: Final = 1_000_000
_OF_TURNS: Final = frozenset({"done", "failed", "given_up"})


class DeliveryMethods(SubscriptionMethods):
    """The transactions of deliveries."""

    @reading
    def has_notices(self) -> Tx[bool]:
        """Return whether a notice waits to be matched."""
        return bool((yield op("notices", limit=1)))

    @writing(repeatable=True)
    def announce_retention(self, session_id: str, detail: Json) -> Tx[None]:
        """Write a notice that retention will delete the session's content; `detail` has the policy and the time."""
        self._check_object(detail, "detail")
        yield op("insert_notice", session_id=session_id, seq=0, kind="retention_due", detail=detail)

    @writing()
    def match_notices(self, *, limit: int = 200) -> Tx[int]:
        """Replace notices by deliveries for the subscriptions that match, and return how many notices these were."""
        found = yield op("notices", limit=page_limit(limit))
        taken: list[Row] = []
        for row in found:
            if (yield op("take_notice", about=row["session_id"], seq=row["seq"], limit=1)):
                taken.append(row)  # else another worker matches it
        if not taken:
            return 0
        ids = sorted({row["session_id"] for row in taken} - {NO_SESSION})
        sessions: dict[str, Row] = {row["id"]: row for row in (yield op("owners_of", session_ids=ids))}
        owners = sorted({row["owner"] for row in sessions.values()})
        rows = [*(yield op("subscriptions_for_all")), *(yield op("subscriptions_of", owners=owners))]
        subscriptions = {row["id"]: to_subscription(row) for row in rows if not row["paused"]}
        matched = [
            (each, row) for row in taken for each in subscriptions.values() if _matches(each, row, sessions)
        ]
        wanted: list[tuple[Subscription, Row]] = []
        for each, row in matched:
            if row["kind"] not in _OF_TURNS or (yield from self._ends_turn(row)):
                wanted.append((each, row))
        if wanted:
            yield from self._add_deliveries(wanted)
        return len(taken)

    def _ends_turn(self, notice: Row) -> Tx[bool]:
        """Return whether a notice is about the end of a turn. Answers, interrupts and signals end as well."""
        session_id = notice["session_id"]
        events = yield op("events", session_id=session_id, after=notice["seq"] - 1, limit=1)
        if not events or events[0]["seq"] != notice["seq"]:
            return False
        match read_recorded(events[0]["payload"]):
            case {"submission_id": str(submission_id)}:
                rows = yield op("submission_by_id", id=submission_id)
                return bool(rows) and rows[0]["kind"] in TURNS
            case _:
                return False

    def _add_deliveries(self, wanted: Sequence[tuple[Subscription, Row]]) -> Tx[None]:
        ids = sorted({each.id for each, _ in wanted})
        locked = {row["id"] for row in (yield op("lock_subscriptions", ids=ids))}
        (clock,) = yield op("now")
        lines: set[tuple[str, str]] = set()
        for subscription, row in wanted:
            if subscription.id not in locked:
                continue  # it was deleted meanwhile
            line = subscription.id, row["session_id"]
            if line not in lines and (
                yield op("first_in_line", subscription_id=subscription.id, about=row["session_id"])
            ):
                lines.add(line)
            yield op(
                "insert_delivery",
                id=new_id(),
                subscription_id=subscription.id,
                about=row["session_id"],
                seq=row["seq"],
                kind=row["kind"],
                at=row["at"],
                detail=row["detail"],
                due_at=None if line in lines else clock["now"],
            )
            lines.add(line)
        yield op("wake_subscriptions", ids=ids)

    @reading
    def due_subscriptions(self, *, limit: int = 20) -> Tx[list[str]]:
        """Return subscriptions with deliveries to send now, those that are due the longest first."""
        return [row["id"] for row in (yield op("due_subscriptions", limit=page_limit(limit)))]

    @writing(repeatable=True)
    def claim_deliveries(
        self, subscription_id: str, claim: str, *, limit: int
    ) -> Tx[tuple[Subscription, list[Delivery]] | None]:
        """Claim a subscription for half a minute, and return it with the deliveries to send. Returns None if another worker has claimed it."""
        rows = yield op("claim_subscription", id=subscription_id, claim=claim, lease_us=_LEASE_US)
        if not rows:
            rows = [row for row in (yield op("subscription", id=subscription_id)) if row["claim"] == claim]
        if not rows or rows[0]["paused"]:
            return None
        subscription = to_subscription(rows[0])
        due = yield from self._due(subscription_id, limit)
        if not due:
            yield from self._end_claim(subscription, claim, [])
        return subscription, due

    @writing(repeatable=True)
    def record_attempts(
        self,
        subscription: Subscription,
        claim: str,
        attempts: Sequence[Attempt],
        *,
        limit: int,
        gone: str | None = None,
    ) -> Tx[list[Delivery]]:
        """Record attempts, and return the next deliveries to send, at most `limit`.

        If there are none, the claim ends. With a limit of 0 it ends in any case. If the receiver is `gone`, the subscription is paused for
        this reason. If the claim was replaced, or the subscription paused, nothing is recorded: the deliveries are sent again.
        """
        if not (yield op("extend_claim", id=subscription.id, claim=claim, lease_us=_LEASE_US)):
            return []
        for attempt in attempts:
            yield from self._record_attempt(attempt)
        due = (yield from self._due(subscription.id, limit)) if limit and gone is None else []
        if not due:
            yield from self._end_claim(subscription, claim, attempts, gone=gone)
        return due

    def _record_attempt(self, attempt: Attempt) -> Tx[None]:
        delivery = attempt.delivery
        if attempt.retry_in is not None:
            yield op(
                "retry_delivery",
                id=delivery.id,
                result=attempt.result,
                delay_us=int(attempt.retry_in * _SECOND_US),
            )
            return
        state = "delivered" if attempt.arrived else "undeliverable"
        yield op("end_delivery", id=delivery.id, state=state, result=attempt.result)
        line = {"subscription_id": delivery.subscription_id, "about": delivery.session_id}
        for following in (yield op("first_in_line", **line)):
            if following["due_at"] is None:
                yield op("advance_delivery", id=following["id"])

    def _end_claim(
        self, subscription: Subscription, claim: str, attempts: Sequence[Attempt], *, gone: str | None = None
    ) -> Tx[None]:
        """End a claim. If all of these attempts failed, the next one follows after the shortest of their pauses."""
        failed = bool(attempts) and not any(attempt.arrived for attempt in attempts)
        waiting = yield op("next_delivery", subscription_id=subscription.id)
        due_at = waiting[0]["due_at"] if waiting else None
        if failed and due_at is not None:
            (clock,) = yield op("now")
            pauses = [attempt.retry_in for attempt in attempts if attempt.retry_in is not None]
            due_at = max(due_at, clock["now"] + int(min(pauses, default=0.0) * _SECOND_US))
        problem = attempts[-1].result if failed else None if attempts else subscription.problem
        yield op(
            "end_claim",
            id=subscription.id,
            claim=claim,
            due_at=due_at if gone is None else None,
            problem=gone or problem,
            paused=int(gone is not None),
        )

    def _due(self, subscription_id: str, limit: int) -> Tx[list[Delivery]]:
        rows = yield op("due_deliveries", subscription_id=subscription_id, limit=page_limit(limit))
        return [from_row(Delivery, row) for row in rows]

    async def test_subscription(self, subscription_id: str, *, actor: str) -> Delivery:
        """Add a delivery of the kind `test`, which contains nothing. Raises `NotFound`, and `Conflict` if the subscription is paused."""
        return await self._test_subscription(subscription_id, new_id(), (new_id(), actor))

    @writing(repeatable=True)
    def _test_subscription(
        self, subscription_id: str, delivery_id: str, audit: tuple[str, str]
    ) -> Tx[Delivery]:
        yield from self._lock_unpaused(subscription_id)
        if not (yield op("delivery", id=delivery_id)):
            (clock,) = yield op("now")
            now = clock["now"]
            yield op(
                "insert_delivery",
                id=delivery_id,
                subscription_id=subscription_id,
                about=NO_SESSION,
                seq=now,
                kind="test",
                at=now,
                detail=None,
                due_at=now,
            )
            yield op("hurry_subscription", id=subscription_id)
            yield from self._audit_subscription(*audit, "test subscription", subscription_id)
        return from_row(Delivery, (yield op("delivery", id=delivery_id))[0])

    def _lock_unpaused(self, subscription_id: str) -> Tx[None]:
        yield op("lock_subscriptions", ids=[check_id(subscription_id, "subscription id")])
        if (yield from self._subscription(subscription_id)).paused:
            raise Conflict(problem=f"subscription {subscription_id} is paused; resume it first")

    async def repeat_delivery(self, subscription_id: str, delivery_id: str, *, actor: str) -> Delivery:
        """Send a delivery again that has ended, or make a pending one due now. Raises `NotFound`, and `Conflict` if its subscription is paused."""
        return await self._repeat_delivery(subscription_id, delivery_id, (new_id(), actor))

    @writing(repeatable=True)
    def _repeat_delivery(
        self, subscription_id: str, delivery_id: str, audit: tuple[str, str]
    ) -> Tx[Delivery]:
        yield from self._lock_unpaused(subscription_id)
        rows = yield op("delivery", id=check_id(delivery_id, "delivery id"))
        if not rows or rows[0]["subscription_id"] != subscription_id:
            raise NotFound(what="delivery", id=delivery_id)
        if not (yield op("repeat_delivery", id=delivery_id)):
            yield op("advance_delivery", id=delivery_id)
        yield op("hurry_subscription", id=subscription_id)
        yield from self._audit_subscription(*audit, "repeat delivery", subscription_id, delivery=delivery_id)
        return from_row(Delivery, (yield op("delivery", id=delivery_id))[0])

    @writing(repeatable=True)
    def drop_deliveries(self, *, days: int = DELIVERY_DAYS, limit: int = 1000) -> Tx[int]:
        """Delete deliveries that ended this many days ago, at most `limit`; return how many."""
        age_us = timedelta(days=days) // timedelta(microseconds=1)
        rows = yield op("old_deliveries", age_us=age_us, limit=page_limit(limit))
        for row in rows:
            yield op("delete_delivery", id=row["id"])
        return len(rows)


def _matches(subscription: Subscription, notice: Row, sessions: Mapping[str, Row]) -> bool:
    session = sessions.get(notice["session_id"])
    if session is None and notice["session_id"] != NO_SESSION:
        return False  # it was erased
    agent, owner = (None, None) if session is None else (session["agent"], session["owner"])
    if notice["at"] < microseconds(subscription.created_at):
        return False
    return subscription.matches(notice["kind"], notice["session_id"], agent, owner)
