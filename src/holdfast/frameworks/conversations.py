"""Reads the conversation in a session of another framework, for people: who said what, in order.

Records in JSON are interpreted without the framework. The messages of LangGraph are not JSON, so that LangGraph must be installed
to read them; without it the long texts of the session are returned. An entry that is not understood has the role `other` and its content
as it is stored.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from holdfast.errors import BadInput, MissingExtra, SessionCleaned
from holdfast.frameworks.base import FrameworkStore, body_to_text, from_body
from holdfast.frameworks.foreign import framework_of
from holdfast.store import Store
from holdfast.types import Session

Role: TypeAlias = Literal["user", "assistant", "tool", "system", "other"]
Interpreted: TypeAlias = tuple[Role, str]
_OTHER: Final[Interpreted] = ("other", "")
_ROLES: Final[dict[str, Role]] = {
    "ai": "assistant",
    "assistant": "assistant",
    "developer": "system",
    "function": "tool",
    "human": "user",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "user": "user",
}
_BY_WEIGHT: Final[tuple[Role, ...]] = ("user", "assistant", "tool", "system")
"""If a message has parts of several roles, the first of these counts."""
_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a conversation. `key` is its place, `text` is what people read, and `body` is what the framework stored."""

    key: str
    role: Role
    text: str
    body: Any


async def conversation(
    store: Store, session: Session, *, after: str | None = None, limit: int = _PAGE
) -> list[Entry]:
    """Return entries of the conversation after a key. It is empty for a session that no framework wrote.

    Raises `SessionCleaned`, and `BadInput` for a key that is not one.
    """
    if session.cleaned_at is not None:
        raise SessionCleaned(id=session.id)
    if framework_of(session) is None:
        return []
    if session.agent in _WHOLE:
        start = 0 if after is None else _position(after) + 1
        found = [entry async for entry in _WHOLE[session.agent](store, session)]
        return found[start : start + limit]
    if session.agent not in _READERS:
        return []
    kind, prefix, interpret = _READERS[session.agent]
    records = await store.records(session.id, kind, prefix=prefix, after=after, limit=limit)
    entries: list[Entry] = []
    for record in records:
        body = from_body(record.body)
        role, text = interpret(cast("dict[str, Any]", body)) if isinstance(body, dict) else _OTHER
        entries.append(Entry(record.key, role, text, body))
    return entries


def _position(key: str) -> int:
    if not (key.isascii() and key.isdigit()):
        raise BadInput(
            problem=f"{key!r} is not a place in this conversation; use `next_cursor` of the previous page"
        )
    return int(key)


async def _langgraph(store: Store, session: Session) -> AsyncIterator[Entry]:
    """Yield the messages of the latest checkpoint."""
    try:
        from holdfast.frameworks.langgraph import latest_messages
    except MissingExtra:
        shared = FrameworkStore.on_this_loop(store, framework="langgraph", owner=session.owner)
        for position, record in enumerate(await shared.records(session.id, "text")):
            yield Entry(_place(position), "other", json.loads(record.body), None)
        return
    shared = FrameworkStore.on_this_loop(store, framework="langgraph", owner=session.owner)
    messages = await latest_messages(shared, json.loads(session.metadata)["name"])
    for position, message in enumerate(messages):
        yield Entry(_place(position), *_langchain(message), message)


async def _harness(store: Store, session: Session) -> AsyncIterator[Entry]:
    """Yield the messages of the latest snapshot."""
    shared = FrameworkStore.on_this_loop(store, framework="harness", owner=session.owner)
    latest = [
        record
        for kind in ("snapshot", "interrupted")
        for record in await shared.records(session.id, kind, reverse=True, limit=1)
    ]
    if not latest:
        return
    names = from_body(max(latest, key=lambda record: record.key).body)["messages"]
    stored = {record.key: record.body for record in await shared.records(session.id, "message")}
    for position, name in enumerate(names):
        message = json.loads(body_to_text(stored[name]))
        yield Entry(_place(position), *_pydantic_ai(message), message)


def _place(position: int) -> str:
    return f"{position:010}"


