"""The history of a session in the form of the AI SDK, in pages of bounded size, the latest messages first."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic_ai.messages import ModelMessage
from pydantic_ai.ui.vercel_ai import VercelAIAdapter

from holdfast.errors import Conflict
from holdfast.jsontext import read_recorded
from holdfast.record.history import load
from holdfast.record.offloader import MediaOffloader
from holdfast.runtime.questions import pending_approvals
from holdfast.store import Store
from holdfast.types import Checkpoint, Json, Message

_PAGE_BYTES: Final = 2 * 1024 * 1024
"""A page begins with the turn that reaches this size. A turn that is larger than that is divided."""
_WINDOW: Final = 32
_ANSWERS: Final = {"tool-return", "retry-prompt"}
"""The parts of a request that belong to the response before it."""


@dataclass(frozen=True, slots=True)
class ChatPage:
    """Messages of the AI SDK as JSON, and the position in the history to read the earlier ones with, if there are any."""

    body: bytes
    before: int | None


async def dump_chat(store: Store, session_id: str, before: int | None = None) -> ChatPage:
    """Return the last messages of a session, or the last ones before a position: one for each turn, as its stream has it.

    A turn that is active has the same id here and in its stream, so that `useChat` replaces it when it resumes.
    """
    latest = (await store.checkpoints(session_id=session_id, limit=1)).items
    if not latest:
        return ChatPage(b"[]", None)
    end = latest[0].length if before is None else min(before, latest[0].length)
    start, bodies = await _last(store, latest[0], end)
    turns = await _turns(store, session_id)
    used = await _divided(store, latest[0], end, turns)

    def message_id(message: ModelMessage, role: str, index: int) -> str:
        turn = turns.get(message.run_id or "", message.run_id)
        if role != "assistant" or turn is None or turn in used:
            return f"{turn or session_id}-{start + index}"
        used.add(turn)
        return turn

    asked = {call["call_id"] for call in await pending_approvals(store, session_id)}
    try:
        body = await asyncio.to_thread(_dump, bodies, message_id, asked)
    except ValueError:
        problem = f"the history of session {session_id} cannot be shown as a chat; GET /api/sessions/{session_id}/messages returns it"
        raise Conflict(problem=problem) from None
    return ChatPage(body, start or None)


async def _last(store: Store, place: Checkpoint, end: int) -> tuple[int, list[Json]]:
    """Return the messages of a page that ends before a position, with their media, and the position of the first."""
    offloader = MediaOffloader(store)
    bodies: list[Json] = []
    start, size, window = end, 0, _WINDOW
    while start > 0:
        first = max(0, start - window)
        read = await _read(store, place, first, start - first)
        if not read:
            break
        if len(read) < start - first:  # they are large
            window = (start - first) // 2
            continue
        for message in reversed(read):
            bodies += await offloader.back([message.body])
            start, size = message.position, size + len(bodies[-1])
            if size >= _PAGE_BYTES and _begins(message.body, turn=size < 2 * _PAGE_BYTES):
                return start, bodies[::-1]
    return start, bodies[::-1]


async def _read(store: Store, place: Checkpoint, first: int, limit: int) -> Sequence[Message]:
    return await store.history(
        place.session_id, segment=place.segment, length=place.length, after=first - 1, limit=limit
    )


def _begins(body: Json, *, turn: bool) -> bool:
    """Return whether a page may begin with a message: with that of a user, or unless it must be a `turn`, with any response."""
    message: dict[str, Any] = read_recorded(body)
    if message["kind"] == "response":
        return not turn
    kinds = {part["part_kind"] for part in message["parts"]}
    return "user-prompt" in kinds and not kinds & _ANSWERS


async def _divided(store: Store, place: Checkpoint, end: int, turns: dict[str, str]) -> set[str]:
    """Return the turn that continues on the next page, which has its id."""
    following = await _read(store, place, end, 1) if end < place.length else list[Message]()
    if not following or _begins(following[0].body, turn=True):
        return set()
    run_id: object = read_recorded(following[0].body).get("run_id")
    return {turns.get(run_id, run_id)} if isinstance(run_id, str) else set()


def _dump(bodies: list[Json], message_id: Callable[[ModelMessage, str, int], str], asked: set[str]) -> bytes:
    """Return messages of the history as messages of the AI SDK."""
    dumped = VercelAIAdapter.dump_messages(load(bodies), generate_message_id=message_id, sdk_version=6)
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
            chat[-1]["parts"] += message["parts"]
        else:
            chat.append(message)
    return json.dumps(chat, ensure_ascii=False).encode("utf-8", "replace")


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
