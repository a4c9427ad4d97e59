"""Import the sessions of ml-intern from its MongoDB: messages in the format of the OpenAI API, events, and pending work."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeGuard, cast

from pydantic_ai.messages import (
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from holdfast.errors import BadImport
from holdfast.ids import LONGEST_TITLE
from holdfast.importers.conversation import Conversation
from holdfast.importers.report import Notes, Progress, Report, microseconds, nothing
from holdfast.importers.session import ImportOptions, SessionDraft, import_sessions
from holdfast.jsontext import lenient_json
from holdfast.media import MediaStore
from holdfast.store import Store

SYSTEM: Final = "ml-intern"
_NOT_METADATA: Final = {"_id", "session_id", "user_id", "title", "created_at", "lease", "pending_approval"}
_IN_HISTORY: Final = {"role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content"}


async def import_ml_intern(
    store: Store,
    media: MediaStore,
    database: Any,
    *,
    source: str,
    owner: str | None = None,
    agent: str | None = None,
    actor: str,
    deleted: bool = False,
    dry_run: bool = False,
    progress: Progress = nothing,
) -> Report:
    """Import the sessions of a database, each as a session with its id. Raises `BadImport`.

    `owner` replaces the user of each session. `agent` is the agent that continues the sessions, by default `ml-intern`; sessions that were
    imported for another agent are given to it. Deleted sessions are skipped unless `deleted` is set.
    """
    if "sessions" not in await database.list_collection_names():
        raise BadImport(
            source=source, problem="it has no collection named sessions, so it is not a database of ml-intern"
        )
    notes = Notes()
    wanted: list[Mapping[str, Any]] = []
    async for session in database["sessions"].find({}).sort("_id", 1):
        if session.get("visibility") == "deleted" and not deleted:
            notes.add("deleted sessions: skipped", str(session["_id"]))
        else:
            wanted.append(session)

    async def draft(session: Mapping[str, Any], notes: Notes, agent: str | None) -> SessionDraft:
        return await _Session(database, session, source, owner, agent or SYSTEM, notes).draft()

    return await import_sessions(
        store,
        media,
        [partial(draft, session) for session in wanted],
        ImportOptions(
            source=source,
            system=SYSTEM,
            agent=agent,
            actor=actor,
            dry_run=dry_run,
            progress=progress,
            notes=notes,
        ),
    )


class _Session:
    """Converts one session of ml-intern."""

    def __init__(
        self,
        database: Any,
        session: Mapping[str, Any],
        source: str,
        owner: str | None,
        agent: str,
        notes: Notes,
    ) -> None:
        self._database = database
        self._notes = notes
        self._id = str(session["_id"])
        self._began = _time(session.get("created_at")) or datetime.fromtimestamp(0, UTC)
        metadata = {name: value for name, value in session.items() if name not in _NOT_METADATA}
        self._draft = SessionDraft(
            self._id,
            source=source,
            system=SYSTEM,
            agent=agent,
            owner=owner or str(session.get("user_id") or "local"),
            title=str(session.get("title") or "")[:LONGEST_TITLE],
            metadata=lenient_json({"ml_intern": json.loads(json.dumps(metadata, default=str))}),
        )
        self._conversation = Conversation(
            self._draft, agent=agent, key="ml_intern", began=self._began, notes=notes
        )
        self._waiting = _waiting_calls(session.get("pending_approval"))

    async def draft(self) -> SessionDraft:
        """Return the session with its messages, its events and its pending work."""
        async for row in self._rows("session_messages", "idx"):
            self._add(row)
        self._conversation.finish(self._waiting)
        if self._waiting and self._draft.waiting_for is None:
            self._notes.add("pending approvals of other calls than the last ones: not imported", self._id)
        async for row in self._rows("session_events", "seq"):
            payload = {"kind": row.get("event_type"), "data": row.get("data"), "seq": row.get("seq")}
            self._event("ml_intern_event", row, payload)
        async for row in self._rows("pending_submissions", "created_at"):
            if row.get("status") not in {"pending", "claimed"}:
                continue
            text = _message(row)
            if text is not None:
                at = microseconds(_time(row.get("created_at")) or self._began)
                self._draft.submission(at, text)
                continue
            self._notes.add(
                "pending submissions that had begun or are no messages: kept as events, send them again",
                self._id,
            )
            payload = {"kind": row.get("op_type"), "payload": row.get("payload"), "status": row.get("status")}
            self._event("ml_intern_submission", row, payload)
        return self._draft

    def _rows(self, collection: str, order: str) -> Any:
        return self._database[collection].find({"session_id": self._id}).sort(order, 1)

    def _event(self, kind: str, row: Mapping[str, Any], payload: dict[str, Any]) -> None:
        at = microseconds(_time(row.get("created_at")) or self._began)
        self._draft.event(kind, at, json.loads(json.dumps(payload, default=str)))

    def _add(self, row: Mapping[str, Any]) -> None:
        """Add a message in the format of a chat completion."""
        message, where = row.get("message"), f"message {row.get('idx')} of session {self._id}"
        if not _is_object(message) or not isinstance(message.get("role"), str):
            raise BadImport(source=self._draft.source, problem=f"{where} has no role")
        at = _time(row.get("created_at")) or self._began
        rest = {name: value for name, value in message.items() if name not in _IN_HISTORY}
        of = json.loads(json.dumps({"idx": row.get("idx"), **rest}, default=str))
        adders: dict[str, Callable[[dict[str, Any], datetime, dict[str, Any], str], None]] = {
            "system": self._add_instructions,
            "developer": self._add_instructions,
            "user": self._add_prompt,
            "assistant": self._add_response,
            "tool": self._add_result,
        }
        add = adders.get(message["role"])
        if add is None:
            self._notes.add(
                f"messages with the role {message['role']!r:.50}: kept as text of the user", where
            )
            add = self._add_prompt
        add(message, at, of, where)

    def _add_instructions(
        self, message: dict[str, Any], at: datetime, of: dict[str, Any], where: str
    ) -> None:
        part = SystemPromptPart(self._text(message, where), timestamp=at)
        self._conversation.turn(by_model=False, at=at).add(part, of)

    def _add_prompt(self, message: dict[str, Any], at: datetime, of: dict[str, Any], where: str) -> None:
        part = UserPromptPart(self._text(message, where), timestamp=at)
        self._conversation.turn(by_model=False, at=at).add(part, of)

    def _add_response(self, message: dict[str, Any], at: datetime, of: dict[str, Any], where: str) -> None:
        if thinking := message.get("reasoning_content"):
            self._conversation.turn(by_model=True, at=at).add(ThinkingPart(str(thinking)), of)
        if text := self._text(message, where):
            self._conversation.turn(by_model=True, at=at).add(TextPart(text), of)
        for call in message.get("tool_calls") or ():
            function: dict[str, Any] = call.get("function") or {}
            part = ToolCallPart(
                str(function.get("name")), function.get("arguments") or {}, str(call.get("id"))
            )
            self._conversation.call(part, at, of)

    def _add_result(self, message: dict[str, Any], at: datetime, of: dict[str, Any], where: str) -> None:
        part = ToolReturnPart(
            str(message.get("name") or "tool"),
            self._text(message, where),
            str(message.get("tool_call_id")),
            timestamp=at,
        )
        self._conversation.answer(part, at, of, where)

    def _text(self, message: dict[str, Any], where: str) -> str:
        content: Any = message.get("content")
        if content is None or isinstance(content, str):
            return content or ""
        if not isinstance(content, list):
            return lenient_json(json.loads(json.dumps(content, default=str)))
        texts: list[str] = []
        for part in cast("list[Any]", content):
            if _is_object(part) and part.get("type") in {"text", "input_text", "output_text"}:
                texts.append(str(part.get("text")))
            else:
                self._notes.add("content parts other than text: kept as JSON text", where)
                texts.append(json.dumps(part, default=str, ensure_ascii=False))
        return "\n".join(texts)


def _waiting_calls(pending: object) -> set[str]:
    """Return the ids of the calls that wait for an approval."""
    if _is_object(pending):
        pending = pending.get("tool_calls")
    calls = cast("list[Any]", pending) if isinstance(pending, list) else []
    return {str(call.get("tool_call_id") or call.get("id")) for call in calls if _is_object(call)}


def _message(row: Mapping[str, Any]) -> str | None:
    """Return the text of a user's message that waits in the queue. One that was claimed may be in the history already."""
    payload = row.get("payload")
    if row.get("status") != "pending" or row.get("op_type") != "user_input" or not _is_object(payload):
        return None
    text = payload.get("text")
    return text if isinstance(text, str) and text else None


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _time(value: object) -> datetime | None:
    """Return a time from MongoDB, which is UTC without a zone."""
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value
