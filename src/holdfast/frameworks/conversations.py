"""Read the conversation of another framework's session as text for people.

Records in JSON are interpreted without the framework. The messages of LangGraph are not JSON, so that LangGraph must be installed
to read them; without it the long texts of the session are returned. An unrecognized entry has the role `other` and its stored
content.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias, cast

from holdfast.errors import BadInput, MissingExtra, SessionCleaned
from holdfast.framework_sessions import framework_of
from holdfast.frameworks.bodies import from_body
from holdfast.frameworks.framework_store import FrameworkStore
from holdfast.store import Store
from holdfast.store.transactions import PAGE_BYTES
from holdfast.types import Session

Role: TypeAlias = Literal["user", "assistant", "tool", "system", "other"]
Interpreted: TypeAlias = tuple[Role, str]
Interpret: TypeAlias = Callable[[Any], Interpreted]
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
_LONGEST_TEXT: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a conversation. `key` is its position, `text` is its readable text, and `body` is its content as the framework stored it.

    Text of more than 256 Ki characters is cut and ends with a note; `body` has the complete content.
    """

    key: str
    role: Role
    text: str
    body: Any


Load: TypeAlias = Callable[[], Any]
"""Returns a body. It is called in a thread, since it may have to parse much."""
Source: TypeAlias = AsyncGenerator[tuple[str, int, Load], None]
"""Yields the key and the size of each entry, and how its body is loaded."""


async def conversation(
    store: Store, session: Session, *, after: str | None = None, limit: int = _PAGE
) -> list[Entry]:
    """Return entries of the conversation after a key. It is empty for a session that no framework wrote.

    A page ends with the entry that reaches 4 MiB; only an empty page means that there are no more. Raises `SessionCleaned`, and
    `BadInput` for a key that is not one.
    """
    if session.cleaned_at is not None:
        raise SessionCleaned(id=session.id)
    if framework_of(session) is None or session.agent not in _SOURCES:
        return []
    read, interpret = _SOURCES[session.agent]
    found: list[tuple[str, Load]] = []
    left = PAGE_BYTES
    async with aclosing(read(store, session, after, limit)) as source:
        async for key, size, load in source:
            found.append((key, load))
            left -= size
            if left <= 0 or len(found) == limit:
                break
    return await asyncio.to_thread(lambda: [_entry(key, load(), interpret) for key, load in found])


def _entry(key: str, body: Any, interpret: Interpret) -> Entry:
    role, text = (
        interpret(body) if isinstance(body, dict) else ("other", body if isinstance(body, str) else "")
    )
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}…\n{len(text) - _LONGEST_TEXT:,} more characters are in `body`."
    return Entry(key, role, text, body)


async def _records(
    store: Store, session: Session, after: str | None, limit: int, *, kind: str, prefix: str = ""
) -> Source:
    """Yield one page of records."""
    for record in await store.records(session.id, kind, prefix=prefix, after=after, limit=limit):
        yield record.key, len(record.body), partial(from_body, record.body)


def _start(after: str | None) -> int:
    """Return the position after the key of an entry in a list."""
    if after is None:
        return 0
    if not (after.isascii() and after.isdigit()):
        raise BadInput(
            problem=f"{after!r} is not a position in this conversation; use `next_cursor` of the previous page"
        )
    return int(after) + 1


async def _langgraph(store: Store, session: Session, after: str | None, limit: int) -> Source:
    """Yield the messages of the latest checkpoint."""
    start = _start(after)
    try:
        from holdfast.frameworks.langgraph import latest_messages
    except MissingExtra:
        for record in await store.records(session.id, "text", after=after, limit=limit):
            yield record.key, len(record.body), partial(json.loads, record.body)
        return
    shared = FrameworkStore.on_this_loop(store, framework="langgraph", owner=session.owner)
    async for position, size, load in latest_messages(shared, session.id, start):
        yield _place(position), size, load


async def _harness(store: Store, session: Session, after: str | None, limit: int) -> Source:
    """Yield the messages of the latest snapshot."""
    start = _start(after)
    shared = FrameworkStore.on_this_loop(store, framework="harness", owner=session.owner)
    latest = [
        record
        for kind in ("snapshot", "interrupted")
        for record in await shared.records(session.id, kind, reverse=True, limit=1)
    ]
    if not latest:
        return
    names = from_body(max(latest, key=lambda record: record.key).body)["messages"]
    for position, name in enumerate(names[start : start + limit], start):
        (record,) = await shared.records(session.id, "message", prefix=name, limit=1)
        yield _place(position), len(record.body), partial(from_body, record.body)


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
    role = message.get("type") or message.get("role")  # a graph without `add_messages` may have plain objects
    return _ROLES.get(str(role), "other"), _lines(_text(message.get("content")), *calls)


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


_SOURCES: Final[Mapping[str, tuple[Callable[[Store, Session, str | None, int], Source], Interpret]]] = {
    "adk": (partial(_records, kind="event"), _adk),
    "claude-agent-sdk": (partial(_records, kind="entry", prefix="main/"), _claude),
    "harness": (_harness, _pydantic_ai),
    "langgraph": (_langgraph, _langchain),
    "openai-agents": (partial(_records, kind="item"), _openai),
}
"""Where the entries of each framework come from, and how one is interpreted."""
