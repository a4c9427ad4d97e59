"""The messages of stock front ends: what is new in a request, and the history of a session in their form."""

from collections.abc import Mapping
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_ai.messages import ModelMessage, ModelRequest, UserContent, UserPromptPart
from pydantic_ai.ui.vercel_ai import VercelAIAdapter
from pydantic_ai.ui.vercel_ai.request_types import UIMessage

from holdfast.content import check_content
from holdfast.errors import BadInput, Conflict, MissingExtra
from holdfast.record.recovery import load_history
from holdfast.store import Store

_CONTENT = TypeAdapter[list[UserContent]](list[UserContent])


def parse_chat(message: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any], str]:
    """Return the answers to approvals in a message, or the payload for it, and its id."""
    try:
        parsed = UIMessage.model_validate(message)
        content = {} if parsed.role == "assistant" else _content(VercelAIAdapter.load_messages([parsed]))
    except ValueError as error:
        raise BadInput(problem=f"the last message is not one of the AI SDK: {error}") from None
    if parsed.role == "assistant":
        answers = {
            part["toolCallId"]: {
                "approved": part["approval"]["approved"],
                "feedback": part["approval"].get("reason"),
                "input": part.get("input"),
            }
            for part in message["parts"]
            if part.get("state") == "approval-responded"
        }
        if not answers:
            raise BadInput(problem="the last message is the agent's own, and answers no approval")
        return answers, {}, parsed.id
    return {}, content, parsed.id


def parse_thread(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the payload for the last message of a thread."""
    try:
        from ag_ui.core import Message
        from pydantic_ai.ui.ag_ui import AGUIAdapter
    except ImportError as error:
        raise MissingExtra(extra="ag-ui") from error
    if not messages:
        raise BadInput(problem="the request has neither messages nor answers to interrupts")
    try:
        parsed = TypeAdapter[Message](Message).validate_python(messages[-1])
        return _content(AGUIAdapter.load_messages([parsed]))
    except ValueError as error:
        raise BadInput(problem=f"the last message is not one of AG-UI: {error}") from None


def parse_resume(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the answers to the interrupts of a thread."""
    answers: dict[str, dict[str, Any]] = {}
    for entry in entries:
        given = entry.get("payload")
        payload = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        approved = False if entry.get("status") == "cancelled" else payload.get("approved")
        if not isinstance(approved, bool):
            raise BadInput(problem="an answer needs a payload with `approved`, true or false")
        call_id = str(entry.get("interruptId", "")).removeprefix("int-")
        edited = {"arguments": payload.get("editedArgs"), "feedback": payload.get("reason")}
        answers[call_id] = {"approved": approved, **edited}
    return answers


def _content(messages: list[ModelMessage]) -> dict[str, Any]:
    """Return the payload of a submission with the user's message."""
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    prompts = [part.content for part in parts if isinstance(part, UserPromptPart)]
    if not prompts:
        raise BadInput(problem="the last message is not a message of the user")
    whole = [item for prompt in prompts for item in ([prompt] if isinstance(prompt, str) else prompt)]
    if len(whole) == 1 and isinstance(whole[0], str):
        return {"text": whole[0]}
    payload = {"content": _CONTENT.dump_python(whole, mode="json")}
    check_content(payload)
    return payload


async def dump_chat(store: Store, session_id: str) -> list[dict[str, Any]]:
    """Return the history of a session as messages of the AI SDK."""
    latest = (await store.checkpoints(session_id=session_id, limit=1)).items
    try:
        messages = await load_history(store, latest[0]) if latest else []
        dumped = VercelAIAdapter.dump_messages(messages, sdk_version=6)
    except ValueError:
        problem = f"the history of session {session_id} cannot be shown as a chat; GET /api/sessions/{session_id}/messages returns it"
        raise Conflict(problem=problem) from None
    return [message.model_dump(mode="json", by_alias=True, exclude_none=True) for message in dumped]
