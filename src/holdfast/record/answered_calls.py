"""The answers to open calls, in the form in which a run of Pydantic AI continues with them."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

from pydantic_ai import DeferredToolResults, ToolApproved, ToolDenied
from pydantic_ai.messages import ModelMessage, ModelRequest

from holdfast.questions import ApprovalAnswer
from holdfast.record import ledger
from holdfast.record.open_calls import pending_calls


def deferred_results(
    messages: Sequence[ModelMessage], given: Mapping[str, ApprovalAnswer], ended: Container[str] = ()
) -> DeferredToolResults | None:
    """Return the answers in the form in which a run continues with them; None if none of them is for an open call.

    If some of the calls are answered, all others run again as well: the recorder lets them wait, or continue. Calls that have
    `ended` do not run again: their recorded outcome takes precedence over a later answer.
    """
    approvals: dict[str, Any] = {}
    unanswered: list[str] = []
    for call in pending_calls(messages):
        answer = given.get(call.tool_call_id)
        if answer is None or answer.digest != ledger.digest(call.args_as_dict()):
            unanswered.append(call.tool_call_id)
        elif answer.approved or call.tool_call_id in ended:
            approvals[call.tool_call_id] = ToolApproved(override_args=answer.arguments)
        else:
            approvals[call.tool_call_id] = ToolDenied(answer.feedback or "The person denied this call.")
    # Pydantic AI requires a result for each call if some of them are answered, now or in the history.
    if approvals or (unanswered and isinstance(messages[-1], ModelRequest)):
        return DeferredToolResults(approvals={**approvals, **dict.fromkeys(unanswered, ToolApproved())})
    return None
