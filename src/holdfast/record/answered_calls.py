"""The answers to open calls, in the form in which a run of Pydantic AI continues with them."""

from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic_ai import DeferredToolResults, ToolApproved, ToolDenied
from pydantic_ai.messages import ModelMessage, ModelRequest

from holdfast.media import MediaStore
from holdfast.questions import ApprovalAnswer
from holdfast.record import ledger
from holdfast.record.offloader import MediaOffloader
from holdfast.record.open_calls import pending_calls, pending_effects, recorded_outcome
from holdfast.store import Store


async def outside_results(
    store: Store, session_id: str, messages: Sequence[ModelMessage], media: MediaStore | None = None
) -> dict[str, Any]:
    """Return the recorded results of the open calls that ran outside of the agent, by call id; of a failed one, what the model is told."""
    effects = await pending_effects(store, session_id, messages)
    # Such a call has no attempt: its tool cannot be called.
    ended = [each for each in effects.values() if each and each.attempts == 0 and each.state != "started"]
    call_ids = {id(effect): call_id for call_id, effect in effects.items()}
    loaded = await MediaOffloader(store, media).effects_back(ended)
    return {
        call_ids[id(effect)]: recorded_outcome(whole) for effect, whole in zip(ended, loaded, strict=True)
    }


def deferred_results(
    messages: Sequence[ModelMessage],
    given: Mapping[str, ApprovalAnswer],
    ended: Container[str] = (),
    outside: Mapping[str, Any] = MappingProxyType({}),
) -> DeferredToolResults | None:
    """Return the answers in the form in which a run continues with them; None if none of them is for an open call.

    If some of the calls are answered, all others run again as well: the recorder lets them wait, or continue. Calls that have
    `ended` do not run again: their recorded outcome takes precedence over a later answer. `outside` has the results of those that ran
    outside of the agent.
    """
    approvals: dict[str, Any] = {}
    unanswered: list[str] = []
    for call in pending_calls(messages):
        answer = given.get(call.tool_call_id)
        if call.tool_call_id in outside:
            continue
        if answer is None or answer.digest != ledger.digest(call.args_as_dict()):
            unanswered.append(call.tool_call_id)
        elif answer.approved or call.tool_call_id in ended:
            approvals[call.tool_call_id] = ToolApproved(override_args=answer.arguments)
        else:
            approvals[call.tool_call_id] = ToolDenied(answer.feedback or "The person denied this call.")
    # Pydantic AI requires a result for each call if some of them are answered, now or in the history.
    if approvals or outside or (unanswered and isinstance(messages[-1], ModelRequest)):
        again = dict.fromkeys(unanswered, ToolApproved())
        return DeferredToolResults(calls={**outside}, approvals={**approvals, **again})
    return None
