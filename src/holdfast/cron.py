"""The times of a cron expression with five fields, in a time zone.

Daylight saving time works as in Debian's cron. An expression whose minute or hour begins with `*` follows elapsed time: it skips the
times that do not exist, and matches those that are repeated twice. Any other names times of day, each of which happens once a day: a
time that does not exist happens when the clock has moved forward, and a repeated one happens the first time.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from holdfast.errors import BadInput
from holdfast.ids import did_you_mean

_FIELDS: Final = 5
_LONGEST: Final = 200
_LONGEST_SHIFT: Final = timedelta(hours=3)
"""No zone repeats more than this. A time of day can therefore be as far from its place in the order of local times."""


def check_cron(cron: str, timezone: str, after: datetime) -> str:
    """Return the expression with single spaces. Raises `BadInput` if it or the zone is not valid, or if it never matches."""
    fields = cron.split()
    if len(cron) > _LONGEST:
        raise BadInput(problem=f"the cron expression has {len(cron)} characters; the limit is {_LONGEST}")
    if len(fields) != _FIELDS:
        raise BadInput(
            problem=f"the cron expression {cron!r} has {len(fields)} fields. Use five: minute, hour, day of the month, month and"
            " day of the week. Seconds are not possible"
        )
    if timezone not in _zones():
        hint = did_you_mean(timezone, _zones())
        raise BadInput(
            problem=f"unknown time zone {timezone!r}.{hint} Use a name such as Europe/Berlin or UTC"
        )
    checked = " ".join(fields)
    next_time(checked, timezone, after)
    return checked


def next_time(cron: str, timezone: str, after: datetime) -> datetime:
    """Return the first time after `after`."""
    return next(_times(cron, timezone, after))


def next_times(cron: str, timezone: str, after: datetime, count: int) -> list[datetime]:
    """Return the first `count` times after `after`."""
    return list(islice(_times(cron, timezone, after), count))


def latest_times(cron: str, timezone: str, until: datetime, count: int) -> list[datetime]:
    """Return the last `count` times up to and including `until`, latest first."""
    start = until.replace(microsecond=0) + _LONGEST_SHIFT
    backward = CronSim(cron, start.astimezone(_zone(timezone)), reverse=True)
    times = (each.astimezone(UTC) for each in backward)
    return list(islice((each for each in times if each <= until), count))


def _times(cron: str, timezone: str, after: datetime) -> Iterator[datetime]:
    try:
        for each in CronSim(cron, after.astimezone(_zone(timezone))):
            at = each.astimezone(UTC)
            if at > after:  # in the hour that is repeated, local times before `after` follow
                yield at
    except CronSimError as error:
        problem = f"{str(error).lower()}, or there is no such date"
        raise BadInput(problem=f"the cron expression {cron!r} is not valid: {problem}") from None
    raise BadInput(problem=f"the cron expression {cron!r} matches no date in the next 50 years")


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones()) - {"localtime"}  # the zone of one machine


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadInput(problem=f"the time zone {name!r} is not known to this process") from None
