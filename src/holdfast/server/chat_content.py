"""The requests of stock front ends: the message or the answers that are new in them."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage, ModelRequest, UserContent, UserPromptPart
from pydantic_ai.ui.vercel_ai import VercelAIAdapter
from pydantic_ai.ui.vercel_ai.request_types import FileUIPart, TextUIPart, UIMessage

from holdfast.content import MOST_FIELDS, MOST_PARTS, check_content, check_metadata, place_of
from holdfast.errors import BadInput, MissingExtra

T = TypeVar("T")
_LONGEST_ID = 150
_INTERRUPT = re.compile(r"int-(?P<call_id>.+)-(?P<digest>[0-9a-f]{64})", re.DOTALL)
"""The id of an interrupt, which names the arguments that a person sees: a model may use the id of a call again."""
_CONTENT = TypeAdapter[list[UserContent]](list[UserContent])


def parse_chat(message: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any], str]:
    """Return the answers to approvals in a message, or the payload for it, and its id."""
    message_id, parts = message.get("id"), message.get("parts")
    if not isinstance(message_id, str) or not 0 < len(message_id) <= _LONGEST_ID:
        raise BadInput(problem=f"the last message needs an id of at most {_LONGEST_ID} characters")
    if not isinstance(parts, list):
        raise BadInput(problem="the last message needs a list of `parts`")
    items = cast("list[Any]", parts)
    if message.get("role") == "assistant":
        objects = [cast("dict[str, Any]", part) for part in items if isinstance(part, dict)]
        answers = dict(_approval(part) for part in objects if part.get("state") == "approval-responded")
        if not answers:
            raise BadInput(problem="the last message is the agent's own, and answers no approval")
        return answers, {}, message_id
    if message.get("role") != "user":
        raise BadInput(problem="the last message is not a message of the user")
    shown = _each(items, _chat_part, "parts")
    whole = UIMessage(id=message_id, role="user", parts=[part for part in shown if part is not None])
    return {}, _content(lambda: VercelAIAdapter.load_messages([whole])), message_id


def _each(parts: list[Any], parse: Callable[[dict[str, Any]], T], where: str) -> list[T]:
    """Return the parts of a message, parsed one by one, because a list of unions would report every mistake of every part."""
    if len(parts) > MOST_PARTS:
        raise BadInput(
            problem=f"the last message has {len(parts)} parts; a message has at most {MOST_PARTS} parts"
        )
    result: list[T] = []
    for index, part in enumerate(parts):
        if not isinstance(part, dict) or len(fields := cast("dict[str, Any]", part)) > MOST_FIELDS:
            raise BadInput(
                problem=f"{where}.{index}: a part must be an object with at most {MOST_FIELDS} fields"
            )
        try:
            result.append(parse(fields))
        except ValueError as error:
            raise BadInput(problem=f"the last message: {_first(error, where, index)}") from None
    return result


def _first(error: ValueError, *where: str | int) -> str:
    """Return the location and the text of the first validation error, without the input."""
    place, problem = where, str(error)
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place, problem = (*where, *first["loc"]), first["msg"]
    return f"{place_of(place)}: {problem}" if place else problem


def _chat_part(part: dict[str, Any]) -> TextUIPart | FileUIPart | None:
    """Return a part of a user's message of the AI SDK; None for data of the page, which is not for the agent."""
    kind = part.get("type")
    if isinstance(kind, str) and kind.startswith("data-"):
        return None
    for metadata in (part.get("providerMetadata"), part.get("provider_metadata")):
        if isinstance(metadata, dict):
            check_metadata(cast("dict[str, Any]", metadata))
    if kind == "text":
        return TextUIPart.model_validate(part)
    if kind == "file":
        return FileUIPart.model_validate(part)
    raise ValueError("a part of a user's message must have the `type` text or file")


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


def parse_thread(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the payload for the last message of a thread."""
    try:
        from ag_ui.core import UserMessage
        from pydantic_ai.ui.ag_ui import AGUIAdapter
    except ImportError as error:
        raise MissingExtra(extra="ag-ui") from error
    if not messages:
        raise BadInput(problem="the request has neither messages nor answers to interrupts")
    content: Any = messages[-1].get("content")
    if messages[-1].get("role") != "user" or not isinstance(content, str | list):
        raise BadInput(
            problem="the last message is not a message of the user with text or parts as `content`"
        )

    def parse(part: dict[str, Any]) -> Any:
        (parsed,) = UserMessage.model_validate({"id": "-", "content": [part]}).content
        return parsed

    parts = content if isinstance(content, str) else _each(cast("list[Any]", content), parse, "content")
    whole = UserMessage(id="-", content=parts)
    return _content(lambda: AGUIAdapter.load_messages([whole]))


def parse_resume(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the answers to the interrupts of a thread."""
    answers: dict[str, dict[str, Any]] = {}
    for entry in entries:
        given = entry.get("payload")
        payload = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        approved = False if entry.get("status") == "cancelled" else payload.get("approved")
        if not isinstance(approved, bool):
            raise BadInput(problem="an answer needs a payload with `approved`, true or false")
        answered = _INTERRUPT.fullmatch(str(entry.get("interruptId")))
        if answered is None:
            raise BadInput(problem="`interruptId` of an answer must be the `id` of an interrupt")
        edited, reason = payload.get("editedArgs"), payload.get("reason")
        if not isinstance(edited, dict | None) or not isinstance(reason, str | None):
            raise BadInput(problem="`editedArgs` of an answer must be an object, and `reason` a string")
        answers[answered["call_id"]] = {
            "approved": approved,
            "arguments": edited,
            "feedback": reason,
            "digest": answered["digest"],
        }
    return answers


def _content(load: Callable[[], list[ModelMessage]]) -> dict[str, Any]:
    """Return the payload of a submission with the user's message."""
    try:
        messages = load()
    except ValueError as error:
        raise BadInput(problem=f"the last message: {_first(error)}") from None
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
