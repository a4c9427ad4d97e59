"""The shapes on the wire. JSON content, which the store keeps as exact text, is an object here."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StrictBool,
    ValidationInfo,
)

from holdfast.approval import ApprovalRequest
from holdfast.jsontext import read_json
from holdfast.types import (
    CheckpointKind,
    EffectState,
    Event,
    Role,
    RunStatus,
    Status,
)

T = TypeVar("T")
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[ -~]+$")]
Line = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:@=+~-]{0,127}$"
Id = Annotated[str, Field(pattern=ID_PATTERN, json_schema_extra={"minLength": 1, "maxLength": 128})]
Number = Annotated[int, Field(ge=0, lt=2**63)]


Format: TypeAlias = Literal["vercel", "ag-ui"]
FORMAT_HEADERS: Final[dict[Format, dict[str, str]]] = {
    "vercel": {"x-vercel-ai-ui-message-stream": "v1"},
    "ag-ui": {},
}


class RequestBody(BaseModel):
    """The body of a request. Unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid")


class ResponseBody(BaseModel):
    """One of our types as a client sees it: the fields that are named here, by the same names."""

    model_config = ConfigDict(from_attributes=True, defer_build=True)  # a command uses few of them

    @classmethod
    def of(cls, value: object) -> Self:
        """Return a value as it goes over the wire."""
        return cls.model_validate(value)


def _parsed(value: Any, info: ValidationInfo) -> Any:
    """Return JSON content that comes from the store, which keeps its text; a client receives it parsed."""
    if info.mode == "json":
        return value
    return read_json(value) if value else None


StoredJson = Annotated[Any, BeforeValidator(_parsed)]
"""JSON content, which is an object here and exact text in the store."""
StoredObject = Annotated[dict[str, Any], BeforeValidator(_parsed)]


class Items(ResponseBody, Generic[T]):
    """A part of a list; the last part has no `next_cursor`."""

    items: list[T]
    next_cursor: str | None = None


class ErrorDetail(BaseModel):
    """The error: a fixed code and facts for programs, a message for people."""

    model_config = ConfigDict(extra="allow")
    code: str
    message: str
    facts: dict[str, Any] = Field(
        description="The values that the message is made of, such as `holder` and `until`, or `size` and `limit`."
    )


class ErrorBody(BaseModel):
    """Every error has this shape."""

    error: ErrorDetail


class NewSession(RequestBody):
    """A session to create."""

    agent: Name = Field(description="The name of the agent that runs the session.")
    id: Id | None = Field(None, description="The id of the session. By default a new one is generated.")
    title: Line = Field("", description="By default the first line of the first message.")
    metadata: dict[str, Any] = Field(
        default_factory=dict,
        description="Yours, except `model` (one of the agent's) and `attached`: `true`, or an object with `grace`"
        " seconds, at least 1, and `on_unwatched`, which is `handover` or `interrupt`.",
    )
    owner: Name | None = Field(None, description="Another owner than yourself; for administrators.")


class SessionChange(RequestBody):
    """The changes to a session."""

    title: Line | None = Field(None, description="The new title.")
    hold: StrictBool | None = Field(None, description="Whether retention must not touch it.")
    metadata: dict[str, Any] | None = Field(
        None, description="The new metadata. It replaces the previous one."
    )


class SessionInfo(ResponseBody):
    """One conversation with one agent."""

    id: str
    agent: str
    owner: str
    title: str
    status: Status
    waiting_for: str | None = Field(
        description="The tool calls that wait for an answer; `worker`: no live worker serves its agent; `resume`: its last run ended"
        " with its process."
    )
    error: str | None = Field(
        None, description="Why its last turn failed, if the status is `failed`: the first 1,000 characters."
    )
    holder: str | None = Field(description="The name of the worker that runs it now.")
    held_until: datetime | None
    seq: int = Field(description="The number of its last event.")
    pending: int
    hold: bool
    created_at: datetime
    active_at: datetime
    cleaned_at: datetime | None
    parent_id: str | None = Field(description="The session that delegated to this one.")
    metadata: StoredObject


class SessionDetail(SessionInfo):
    """A session, the tool calls that wait for a decision, and why it waits."""

    problem: str | None = Field(
        None,
        description="Why no worker continues it, and what to do, if `waiting_for` is `worker` or `resume`.",
    )
    approvals: list[ApprovalRequest] = Field(default_factory=list[ApprovalRequest])


class EventInfo(BaseModel):
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


class HistoryMessage(BaseModel):
    """One message of the history, as Pydantic AI has it."""

    position: int
    message: Any


class RecordInfo(BaseModel):
    """A keyed row of a session of another framework."""

    kind: str
    key: str
    body: Any = Field(description="The content, exactly as it is stored.")


