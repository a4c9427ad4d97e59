"""The shapes on the wire. JSON content, which the store keeps as exact text, is an object here."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeAlias, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, StrictBool, Tag

from holdfast.content import Content
from holdfast.jsontext import read_json
from holdfast.policy import Action
from holdfast.retention.sweep import Result
from holdfast.types import (
    CheckpointKind,
    CommandState,
    EffectState,
    Event,
    Role,
    RunStatus,
    Status,
    SubmissionState,
    WhenBusy,
)

T = TypeVar("T")
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[ -~]+$")]
Line = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
Id = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@=+~-]*$")]
Number = Annotated[int, Field(ge=0, lt=2**63)]


Format: TypeAlias = Literal["vercel", "ag-ui"]
FORMAT_HEADERS: Final[dict[Format, dict[str, str]]] = {
    "vercel": {"x-vercel-ai-ui-message-stream": "v1"},
    "ag-ui": {},
}


class Given(BaseModel):
    """What a client sends: unknown fields are mistakes."""

    model_config = ConfigDict(extra="forbid")


class Shown(BaseModel):
    """One of our types as a client sees it: the fields that are named here, by the same names."""

    model_config = ConfigDict(from_attributes=True)

    @classmethod
    def of(cls, value: object) -> Self:
        """Return a value as it goes over the wire."""
        return cls.model_validate(value)


StoredJson = Annotated[Any, BeforeValidator(lambda text: None if text is None else read_json(text))]
"""JSON content, which is an object here and exact text in the store."""


class Items(Shown, Generic[T]):
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


class SessionOut(Shown):
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
    metadata: Annotated[dict[str, Any], BeforeValidator(read_json)]


class Asked(BaseModel):
    """A tool call that a person is asked about. The answer names its digest."""

    call_id: str
    tool: str
    arguments: dict[str, Any]
    digest: str


class SessionDetail(SessionOut):
    """A session, and what it asks a person."""

    asked: list[Asked] = Field(default_factory=list[Asked])


class _Submitted(Given):
    """What all submissions have."""

    when_busy: WhenBusy = "queue"
    idempotency_key: Name | None = Field(None, description="The same key sends the same thing once.")


class TextMessage(_Submitted):
    """Something that the user says."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"kind": "message", "text": "Hello", "when_busy": "queue"}]},
    )
    kind: Literal["message"] = "message"
    text: str


class ContentMessage(_Submitted):
    """Something that the user says or shows."""

    kind: Literal["message"] = "message"
    content: Content


class HistoryCommand(_Submitted):
    """Something to do with the history, or with the session."""

    kind: Literal["undo", "compact", "shutdown"]


class Rewind(_Submitted):
    """Go on from an earlier checkpoint."""

    kind: Literal["rewind"]
    checkpoint_id: Id


class Fork(_Submitted):
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
    | Annotated[HistoryCommand, Tag("(command)")]
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


class SubmissionOut(Shown):
    """Something asked of a session, and what came of it."""

    submission_id: str = Field(validation_alias="id")
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


class RunOut(Shown):
    """One execution of the agent loop."""

    id: str
    session_id: str
    agent: str
    status: RunStatus
    parent_id: str | None
    error: str | None
    started_at: datetime | None
    ended_at: datetime | None
    metadata: Annotated[dict[str, Any], BeforeValidator(read_json)]


class CheckpointOut(Shown):
    """A point of the history to go on from."""

    id: str
    session_id: str
    run_id: str | None
    kind: CheckpointKind
    step: int | None
    length: int
    seq: int
    at: datetime | None


class EffectOut(Shown):
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
    result: StoredJson = None
    started_at: datetime | None
    ended_at: datetime | None


class CallOutcome(Given):
    """What came of a call whose outcome was unknown: its result, or that it failed."""

    result: Any = None
    error: Annotated[str, Field(min_length=1, max_length=10_000)] | None = None


class StateBody(Shown):
    """The agent state of a session, and its version."""

    version: int
    body: StoredJson


class StateVersion(BaseModel):
    """One state of a session."""

    name: str | None = Field(description="Null: the agent state without a name.")
    version: int


class StatesOut(BaseModel):
    """The states of a session."""

    items: list[StateVersion]


class NewState(Given):
    """A new agent state, and the version it replaces."""

    body: Any
    expected: Number


class NewCursor(Given):
    """How far a consumer has read."""

    seq: Number


class CursorOut(Shown):
    """How far a consumer has read."""

    consumer: str
    seq: int
    at: datetime


class WorkerOut(Shown):
    """Who holds sessions."""

    id: str
    name: str
    sessions: int
    deadline: datetime


class AuditOut(Shown):
    """Who did what to which session, and when."""

    id: str
    at: datetime
    actor: str
    action: str
    session_id: str | None
    detail: StoredJson


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


