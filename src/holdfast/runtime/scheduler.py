"""Fire due schedules while a worker runs. Any worker fires any schedule, whichever agents it serves.

Several workers may handle the same tick; the store lets one of them submit. They look for due schedules at random moments within a fifth of a
second, so that they rarely do.
"""

import asyncio
import logging
import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from holdfast.counting import count
from holdfast.cron import latest_times, next_time
from holdfast.errors import BadInput, HoldfastError, StoreClosed
from holdfast.schedules import Schedule
from holdfast.store import Store

POLL_SECONDS: Final = 1.0
_SPREAD_SECONDS: Final = 0.2
_AT_ONCE: Final = 8
MISSED_AFTER: Final = timedelta(minutes=1)
"""A tick that is later than this was missed: `catch_up` none submits nothing for it, and `all` queues its message."""
MISSED: Final = "missed the tick at {}: no worker ran at that time, and `catch_up` is none"
_log = logging.getLogger(__name__)


async def keep_firing(store: Store) -> None:
    """Fire each schedule when it is due, until cancelled or until the store is closed."""
    while True:
        seconds = POLL_SECONDS
        try:
            seconds = min(seconds, await fire_due(store))
        except StoreClosed:
            return
        except HoldfastError as error:
            _log.debug("cannot fire schedules: %s", error)
        except Exception:  # noqa: BLE001 - a boundary: one unexpected error must not stop all schedules
            _log.exception("schedules could not be fired")
            seconds = POLL_SECONDS
        # Not all workers at the same moment: the first one usually leaves nothing to the others.
        await asyncio.sleep(seconds + random.uniform(0, _SPREAD_SECONDS))  # noqa: S311


async def fire_due(store: Store) -> float:
    """Fire all schedules that are due, and return in how many seconds the next one is."""
    while True:
        upcoming, now = await store.upcoming_schedules(limit=_AT_ONCE)
        due = [each for each in upcoming if each.next_at is not None and each.next_at <= now]
        if not due:
            waits = [(each.next_at - now).total_seconds() for each in upcoming if each.next_at is not None]
            return min(waits, default=POLL_SECONDS)
        # On MongoDB, a process that was killed in a transaction can block a schedule for a minute: it must not delay the others.
        fired = await asyncio.gather(*(_fire(store, each, now) for each in due), return_exceptions=True)
        for failure in filter(None, fired):
            raise failure


async def _fire(store: Store, schedule: Schedule, now: datetime) -> None:
    due_at = schedule.next_at or now
    try:
        tick, next_at = plan(schedule, due_at, now)
    except BadInput as error:  # a process with other time zones created it
        await store.miss_tick(schedule, tick=due_at, next_at=None, problem=str(error))
        return
    if tick is None:
        await store.miss_tick(
            schedule, tick=due_at, next_at=next_at, problem=MISSED.format(due_at.isoformat())
        )
        return
    if schedule.catch_up == "all" and tick < now - MISSED_AFTER:
        schedule = replace(schedule, overlap="queue")
    if await store.fire_schedule(schedule, tick=tick, next_at=next_at) is not None:
        count("submissions", kind="message")


def plan(schedule: Schedule, due_at: datetime, now: datetime) -> tuple[datetime | None, datetime]:
    """Return the tick to fire, if there is one, and the tick after it, which may also be due.

    `once` fires the first tick that is due, and skips the others. `all` fires them one by one, except those before the latest
    `catch_up_limit`. `none` skips those that were missed.
    """
    cron, timezone = schedule.cron, schedule.timezone
    match schedule.catch_up:
        case "once":
            return due_at, next_time(cron, timezone, now)
        case "all":
            tick = max(due_at, latest_times(cron, timezone, now, schedule.catch_up_limit)[-1])
            return tick, next_time(cron, timezone, tick)
        case "none":
            if due_at >= now - MISSED_AFTER:
                return due_at, next_time(cron, timezone, due_at)
            return None, next_time(cron, timezone, now - MISSED_AFTER)