class ConversationEntry(BaseModel):
    """One entry of the conversation in a session of another framework."""

    key: str
    role: Literal["user", "assistant", "tool", "system", "other"] = Field(
        description="`other` for an entry that is not understood."
    )
    text: str = Field(
        description="The entry for people to read. A text of more than 256 Ki characters is cut; `body` has all of it."
    )
    body: Any = Field(description="The entry as the framework stored it.")


class RunInfo(ResponseBody):
    """One execution of the agent loop."""

    id: str
    session_id: str
    agent: str
    status: RunStatus
    parent_id: str | None
    error: str | None
    first_seq: int = Field(
        0,
        description="The number of the session's latest event after the write that recorded the start of the run. The runs of a session"
        " are listed in this order.",
    )
    started_at: datetime | None
    ended_at: datetime | None
    metadata: StoredObject


class CheckpointInfo(ResponseBody):
    """A point of the history from which a session can continue."""

    id: str
    session_id: str
    run_id: str | None
    kind: CheckpointKind
    step: int | None
    length: int
    seq: int
    at: datetime | None


class EffectInfo(ResponseBody):
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


class InboxItem(SessionDetail):
    """A session that waits for a person: for an answer, a worker, a resume, the outcome of a call, or because its last turn failed."""

    effects: list[EffectInfo] = Field(
        default_factory=list[EffectInfo], description="The tool calls whose outcome is unknown."
    )


class Inbox(ResponseBody):
    """The sessions that wait for a person."""

    items: list[InboxItem]
    more: bool = Field(description="Whether more sessions wait than were read.")


class CallOutcome(RequestBody):
    """The outcome of a call whose outcome was unknown: its result, or the error it failed with."""

    result: Any = Field(None, description="The result of the call, as the tool would have returned it.")
    error: Annotated[str, Field(min_length=1, max_length=10_000)] | None = Field(
        None, description="Why the call failed. If it is given, the call counts as failed."
    )


class NewCredential(RequestBody):
    """A credential to store. It cannot be read back."""

    value: Annotated[SecretStr, Field(min_length=1, max_length=65_536)] = Field(
        description="The secret. It is encrypted before it is stored."
    )
    ttl: (
        Annotated[float, Field(ge=1, le=86_400 * 3650, description="Seconds after which it is deleted.")]
        | None
    ) = None


class CredentialInfo(ResponseBody):
    """A credential, without its value."""

    name: str
    expires_at: datetime | None


class AgentState(ResponseBody):
    """The agent state of a session, and its version."""

    version: int
    body: StoredJson


class StateVersion(BaseModel):
    """One state of a session."""

    name: str | None = Field(description="Null: the agent state without a name.")
    version: int


class StateList(BaseModel):
    """The states of a session."""

    items: list[StateVersion]


class NewState(RequestBody):
    """A new agent state, and the version it replaces."""

    body: Any = Field(description="The new state: any JSON value.")
    expected_version: Number = Field(
        description="The version that it replaces; 0 if there is none. Otherwise the answer is 409."
    )


class NewCursor(RequestBody):
    """How far a consumer has read."""

    seq: Number = Field(description="The number of the last event that the consumer has read.")


class ReadCursor(ResponseBody):
    """How far a consumer has read."""

    consumer: str
    seq: int
    at: datetime


class WorkerInfo(ResponseBody):
    """A worker or another holder of sessions."""

    id: str
    name: str
    sessions: int
    deadline: datetime
    agents: Sequence[str] = Field(description="The agents that it serves.")


class AuditRecord(ResponseBody):
    """An entry of the audit log: the actor, the action, the session and the time."""

    id: str
    at: datetime
    actor: str
    action: str
    session_id: str | None
    detail: StoredJson


class Me(BaseModel):
    """Your identity and rights on the server."""

    owner: str
    role: Role
    scopes: Sequence[str]
    agents: Sequence[str] = Field(description="The agents that sessions can be created for.")
    demo: bool = Field(False, description="Whether this is `holdfast demo`, where a worker can be killed.")


class ServerInfo(BaseModel):
    """The version of the server, in the format that clients of other agent servers expect."""

    title: str = "Holdfast"
    version: str
    uptime: float = Field(description="Seconds since the server started.")
    idle_time: float = Field(description="Seconds since the last request with a token.")
    docs: str = "/docs"


class Health(BaseModel):
    """How the server is."""

    status: Literal["ok", "unavailable"]
    problem: str | None = None


class KillRequest(RequestBody):
    """Whose worker to kill."""

    session_id: Id | None = None


class KillResult(BaseModel):
    """Which process is gone."""

    pid: int