class CleanBody(BaseModel):
    """How to clean a session."""

    model_config = ConfigDict(extra="forbid", strict=True)

    idle_days: float = Field(7.0, ge=0, le=36500, description="How long it must have been idle.")
    force: bool = Field(
        False, description="Whatever waits; never what runs or is on hold. For administrators."
    )
    archive: Literal["media"] | None = Field(None, description="Keep a verified archive in the media store.")
    dry_run: bool = Field(False, description="Only say what would be deleted.")


class CleanedOut(Shown):
    """What a clean did."""

    session_id: str
    cleaned_at: datetime | None
    archive: str | None
    deleted: dict[str, int]
    dry_run: bool


class RestoredOut(BaseModel):
    """The result of a rehydrate."""

    session_id: str
    archive_sha256: str
    restored: dict[str, int] = Field(description="How many records of each kind came back.")


class ErasedOut(BaseModel):
    """What an erasure did."""

    session_id: str
    erased_at: datetime
    deleted: dict[str, int]
    children: list[str]


class OutlookOut(BaseModel):
    """What retention has in store for a session."""

    session_id: str
    policy: str | None = Field(description="The first policy that matches it; none: it stays.")
    action: Action | None
    idle_days: float | None
    max_age_days: float | None
    keep_last_runs: int | None
    rehydrated_at: datetime | None = Field(description="When it last came from an archive.")
    due_at: datetime | None = Field(description="When its time comes at the earliest, if it does.")
    held_by: Literal["session", "policy"] | None
    guard: str | None = Field(description="What would refuse the sweep at this moment.")
    problem: str | None = Field(description="The same for people, with what would lift it.")
    cleaned_at: datetime | None
    archive: str | None


class SweepBody(BaseModel):
    """How to sweep."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dry_run: bool = Field(False, description="Only say what would be done.")
    limit: int = Field(1000, ge=1, le=10000, strict=False, description="How many sessions at most.")


class OutcomeOut(Shown):
    """What became of one session that was due."""

    session_id: str
    policy: str
    action: Action
    outcome: Result
    guard: str | None
    problem: str | None
    deleted: dict[str, int]


class SweptOut(BaseModel):
    """What a sweep did."""

    items: list[OutcomeOut]
    outcomes: dict[str, int]
    submissions: int
    shell_events: int
    blobs: int
    dry_run: bool
    more: bool = Field(description="The limit was reached, or it ended early: there may be more.")
    problem: str | None = Field(description="Why it ended early.")


HexId = Annotated[str, BeforeValidator(lambda uuid: uuid.replace("-", ""))]
Uuid = Annotated[
    str, Field(pattern="^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$")
]


class NewCommand(Given):
    """A command to run."""

    command: Annotated[str, Field(min_length=1, max_length=1_000_000, pattern=r"^[^\x00]+$")]
    cwd: Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")] | None = None
    timeout: Annotated[int, Field(gt=0, le=86_400, description="Seconds; then it is ended.")] = 300
    session_id: Id | None = Field(None, description="The session that it belongs to, and goes with.")


class BashCommand(Shown):
    """A command that was started."""

    id: HexId
    timestamp: datetime = Field(validation_alias="started_at")
    kind: Literal["BashCommand"] = "BashCommand"
    command: str
    cwd: str | None
    timeout: Annotated[int, BeforeValidator(lambda seconds: round(seconds or 0))]


class BashOutput(Shown):
    """What a command wrote; the last one has its exit code."""

    id: HexId
    timestamp: datetime = Field(validation_alias="at")
    kind: Literal["BashOutput"] = "BashOutput"
    command_id: HexId
    order: int
    exit_code: int | None
    stdout: str | None
    stderr: str | None


BashEvent = BashCommand | BashOutput


class BashPage(BaseModel):
    """A part of the log."""

    items: list[BashEvent]
    next_page_id: str | None = None


class Cleared(BaseModel):
    """How much is gone."""

    cleared_count: int


class CommandResult(Shown):
    """How a command stands; this outlives its output."""

    id: HexId
    state: CommandState
    exit_code: int | None
    stdout_bytes: int
    stderr_bytes: int
    left_out_bytes: int
    session_id: str | None
    started_at: datetime | None
    ended_at: datetime | None


class CommandOut(CommandResult):
    """A command of a session, and the tool call that started it."""

    command: str
    cwd: str | None
    call_id: str | None
    purged_at: datetime | None


class BashError(BaseModel):
    """Why something that a client sent was not done."""

    id: str
    timestamp: datetime
    kind: Literal["BashError"] = "BashError"
    code: str
    detail: str


class Victim(Given):
    """Whose worker to kill."""

    session_id: Id | None = None


class Killed(BaseModel):
    """Which process is gone."""

    pid: int
