"""Promises 5 and 11: a question is answered once, by a person or at its deadline, whatever is killed meanwhile."""

from collections import Counter
from typing import Any

import pytest

from tests.conftest import Boundaries
from tests.promises.driver import Crash

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


@pytest.mark.parametrize("kind", ["plain", "tool"])
async def test_a_killed_turn_answers_each_question_once(crash: Crash, boundaries: Boundaries, kind: str):
    runs = crash.of("expiring_questions")
    (undisturbed,) = await runs.run(kind, "continue", ["none"])
    _check(undisturbed, kind, ended=0)
    points = undisturbed["points"]
    assert {"asked#0", "did-pay#0", "did-ship#0"} <= set(points)
    assert len(points) >= 16
    for facts in await runs.run(kind, "continue", boundaries.of(points, crash.url)):
        _check(facts, kind, ended=-9)


def _check(facts: dict[str, Any], kind: str, *, ended: int) -> None:
    assert (facts["ended"], facts["went"]) == (ended, 0), facts
    assert facts["violations"] == [], facts
    assert facts["status"] == "idle", facts
    assert r"[\"pay\", \"ship\"]" in facts["output"], facts
    answers = [answer[1:] for answer in facts["answers"]]
    assert sorted(answers, key=str) == [[False, "deadline"], [True, "deadline"], [True, None]], facts
    assert facts["reminders"] == [1, 2], facts
    questions = Counter(call_id for call_id, _ in facts["asked"])
    assert set(questions.values()) == {1}, facts
    assert facts["open"] == [], facts
    assert facts["submissions"] == [["approval", "done", None], ["message", "done", None]], facts
    acts: Counter[str] = Counter(facts["log"])
    assert set(acts) == {"first", "pay", "ship"}, facts
    # A call that is cut off is declared safe to repeat. As tools, pay and ship run at the same time.
    repeated = {act for act, times in acts.items() if times > 1}
    assert max(acts.values()) <= 2, facts
    assert len(repeated) <= 1 or (kind == "tool" and repeated == {"pay", "ship"}), facts
