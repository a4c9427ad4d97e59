"""The messages of stock front ends: what is new in a request, and the history of a session in their form."""

import json
from collections.abc import Mapping
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage, ModelRequest, UserContent, UserPromptPart
from pydantic_ai.ui.vercel_ai import VercelAIAdapter
from pydantic_ai.ui.vercel_ai.request_types import UIMessage

from holdfast.content import check_content
from holdfast.errors import BadInput, Conflict, MissingExtra
from holdfast.record.recovery import load_history
from holdfast.runtime.questions import pending_approvals
from holdfast.store import Store

_LONGEST_ID = 150
_CONTENT = TypeAdapter[list[UserContent]](list[UserContent])


def parse_chat(message: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any], str]:
    """Return the answers to approvals in a message, or the payload for it, and its id."""
    try:
        parsed = UIMessage.model_validate(message)
        content = {} if parsed.role == "assistant" else _content(VercelAIAdapter.load_messages([parsed]))
    except ValueError as error:
        raise BadInput(problem=f"the last message is not one of the AI SDK: {_first(error)}") from None
    if not 0 < len(parsed.id) <= _LONGEST_ID:
        raise BadInput(problem=f"the last message needs an id of at most {_LONGEST_ID} characters")
    if parsed.role == "assistant":
        answers = dict(
            _approval(part) for part in message["parts"] if part.get("state") == "approval-responded"
        )
        if not answers:
            raise BadInput(problem="the last message is the agent's own, and answers no approval")
        return answers, {}, parsed.id
    return {}, content, parsed.id


def _approval(part: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the call that a part answers, and the answer."""
    match part:
        case {"toolCallId": str(call_id), "approval": {"approved": bool(approved), **rest}}:
            reason = rest.get("reason")
            if reason is None or isinstance(reason, str):
                return call_id, {"approved": approved, "feedback": reason, "input": part.get("input")}
        case _:
            pass
    raise BadInput(
        problem="an answer to an approval needs `toolCallId`, and `approval` with `approved`, true or false"
    )


def _first(error: ValueError) -> str:
    """Return the first problem, without the input that has it."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


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
        raise BadInput(problem=f"the last message is not one of AG-UI: {_first(error)}") from None


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
        edited, reason = payload.get("editedArgs"), payload.get("reason")
        if not isinstance(edited, dict | None) or not isinstance(reason, str | None):
            raise BadInput(problem="`editedArgs` of an answer must be an object, and `reason` a string")
        answers[call_id] = {"approved": approved, "arguments": edited, "feedback": reason}
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
    """Return the history of a session as messages of the AI SDK: one for each turn, as its stream has it.

    A turn that is active has the same id here and in its stream, so that `useChat` replaces it when it resumes.
    """
    latest = (await store.checkpoints(session_id=session_id, limit=1)).items
    turns = await _turns(store, session_id)
    used: set[str] = set()

    def message_id(message: ModelMessage, role: str, index: int) -> str:
        turn = turns.get(message.run_id or "", message.run_id)
        if role != "assistant" or turn is None or turn in used:
            return f"{turn or session_id}-{index}"
        used.add(turn)
        return turn

    try:
        messages = await load_history(store, latest[0]) if latest else []
        dumped = VercelAIAdapter.dump_messages(messages, generate_message_id=message_id, sdk_version=6)
    except ValueError:
        problem = f"the history of session {session_id} cannot be shown as a chat; GET /api/sessions/{session_id}/messages returns it"
        raise Conflict(problem=problem) from None
    asked = {call["call_id"] for call in await pending_approvals(store, session_id)}
    chat: list[dict[str, Any]] = []
    for each in dumped:
        message = each.model_dump(mode="json", by_alias=True, exclude_none=True)
        if each.role != "assistant":
            chat.append(message)
            continue
        for part in message["parts"]:
            if part.get("state") == "approval-requested" and part["toolCallId"] not in asked:
                part["state"] = "input-available"
                del part["approval"]
        message["parts"].insert(0, {"type": "step-start"})
        if chat and chat[-1]["role"] == "assistant":
            message |= {"id": chat[-1]["id"], "parts": chat[-1]["parts"] + message["parts"]}
            chat.pop()
        chat.append(message)
    return chat


async def _turns(store: Store, session_id: str) -> dict[str, str]:
    """Return the first run of the turn of each run that continued another one."""
    turns: dict[str, str] = {}
    cursor: str | None = None
    while True:
        page = await store.runs(session_id=session_id, cursor=cursor, limit=1000)
        for run in page.items:
            resumed: object = json.loads(run.metadata).get("resumes")
            if isinstance(resumed, str):
                turns[run.id] = turns.get(resumed, resumed)
        cursor = page.next_cursor
        if cursor is None:
            return turns
