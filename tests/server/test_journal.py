"""The state that the page builds from the events of a session, in node."""

import json
import shutil
import subprocess
from importlib.resources import files
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
JOURNAL = files("holdfast.server") / "web" / "journal.js"
SCRIPT = """
const { Journal } = await import(process.argv[1]);
const journal = new Journal("s");
const states = [];
for (const event of JSON.parse(process.argv[2])) {
  journal.take([event]);
  states.push(journal.retriable);
}
console.log(JSON.stringify(states));
"""


def retriable(*steps: tuple[str, str, str | None]) -> list[str | None]:
    """Return the turn that the page offers to retry after each event: its kind, its submission, and its run or the kind of the submission."""
    events: list[dict[str, Any]] = []
    for seq, (kind, submission, more) in enumerate(steps, 1):
        payload = {"submission_id": submission, "kind": more, "reason": "no reason"}
        run_id = None if kind == "queued" else more
        at = "2026-01-01T00:00:00Z"
        events.append(
            {"seq": seq, "kind": f"submission_{kind}", "payload": payload, "run_id": run_id, "at": at}
        )
    command = ["node", "--input-type=module", "--eval", SCRIPT, str(JOURNAL), json.dumps(events)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


FAILED = (("queued", "turn", "message"), ("started", "turn", None), ("failed", "turn", "run-1"))


def test_a_failed_turn_can_be_retried():
    assert retriable(*FAILED)[-1] == "turn"
    assert retriable(*FAILED, ("queued", "a", "retry"), ("started", "a", None))[-1] is None
    assert (
        retriable(*FAILED, ("queued", "a", "retry"), ("started", "a", None), ("failed", "a", "run-2"))[-1]
        == "a"
    )


def test_after_a_refused_retry_the_turn_before_it_can_be_retried():
    retries = (
        ("queued", "a", "retry"),
        ("queued", "b", "retry"),
        ("started", "a", None),
        ("failed", "a", "run-2"),
    )
    assert retriable(*FAILED, *retries, ("started", "b", None), ("failed", "b", None))[-1] == "a"


def test_a_retry_that_is_cancelled_in_the_queue_changes_nothing():
    assert retriable(*FAILED, ("queued", "a", "retry"), ("failed", "a", None))[-1] == "turn"
