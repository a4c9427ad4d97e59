"""The data types that every layer uses, independent of any engine.

JSON content (`payload`, `body`, `result`, `metadata`) is a `Json`: the exact text, stored and returned unchanged, never serialized again.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Literal, TypeAlias, TypeVar, get_args

from holdfast.budgets import Account
from holdfast.priority import Priority
from holdfast.usage import Usage

Json: TypeAlias = str
Status: TypeAlias = Literal[
    "idle", "queued", "running", "waiting", "sleeping", "cleaning", "cleaned", "moved", "failed"
]
Lane: TypeAlias = Literal["main", "control"]
WhenBusy: TypeAlias = Literal["queue", "steer", "interrupt", "reject"]
SubmissionState: TypeAlias = Literal["queued", "claimed", "waiting", "done", "failed", "dead"]
RunStatus: TypeAlias = Literal["running", "completed", "failed", "interrupted", "waiting"]
EffectState: TypeAlias = Literal["started", "completed", "failed"]
CheckpointKind: TypeAlias = Literal["settled", "interrupted"]
Role: TypeAlias = Literal["user", "admin"]
Scope: TypeAlias = Literal["read", "write", "delete", "shell", "admin"]
BlobState: TypeAlias = Literal["storing", "stored", "deleting"]
DueBy: TypeAlias = Literal["idle", "age", "cleaned", "submissions"]

ROLES: tuple[str, ...] = get_args(Role)
SCOPES: tuple[str, ...] = get_args(Scope)
STATUSES: tuple[str, ...] = get_args(Status)
SUSPENDED: tuple[Status, ...] = ("waiting", "sleeping")
"""The statuses of a session whose turn continues later: after an answer, or at a time or signal. Other turns wait behind it."""
LANES: tuple[str, ...] = get_args(Lane)
WHEN_BUSY: tuple[str, ...] = get_args(WhenBusy)
TURNS = ("message", "retry")
"""The kinds of submissions that run a turn of the agent."""
SIGNAL = "signal"
"""The kind of the records in which signals wait until a tool or agent receives them."""
UNDO_EFFECTS = "undo_effects"
"""The kind of submissions that undo the effects of a turn."""
SUBMISSION_STATES: tuple[str, ...] = get_args(SubmissionState)
RUN_STATUSES: tuple[str, ...] = get_args(RunStatus)
EFFECT_STATES: tuple[str, ...] = get_args(EffectState)
CHECKPOINT_KINDS: tuple[str, ...] = get_args(CheckpointKind)
DUE_BY: tuple[str, ...] = get_args(DueBy)

_UNDO_ENTRY = re.compile(r"(.*/[^/]*)~undo(?:~again[0-9]+)?", re.DOTALL)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """One page of a list and the cursor of the next page. The last page has no `next_cursor`."""

    items: Sequence[T]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One conversation with one agent, owned by one principal.

    A `waiting` session waits for a person. A `sleeping` one waits only for times, signals and budgets. `waiting_for` names them. It is
    `worker` if no live worker serves the session's agent, `limit` if its owner runs as many sessions as allowed, and `resume` if the process
    of its last run ended before the run did and no queued submission would continue it.
    A `failed` session is an idle one whose last turn failed, for the reason in `error`. The next turn replaces this outcome.
    """

    id: str
    agent: str
    owner: str
    title: str
    status: Status
    waiting_for: str | None
    holder: str | None
    held_until: datetime | None
    epoch: int
    seq: int
    pending: int
    hold: bool
    metadata: Json
    created_at: datetime
    active_at: datetime
    cleaned_at: datetime | None
    archive: str | None = None
    parent_id: str | None = None
    """The session of the same owner that delegated to this one. It is not set on a session that was just claimed."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionState:
    """The facts about a session that decide whether retention may delete it. `archive` is the SHA-256 of its archive.

    `holder` is the other process that holds it now, `behind` names the consumers whose cursors have not reached `seq`, `awaited_by` is the
    session above that of a delegate whose turn has not ended, `commands` is the number of running shell commands, `idle` is in seconds.
    `cleaned_at` is when the deletion of its content began, `rehydrated_at` when it was last restored, and `now` is the store's current time.
    """

    session_id: str
    status: str
    hold: bool
    holder: str | None
    seq: int
    pending: int
    behind: Sequence[str]
    commands: int
    idle: float
    cleaned_at: datetime | None
    archive: str | None
    now: datetime
    rehydrated_at: datetime | None = None
    awaited_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A session, or one of its submissions, that may be due for retention, as of `now` on the store's clock."""

    session_id: str
    agent: str
    status: str
    metadata: Json
    created_at: datetime
    active_at: datetime
    rehydrated_at: datetime | None
    now: datetime
    submission_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """A task that one holder at a time performs for all. `holder` performs it now; `detail` is the result of the last time."""

    name: str
    holder: str | None
    taken_at: datetime
    done_at: datetime | None
    detail: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request to a session. `position` is its place in the queue and the seq of its queued event.

    `trace` is the trace context of the submitter, as a `traceparent`. `deliver_at` is the time before which it does not start; while it
    waits, the time at which its turn continues without an answer. `priority` orders the sessions of its owner.
    """

    id: str
    session_id: str
    position: int
    kind: str
    lane: Lane
    when_busy: WhenBusy
    payload: Json
    idempotency_key: str | None
    state: SubmissionState
    attempts: int
    reason: str | None
    run_id: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    trace: str | None = None
    deliver_at: datetime | None = None
    priority: Priority = "normal"


def state_text(state: str) -> str:
    """Return the state of a submission as messages name it: one that a worker has claimed is running."""
    return "running" if state == "claimed" else state


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionChange:
    """The new state of a claimed submission: ended, waiting for something, or returned to the queue.

    `run_id` names the run that carries it out, which the next worker resumes. `attempts` replaces the number of attempts that
    count so far. A submission that is queued or waits until `deliver_at` continues at that time.
    """

    id: str
    state: SubmissionState
    reason: str | None = None
    run_id: str | None = None
    attempts: int | None = None
    deliver_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of the agent loop. A delegate run has a parent run. The store sets `first_seq` and the times.

    `first_seq` is the number of the session's latest event after the write that recorded the start of the run. The runs of a
    session are listed in this order.
    """

    id: str
    agent: str = ""
    status: RunStatus = "running"
    parent_id: str | None = None
    error: str | None = None
    metadata: Json = "{}"
    session_id: str = ""
    first_seq: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(slots=True, kw_only=True)
