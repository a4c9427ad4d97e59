"""Subscriptions: create, list, change and delete them, and send deliveries again. An owner sees only its own."""

from typing import Annotated

from pydantic import Field

from holdfast.api.models import Id, Items
from holdfast.api.subscriptions import (
    DeliveryInfo,
    NewSecret,
    NewSubscription,
    SubscriptionChange,
    SubscriptionInfo,
    SubscriptionSecret,
)
from holdfast.errors import BadInput, Forbidden, NotFound
from holdfast.notices.signature import new_secret, parse_secret
from holdfast.operations.access import Caller
from holdfast.operations.registry import NO_NUL, ClientMethod, CursorText, Limit, operation
from holdfast.subscriptions import DeliveryState, NoticeKind, Subscription, SubscriptionTerms

_S = "/api/subscriptions/{subscription_id}"
SubscriptionId = Annotated[Id, Field(description="Id of the subscription.")]


async def _own(caller: Caller, subscription_id: str) -> Subscription:
    """Return a subscription that the caller may see and change. One of another owner looks like one that does not exist.

    One for everyone announces the sessions of all owners, so it also requires an administrator: another token of its owner may be one of a
    user.
    """
    subscription = await caller.store.subscription(subscription_id)
    principal = caller.principal
    if principal.is_admin or (subscription.owner == principal.owner and not subscription.everyone):
        return subscription
    raise NotFound(what="subscription", id=subscription_id)


def _check(caller: Caller, url: str, kinds: list[NoticeKind], *, everyone: bool) -> None:
    from holdfast.notices.webhook import check_url  # its HTTP client: most API servers never need it

    check_url(url, allow=caller.settings.webhook_networks)
    if "worker_lost" in kinds and not everyone:
        raise BadInput(problem="worker_lost is about no session, so it requires everyone")


def _secret(given: str | None) -> str:
    if given is None:
        return new_secret()
    parse_secret(given)
    return given


@operation(
    "POST",
    "/api/subscriptions",
    "user",
    ClientMethod("Client.create_subscription", "subscription create"),
    topic="subscriptions",
    status=201,
)
async def create_subscription(caller: Caller, body: NewSubscription) -> SubscriptionSecret:
    """Create a subscription. The response contains the secret to verify deliveries with, which is not shown again."""
    principal = caller.principal
    if (body.everyone or body.owner not in {None, principal.owner}) and not principal.is_admin:
        required = "the role admin to create subscriptions for others"
        raise Forbidden(required=required, principal=principal.owner)
    _check(caller, body.url, body.kinds, everyone=body.everyone)
    created = await caller.store.create_subscription(
        SubscriptionTerms(
            url=body.url,
            kinds=tuple(body.kinds),
            agents=tuple(body.agents),
            sessions=tuple(body.sessions),
            content=body.content,
        ),
        owner=body.owner or principal.owner,
        actor=caller.actor,
        secret=_secret(body.secret),
        everyone=body.everyone,
    )
    return SubscriptionSecret.of(created)


