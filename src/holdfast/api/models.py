"""The request and response models. JSON content is an object here; the store keeps it as exact text."""

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
    """A stored type as a response: a subset of its fields, with the same names."""

    model_config = ConfigDict(from_attributes=True, defer_build=True)  # a command uses few of them

    @classmethod
    def of(cls, value: object) -> Self:
        """Return a value in the form in which it is sent."""
        return cls.model_validate(value)


def _parsed(value: Any, info: ValidationInfo) -> Any:
    """Return JSON content from the store, which keeps it as text. Clients receive it parsed."""
    if info.mode == "json":
        return value
    return read_json(value) if value else None


StoredJson = Annotated[Any, BeforeValidator(_parsed)]
"""JSON content, which is an object here and exact text in the store."""
StoredObject = Annotated[dict[str, Any], BeforeValidator(_parsed)]


class Items(ResponseBody, Generic[T]):
    """One page of a list. The last page has no `next_cursor`."""

    items: list[T]
    next_cursor: str | None = None


class ErrorDetail(BaseModel):
    """The error: a fixed code and facts for programs, and a message for people."""

    model_config = ConfigDict(extra="allow")
    code: str
    message: str
    facts: dict[str, Any] = Field(
        description="The values in the message, such as `holder` and `until`, or `size` and `limit`."
    )


class ErrorBody(BaseModel):
    """Every error has this shape."""

    error: ErrorDetail


class NewSession(RequestBody):
    """A session to create."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"agent": "bot", "title": "First talk"}]})
    agent: Name = Field(description="The name of the agent that runs the session.")
    id: Id | None = Field(None, description="The id of the session. By default a new one is generated.")
    title: Line = Field("", description="By default the first line of the first message.")
    metadata: dict[str, Any] = Field(
        default_factory=dict,
        description="Your own keys. Reserved: `model` (one of the agent's models) and `attached` (`true`, or an object with `grace`"
        " in seconds, at least 1, and `on_unwatched`: `handover` or `interrupt`), and `budgets` (a list, per `turn` or `session`).",
    )
    owner: Name | None = Field(None, description="The owner, if not you. For administrators.")


class SessionChange(RequestBody):
    """The changes to a session."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"title": "Renamed", "metadata": {"case": 12}}]}
    )
    title: Line | None = Field(None, description="The new title.")
    hold: StrictBool | None = Field(None, description="Whether the session is protected from retention.")
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
        description="The tool calls that wait for an answer; `worker`: no live worker serves the agent; `limit`: the owner"
        " runs as many sessions as allowed; `resume`: the last run ended with its process."
    )
    error: str | None = Field(
        None,
        description="The reason why the last turn failed, if the status is `failed`. At most 1,000 characters.",
    )
    holder: str | None = Field(description="The name of the worker that is running the session.")
    held_until: datetime | None
    seq: int = Field(description="The number of the session's last event.")
    pending: int
    hold: bool
    created_at: datetime
    active_at: datetime
    cleaned_at: datetime | None
    parent_id: str | None = Field(description="The session that delegated to this one.")
    metadata: StoredObject


class SessionDetail(SessionInfo):
    """A session, the tool calls that wait for a decision, and the reason why the session waits."""

    problem: str | None = Field(
        None,
        description="The reason why no worker continues the session, and the remedy, if `waiting_for` is `worker`, `limit` or `resume`.",
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
    message: Any = Field(None, description="The message that the event refers to, if any.")


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
    """One message of the history, in the format of Pydantic AI."""

    position: int
    message: Any


class RecordInfo(BaseModel):
    """A keyed row of a session of another framework."""

    kind: str
    key: str
    body: Any = Field(description="The content, exactly as it is stored.")


class ConversationEntry(BaseModel):
    """One entry of the conversation of another framework's session."""

    key: str
    role: Literal["user", "assistant", "tool", "system", "other"] = Field(
        description="`other` for an unrecognized entry."
    )
    text: str = Field(
        description="The readable text of the entry. Text of more than 256 Ki characters is cut; `body` has the complete content."
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


def _undo_name(value: Any) -> Any:
    """Return the name of an undo. The store keeps it with the arguments of the step."""
    match read_json(value) if isinstance(value, str) and value.startswith("{") else value:
        case {"undo": str(name)}:
            return name
        case str(name):
            return name
        case _:
            return None


class EffectInfo(ResponseBody):
    """The ledger entry of one tool call, step, or undo of a step."""

    run_id: str
    call_id: str
    tool: str
    state: EffectState
    step: int | None
    attempts: int
    arguments_digest: str | None
    idempotency_key: str | None
    summary: str | None
    undo: Annotated[str | None, BeforeValidator(_undo_name)] = Field(
        None, description="The function that undoes the step."
    )
    undoes: str | None = Field(
        None,
        description="The call id of the step that this entry is the undo of. The step is undone when this is completed.",
    )
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
    more: bool = Field(description="Whether there are more waiting sessions than returned.")


class CallOutcome(RequestBody):
    """The outcome of a call whose outcome is unknown: its result, or its error."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"result": {"paid": True}}]})
    result: Any = Field(None, description="The result of the call, as the tool would have returned it.")
    error: Annotated[str, Field(min_length=1, max_length=10_000)] | None = Field(
        None, description="The error. If given, the call counts as failed."
    )


class NewCredential(RequestBody):
    """A credential to store. It cannot be read back."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"value": "a secret", "ttl": 3600}]})
    value: Annotated[SecretStr, Field(min_length=1, max_length=65_536)] = Field(
        description="The secret. It is encrypted before it is stored."
    )
    ttl: Annotated[float, Field(ge=1, le=86_400 * 3650)] | None = Field(
        None, description="Seconds after which the credential is deleted; by default it is kept."
    )


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

    name: str | None = Field(description="Null for the unnamed agent state.")
    version: int


class StateList(BaseModel):
    """The states of a session."""

    items: list[StateVersion]


class NewState(RequestBody):
    """A new agent state, and the version it replaces."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"body": {"step": 3}, "expected_version": 0}]})
    body: Any = Field(description="The new state: any JSON value.")
    expected_version: Number = Field(
        description="The version that the new state replaces; 0 if there is none. If the current version differs, the response is 409."
    )


class NewCursor(RequestBody):
    """The position of a consumer in the events."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"seq": 0}]})
    seq: Number = Field(description="The number of the last event that the consumer has read.")


class ReadCursor(ResponseBody):
    """The position of a consumer in the events."""

    consumer: str
    seq: int
    at: datetime


class WorkerInfo(ResponseBody):
    """A worker or another holder of sessions."""

    id: str
    name: str
    sessions: int
    deadline: datetime
    agents: Sequence[str] = Field(description="The agents that the worker serves.")


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
    agents: Sequence[str] = Field(description="The agents for which you can create sessions.")
    demo: bool = Field(False, description="Whether this is `holdfast demo`, where a worker can be killed.")


class ServerInfo(BaseModel):
    """The version of the server, in the format that clients of other agent servers expect."""

    title: str = "Holdfast"
    version: str
    uptime: float = Field(description="Seconds since the server started.")
    idle_time: float = Field(description="Seconds since the last request with a token.")
    docs: str = "/docs"


class Health(BaseModel):
    """The health of the server."""

    status: Literal["ok", "unavailable"]
    problem: str | None = None


class KillRequest(RequestBody):
    """The session whose worker is killed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"session_id": "s1"}]})
    session_id: Id | None = None


class KillResult(BaseModel):
    """The process that was killed."""

    pid: int
