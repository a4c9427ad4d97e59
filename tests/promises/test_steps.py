"""Promises 4 and 6 for steps: a kill repeats no recorded step of a tool or of a plain agent, and both can be continued."""

import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast import Store
from holdfast.testing.agents import ledger
from tests.conftest import Boundaries, Engine
from tests.promises.driver import Crash
from tests.promises.workers import lines, worker
from tests.runtime.agents import ended, kinds, send

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

STEPS = ("first", "left", "right", "inner", "outer", "flaky", "last")
WHOLE = "first done, left done, right done, outer done, flaky done, last done"
UNKNOWN = re.compile(r"[Ss]tep '(\w+)' was started, but it is unknown whether it took effect")


@pytest.mark.parametrize("policy", ["probe", "report", pytest.param("retry", marks=pytest.mark.thorough)])
async def test_a_killed_tool_repeats_no_recorded_step(crash: Crash, boundaries: Boundaries, policy: str):
    runs = crash.of("step_tools")
    (undisturbed,) = await runs.run(policy, "resume", ["none"])
    assert undisturbed["output"] == WHOLE
    assert len(undisturbed["points"]) >= 40
    for facts in await runs.run(policy, "resume", boundaries.of(undisturbed["points"], crash.url)):
        _check(facts, policy)
        if facts["output"] != WHOLE:
            assert policy == "report", facts
            (name,) = UNKNOWN.findall(facts["output"])
            assert facts["recorded"][name][0] == "started", facts


@pytest.mark.parametrize(
    "policy",
    [
        "probe",
        pytest.param("report", marks=pytest.mark.thorough),
        pytest.param("retry", marks=pytest.mark.thorough),
    ],
)
async def test_a_killed_plain_agent_repeats_no_recorded_step_and_no_question(
    crash: Crash, boundaries: Boundaries, policy: str
):
    """Each steering message and each decision is in the history once, and the turn has the answer of an undisturbed one."""
    runs = crash.of("plain_agents")
    (undisturbed,) = await runs.run(policy, "continue", ["none"])
    assert undisturbed["history"] == ["go", "hurry", "heard hurry", "approved", f"hurry: {WHOLE}"]
    assert undisturbed["submissions"] == [
        ["approval", "done", None],
        ["message", "done", None],
        ["message", "done", None],
    ]
    points = undisturbed["points"]
    assert len(points) >= 40
    assert {"heard#0", "asked#0", "approved#0"} <= set(points)
    for facts in await runs.run(policy, "continue", boundaries.of(points, crash.url)):
        _check(facts, policy)
        if facts["history"] != undisturbed["history"]:
            assert policy == "report", facts
            failed = [reason for _, state, reason in facts["submissions"] if state == "failed"]
            (name,) = UNKNOWN.findall(str(failed))
            assert facts["recorded"][name][0] == "started", facts
        else:
            assert facts["submissions"] == undisturbed["submissions"], facts
            assert facts["kinds"].count("approval_requested") == 1, facts
            assert facts["kinds"].count("approval_answered") == 1, facts


async def test_a_plain_agent_with_unknown_steps_has_the_same_answer_once_they_are_settled(
    crash: Crash, boundaries: Boundaries
):
    """A person settles what the policy `report` leaves open, and retries the turn that failed for it."""
    runs = crash.of("plain_agents")
    (undisturbed,) = await runs.run("report", "settle", ["none"])
    points = undisturbed["points"]
    points = points[
        points.index("heard#0") + 1 :
    ]  # before it, the steering message would become a turn of its own
    retried = 0
    for facts in await runs.run("report", "settle", boundaries.of(points, crash.url)):
        _check(facts, "probe")
        assert facts["history"] == undisturbed["history"], facts
        retried += ["retry", "done", None] in facts["submissions"]
    assert retried


async def test_a_stopped_worker_hands_a_plain_agent_over_between_two_steps(
    engine: Engine, store: Store, tmp_path: Path
):
    session = (await store.create_session(agent="steady", owner="you")).id
    log = tmp_path / "log"
    app = "tests.promises.app:steady"
    async with worker(engine.url, app=app, hold=0.3) as first:
        message = await send(store, session, f"work 20 {log}")
        await lines(log, 2)
        first.signal(signal.SIGTERM)
        assert await first.ended() == 0
    async with worker(engine.url, app=app):
        done = await ended(store, message)
    assert (done.state, done.attempts) == ("done", 1)
    acts = [line.split() for line in log.read_text().splitlines()]
    assert [number for number, _ in acts] == [str(number) for number in range(20)]
    assert len({process for _, process in acts}) == 2
    told = await kinds(store, session)
    assert "handover" in told
    assert not {"takeover", "recovered", "run_failed", "probe_answered"} & set(told)
    assert {step.attempts for step in await ledger(store, session)} == {1}


def _check(facts: dict[str, Any], policy: str) -> None:
    assert (facts["ended"], facts["went"]) == (-9, 0), facts
    assert facts["violations"] == [], facts
    assert facts.get("valid", True), facts
    assert facts["status"] in {"idle", "failed"}, facts
    effects = Counter(line.split()[0] for line in facts["log"])
    keys = {tuple(line.split()) for line in facts["log"]}
    for name, (state, key) in facts["recorded"].items():
        if state == "completed":
            assert effects[name] == 1, facts
        assert {other for effect, other in keys if effect == name} <= {key}, facts
    if policy == "report":
        assert set(effects.values()) <= {1}, facts
        return
    open_steps = {name for name, (state, _) in facts["steps"].items() if state != "completed"}
    assert open_steps == set(), facts
    assert set(effects) == set(STEPS), facts
    assert len(keys) == len(STEPS), facts
    assert max(effects.values()) <= (1 if policy == "probe" else 2), facts
