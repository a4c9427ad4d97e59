"""Approvals: every answer is bound to the digest of the exact arguments that the person saw."""

from collections.abc import Mapping, Sequence

from pydantic_ai.messages import ToolCallPart

from holdfast.errors import Conflict
from holdfast.record import ledger
from holdfast.runtime.questions import ANSWERED, ApprovalAnswer, parse_answers, recorded_answers
from holdfast.runtime.runner import Runner

__all__ = ["ANSWERED", "ApprovalAnswer", "new_answers", "parse_answers", "recorded_answers"]


def new_answers(
    answers: Sequence[ApprovalAnswer],
    *,
    pending: Sequence[ToolCallPart],
    given: Mapping[str, ApprovalAnswer],
    runner: Runner,
) -> list[ApprovalAnswer]:
    """Return the answers that are new. Raise `Conflict` for an answer to another question, or one that contradicts an earlier answer."""
    calls = {call.tool_call_id: call for call in pending}
    new: list[ApprovalAnswer] = []
    for answer in answers:
        call = calls.get(answer.call_id)
        if call is None:
            raise Conflict(problem=f"call {answer.call_id} does not wait for an answer")
        if ledger.digest(call.args_as_dict()) != answer.digest:
            raise Conflict(
                problem=f"call {answer.call_id} has different arguments from those that were approved or denied"
            )
        before = given.get(answer.call_id)
        if before is not None and before != answer:
            raise Conflict(problem=f"call {answer.call_id} already has a different answer")
        if answer.arguments is not None and not runner.allows_edits(call.tool_name):
            raise Conflict(
                problem=f"the arguments of {call.tool_name} cannot be edited, because the tool does not allow it"
            )
        if before is None:
            new.append(answer)
    return new
