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
_RANGES: Final = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day of the month": "1 to 31, L or LW",
    "month": "1 to 12 or JAN to DEC",
    "day of the week": "0 to 7 or SUN to SAT",
}
"""The fields in order, and the values of each."""
_NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""The names that other programs have for expressions."""
_LONGEST: Final = 200
_LONGEST_SHIFT: Final = timedelta(hours=3)
"""No zone repeats more than this. A time of day can therefore be as far from its place in the order of local times."""


def check_cron(cron: str, timezone: str, after: datetime) -> str:
    """Return the expression with single spaces. Raises `BadInput` if it or the zone is not valid, or if it never matches."""
    fields = cron.split()
    if len(cron) > _LONGEST:
        raise BadInput(problem=f"the cron expression has {len(cron)} characters; the limit is {_LONGEST}")
    if cron.strip().startswith("@"):
        name = cron.strip().lower()
        remedy = f"Use {_NAMED[name]!r}" if name in _NAMED else "Use five fields"
        raise BadInput(problem=f"the cron expression {cron!r} is a name, which is not supported. {remedy}")
    if len(fields) != _FIELDS:
        raise BadInput(
            problem=f"the cron expression {cron!r} has {len(fields)} {'field' if len(fields) == 1 else 'fields'}. Use five: minute, hour, day of the month, month and"
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
    except CronSimError:
        raise BadInput(problem=f"the cron expression {cron!r} is not valid: {_problem(cron)}") from None
    raise BadInput(problem=f"the cron expression {cron!r} matches no date in the next 50 years")


def _problem(cron: str) -> str:
    """Return which field of an expression is not valid, and its range."""
    for number, (field, (name, expected)) in enumerate(zip(cron.split(), _RANGES.items(), strict=True)):
        alone = " ".join(field if place == number else "*" for place in range(_FIELDS))
        try:
            CronSim(alone, datetime(2000, 1, 1, tzinfo=UTC))
        except CronSimError:
            return f"the {name} is {field!r}. Use {expected}, or *, lists, ranges and steps of them"
    return "there is no such date"


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones()) - {"localtime"}  # the zone of one machine


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadInput(problem=f"the time zone {name!r} is not known to this process") from None