@operation(
    "GET",
    "/api/subscriptions",
    "user",
    ClientMethod("Client.subscriptions", "subscription list"),
    topic="subscriptions",
)
async def list_subscriptions(
    caller: Caller,
    owner: Annotated[
        str | None,
        Field(
            max_length=200,
            pattern=NO_NUL,
            description="Only subscriptions of this owner. For administrators.",
        ),
    ] = None,
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Items[SubscriptionInfo]:
    """List subscriptions, in the order of their creation."""
    principal = caller.principal
    page = await caller.store.subscriptions(
        owner=owner if principal.is_admin else principal.owner,
        own_only=not principal.is_admin,
        cursor=cursor,
        limit=limit,
    )
    return Items[SubscriptionInfo].of(page)


@operation(
    "GET",
    _S,
    "user",
    ClientMethod("Client.subscription", "subscription show"),
    ClientMethod("SubscriptionHandle.info", "subscription show"),
    topic="subscriptions",
)
async def read_subscription(caller: Caller, subscription_id: SubscriptionId) -> SubscriptionInfo:
    """Return a subscription."""
    return SubscriptionInfo.of(await _own(caller, subscription_id))


@operation(
    "PATCH",
    _S,
    "user",
    ClientMethod("SubscriptionHandle.change", "subscription change"),
    ClientMethod("SubscriptionHandle.pause", "subscription pause"),
    ClientMethod("SubscriptionHandle.resume", "subscription resume"),
    topic="subscriptions",
)
async def change_subscription(
    caller: Caller, subscription_id: SubscriptionId, body: SubscriptionChange
) -> SubscriptionInfo:
    """Change, pause or resume a subscription. While it is paused, nothing is sent, and new events are not announced."""
    before = await _own(caller, subscription_id)
    given = body.model_dump(exclude_none=True, exclude={"paused"})
    changes = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    kinds = body.kinds or list(before.kinds)
    _check(caller, body.url or before.url, kinds, everyone=before.everyone)
    changed = await caller.store.change_subscription(
        subscription_id, paused=body.paused, actor=caller.actor, **changes
    )
    return SubscriptionInfo.of(changed)


@operation(
    "DELETE",
    _S,
    "user",
    ClientMethod("SubscriptionHandle.delete", "subscription delete"),
    topic="subscriptions",
    status=204,
)
async def delete_subscription(caller: Caller, subscription_id: SubscriptionId) -> None:
    """Delete a subscription with its deliveries."""
    await _own(caller, subscription_id)
    await caller.store.delete_subscription(subscription_id, actor=caller.actor)


@operation(
    "POST",
    f"{_S}/secret",
    "user",
    ClientMethod("SubscriptionHandle.rotate_secret", "subscription rotate"),
    topic="subscriptions",
)
async def rotate_secret(
    caller: Caller, subscription_id: SubscriptionId, body: NewSecret
) -> SubscriptionSecret:
    """Replace the secret. For a day, deliveries are signed with both secrets."""
    await _own(caller, subscription_id)
    changed = await caller.store.rotate_secret(subscription_id, _secret(body.secret), actor=caller.actor)
    return SubscriptionSecret.of(changed)


@operation(
    "POST",
    f"{_S}/test",
    "user",
    ClientMethod("SubscriptionHandle.test", "subscription test"),
    topic="subscriptions",
    status=202,
)
async def test_subscription(caller: Caller, subscription_id: SubscriptionId) -> DeliveryInfo:
    """Send a notice of the kind `test`. A worker delivers it; read the result from the deliveries."""
    await _own(caller, subscription_id)
    return DeliveryInfo.of(await caller.store.test_subscription(subscription_id, actor=caller.actor))


@operation(
    "GET",
    f"{_S}/deliveries",
    "user",
    ClientMethod("SubscriptionHandle.deliveries", "subscription deliveries"),
    topic="subscriptions",
)
async def list_deliveries(
    caller: Caller,
    subscription_id: SubscriptionId,
    state: Annotated[DeliveryState | None, Field(description="Only deliveries in this state.")] = None,
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Items[DeliveryInfo]:
    """List the deliveries of a subscription, latest first. Those that ended more than two weeks ago are deleted."""
    await _own(caller, subscription_id)
    page = await caller.store.deliveries(subscription_id, state=state, cursor=cursor, limit=limit)
    return Items[DeliveryInfo].of(page)


@operation(
    "POST",
    f"{_S}/deliveries/{{delivery_id}}/repeat",
    "user",
    ClientMethod("SubscriptionHandle.repeat", "subscription repeat"),
    topic="subscriptions",
    status=202,
)
async def repeat_delivery(
    caller: Caller,
    subscription_id: SubscriptionId,
    delivery_id: Annotated[Id, Field(description="Id of the delivery.")],
) -> DeliveryInfo:
    """Send a delivery again that has ended, such as one that was undeliverable. A pending one is sent now, and keeps its attempts."""
    await _own(caller, subscription_id)
    repeated = await caller.store.repeat_delivery(subscription_id, delivery_id, actor=caller.actor)
    return DeliveryInfo.of(repeated)