class NewEvent:
    """An event to be written to the journal. The store assigns its number and its time.

    Like `Batch` it is not frozen: it is created on the hot path, where freezing is too expensive.
    `message` refers to a message of the history as (segment, position), which stores its content once.
    """

    kind: str
    payload: Json = "{}"
    run_id: str | None = None
    step: int | None = None
    message: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of a session's journal. `message` is the body of the message that it refers to, joined on reading."""

    session_id: str
    seq: int
    kind: str
    run_id: str | None
    step: int | None
    at: datetime
    payload: Json
    message: Json | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The text of one part that the model is streaming. It is deleted when its message becomes an event.

    `follows` is the number of the last event when the store wrote it. A later message of the run replaces the draft.
    """

    run_id: str
    part: int
    kind: str
    text: str
    follows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A section of the history. Positions below `start` belong to the parent segment; the root has no parent."""

    number: int
    parent: int | None = None
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One entry of the model history. `position` is its index in every history that contains it."""

    segment: int
    position: int
    body: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A point of the history to continue from: the first `length` messages as seen from `segment`."""

    id: str
    segment: int
    length: int
    kind: CheckpointKind = "settled"
    run_id: str | None = None
    step: int | None = None
    session_id: str = ""
    seq: int = 0
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The ledger entry of one tool call. Once it is completed or failed, its outcome never changes.

    `message` is set when the result has moved into that message; `body` is then the message's body. While the effect is
    `started`, `result` describes the reason if it waits. `attempts` is 0 if the tool has not run. `undo` names the function that undoes
    a step, and has the arguments of the step.
    """

    run_id: str
    call_id: str
    tool: str
    state: EffectState = "started"
    step: int | None = None
    arguments_digest: str | None = None
    idempotency_key: str | None = None
    result: Json | None = None
    error: str | None = None
    summary: str | None = None
    undo: Json | None = None
    message: tuple[int, int] | None = None
    body: Json | None = None
    attempts: int = 1
    session_id: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def undoes(self) -> str | None:
        """Return the call id of the step that this entry is the undo of; None if it is something else."""
        match = _UNDO_ENTRY.fullmatch(self.call_id)
        return None if match is None else match[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A small row of a session with a kind and a key. Other frameworks store their data in such rows. The store sets `seq` when it is written."""

    kind: str
    key: str
    body: Json
    seq: int = 0


