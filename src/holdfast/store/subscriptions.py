"""Subscriptions: create, list, change and delete them, and list their deliveries."""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Final

from holdfast.errors import BadInput, Conflict, NotFound
from holdfast.ids import check_choice, check_id, check_name, new_id
from holdfast.store.rows import Row, from_cursor, from_row, page_limit, to_page
from holdfast.store.transactions import Transactions, Tx, op, reading, writing
from holdfast.subscriptions import (
    MOST_NAMES,
    MOST_SUBSCRIPTIONS,
    NOTICE_KINDS,
    Delivery,
    DeliveryState,
    Subscription,
    SubscriptionTerms,
)
from holdfast.types import Page

_LISTS: Final = ("kinds", "agents", "sessions")
_TERMS: Final = tuple(field.name for field in fields(SubscriptionTerms))
_OVERLAP_US: Final = 24 * 3600 * 1_000_000
"""How long deliveries are also signed with the previous secret."""


class SubscriptionMethods(Transactions):
    """The transactions of subscriptions. A row is locked before it is changed, so that the worker that sends its deliveries waits."""

    async def create_subscription(
        self, terms: SubscriptionTerms, *, owner: str, actor: str, secret: str, everyone: bool = False
    ) -> Subscription:
        """Create a subscription for the sessions of its owner, or of all owners. It applies to events from now on.

        Raises `BadInput` for terms that are not valid, and `Conflict` if the owner has too many.
        """
        return await self._create_subscription(
            _checked(terms), owner, secret, (new_id(), new_id(), actor), everyone=everyone
        )

    @writing(repeatable=True)
    def _create_subscription(
        self, terms: SubscriptionTerms, owner: str, secret: str, ids: tuple[str, str, str], *, everyone: bool
    ) -> Tx[Subscription]:
        subscription_id, audit_id, actor = ids
        check_name(owner, "owner")
        owned = yield op("owned_subscriptions", owner=owner, limit=MOST_SUBSCRIPTIONS)
        if len(owned) >= MOST_SUBSCRIPTIONS and subscription_id not in {row["id"] for row in owned}:
            raise Conflict(
                problem=f"{owner} has {MOST_SUBSCRIPTIONS} subscriptions, which is the limit; delete one first"
            )
        values = {"id": subscription_id, "owner": owner, "everyone": int(everyone), "secret": secret}
        yield op("insert_subscription", **values, **_stored(terms))
        yield from self._audit_subscription(audit_id, actor, "create subscription", subscription_id)
        return (yield from self._subscription(subscription_id))

    @reading
    def subscription(self, subscription_id: str) -> Tx[Subscription]:
        """Return a subscription. Raises `NotFound`."""
        return (yield from self._subscription(subscription_id))

    def _subscription(self, subscription_id: str) -> Tx[Subscription]:
        rows = yield op("subscription", id=check_id(subscription_id, "subscription id"))
        if not rows:
            raise NotFound(what="subscription", id=subscription_id)
        return to_subscription(rows[0])

    @reading
    def subscriptions(
        self,
        *,
        owner: str | None = None,
        own_only: bool = False,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Tx[Page[Subscription]]:
        """List subscriptions, in the order of their creation; with `own_only` without those for the sessions of all owners."""
        (after,) = from_cursor(cursor, str)
        rows = yield op(
            "subscriptions",
            owner=owner,
            own_only=own_only or None,
            after=after or "",
            limit=page_limit(limit),
        )
        return to_page(rows, limit, [to_subscription(row) for row in rows], "id")

    async def change_subscription(
        self, subscription_id: str, *, paused: bool | None = None, actor: str, **changes: Any
    ) -> Subscription:
        """Change some of the terms, by name; pause or resume. While it is paused, nothing is sent, and new events are not announced.

        When it is resumed, pending deliveries become due now. Those that wait for an earlier one of their session still follow it.
        """
        return await self._change_subscription(subscription_id, paused, changes, (new_id(), actor))

    @writing(repeatable=True)
    def _change_subscription(
        self, subscription_id: str, paused: bool | None, changes: dict[str, Any], audit: tuple[str, str]
    ) -> Tx[Subscription]:
        yield op("lock_subscriptions", ids=[check_id(subscription_id, "subscription id")])
        before = yield from self._subscription(subscription_id)
        terms = _checked(
            replace(SubscriptionTerms(**{name: getattr(before, name) for name in _TERMS}), **changes)
        )
        is_paused = before.paused if paused is None else paused
        (clock,) = yield op("now")
        yield op(
            "change_subscription",
            id=subscription_id,
            paused=int(is_paused),
            due_at=None if is_paused else clock["now"],
            **_stored(terms),
        )
        if paused is False:
            yield op("advance_deliveries", subscription_id=subscription_id)
        action = "change" if changes or paused is None else "pause" if paused else "resume"
        yield from self._audit_subscription(*audit, f"{action} subscription", subscription_id)
        return (yield from self._subscription(subscription_id))

    async def rotate_secret(self, subscription_id: str, secret: str, *, actor: str) -> Subscription:
        """Replace the secret. For a day, deliveries are signed with both."""
        return await self._rotate_secret(subscription_id, secret, (new_id(), actor))

    @writing(repeatable=True)
    def _rotate_secret(self, subscription_id: str, secret: str, audit: tuple[str, str]) -> Tx[Subscription]:
        yield op("lock_subscriptions", ids=[check_id(subscription_id, "subscription id")])
        before = yield from self._subscription(subscription_id)
        if before.secret != secret:
            yield op(
                "change_secret",
                id=subscription_id,
                secret=secret,
                previous_secret=before.secret,
                overlap_us=_OVERLAP_US,
            )
        yield from self._audit_subscription(*audit, "rotate subscription secret", subscription_id)
        return (yield from self._subscription(subscription_id))

    async def delete_subscription(self, subscription_id: str, *, actor: str) -> None:
        """Delete a subscription with its deliveries. Raises `NotFound`."""
        await self._delete_subscription(subscription_id, (new_id(), actor))
        while await self._drop_deliveries_of(subscription_id):
            pass

    @writing()
    def _delete_subscription(self, subscription_id: str, audit: tuple[str, str]) -> Tx[None]:
        yield from self._subscription(subscription_id)
        yield op("delete_subscription", id=subscription_id)
        yield from self._audit_subscription(*audit, "delete subscription", subscription_id)

    @writing(repeatable=True)
    def _drop_deliveries_of(self, subscription_id: str) -> Tx[int]:
        return len((yield op("drop_subscription_deliveries", subscription_id=subscription_id, limit=1000)))

    @reading
    def deliveries(
        self,
        subscription_id: str,
        *,
        state: DeliveryState | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Tx[Page[Delivery]]:
        """List the deliveries of a subscription, latest first. Those that have ended are deleted after two weeks."""
        (before,) = from_cursor(cursor, str)
        rows = yield op(
            "deliveries",
            subscription_id=check_id(subscription_id, "subscription id"),
            before=before,
            state=state,
            limit=page_limit(limit),
        )
        return to_page(rows, limit, [from_row(Delivery, row) for row in rows], "id")

    def _audit_subscription(
        self, id: str, actor: str, action: str, subscription_id: str, **facts: object
    ) -> Tx[None]:
        detail = json.dumps({"subscription": subscription_id, **facts})
        check_name(actor, "actor")
        yield op("add_audit", id=id, actor=actor, action=action, session_id=None, detail=detail)


def to_subscription(row: Row) -> Subscription:
    """Return a row as a subscription."""
    return from_row(Subscription, row, **{name: tuple(json.loads(row[name])) for name in _LISTS})


def _stored(terms: SubscriptionTerms) -> dict[str, Any]:
    values = asdict(terms)
    lists = {name: json.dumps(values[name]) for name in _LISTS}
    return values | lists | {"content": int(terms.content)}


def _checked(terms: SubscriptionTerms) -> SubscriptionTerms:
    """Return the terms without repetitions. Raises `BadInput`."""
    for kind in terms.kinds:
        check_choice(kind, NOTICE_KINDS, "kind of notice")
    if not terms.kinds:
        raise BadInput(problem=f"a subscription needs at least one kind of notice: {', '.join(NOTICE_KINDS)}")
    _check_names(terms.agents, "agent", check_name)
    _check_names(terms.sessions, "session id", check_id)
    return replace(terms, **{name: tuple(dict.fromkeys(getattr(terms, name))) for name in _LISTS})


def _check_names(names: Sequence[str], what: str, check: Any) -> None:
    if len(names) > MOST_NAMES:
        raise BadInput(problem=f"a subscription may name at most {MOST_NAMES} {what}s")
    for name in names:
        check(name, what)
