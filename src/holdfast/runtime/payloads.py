"""Parse and check submissions."""

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from holdfast.content import check_content
from holdfast.errors import BadInput, Conflict, NotFound, TurnNotRetriable
from holdfast.types import TURNS, Submission, SubmissionState, state_text

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_ai.messages import UserContent

    from holdfast.api.submissions import SubmissionInfo
    from holdfast.store import Store

_OPEN: tuple[SubmissionState, ...] = ("queued", "claimed", "waiting")


def parse_payload(submission: Submission) -> dict[str, Any]:
    """Return the payload. Raises `BadInput` if it is not an object."""
    payload = json.loads(submission.payload)
    if not isinstance(payload, dict):
        raise BadInput(problem=f"the payload of {submission.kind} must be an object")
    return payload  # pyright: ignore[reportUnknownVariableType]


def parse_content(submission: Submission) -> "str | list[UserContent]":
    """Return the content of a message: its `text`, or the parts of its `content`. Raises `BadInput`."""
    content = check_content(parse_payload(submission))
    return content if isinstance(content, str) else _parts().validate_python(content)


@cache
def _parts() -> "TypeAdapter[list[UserContent]]":
    from pydantic import TypeAdapter
    from pydantic_ai.messages import UserContent

    return TypeAdapter(list[UserContent])


async def check_retry(store: "Store", session_id: str, submission_id: str, from_step: str | None) -> None:
    """Raise `NotFound`, `Conflict` or `TurnNotRetriable` unless a turn of a session can be retried now."""
    turn = await store.submission(submission_id)
    if turn.session_id != session_id:
        raise NotFound(what="submission", id=submission_id)  # as if it did not exist
    if turn.state == "claimed" and (waits_for := (await store.session(session_id)).waiting_for):
        raise TurnNotRetriable(submission_id=turn.id, problem=f"it still runs, and waits for {waits_for}")
    check_retriable(turn, from_step)
    for state in _OPEN:
        for other in (await store.submissions(session_id, state=state, limit=1000)).items:
            if other.kind == "retry" and parse_payload(other).get("submission_id") == turn.id:
                problem = f"it is already being retried, by submission {other.id}"
                raise TurnNotRetriable(submission_id=turn.id, problem=problem)


def is_refused_retry(submission: "Submission | SubmissionInfo") -> bool:
    """Return whether a submission is a retry that ended without a run. The turn that it names is still the last one."""
    return submission.kind == "retry" and submission.run_id is None and submission.state in {"failed", "dead"}


def check_retriable(submission: Submission, from_step: str | None = None) -> None:
    """Raise `Conflict` or `TurnNotRetriable` unless a submission is a turn that failed, was interrupted or was given up.

    From a step, a turn that is done is valid too.
    """
    if submission.kind not in TURNS:
        raise Conflict(problem=f"submission {submission.id} is not a turn, but {submission.kind!r}")
    if is_refused_retry(submission):
        problem = (
            "it is a retry that was refused; retry the turn that it names, or the last one of the session"
        )
        raise TurnNotRetriable(submission_id=submission.id, problem=problem)
    if submission.state not in {"failed", "dead"} and not (from_step and submission.state == "done"):
        problem = f"it is {state_text(submission.state)}, and only a turn that failed can be retried"
        raise TurnNotRetriable(submission_id=submission.id, problem=problem)


async def check_undo(store: "Store", session_id: str, submission_id: str) -> Submission:
    """Return the submission of a turn whose effects can be undone. Raises `NotFound` and `Conflict`."""
    turn = await store.submission(submission_id)
    if turn.session_id != session_id:
        raise NotFound(what="submission", id=submission_id)  # as if it did not exist
    if turn.kind not in TURNS:
        raise Conflict(problem=f"submission {turn.id} is not a turn, but {turn.kind!r}")
    if turn.ended_at is None:
        problem = f"turn {turn.id} is {state_text(turn.state)}. Interrupt it, or wait until it has ended, then undo its effects"
        raise Conflict(problem=problem)
    return turn


def step_to_repeat(submission: Submission) -> str | None:
    """Return the step that a retry starts from; None if it only continues."""
    return parse_payload(submission).get("from_step") if submission.kind == "retry" else None
