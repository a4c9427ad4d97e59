"""Imports the snapshot of a task of scale-agentex: its messages become the history of a session, its states the state.

Agentex keeps what is shown to people, not what a model was sent. The history made of it is one that providers accept:
answers stand right behind their calls, and a call without an answer is on the ledger as one with an unknown outcome.
"""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeGuard

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from holdfast.errors import BadImport
from holdfast.importers.report import Notes, Progress, Report, microseconds, nothing
from holdfast.importers.session import Body, Place, SessionDraft, import_sessions
from holdfast.jsontext import lenient_json
from holdfast.media import MediaStore
from holdfast.record import ledger
from holdfast.record.history import dump
from holdfast.store import Store

SYSTEM: Final = "scale-agentex"
_LOST: Final = "The result of this call was not on record when the conversation was moved here."


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
    """Import the snapshot that agentex exported of a task, as a session with the task's id, if it is not here yet.

    `agent` is who is to go on with it, else the id of the agent that has a state in it. Raises `BadImport`.
    """
    source = str(file)
    notes = Notes()
    snapshot, since = await asyncio.to_thread(_read, file, notes)

    async def draft(told: Notes) -> SessionDraft:
        return _Task(snapshot, source, owner, agent, since, told).draft()

    return await import_sessions(
        store,
        media,
        [draft],
        source=source,
        system=SYSTEM,
        actor=actor,
        dry_run=dry_run,
        progress=progress,
        notes=notes,
    )


