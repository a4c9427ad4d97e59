"""The shapes on the wire. JSON content, which the store keeps as exact text, is an object here."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictBool, Tag

from holdfast.content import Content
from holdfast.jsontext import read_json
from holdfast.types import (
    Checkpoint,
    CheckpointKind,
    Cursor,
    Effect,
    EffectState,
    Event,
    Holder,
    Role,
    Run,
    RunStatus,
    Session,
    State,
    Status,
    Submission,
    SubmissionState,
    WhenBusy,
)

T = TypeVar("T")
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[ -~]+$")]
Line = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
Id = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@=+~-]*$")]
Number = Annotated[int, Field(ge=0, lt=2**63)]


class Given(BaseModel):
    """What a client sends: unknown fields are mistakes."""

    model_config = ConfigDict(extra="forbid")


class Items(BaseModel, Generic[T]):
    """A part of a list; the last part has no `next_cursor`."""

    items: list[T]
    next_cursor: str | None = None


class ErrorDetail(BaseModel):
    """What went wrong: a fixed code for programs, a message for people."""

    model_config = ConfigDict(extra="allow")
    code: str
    message: str


class ErrorBody(BaseModel):
    """Every error has this shape."""

    error: ErrorDetail


class NewSession(Given):
    """A session to create."""

    agent: Name
    id: Id | None = None
    title: Line = ""
    metadata: dict[str, Any] = Field(
        default_factory=dict,
        description="Yours, except `model` (one of the agent's) and `attached`: `true`, or an object with `grace`"
        " seconds, at least 1, and `then`, which is `handover` or `interrupt`.",
    )
    owner: Name | None = Field(None, description="Another owner than yourself; for administrators.")


class SessionChange(Given):
    """What to change of a session."""

    title: Line | None = None
    hold: StrictBool | None = Field(None, description="Whether retention must not touch it.")
    metadata: dict[str, Any] | None = None


class SessionOut(BaseModel):
    """One conversation with one agent."""

    id: str
    agent: str
    owner: str
    title: str
    status: Status
    waiting_for: str | None
    holder: str | None = Field(description="Who runs it now.")
    held_until: datetime | None
    seq: int = Field(description="The number of its last event.")
    pending: int
    hold: bool
    created_at: datetime
    active_at: datetime
    cleaned_at: datetime | None
    metadata: dict[str, Any]

    @classmethod
    def of(cls, session: Session) -> "SessionOut":
        """Return a session as it goes over the wire."""
        return cls(
            id=session.id,
            agent=session.agent,
            owner=session.owner,
            title=session.title,
            status=session.status,
            waiting_for=session.waiting_for,
            holder=session.holder,
            held_until=session.held_until,
            seq=session.seq,
            pending=session.pending,
            hold=session.hold,
            created_at=session.created_at,
            active_at=session.active_at,
            cleaned_at=session.cleaned_at,
            metadata=read_json(session.metadata),
        )


class Asked(BaseModel):
    """A tool call that a person is asked about. The answer names its digest."""

    call_id: str
    tool: str
    arguments: dict[str, Any]
    digest: str


class SessionDetail(SessionOut):
    """A session, and what it asks a person."""

    asked: list[Asked] = Field(default_factory=list[Asked])


class _Asked(Given):
    """What all submissions have."""

    when_busy: WhenBusy = "queue"
    idempotency_key: Name | None = Field(None, description="The same key sends the same thing once.")


class TextMessage(_Asked):
    """Something that the user says."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"kind": "message", "text": "Hello", "when_busy": "queue"}]},
    )
    kind: Literal["message"] = "message"
    text: str


class ContentMessage(_Asked):
    """Something that the user says or shows."""

    kind: Literal["message"] = "message"
    content: Content


class Command(_Asked):
    """Something to do with the history, or with the session."""

    kind: Literal["undo", "compact", "shutdown"]


class Rewind(_Asked):
    """Go on from an earlier checkpoint."""

    kind: Literal["rewind"]
    checkpoint_id: Id


class Fork(_Asked):
    """Copy the history into a new session."""

    kind: Literal["fork"]
    checkpoint_id: Id | None = None
    session_id: Id | None = None


def _kind(body: Any) -> str:
    given = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    kind: Any = given.get("kind", "message")
    if kind == "message":
        return "(content)" if "content" in given and "text" not in given else "(text)"
    return f"({kind})" if kind in ("rewind", "fork") else "(command)"


NewSubmission = Annotated[
    Annotated[TextMessage, Tag("(text)")]
    | Annotated[ContentMessage, Tag("(content)")]
    | Annotated[Command, Tag("(command)")]
    | Annotated[Rewind, Tag("(rewind)")]
    | Annotated[Fork, Tag("(fork)")],
    Discriminator(_kind),
]


class Answer(Given):
    """What a person decides about a tool call."""

    call_id: Annotated[str, Field(min_length=1, max_length=500)]
    digest: Annotated[str, Field(min_length=64, max_length=64)]
    approved: bool
    feedback: str | None = None
    arguments: dict[str, Any] | None = None


class Place(Given):
    """A checkpoint to go on from."""

    checkpoint_id: Id


class ForkOf(Given):
    """Where a fork begins, the last checkpoint if none is named, and the id it gets."""

    checkpoint_id: Id | None = None
    session_id: Id | None = None


