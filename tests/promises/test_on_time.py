"""Promise 11: a wait ends once and never early, and every signal is received once, whatever is killed."""

from collections import Counter
from typing import Any

import pytest

from tests.conftest import Boundaries
from tests.promises.driver import Crash

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

WAITS = [
    ["signal", "never", "time"],
    ["signal", "paid", "signal"],
    ["signal", "paid", "signal"],
    ["sleep", None, "time"],
]


@pytest.mark.parametrize("kind", ["plain", "tool"])
async def test_a_killed_turn_ends_each_wait_once(crash: Crash, boundaries: Boundaries, kind: str):
    runs = crash.of("waiting_agents")
    (undisturbed,) = await runs.run(kind, "continue", ["none"])
    _check(undisturbed, kind, ended=0)
    assert {"wait_started", "run_waiting"} <= set(undisturbed["kinds"])
    points = undisturbed["points"]
    assert {"slept#0", "did-last#0"} <= set(points)
    assert len(points) >= 20
    for facts in await runs.run(kind, "continue", boundaries.of(points, crash.url)):
        _check(facts, kind, ended=-9)


def _check(facts: dict[str, Any], kind: str, *, ended: int) -> None:
    assert (facts["ended"], facts["went"]) == (ended, 0), facts
    assert facts["violations"] == [], facts
    assert facts["status"] == "idle", facts
    assert '[0, 1, \\"late\\"]' in facts["output"], facts
    assert sorted(facts["waits"], key=str) == WAITS, facts
    assert facts["open"] == [], facts
    assert facts["left"] == ["unexpected"], facts
    assert facts["kinds"].count("signal_arrived") == 3, facts
    assert facts["submissions"] == [["message", "done", None], *[["signal", "done", None]] * 3], facts
    acts: Counter[str] = Counter(facts["log"])
    assert set(acts) == {"first", "second", "third", "last", *(["other"] if kind == "tool" else [])}, facts
    repeated = {name for name, times in acts.items() if times > 1}
    assert len(repeated - {"other"}) <= 1, (
        facts
    )  # a step that is cut off is declared safe to repeat; `other` runs beside the first