def _read(file: Path, notes: Notes) -> tuple[_TaskSnapshot, datetime]:
    """Return the snapshot, and since when it is there: for what has no time of its own."""
    source = str(file)
    try:
        value: Any = json.loads(file.read_bytes())
        since = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    except OSError as error:
        raise BadImport(source=source, problem=error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise BadImport(source=source, problem=f"it is not JSON, or is cut short ({error})") from None
    if not isinstance(value, dict) or not {"task_id", "messages"} <= set(value):  # pyright: ignore[reportUnknownArgumentType]
        raise BadImport(
            source=source, problem="it is no snapshot of an agentex task: task_id and messages are missing"
        )
    try:
        snapshot = _TaskSnapshot.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        problem = f"it is damaged, or of a version that is not known ({where}: {first['msg']})"
        raise BadImport(source=source, problem=problem) from None
    if not snapshot.messages and not snapshot.task_states:
        problem = "there is nothing in it; the task was cleaned before it was exported"
        raise BadImport(source=source, problem=problem)
    _check(snapshot, source, notes)
    return snapshot, since


def _check(snapshot: _TaskSnapshot, source: str, notes: Notes) -> None:
    seen: set[tuple[str, str]] = set()
    for kind, items in (("messages", snapshot.messages), ("task_states", snapshot.task_states)):
        for number, item in enumerate(items):
            if item.task_id != snapshot.task_id:
                problem = f"{kind}[{number}] is of task {item.task_id!r:.200}, not {snapshot.task_id!r:.200}"
                raise BadImport(source=source, problem=problem)
            if item.id is None:
                notes.add(f"{kind} without an id", f"{kind}[{number}]")
            elif (kind, item.id) in seen:
                raise BadImport(source=source, problem=f"{kind} {item.id!r:.200} is there twice")
            else:
                seen.add((kind, item.id))
    _strange(snapshot, "the snapshot", notes, source)
    for message in snapshot.messages:
        _strange(message, "a message", notes, message.id or "?")
        _strange(message.content, f"{message.content.type} content", notes, message.id or "?")
    for state in snapshot.task_states:
        _strange(state, "a task state", notes, state.id or "?")


def _strange(record: _Known, what: str, notes: Notes, where: str) -> None:
    for name in record.model_extra or ():
        notes.add(f"a field of {what} that is not known: {name}"[:200], where)


@dataclass(slots=True)
class _TaskTurn:
    """One message of the history, and the messages of the task that it was made of."""

    by_model: bool
    at: datetime
    parts: list[Any] = field(default_factory=list[Any])
    of: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    answers: "_TaskTurn | None" = None

    def add(self, part: Any, of: dict[str, Any]) -> None:
        """Add a part, and what else is known of it."""
        self.parts.append(part)
        self.of.append(of)

    def calls(self) -> list[ToolCallPart]:
        """Return the tool calls that it makes."""
        return [part for part in self.parts if isinstance(part, ToolCallPart)]

    def answered(self) -> set[str]:
        """Return which of them have an answer."""
        return set() if self.answers is None else {part.tool_call_id for part in self.answers.parts}


class _Task:
    """One task, and how it becomes a session."""

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
        self._run_id = f"agentex-{snapshot.task_id}"[:128]
        self._turns: list[_TaskTurn] = []
        known = [item.created_at for item in (*snapshot.messages, *snapshot.task_states) if item.created_at]
        self._began = min(map(_aware, known), default=since)
        self._clock = self._began

    def draft(self) -> SessionDraft:
        """Return the task as a session."""
        for message in self._snapshot.messages:
            self._take(message)
        draft, began, run_id = self._draft, microseconds(self._began), self._run_id
        draft.event("imported", began, {"system": SYSTEM})
        first = draft.event("run_started", began, {"agent": self._agent, "parent": None}, run_id=run_id)
        turns, pending = self._closed()
        messages = [self._message(turn) for turn in turns]
        segment, places = draft.history.add([Body(dump(message)) for message in messages])
        for turn, place in zip(turns, places, strict=True):
            payload = {"agentex": turn.of} if turn.of else {}
            draft.event("message", microseconds(turn.at), payload, run_id=run_id, message=place)
        if messages:
            kind = "interrupted" if pending else "settled"
            draft.checkpoint(draft.latest, kind, segment, len(places), run_id=run_id, step=None)
        self._ledger(turns, places)
        how = "interrupted" if pending else "completed"
        draft.event(f"run_{how}", draft.latest, run_id=run_id)
        draft.add(
            "runs",
            id=run_id,
            parent_id=None,
            agent=self._agent,
            status=how,
            error=None,
            metadata=lenient_json({"imported_from": SYSTEM}),
            first_seq=first,
            started_at=began,
            ended_at=draft.latest,
        )
        self._add_states()
        return draft

    def _take(self, message: _TaskMessage) -> None:
        """Find the place of a message of the task in the history."""
        content = message.content
        at = self._clock if message.created_at is None else _aware(message.created_at)
        self._clock = at
        where = message.id or "?"
        of: dict[str, Any] = message.model_dump(
            mode="json", exclude={"task_id": True, "content": _in_history(content)}, exclude_none=True
        )
        if message.streaming_status == "IN_PROGRESS":
            self._notes.add("messages that were still being streamed: what there was is kept", where)
        match content:
            case _TaskText():
                if content.attachments:
                    self._notes.add("attachments: a snapshot names files and does not have them", where)
                self._say(content.author, content.content, at, of)
            case _Data():
                self._notes.add("data messages: kept as JSON text", where)
                self._say(content.author, json.dumps(content.data, ensure_ascii=False), at, of)
            case _Reasoning():
                said = content.content or content.summary
                self._turn(by_model=True, at=at).add(ThinkingPart("\n\n".join(said)), of)
            case _ToolRequest():
                call = ToolCallPart(content.name, content.arguments, content.tool_call_id)
                turn = self._turn(by_model=True, at=at)
                if any(other.tool_call_id == call.tool_call_id for other in turn.calls()):
                    turn = self._turn(by_model=True, at=at, fresh=True)
                turn.add(call, of)
            case _ToolResponse():
                self._answer(content, at, of, where)

    def _say(self, author: str, text: str, at: datetime, of: dict[str, Any]) -> None:
        part = TextPart(text) if author == "agent" else UserPromptPart(text, timestamp=at)
        self._turn(by_model=author == "agent", at=at).add(part, of)

    def _turn(self, *, by_model: bool, at: datetime, fresh: bool = False) -> _TaskTurn:
        """Return the last message of the history if more can be added to it, else a new one."""
        last = self._turns[-1] if self._turns else None
        if last is None or fresh or last.by_model != by_model or last.answers is not None:
            last = _TaskTurn(by_model, at)
            self._turns.append(last)
        return last

    def _answer(self, content: _ToolResponse, at: datetime, of: dict[str, Any], where: str) -> None:
        """Put an answer right behind its call, whatever was said in between."""
        for turn in reversed(self._turns):
            if any(call.tool_call_id == content.tool_call_id for call in turn.calls()):
                if content.tool_call_id in turn.answered():
                    break
                turn.answers = turn.answers or _TaskTurn(by_model=False, at=at)
                outcome = "failed" if content.is_error else "success"
                part = ToolReturnPart(
                    content.name, content.content, content.tool_call_id, timestamp=at, outcome=outcome
                )
                turn.answers.add(part, of)
                return
        self._notes.add("tool responses without a request: kept as text", where)
        result = content.content if isinstance(content.content, str) else lenient_json(content.content)
        text = f"Result of the tool {content.name} ({content.tool_call_id}): {result}"
        self._turn(by_model=False, at=at).add(UserPromptPart(text, timestamp=at), of)

    def _closed(self) -> tuple[list[_TaskTurn], bool]:
        """Return the history with every call answered that was gone on from; and whether calls wait at its end."""
        turns: list[_TaskTurn] = []
        pending = False
        for turn in self._turns:
            turns.append(turn)
            missing = [call for call in turn.calls() if call.tool_call_id not in turn.answered()]
            answers = turn.answers
            if missing and turn is self._turns[-1]:
                pending = True
            elif missing:
                answers = answers or _TaskTurn(by_model=False, at=turn.at)
                for call in missing:
                    part = ToolReturnPart(
                        call.tool_name, _LOST, call.tool_call_id, timestamp=turn.at, outcome="interrupted"
                    )
                    answers.parts.append(part)
            for call in missing:
                self._notes.add(
                    "tool requests without a response: their outcome is unknown", call.tool_call_id
                )
            if answers is not None:
                turns.append(answers)
        return turns, pending

    def _message(self, turn: _TaskTurn) -> ModelMessage:
        task, run_id = self._snapshot.task_id, self._run_id
        if turn.by_model:
            return ModelResponse(parts=turn.parts, timestamp=turn.at, run_id=run_id, conversation_id=task)
        return ModelRequest(parts=turn.parts, timestamp=turn.at, run_id=run_id, conversation_id=task)

    def _ledger(self, turns: list[_TaskTurn], places: list[Place]) -> None:
        """Add an entry for each call. A call that nothing answers was begun, and nobody knows what came of it."""
        made: Counter[str] = Counter()
        for turn, following, place in zip(turns, [*turns[1:], None], [*places[1:], None], strict=True):
            for call in turn.calls():
                name = ledger.entry(call.tool_call_id, made[call.tool_call_id])
                made[call.tool_call_id] += 1
                answers = [] if following is None else following.parts
                answer: ToolReturnPart[Any] | None = next(
                    (part for part in answers if _answers(part, call.tool_call_id)), None
                )
                failed = answer is not None and answer.outcome == "failed"
                state = "started" if answer is None else "failed" if failed else "completed"
                segment, position = (None, None) if answer is None or place is None else place
                began = microseconds(turn.at)
                self._draft.add(
                    "effects",
                    run_id=self._run_id,
                    call_id=name,
                    tool=call.tool_name,
                    state=state,
                    step=None,
                    arguments_digest=ledger.digest(call.args_as_dict()),
                    idempotency_key=None,
                    result=None,
                    error="the tool reported an error" if failed else None,
                    summary=None,
                    segment=segment,
                    position=position,
                    attempts=1,
                    started_at=began,
                    ended_at=None if answer is None else max(began, microseconds(answer.timestamp)),
                )

    def _add_states(self) -> None:
        """Add the state of the one agent, or a named state for each of them."""
        states = self._snapshot.task_states
        if not states:
            return
        if len({state.agent_id for state in states}) < len(states):
            problem = "an agent has more than one state in it"
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


def _answers(part: object, call_id: str) -> TypeGuard[ToolReturnPart[Any]]:
    """Say whether a part has the result of a call."""
    return isinstance(part, ToolReturnPart) and part.tool_call_id == call_id and part.outcome != "interrupted"


def _in_history(content: _Content) -> set[str]:
    """Return the fields of a content that the history has: the rest is kept with the event."""
    if isinstance(content, _Reasoning):
        return {"content"} if content.content else {"summary"}
    return {"content", "data", "arguments"}


def _aware(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at
