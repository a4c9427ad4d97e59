"""Promises 4 and 5 for undos: whatever is killed, the effects of a turn that fails are undone once each, in reverse order."""

from typing import Any

import pytest

from tests.conftest import Boundaries
from tests.promises.driver import Crash
from tests.promises.undoing_agents import STEPS

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

FAILED = "RuntimeError: no more seats"


@pytest.mark.parametrize("kind", ["plain", "tool"])
async def test_a_killed_turn_that_fails_is_undone_completely(crash: Crash, boundaries: Boundaries, kind: str):
    runs = crash.of("undoing_agents")
    (undisturbed,) = await runs.run("probe", kind, ["none"])
    points = undisturbed["points"]
    assert len(points) >= 40
    assert {"in-mail#0", "did-seat#0"} <= set(points)
    for facts in [undisturbed, *await runs.run("probe", kind, boundaries.of(points, crash.url))]:
        _check(facts)
        assert _names(facts) == [*STEPS, *(f"-{name}" for name in reversed(STEPS))], facts
        assert facts["output"] == FAILED, facts
        assert facts["kinds"].count("effect_undone") == len(STEPS), facts


@pytest.mark.parametrize("kind", ["plain", pytest.param("tool", marks=pytest.mark.thorough)])
async def test_a_person_completes_an_undo_whose_outcome_is_unknown(
    crash: Crash, boundaries: Boundaries, kind: str
):
    """Steps and undos are settled by a person, who looks into the log."""
    runs = crash.of("undoing_agents")
    (undisturbed,) = await runs.run("report", kind, ["none"])
    settled = 0
    for facts in await runs.run("report", kind, boundaries.of(undisturbed["points"], crash.url)):
        _check(facts)
        done = [name for name in _names(facts) if not name.startswith("-")]
        assert done == list(STEPS[: len(done)]), facts
        alone = ["-room"] if "-room" in _names(facts) else []  # if the outer step did not happen
        assert not alone or "hotel" not in done, facts
        assert _names(facts) == [*done, *alone, *(f"-{name}" for name in reversed(done))], facts
        settled += facts["output"] != FAILED
    assert settled


def _names(facts: dict[str, Any]) -> list[str]:
    return [line.split()[0] for line in facts["log"]]


def _check(facts: dict[str, Any]) -> None:
    assert (facts["ended"], facts["went"]) == (0 if facts["point"] == "none" else -9, 0), facts
    assert facts["violations"] == [], facts
    assert (facts["state"], facts["status"]) == ("failed", "failed"), facts
    assert facts["open"] == [], facts
    assert len(set(facts["undone"])) == len(facts["undone"]), facts
