"""Promise 4: a tool call with a recorded result never runs again; one with an unknown outcome follows its policy."""

from collections import Counter
from typing import Any

import pytest

from tests.conftest import Boundaries
from tests.promises.driver import Crash, every_point

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


async def test_killed_at_every_boundary_and_resumed(crash: Crash, boundaries: Boundaries):
    """Whatever was killed whenever: each completed call ran once, and the answer is that of an undisturbed run."""
    points = await every_point(crash)
    assert len(points) >= 25
    assert "began#0" in points  # on record, and no model was asked yet
    for facts in await crash.run("report", "resume", boundaries.of(points)):
        _check(facts)
        assert len(set(facts["log"])) == len(facts["log"]), facts


async def test_a_tool_declared_safe_is_run_again_with_the_same_key(crash: Crash, boundaries: Boundaries):
    points = [p for p in await every_point(crash) if p.startswith(("did-", "in-"))]
    for facts in await crash.run("retry", "resume", boundaries.of(points)):
        _check(facts)
        assert facts["unknown"] == 0
        # All three took effect, and a call that ran twice had the same key both times.
        calls: Counter[str] = Counter(facts["log"])
        assert {line.split()[0] for line in calls} == {"1", "2", "3"}
        assert len(calls) == 3, facts
        if facts["point"].startswith("did-"):
            assert max(calls.values()) == 2, facts


async def test_tools_that_change_nothing_run_again_and_the_answer_is_the_same(
    crash: Crash, boundaries: Boundaries
):
    (undisturbed,) = await crash.run("readonly", "resume", ["none"])
    for facts in await crash.run("readonly", "resume", boundaries.of(undisturbed["points"], crash.url)):
        _check(facts)
        assert facts["unknown"] == 0, facts
        assert {line.split()[0] for line in facts["log"]} == {"1", "2", "3"}, facts


def _check(facts: dict[str, Any]) -> None:
    assert facts["ended"] == -9, facts
    assert facts["went"] == 0, facts
    assert facts["output"] == "done with 3 answers", facts
    assert facts["valid"], facts
    assert facts["whole"], facts
    assert facts["violations"] == [], facts
    assert facts["status"] == "idle", facts
    # What was done before the kill is not done again, but for what a policy says.
    assert facts["log"][: len(facts["before"])] == facts["before"], facts
