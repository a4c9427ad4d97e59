"""Deliver notices while a worker runs, whichever agents it serves.

Every worker matches notices with subscriptions, and sends the deliveries of a few subscriptions at a time. A subscription is claimed by one
worker, for half a minute at a time; if that one dies, another one sends again what was not recorded. So each delivery arrives at least once, and
those of a session in order.
"""

import asyncio
import logging
import random
from datetime import datetime, timedelta
from typing import Final

from holdfast.counting import count
from holdfast.errors import HoldfastError, StoreClosed
from holdfast.ids import new_id
from holdfast.notices.payload import build_body
from holdfast.notices.webhook import DeliveryResult, send
from holdfast.store import Store
from holdfast.subscriptions import Attempt, Delivery, Subscription
from holdfast.tasks import end

POLL_SECONDS: Final = 1.0
GIVE_UP_AFTER: Final = timedelta(days=1)
"""A delivery that has failed for this long is undeliverable. It can be sent again on request."""
_SPREAD_SECONDS: Final = 0.2
_SUBSCRIPTIONS: Final = 8
_DELIVERIES: Final = 8
"""How many deliveries of one subscription are sent at once, each of another session."""
_TURN_SECONDS: Final = 20.0
"""How long a worker sends deliveries of one subscription before others have their turn. Shorter than a claim, with one more attempt."""
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 3600.0
_CLEANUP_SECONDS: Final = 600.0
_log = logging.getLogger(__name__)


async def keep_delivering(store: Store) -> None:
    """Match notices and send deliveries until cancelled, or until the store is closed."""
    loop = asyncio.get_running_loop()
    senders: dict[str, asyncio.Task[None]] = {}
    cleanup_at = loop.time() + random.uniform(0, _CLEANUP_SECONDS)  # noqa: S311
    try:
        while True:
            try:
                while await store.has_notices():
                    await store.match_notices()
                if len(senders) < _SUBSCRIPTIONS:
                    await _start_senders(store, senders)
                if loop.time() > cleanup_at:
                    cleanup_at = loop.time() + _CLEANUP_SECONDS
                    while await store.drop_deliveries():
                        pass
            except StoreClosed:
                return
            except HoldfastError as error:
                _log.debug("cannot deliver notices: %s", error)
            except Exception:  # noqa: BLE001 - a boundary: one unexpected error must not stop all notices
                _log.exception("notices could not be delivered")
            await asyncio.sleep(POLL_SECONDS + random.uniform(-_SPREAD_SECONDS, _SPREAD_SECONDS))  # noqa: S311
    finally:
        await end(*senders.values())


async def _start_senders(store: Store, senders: dict[str, asyncio.Task[None]]) -> None:
    for subscription_id in await store.due_subscriptions(limit=2 * _SUBSCRIPTIONS):
        if subscription_id not in senders and len(senders) < _SUBSCRIPTIONS:
            task = asyncio.create_task(_send_logged(store, subscription_id))
            senders[subscription_id] = task
            task.add_done_callback(lambda _, name=subscription_id: senders.pop(name, None))


async def _send_logged(store: Store, subscription_id: str) -> None:
    try:
        await send_due(store, subscription_id)
    except StoreClosed:
        pass
    except HoldfastError as error:
        _log.warning("deliveries of subscription %s are sent later: %s", subscription_id, error)
    except Exception:  # noqa: BLE001 - a boundary: the other subscriptions continue
        _log.exception("deliveries of subscription %s failed", subscription_id)


async def send_due(store: Store, subscription_id: str) -> None:
    """Send the deliveries of a subscription that are due, until none is, all of some fail, or others should have their turn."""
    claim = new_id()
    work = await store.claim_deliveries(subscription_id, claim, limit=_DELIVERIES)
    if work is None:
        return
    subscription, due = work
    loop = asyncio.get_running_loop()
    until = loop.time() + _TURN_SECONDS
    while due:
        now = await store.now()
        results = await asyncio.gather(*(_deliver(store, subscription, each, now) for each in due))
        attempts = [_judge(each, result, now) for each, result in zip(due, results, strict=True)]
        for attempt in attempts:
            count("deliveries", kind=attempt.delivery.kind, outcome=_outcome(attempt))
        goes_on = loop.time() < until and any(attempt.arrived for attempt in attempts)
        due = await store.record_attempts(
            subscription,
            claim,
            attempts,
            limit=_DELIVERIES if goes_on else 0,
            gone=next((result.error for result in results if result.is_gone), None),
        )


async def _deliver(
    store: Store, subscription: Subscription, delivery: Delivery, now: datetime
) -> DeliveryResult:
    secrets = [subscription.secret]
    if subscription.previous_secret is not None and now < (subscription.previous_until or now):
        secrets.append(subscription.previous_secret)
    body = await build_body(store, subscription, delivery)
    allow = store.settings.webhook_networks
    return await send(subscription.url, body, id=delivery.id, secrets=secrets, at=now, allow=allow)


def _judge(delivery: Delivery, result: DeliveryResult, now: datetime) -> Attempt:
    text = result.error or f"status {result.status}"
    if result.is_success:
        return Attempt(delivery=delivery, arrived=True, result=text)
    if now - delivery.since >= GIVE_UP_AFTER:
        return Attempt(delivery=delivery, arrived=False, result=text)
    pause = max(backoff(delivery.attempts), float(result.retry_after or 0))
    return Attempt(delivery=delivery, arrived=False, result=text, retry_in=min(pause, 24 * _LONGEST_PAUSE))


def backoff(attempts: int) -> float:
    """Return how many seconds to wait after this many failed attempts before the last one: four times as long each time, up to an hour.

    With up to 50 % jitter, so that deliveries that failed together do not return together.
    """
    longest = min(_FIRST_PAUSE * 4 ** min(attempts, 10), _LONGEST_PAUSE)
    return longest * random.uniform(0.5, 1)  # noqa: S311


def _outcome(attempt: Attempt) -> str:
    if attempt.arrived:
        return "delivered"
    return "failed" if attempt.retry_in is not None else "undeliverable"