def _pydantic_ai(message: dict[str, Any]) -> Interpreted:
    texts: dict[Role, list[str]] = {}
    for part in _dicts(message.get("parts")):
        match part.get("part_kind"):
            case "text":
                texts.setdefault("assistant", []).append(_text(part.get("content")))
            case "tool-call":
                texts.setdefault("assistant", []).append(_call(part.get("tool_name"), part.get("args")))
            case "user-prompt":
                texts.setdefault("user", []).append(_text(part.get("content")))
            case "tool-return" | "retry-prompt":
                texts.setdefault("tool", []).append(_text(part.get("content")))
            case "system-prompt":
                texts.setdefault("system", []).append(_text(part.get("content")))
            case _:
                pass
    for role in _BY_WEIGHT:
        if said := texts.get(role):
            return role, _lines(*said)
    return _OTHER


def _langchain(message: dict[str, Any]) -> Interpreted:
    calls = [_call(call.get("name"), call.get("args")) for call in _dicts(message.get("tool_calls"))]
    return _ROLES.get(str(message.get("type")), "other"), _lines(_text(message.get("content")), *calls)


def _openai(item: dict[str, Any]) -> Interpreted:
    match item:
        case {"type": "function_call"}:
            return "assistant", _call(item.get("name"), item.get("arguments"))
        case {"type": "function_call_output"}:
            return "tool", _text(item.get("output"))
        case {"role": str(role)}:
            return _ROLES.get(role, "other"), _text(item.get("content"))
        case _:
            return _OTHER


def _claude(entry: dict[str, Any]) -> Interpreted:
    match entry:
        case {"type": "user" | "assistant", "message": {"role": str(role), "content": content}}:
            blocks = _dicts(content)
            results = [_text(block.get("content")) for block in blocks if block.get("type") == "tool_result"]
            if results:
                return "tool", _lines(*results)
            calls = [
                _call(block.get("name"), block.get("input"))
                for block in blocks
                if block.get("type") == "tool_use"
            ]
            return _ROLES.get(role, "other"), _lines(_text(content), *calls)
        case _:
            return _OTHER


def _adk(event: dict[str, Any]) -> Interpreted:
    match event:
        case {"content": {"parts": [*_] as parts, **content}}:
            texts = [_adk_part(part) for part in _dicts(parts)]
            results = [
                part for part in _dicts(parts) if _either(part, "function_response", "functionResponse")
            ]
            role = "tool" if results else _ROLES.get(str(content.get("role")), "other")
            return role, _lines(*texts)
        case _:
            return _OTHER


def _adk_part(part: dict[str, Any]) -> str:
    if call := _either(part, "function_call", "functionCall"):
        return _call(call.get("name"), call.get("args"))
    if response := _either(part, "function_response", "functionResponse"):
        return _text(response.get("response"))
    return _text(part.get("text"))


def _either(part: dict[str, Any], *names: str) -> dict[str, Any] | None:
    return next((part[name] for name in names if isinstance(part.get(name), dict)), None)


def _text(content: Any) -> str:
    """Return the text of content: a string, or a list of strings and of blocks that have a text."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    parts = cast("list[Any]", content)
    texts = [
        part if isinstance(part, str) else cast("dict[str, Any]", part).get("text")
        for part in parts
        if isinstance(part, str | dict)
    ]
    return _lines(*(text for text in texts if isinstance(text, str)))


def _call(name: Any, arguments: Any) -> str:
    given = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"{name}({given})"


def _dicts(items: Any) -> list[dict[str, Any]]:
    return (
        [item for item in cast("list[Any]", items) if isinstance(item, dict)]
        if isinstance(items, list)
        else []
    )


def _lines(*texts: str) -> str:
    return "\n".join(text for text in texts if text)


_WHOLE: Final[Mapping[str, Callable[[Store, Session], AsyncIterator[Entry]]]] = {
    "harness": _harness,
    "langgraph": _langgraph,
}
"""The frameworks that store a history as a whole, which is read as a whole."""
_READERS: Final[Mapping[str, tuple[str, str, Callable[[dict[str, Any]], Interpreted]]]] = {
    "adk": ("event", "", _adk),
    "claude-agent-sdk": ("entry", "main/", _claude),
    "openai-agents": ("item", "", _openai),
}
"""For each framework, the kind of its records, the beginning of their keys, and how one is interpreted."""
