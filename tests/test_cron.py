"""The times of cron expressions, in real time zones."""

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from holdfast.cron import check_cron, latest_times, next_time, next_times
from holdfast.errors import BadInput

BERLIN = "Europe/Berlin"
SPRING = datetime(2026, 3, 29, 1, tzinfo=UTC)
"""02:00 in Berlin becomes 03:00."""
AUTUMN = datetime(2026, 10, 25, 1, tzinfo=UTC)
"""03:00 in Berlin becomes 02:00."""
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


def local(times: list[datetime], zone: str = BERLIN) -> list[str]:
    return [f"{each.astimezone(ZoneInfo(zone)):%d %H:%M %Z}" for each in times]


def test_a_time_that_is_skipped_happens_when_the_clock_has_moved():
    assert local(next_times("30 2 * * *", BERLIN, SPRING - DAY, 3)) == [
        "28 02:30 CET",
        "29 03:00 CEST",
        "30 02:30 CEST",
    ]
    assert next_time("30 2 * * *", BERLIN, SPRING - timedelta(seconds=1)) == SPRING
    assert local(next_times("0,30 2 * * *", BERLIN, SPRING - HOUR, 2)) == ["29 03:00 CEST", "30 02:00 CEST"]


def test_a_time_that_is_repeated_happens_the_first_time():
    assert local(next_times("30 2 * * *", BERLIN, AUTUMN - 2 * DAY, 3)) == [
        "24 02:30 CEST",
        "25 02:30 CEST",
        "26 02:30 CET",
    ]
    in_the_second_hour = AUTUMN + timedelta(minutes=10)
    assert local(next_times("30 2 * * *", BERLIN, in_the_second_hour, 1)) == ["26 02:30 CET"]
    assert local(next_times("5 * * * *", BERLIN, in_the_second_hour, 1)) == ["25 03:05 CET"]


@pytest.mark.parametrize("moved", [SPRING, AUTUMN])
@pytest.mark.parametrize(("cron", "minutes"), [("0 * * * *", 60), ("*/5 * * * *", 5), ("17 * * * *", 60)])
def test_an_hourly_expression_follows_elapsed_time(cron: str, minutes: int, moved: datetime):
    times = next_times(cron, BERLIN, moved - 3 * HOUR, 6 * 60 // minutes)
    assert {later - earlier for earlier, later in pairwise(times)} == {timedelta(minutes=minutes)}


def test_an_expression_for_every_second_hour_matches_a_repeated_hour_twice_and_a_skipped_one_never():
    assert local(next_times("0 */2 * * *", BERLIN, AUTUMN - 2 * HOUR, 4)) == [
        "25 02:00 CEST",
        "25 02:00 CET",
        "25 04:00 CET",
        "25 06:00 CET",
    ]
    assert local(next_times("0 */2 * * *", BERLIN, SPRING - 2 * HOUR, 2)) == [
        "29 04:00 CEST",
        "29 06:00 CEST",
    ]


def test_clocks_that_move_at_midnight_or_by_half_an_hour():
    beirut = datetime(2026, 3, 28, 12, tzinfo=UTC)
    assert local(next_times("0 0 * * *", "Asia/Beirut", beirut, 2), "Asia/Beirut") == [
        "29 01:00 EEST",
        "30 00:00 EEST",
    ]
    howe = datetime(2026, 10, 3, 12, tzinfo=UTC)
    assert local(next_times("15 2 * * *", "Australia/Lord_Howe", howe, 2), "Australia/Lord_Howe") == [
        "04 02:30 +11",
        "05 02:15 +11",
    ]


def test_a_day_of_the_month_and_a_weekday():
    after = datetime(2026, 1, 1, tzinfo=UTC)
    assert local(next_times("0 9 * * MON-FRI", BERLIN, after, 3)) == [
        "01 09:00 CET",
        "02 09:00 CET",
        "05 09:00 CET",
    ]
    assert local(next_times("0 0 L * *", "UTC", after, 2), "UTC") == ["31 00:00 UTC", "28 00:00 UTC"]


@pytest.mark.parametrize("seed", range(20))
def test_the_latest_times_are_those_that_came_last(seed: int):
    """Also around the moments at which clocks move: going back in time is another path of the library."""
    chance = random.Random(seed)
    zone = chance.choice([BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Beirut", "UTC"])
    minute = chance.choice(["*", "*/5", "0", "30", "0,30", "15-45/10"])
    hour = chance.choice(["*", "*/2", "2", "1-3", "0", "23"])
    cron = f"{minute} {hour} * * *"
    for month, day in ((3, 8), (3, 29), (4, 5), (10, 4), (10, 25), (11, 1)):
        until = datetime(2026, month, day, 12, tzinfo=UTC) + chance.random() * DAY - chance.random() * DAY
        before: list[datetime] = []
        at = until - 2 * DAY
        while (at := next_time(cron, zone, at)) <= until:
            before.append(at)
        wanted = before[::-1][:20]
        assert latest_times(cron, zone, until, 20)[: len(wanted)] == wanted, (cron, zone, until)


@pytest.mark.parametrize(
    ("cron", "zone", "problem"),
    [
        ("0 9 * *", "UTC", "has 4 fields. Use five"),
        ("* * * * * *", "UTC", "has 6 fields. Use five"),
        ("60 * * * *", "UTC", "the minute is '60'"),
        ("* * * * FUN", "UTC", "the day of the week is"),
        ("*/0 * * * *", "UTC", "the minute is"),
        ("-1 * * * *", "UTC", "the minute is"),
        ("² * * * *", "UTC", "the minute is '²'"),
        ("61 * * * *", "UTC", "the minute is '61'. Use 0 to 59"),
        ("0 9 * * FUN", "UTC", "the day of the week is 'FUN'. Use 0 to 7 or SUN to SAT"),
        ("hello", "UTC", "has 1 field. Use five"),
        ("@daily", "UTC", "is a name, which is not supported. Use '0 0 * * *'"),
        ("@reboot", "UTC", "is a name, which is not supported. Use five fields"),
        ("0 0 30 2 *", "UTC", "there is no such date"),
        ("0 0 31 4,6,9,11 *", "UTC", "there is no such date"),
        ("0 0 */20 * 1L", "UTC", "matches no date in the next 50 years"),
        ("0," * 200 + "0 * * * *", "UTC", "the limit is 200"),
        ("0 9 * * *", "Europe/Berlim", "Did you mean 'Europe/Berlin'"),
        ("0 9 * * *", "", "unknown time zone"),
        ("0 9 * * *", "+02:00", "unknown time zone"),
        ("0 9 * * *", "../../etc/localtime", "unknown time zone"),
        ("0 9 * * *", "localtime", "unknown time zone"),
    ],
)
def test_what_is_refused(cron: str, zone: str, problem: str):
    with pytest.raises(BadInput, match=problem.replace("*", r"\*")):
        check_cron(cron, zone, SPRING)


def test_an_expression_is_stored_with_single_spaces():
    assert check_cron("  0   9 * *\tmon-fri ", BERLIN, SPRING) == "0 9 * * mon-fri"
