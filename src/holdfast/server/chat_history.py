"""The history of a session in the form of the AI SDK, in pages of bounded size, the latest messages first."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ThinkingPart
from pydantic_ai.ui.vercel_ai import VercelAIAdapter

from holdfast.errors import Conflict
from holdfast.jsontext import read_recorded
from holdfast.questions import pending_approvals
from holdfast.record.history import load
from holdfast.record.offloader import MediaOffloader
from holdfast.record.partial import PARTIAL
from holdfast.store import Store
from holdfast.types import Checkpoint, Json, Message, Run

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
    runs = await _runs(store, session_id)
    turns = _turns(runs)
    used = await _divided(store, latest[0], end, turns)

    def message_id(message: ModelMessage, role: str, index: int) -> str:
        turn = turns.get(message.run_id or "", message.run_id)
        if role != "assistant" or turn is None or turn in used:
            return f"{turn or session_id}-{start + index}"
        used.add(turn)
        return turn

    asked = {call["call_id"] for call in await pending_approvals(store, session_id)}
    try:
        messages = await _with_partial(store, await asyncio.to_thread(load, bodies), runs)
        body = await asyncio.to_thread(_dump, messages, message_id, asked)
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


def _dump(
    messages: list[ModelMessage], message_id: Callable[[ModelMessage, str, int], str], asked: set[str]
) -> bytes:
    """Return messages of the history as messages of the AI SDK."""
    dumped = VercelAIAdapter.dump_messages(messages, generate_message_id=message_id, sdk_version=6)
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


async def _runs(store: Store, session_id: str) -> list[Run]:
    runs: list[Run] = []
    cursor: str | None = None
    while True:
        page = await store.runs(session_id=session_id, cursor=cursor, limit=1000)
        runs += page.items
        cursor = page.next_cursor
        if cursor is None:
            return runs


def _turns(runs: Sequence[Run]) -> dict[str, str]:
    """Return the first run of the turn of each run that continued another one."""
    turns: dict[str, str] = {}
    for run in runs:
        resumed: object = json.loads(run.metadata).get("resumes")
        if isinstance(resumed, str):
            turns[run.id] = turns.get(resumed, resumed)
    return turns


async def _with_partial(
    store: Store, messages: Sequence[ModelMessage], runs: Sequence[Run]
) -> list[ModelMessage]:
    """Return the messages, and after the last one of each run that was stopped or failed the text that it had streamed."""
    last = {message.run_id: position for position, message in enumerate(messages)}
    ended = [run for run in runs if run.status in {"failed", "interrupted"} and run.id in last]
    streamed = {last[run.id]: response for run in ended if (response := await _partial(store, run))}
    return [
        each
        for position, message in enumerate(messages)
        for each in (message, streamed.get(position))
        if each is not None
    ]


async def _partial(store: Store, run: Run) -> ModelResponse | None:
    checkpoints = await store.checkpoints(run_id=run.id, limit=1)  # the event is later than all of them
    after = max([run.first_seq - 1, 0, *(checkpoint.seq for checkpoint in checkpoints.items)])
    while page := await store.events(run.session_id, after=after, run_id=run.id):
        after = page[-1].seq
        for event in page:
            if event.kind == PARTIAL:
                parts = json.loads(event.payload)["parts"]
                kinds = {"text": TextPart, "thinking": ThinkingPart}
                return ModelResponse(
                    parts=[kinds[part["part_kind"]](part["content"]) for part in parts], run_id=run.id
                )
    return None
