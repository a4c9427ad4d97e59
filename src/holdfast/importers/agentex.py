"""Import the snapshot of a task of scale-agentex: its messages become the history of a session, its states the session's state.

Agentex stores the messages that people see, not the requests to a model. The resulting history is one that providers accept: each
tool result directly follows its call, and a call without a result is in the ledger with an unknown outcome.
"""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_ai.messages import (
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from holdfast.errors import BadImport
from holdfast.importers.conversation import Conversation
from holdfast.importers.report import Notes, Progress, Report, microseconds, nothing
from holdfast.importers.session import ImportOptions, SessionDraft, import_sessions
from holdfast.jsontext import lenient_json
from holdfast.media import MediaStore
from holdfast.store import Store

SYSTEM: Final = "scale-agentex"


class _Known(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Content(_Known):
    author: Literal["user", "agent"]
    style: str = "static"


class _TaskText(_Content):
    type: Literal["text"]
    content: str
    format: str = "plain"
    attachments: list[Any] | None = None


class _Reasoning(_Content):
    type: Literal["reasoning"]
    summary: list[str]
    content: list[str] | None = None


class _Data(_Content):
    type: Literal["data"]
    data: dict[str, Any]


class _ToolRequest(_Content):
    type: Literal["tool_request"]
    tool_call_id: str
    name: str
    arguments: dict[str, Any]


class _ToolResponse(_Content):
    type: Literal["tool_response"]
    tool_call_id: str
    name: str
    content: Any
    is_error: bool | None = None


_AnyContent: TypeAlias = Annotated[
    _TaskText | _Reasoning | _Data | _ToolRequest | _ToolResponse, Field(discriminator="type")
]


class _TaskMessage(_Known):
    id: str | None = None
    task_id: str
    content: _AnyContent
    streaming_status: Literal["IN_PROGRESS", "DONE"] | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class _TaskState(_Known):
    id: str | None = None
    task_id: str
    agent_id: str
    state: dict[str, Any]
    created_at: datetime | None = None
    updated_at: datetime | None = None


class _TaskSnapshot(_Known):
    task_id: str
    messages: list[_TaskMessage]
    task_states: list[_TaskState] = []


async def import_agentex(
    store: Store,
    media: MediaStore,
    file: Path,
    *,
    owner: str = "local",
    agent: str | None = None,
    actor: str,
    dry_run: bool = False,
    progress: Progress = nothing,
) -> Report:
    """Import an exported task snapshot of agentex as a session with the task's id, if it does not exist yet.

    `agent` is the agent that continues the session, by default the one that has a state in the snapshot. A session that
    was imported for another agent is given to it. Raises `BadImport`.
    """
    source = str(file)
    notes = Notes()
    snapshot, since = await asyncio.to_thread(_read, file, notes)

    async def draft(notes: Notes, agent: str | None) -> SessionDraft:
        return _Task(snapshot, source, owner, agent, since, notes).draft()

    return await import_sessions(
        store,
        media,
        [draft],
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


def _read(file: Path, notes: Notes) -> tuple[_TaskSnapshot, datetime]:
    """Return the snapshot and the time of the file, for messages without a time."""
    source = str(file)
    try:
        value: Any = json.loads(file.read_bytes())
        since = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    except OSError as error:
        raise BadImport(source=source, problem=error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise BadImport(source=source, problem=f"it is not valid JSON, or is truncated ({error})") from None
    if not isinstance(value, dict) or not {"task_id", "messages"} <= set(value):  # pyright: ignore[reportUnknownArgumentType]
        raise BadImport(
            source=source, problem="it is not a snapshot of an agentex task: task_id and messages are missing"
        )
    try:
        snapshot = _TaskSnapshot.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        problem = f"it is damaged or of an unknown version ({where}: {first['msg']})"
        raise BadImport(source=source, problem=problem) from None
    if not snapshot.messages and not snapshot.task_states:
        problem = "it is empty; the task was cleaned before it was exported"
        raise BadImport(source=source, problem=problem)
    _check(snapshot, source, notes)
    return snapshot, since


def _check(snapshot: _TaskSnapshot, source: str, notes: Notes) -> None:
    seen: set[tuple[str, str]] = set()
    for kind, items in (("messages", snapshot.messages), ("task_states", snapshot.task_states)):
        for number, item in enumerate(items):
            if item.task_id != snapshot.task_id:
                problem = (
                    f"{kind}[{number}] belongs to task {item.task_id!r:.200}, not {snapshot.task_id!r:.200}"
                )
                raise BadImport(source=source, problem=problem)
            if item.id is None:
                notes.add(f"{kind} without an id", f"{kind}[{number}]")
            elif (kind, item.id) in seen:
                raise BadImport(source=source, problem=f"{kind} {item.id!r:.200} is duplicated")
            else:
                seen.add((kind, item.id))
    _note_unknown_fields(snapshot, "the snapshot", notes, source)
    for message in snapshot.messages:
        _note_unknown_fields(message, "a message", notes, message.id or "?")
        _note_unknown_fields(message.content, f"{message.content.type} content", notes, message.id or "?")
    for state in snapshot.task_states:
        _note_unknown_fields(state, "a task state", notes, state.id or "?")


def _note_unknown_fields(record: _Known, what: str, notes: Notes, where: str) -> None:
    for name in record.model_extra or ():
        notes.add(f"an unknown field of {what}: {name}"[:200], where)


class _Task:
    """Converts one task to a session."""

    def __init__(
        self,
        snapshot: _TaskSnapshot,
        source: str,
        owner: str,
        agent: str | None,
        since: datetime,
        notes: Notes,
    ) -> None:
        self._snapshot = snapshot
        self._notes = notes
        agents = sorted({state.agent_id for state in snapshot.task_states})
        self._agent = agent or (agents[0] if len(agents) == 1 else "agentex")
        self._draft = SessionDraft(
            snapshot.task_id, source=source, system=SYSTEM, agent=self._agent, owner=owner
        )
        known = [item.created_at for item in (*snapshot.messages, *snapshot.task_states) if item.created_at]
        self._began = min(map(_aware, known), default=since)
        self._clock = self._began
        self._conversation = Conversation(
            self._draft, agent=self._agent, key="agentex", began=self._began, notes=notes
        )

    def draft(self) -> SessionDraft:
        """Return the task as a session."""
        for message in self._snapshot.messages:
            self._take(message)
        self._conversation.finish()
        self._add_states()
        return self._draft

    def _take(self, message: _TaskMessage) -> None:
        """Add a message of the task to the history."""
        content = message.content
        at = self._clock if message.created_at is None else _aware(message.created_at)
        self._clock = at
        where = message.id or "?"
        of: dict[str, Any] = message.model_dump(
            mode="json", exclude={"task_id": True, "content": _in_history(content)}, exclude_none=True
        )
        if message.streaming_status == "IN_PROGRESS":
            self._notes.add("messages that were still being streamed: kept as they were", where)
        match content:
            case _TaskText():
                if content.attachments:
                    self._notes.add("attachments: a snapshot names files but does not contain them", where)
                self._add_text(content.author, content.content, at, of)
            case _Data():
                self._notes.add("data messages: kept as JSON text", where)
                self._add_text(content.author, json.dumps(content.data, ensure_ascii=False), at, of)
            case _Reasoning():
                thoughts = content.content or content.summary
                self._conversation.turn(by_model=True, at=at).add(ThinkingPart("\n\n".join(thoughts)), of)
            case _ToolRequest():
                call = ToolCallPart(content.name, content.arguments, content.tool_call_id)
                self._conversation.call(call, at, of)
            case _ToolResponse():
                outcome = "failed" if content.is_error else "success"
                answer = ToolReturnPart(
                    content.name, content.content, content.tool_call_id, timestamp=at, outcome=outcome
                )
                self._conversation.answer(answer, at, of, where)

    def _add_text(self, author: str, text: str, at: datetime, of: dict[str, Any]) -> None:
        part = TextPart(text) if author == "agent" else UserPromptPart(text, timestamp=at)
        self._conversation.turn(by_model=author == "agent", at=at).add(part, of)

    def _add_states(self) -> None:
        """Add the state of the only agent, or a named state for each agent."""
        states = self._snapshot.task_states
        if not states:
            return
        if len({state.agent_id for state in states}) < len(states):
            problem = "it contains more than one state of the same agent"
            raise BadImport(source=self._draft.source, problem=problem)
        times = [_aware(at) for state in states if (at := state.updated_at or state.created_at) is not None]
        at = microseconds(max(times, default=self._clock))
        of = [
            state.model_dump(mode="json", exclude={"task_id", "state"}, exclude_none=True) for state in states
        ]
        self._draft.event("state_changed", at, {"version": 1, "agentex": of})
        if len(states) == 1:
            self._draft.add("states", version=1, body=lenient_json(states[0].state), at=at)
            return
        for state in states:
            self._draft.add(
                "named_states", name=state.agent_id, version=1, body=lenient_json(state.state), at=at
            )


def _in_history(content: _Content) -> set[str]:
    """Return the fields of a content that are part of the history; the others are kept with the event."""
    if isinstance(content, _Reasoning):
        return {"content"} if content.content else {"summary"}
    return {"content", "data", "arguments"}


def _aware(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at