@dataclass(slots=True)
class Chain:
    """Batches that build on each other. Once one has `failed`, all later ones fail, even if they were already sent."""

    failed: Exception | None = None


@dataclass(slots=True, kw_only=True)
class Batch:
    """All changes of one step, each object in its new state. A batch is written completely or not at all.

    `drafts_done` names the runs whose drafts are now complete messages. `records_dropped` has the kinds and keys of the records to
    delete. `blobs` are the SHA-256s of the media that its
    messages, effects and events refer to; from now on the session keeps them alive. `usage` is added to the sums of the day, and counts towards the budgets of these `accounts`. A batch that `asks` starts a model request,
    and raises `BudgetReached` if one of them is used up. `release` releases the session
    in the same transaction, with a `status` that is not running. `continue_at` is when a turn that waits continues without an answer; its
    host adds it to the submission. `error` is the reason for the status `failed`; the session keeps
    its first 1,000 characters. A batch of a `chain` is written only if no earlier one failed.
    """

    events: Sequence[NewEvent] = ()
    segments: Sequence[Segment] = ()
    messages: Sequence[Message] = ()
    checkpoints: Sequence[Checkpoint] = ()
    runs: Sequence[Run] = ()
    effects: Sequence[Effect] = ()
    submissions: Sequence[SubmissionChange] = ()
    drafts_done: Sequence[str] = ()
    records: Sequence[Record] = ()
    records_dropped: Sequence[tuple[str, str]] = ()
    blobs: Sequence[str] = ()
    usage: Sequence[Usage] = ()
    accounts: Sequence[Account] = ()
    asks: bool = False
    status: Status | None = None
    waiting_for: str | None = None
    continue_at: datetime | None = None
    error: str | None = None
    release: bool = False
    chain: Chain | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Bytes addressed by their SHA-256, in one media store.

    `id` identifies one upload, `location` the media store, `key` the place in it. `at` is when the same content was last
    uploaded; `references` is the number of sessions that refer to it or have it as their archive.
    """

    id: str
    location: str
    sha256: str = ""
    key: str = ""
    size: int = 0
    media_type: str = "application/octet-stream"
    file_name: str | None = None
    metadata: Json = "{}"
    state: BlobState = "storing"
    at: datetime | None = None
    references: int = 0

    @property
    def uri(self) -> str:
        """Return the URI of its content, which does not depend on where it is stored."""
        return f"media+sha256://{self.sha256}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that may hold leases, a worker or a standalone run, with one deadline for all its leases."""

    id: str
    name: str
    deadline: datetime
    ttl: float
    sessions: int = 0
    agents: Sequence[str] = ()
    """The agents whose sessions it claims."""


@dataclass(slots=True, kw_only=True)
class Lease:
    """The right to write to a session. `epoch` is the fencing token.

    Not frozen. `writes` counts the batches written under it, so that a batch whose response was lost is recognized when it is sent again.
    `seq` is the last event number that the holder has seen. `number` and `runs` are the session's number and the runs with a number, on
    engines that store these instead of ids, as far as they are known. `lost` is set once a write was refused or its outcome is unknown, and,
    with `released`, once the session was released.
    """

    session_id: str
    epoch: int
    holder: str
    taken_from: str | None = None
    writes: int = field(default=0, compare=False)
    seq: int = field(default=0, compare=False)
    number: int = field(default=0, compare=False, repr=False)
    runs: set[str] = field(default_factory=set[str], compare=False, repr=False)
    lost: bool = field(default=False, compare=False)
    released: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A session that was claimed because it has work, and that work."""

    lease: Lease
    session: Session
    submission: Submission | None
    """None if the first submission in the queue has used all its attempts, or if the queue is empty. `take` determines which."""
    fresh: bool = False
    """Whether the session has no history yet."""
    budgeted: bool = False
    """Whether administrators have set budgets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A secret that a tool needs to act for a session's owner, encrypted. The store cannot decrypt it."""

    name: str
    sealed: str = field(repr=False)
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The position of a named consumer in a session's events."""

    consumer: str
    seq: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The agent state of a session, with the version to pass when replacing it."""

    version: int
    body: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The owner, role and scopes of an access token. The secret itself is not stored."""

    id: str
    owner: str
    role: Role
    scopes: Sequence[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An audit entry: the actor, the action, the session and the time. The audit log is append-only."""

    id: str
    at: datetime
    actor: str
    action: str
    session_id: str | None
    detail: Json
