"""Promises 4 and 6 for an agent with a delegate in its conversation: a kill repeats no effect of either, and both can be continued."""

from typing import Any

import pytest

from tests.conftest import Boundaries
from tests.promises.driver import Crash

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


async def test_a_resumed_parent_repeats_no_effect_of_its_delegate(crash: Crash, boundaries: Boundaries):
    runs = crash.of("delegates")
    (undisturbed,) = await runs.run("report", "resume", ["none"])
    assert len(undisturbed["points"]) >= 40
    for facts in await runs.run("report", "resume", boundaries.of(undisturbed["points"])):
        _check(facts)
        assert facts["output"] == "parent is done", facts
        assert facts["parent_prompts"] == ["go"], facts
        assert set(facts["delegate_outputs"]) <= {"delegate is done"}, facts
        assert all(prompts == ["help"] for prompts in facts["delegate_prompts"]), facts


@pytest.mark.thorough
async def test_the_next_message_works_for_a_killed_parent_and_its_delegate(
    crash: Crash, boundaries: Boundaries
):
    runs = crash.of("delegates")
    (undisturbed,) = await runs.run("report", "resume", ["none"])
    for facts in await runs.run("report", "continue", boundaries.of(undisturbed["points"])):
        _check(facts)
        assert facts["output"] == "parent continued", facts
        assert set(facts["parent_prompts"]) <= {"go", "next"}, facts
        assert set(facts["delegate_outputs"]) <= {"delegate continued"}, facts
        assert all(prompts == ["help", "next"] for prompts in facts["delegate_prompts"]), facts
        assert facts["log"] == facts["before"], facts  # no tool runs to close the calls that were cut off


def _check(facts: dict[str, Any]) -> None:
    assert (facts["ended"], facts["went"]) == (-9, 0), facts
    assert facts["violations"] == [], facts
    assert all(facts["valid"]), facts
    assert set(facts["statuses"]) == {"idle"}, facts
    effects = [line.split()[0] for line in facts["log"]]
    assert len(set(effects)) == len(effects), facts
    # A delegate that is on record stays the only one: its call has a result, or its outcome is reported as unknown.
    assert len(facts["delegates"]) <= 1, facts
    if facts["cut_off"]:
        assert facts["delegates"] == facts["cut_off"], facts