class SubmissionOut(BaseModel):
    """Something asked of a session, and what came of it."""

    submission_id: str
    session_id: str
    position: int = Field(description="The number of its queued event: follow the events from here.")
    kind: str
    lane: Literal["main", "control"]
    when_busy: WhenBusy
    state: SubmissionState
    attempts: int
    reason: str | None
    run_id: str | None
    idempotency_key: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @classmethod
    def of(cls, submission: Submission) -> "SubmissionOut":
        """Return a submission as it goes over the wire."""
        return cls(
            submission_id=submission.id,
            session_id=submission.session_id,
            position=submission.position,
            kind=submission.kind,
            lane=submission.lane,
            when_busy=submission.when_busy,
            state=submission.state,
            attempts=submission.attempts,
            reason=submission.reason,
            run_id=submission.run_id,
            idempotency_key=submission.idempotency_key,
            created_at=submission.created_at,
            started_at=submission.started_at,
            ended_at=submission.ended_at,
        )


class EventOut(BaseModel):
    """One entry of a session's journal."""

    seq: int
    kind: str
    run_id: str | None
    step: int | None
    at: datetime
    payload: Any
    message: Any = Field(None, description="The message that it is about, if it is about one.")


def event_json(event: Event) -> str:
    """Return an event as JSON, with its content exactly as it is stored."""
    head = json.dumps(
        {"seq": event.seq, "kind": event.kind, "run_id": event.run_id, "step": event.step},
        separators=(",", ":"),
    )
    at = f"{event.at:%Y-%m-%dT%H:%M:%S.%f}Z"
    message = "" if event.message is None else f',"message":{event.message}'
    return f'{head[:-1]},"at":"{at}","payload":{event.payload}{message}}}'


class MessageOut(BaseModel):
    """One message of the history, as Pydantic AI has it."""

    position: int
    message: Any


class RunOut(BaseModel):
    """One execution of the agent loop."""

    id: str
    session_id: str
    agent: str
    status: RunStatus
    parent_id: str | None
    error: str | None
    started_at: datetime | None
    ended_at: datetime | None
    metadata: dict[str, Any]

    @classmethod
    def of(cls, run: Run) -> "RunOut":
        """Return a run as it goes over the wire."""
        return cls(
            id=run.id,
            session_id=run.session_id,
            agent=run.agent,
            status=run.status,
            parent_id=run.parent_id,
            error=run.error,
            started_at=run.started_at,
            ended_at=run.ended_at,
            metadata=read_json(run.metadata),
        )


class CheckpointOut(BaseModel):
    """A point of the history to go on from."""

    id: str
    session_id: str
    run_id: str | None
    kind: CheckpointKind
    step: int | None
    length: int
    seq: int
    at: datetime | None

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "CheckpointOut":
        """Return a checkpoint as it goes over the wire."""
        return cls(
            id=checkpoint.id,
            session_id=checkpoint.session_id,
            run_id=checkpoint.run_id,
            kind=checkpoint.kind,
            step=checkpoint.step,
            length=checkpoint.length,
            seq=checkpoint.seq,
            at=checkpoint.at,
        )


class EffectOut(BaseModel):
    """The ledger entry of one tool call."""

    run_id: str
    call_id: str
    tool: str
    state: EffectState
    step: int | None
    attempts: int
    arguments_digest: str | None
    idempotency_key: str | None
    summary: str | None
    error: str | None
    result: Any = None
    started_at: datetime | None
    ended_at: datetime | None

    @classmethod
    def of(cls, effect: Effect) -> "EffectOut":
        """Return an effect as it goes over the wire."""
        return cls(
            run_id=effect.run_id,
            call_id=effect.call_id,
            tool=effect.tool,
            state=effect.state,
            step=effect.step,
            attempts=effect.attempts,
            arguments_digest=effect.arguments_digest,
            idempotency_key=effect.idempotency_key,
            summary=effect.summary,
            error=effect.error,
            result=None if effect.result is None else read_json(effect.result),
            started_at=effect.started_at,
            ended_at=effect.ended_at,
        )


class Outcome(Given):
    """What came of a call whose outcome was unknown: its result, or that it failed."""

    result: Any = None
    error: Annotated[str, Field(min_length=1, max_length=10_000)] | None = None


class StateBody(BaseModel):
    """The agent state of a session, and its version."""

    version: int
    body: Any

    @classmethod
    def of(cls, state: State) -> "StateBody":
        """Return a state as it goes over the wire."""
        return cls(version=state.version, body=read_json(state.body))


class NewState(Given):
    """A new agent state, and the version it replaces."""

    body: Any
    expected: Number


class NewCursor(Given):
    """How far a consumer has read."""

    seq: Number


class CursorOut(BaseModel):
    """How far a consumer has read."""

    consumer: str
    seq: int
    at: datetime

    @classmethod
    def of(cls, cursor: Cursor) -> "CursorOut":
        """Return a cursor as it goes over the wire."""
        return cls(consumer=cursor.consumer, seq=cursor.seq, at=cursor.at)


class WorkerOut(BaseModel):
    """Who holds sessions."""

    id: str
    name: str
    sessions: int
    deadline: datetime

    @classmethod
    def of(cls, holder: Holder) -> "WorkerOut":
        """Return a holder as it goes over the wire."""
        return cls(id=holder.id, name=holder.name, sessions=holder.sessions, deadline=holder.deadline)


class AuditOut(BaseModel):
    """Who did what to which session, and when."""

    id: str
    at: datetime
    actor: str
    action: str
    session_id: str | None
    detail: Any


class Me(BaseModel):
    """Who you are to the server."""

    owner: str
    role: Role
    scopes: Sequence[str]
    agents: Sequence[str] = Field(description="The agents that sessions can be created for.")
    demo: bool = Field(False, description="Whether this is `holdfast demo`, where a worker can be killed.")


class Health(BaseModel):
    """How the server is."""

    status: Literal["ok", "unavailable"]
    problem: str | None = None
