"""The guards of retention explain themselves to people, whichever way they asked."""

from datetime import UTC, datetime

import pytest

from holdfast.errors import RetentionRefused
from holdfast.guards import refuse_cleaning
from holdfast.types import RetentionState


def state(*, idle: float = 0.0, hold: bool = False) -> RetentionState:
    return RetentionState(
        session_id="s1",
        status="idle",
        hold=hold,
        holder=None,
        pending=0,
        seq=1,
        behind=(),
        commands=0,
        idle=idle,
        cleaned_at=None,
        archive=None,
        now=datetime.now(UTC),
    )


@pytest.mark.parametrize(
    ("idle", "said"),
    [
        (0.2, "it was active 0 seconds ago. Wait 7 days, or"),
        (1.0, "it was active 1 second ago. Wait 6 days 23 hours, or"),
        (3 * 3600 + 5, "it was active 3 hours ago. Wait 6 days 20 hours, or"),
        (7 * 86400 - 61, "it was active 6 days 23 hours ago. Wait 1 minute 1 second, or"),
    ],
)
def test_the_idle_guard_says_durations_in_words(idle: float, said: str):
    with pytest.raises(RetentionRefused) as refused:
        refuse_cleaning(state(idle=idle), idle=7 * 86400, force=False)
    assert said in str(refused.value)


def test_no_guard_names_an_option_of_the_command_line():
    for refusing in (state(), state(hold=True)):
        with pytest.raises(RetentionRefused) as refused:
            refuse_cleaning(refusing, idle=7 * 86400, force=False)
        assert "--" not in str(refused.value)
