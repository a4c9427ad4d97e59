"""Approvals: every answer is bound to the digest of the exact arguments that the person saw."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

from pydantic_ai import DeferredToolResults, ToolApproved, ToolDenied
from pydantic_ai.messages import ModelMessage, ToolCallPart

from holdfast.errors import Conflict
from holdfast.record import ledger
from holdfast.record.validity import pending_calls
from holdfast.runtime.agents import AgentSetup
from holdfast.runtime.questions import ANSWERED, ApprovalAnswer, parse_answers, recorded_answers

__all__ = ["ANSWERED", "ApprovalAnswer", "new_answers", "parse_answers", "recorded_answers", "results"]


def new_answers(
    answers: Sequence[ApprovalAnswer],
    *,
    pending: Sequence[ToolCallPart],
    given: Mapping[str, ApprovalAnswer],
    setup: AgentSetup,
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
        if answer.arguments is not None and not _is_editable(setup, call.tool_name):
            raise Conflict(
                problem=f"the arguments of {call.tool_name} cannot be edited, because the tool does not allow it"
            )
        if before is None:
            new.append(answer)
    return new


def results(
    messages: Sequence[ModelMessage], given: Mapping[str, ApprovalAnswer], ended: Container[str] = ()
) -> DeferredToolResults | None:
    """Return the answers in the form in which a run continues with them; None if none of them is for an open call.

    Calls that have `ended` do not run again: their recorded outcome takes precedence over a later answer.
    """
    approvals: dict[str, Any] = {}
    for call in pending_calls(messages):
        answer = given.get(call.tool_call_id)
        if answer is None or answer.digest != ledger.digest(call.args_as_dict()):
            continue
        if answer.approved or call.tool_call_id in ended:
            approvals[call.tool_call_id] = ToolApproved(override_args=answer.arguments)
        else:
            approvals[call.tool_call_id] = ToolDenied(answer.feedback or "The person denied this call.")
    return DeferredToolResults(approvals=approvals) if approvals else None


def _is_editable(setup: AgentSetup, tool: str) -> bool:
    toolsets: Any = setup.agent.toolsets
    for toolset in toolsets:
        tools: dict[str, Any] = getattr(toolset, "tools", {})
        if tool in tools:
            metadata: dict[str, Any] = tools[tool].metadata or {}
            return bool(metadata.get("editable"))
    return False
