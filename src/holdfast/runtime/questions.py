"""The open questions of a session, and the recorded answers. Independent of Pydantic AI, so that commands start fast."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from holdfast.errors import BadInput
from holdfast.jsontext import read_recorded, strict_json
from holdfast.store import Store
from holdfast.types import Json, Run, Submission, SubmissionChange

ANSWERED = "approval_answered"


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class ApprovalAnswer:
    """A person's decision on one call."""

    call_id: str
    digest: str
    approved: bool
    feedback: str | None = None
    arguments: dict[str, Any] | None = None
    by: str | None = field(default=None, compare=False)
    """The person who decided. The same decision by another person is the same answer."""

    def as_json(self) -> Json:
        """Return the payload of its event."""
        given = {"feedback": self.feedback, "arguments": self.arguments, "by": self.by}
        facts = {name: value for name, value in given.items() if value is not None}
        return strict_json(
            {"call_id": self.call_id, "digest": self.digest, "approved": self.approved, **facts}, "answer"
        )


_ANSWER = TypeAdapter(ApprovalAnswer)


def parse_answers(payload: Mapping[str, Any]) -> list[ApprovalAnswer]:
    """Return the answers in a submission: one, or a list of `answers`."""
    items: Any = payload.get("answers", [payload])
    if not isinstance(items, list) or not items:
        raise BadInput(problem="`answers` must be a list with at least one answer")
    return [_parse(item) for item in cast("list[object]", items)]


def _parse(item: object) -> ApprovalAnswer:
    try:
        return _ANSWER.validate_json(json.dumps(item), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the answer"
        raise BadInput(
            problem=f"{where}: {first['msg']}. An answer requires `call_id`, `digest` and `approved`"
        ) from None


async def waiting_turn(store: Store, session_id: str) -> Submission | None:
    """Return the submission whose turn waits for a person."""
    page = await store.submissions(session_id, state="waiting", payloads=False, limit=1)
    return page.items[0] if page.items else None


def requeued(waiting: Submission) -> SubmissionChange:
    """Return the change that lets a waiting turn continue. The attempt that ended with the question does not count."""
    attempts = max(waiting.attempts - 1, 0)
    return SubmissionChange(id=waiting.id, state="queued", run_id=waiting.run_id, attempts=attempts)


async def pending_approvals(store: Store, session_id: str) -> list[dict[str, Any]]:
    """Return the open questions of a session: the calls that have no answer yet."""
    waiting = await waiting_turn(store, session_id)
    if waiting is None or waiting.run_id is None:
        return []
    run = await store.run(waiting.run_id)
    given = await recorded_answers(store, session_id, [run])
    questions: list[dict[str, Any]] = []
    after = run.first_seq - 1
    while page := await store.events(session_id, after=after, run_id=run.id):
        after = page[-1].seq
        for event in page:
            if event.kind == "approval_requested":
                questions = json.loads(event.payload)["calls"]
    return [question for question in questions if question["call_id"] not in given]


async def recorded_answers(store: Store, session_id: str, chain: Iterable[Run]) -> dict[str, ApprovalAnswer]:
    """Return the answers to the open calls, by call id, given to a run or to the runs that it continues.

    An answer is for one question. It expires when the call is asked about again, and when the model has responded since, because
    models reuse call ids for other calls.
    """
    given: dict[str, ApprovalAnswer] = {}
    for run in reversed(list(chain)):
        after = run.first_seq - 1
        while page := await store.events(session_id, after=after, run_id=run.id):
            after = page[-1].seq
            for event in page:
                if event.kind == ANSWERED:
                    answer = _parse(json.loads(event.payload))
                    given.setdefault(answer.call_id, answer)
                elif event.kind == "approval_requested":
                    for call in json.loads(event.payload)["calls"]:
                        given.pop(call["call_id"], None)
                elif event.message is not None and read_recorded(event.message).get("kind") == "response":
                    given.clear()
    return given
