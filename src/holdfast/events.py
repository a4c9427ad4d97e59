"""The events of a session: one class for each kind, and `SessionEvent`, the union of all of them.

Read them with `session.events()`, and distinguish them by class or by `kind`:

    from holdfast.events import ToolCallStarted

    async for event in session.events():
        match event:
            case ToolCallStarted(tool=tool):
                print("running", tool)

An event of an unknown kind, or whose payload this version cannot read, is an `OtherEvent`.
"""

from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, get_args

from pydantic import AliasPath, BaseModel, ConfigDict, Field, ValidationError
from pydantic_ai.messages import ModelMessage

from holdfast.approval import ApprovalRequest


def _payload(name: str, default: Any = ...) -> Any:
    """Declare a field that is in the payload of the event under this name."""
    return Field(default, validation_alias=AliasPath("payload", name))


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, populate_by_name=True)

    seq: int
    """The number of the event in its session: 1, 2, 3, …"""
    at: datetime
    run_id: str | None = None
    step: int | None = None


class SubmissionQueued(_Event):
    """A submission was accepted. `seq` is its position in the queue."""

    kind: Literal["submission_queued"] = "submission_queued"
    submission_id: str = _payload("submission_id")
    submission_kind: str = _payload("kind")
    schedule: str | None = _payload("schedule", None)


class SubmissionStarted(_Event):
    """A worker started to work on a submission."""

    kind: Literal["submission_started"] = "submission_started"
    submission_id: str = _payload("submission_id")
    submission_kind: str = _payload("kind")
    attempt: int = _payload("attempt", 1)


class SubmissionDone(_Event):
    """A submission succeeded."""

    kind: Literal["submission_done"] = "submission_done"
    submission_id: str = _payload("submission_id")


class SubmissionFailed(_Event):
    """A submission failed. Its state is `dead` if its turn was attempted too often."""

    kind: Literal["submission_failed"] = "submission_failed"
    submission_id: str = _payload("submission_id")
    state: Literal["failed", "dead"] = _payload("state")
    reason: str | None = _payload("reason", None)


class StateChanged(_Event):
    """The agent state was replaced. `name` is set for a named state."""

    kind: Literal["state_changed"] = "state_changed"
    version: int = _payload("version")
    name: str | None = _payload("name", None)


class RunStarted(_Event):
    """A run started. `parent` is the run whose tool started it. `message` has the prompt if no model request followed at once.

    A run that undoes the effects of a turn has the last run of that turn in `undoes`.
    """

    kind: Literal["run_started"] = "run_started"
    agent: str = _payload("agent", "")
    parent: str | None = _payload("parent", None)
    undoes: str | None = _payload("undoes", None)
    message: ModelMessage | None = None


class RunCompleted(_Event):
    """A run completed. `output` is the output of the agent, if it is not the text of the last message."""

    kind: Literal["run_completed"] = "run_completed"
    output: Any = _payload("output", None)


class RunFailed(_Event):
    """A run failed."""

    kind: Literal["run_failed"] = "run_failed"
    error: str | None = _payload("error", None)


class WaitingForThread(_Event):
    """A run was stopped, and waits for a tool or step that runs in a thread."""

    kind: Literal["waiting_for_thread"] = "waiting_for_thread"
    name: str = _payload("name")
    call_id: str = _payload("call_id")


class RunInterrupted(_Event):
    """A run was interrupted, by a user or because its process ended."""

    kind: Literal["run_interrupted"] = "run_interrupted"
    error: str | None = _payload("error", None)


class RunRecovered(_Event):
    """A run continues for one whose process ended, `recovered_run_id`."""

    kind: Literal["recovered"] = "recovered"
    recovered_run_id: str = _payload("run_id")


class ApprovalRequested(_Event):
    """A run waits for decisions about tool calls, or for their results from outside."""

    kind: Literal["approval_requested"] = "approval_requested"
    calls: list[ApprovalRequest] = _payload("calls")


class ApprovalAnswered(_Event):
    """A person decided about one tool call. `by` is the owner of the token, if the decision came over HTTP.

    It is `deadline` if nobody decided in time, and the default of the question is its answer. With `external`, it delivered the result of a
    call that ran outside.
    """

    kind: Literal["approval_answered"] = "approval_answered"
    call_id: str = _payload("call_id")
    digest: str = _payload("digest")
    approved: bool = _payload("approved")
    feedback: str | None = _payload("feedback", None)
    arguments: dict[str, Any] | None = _payload("arguments", None)
    by: str | None = _payload("by", None)
    external: bool = _payload("external", False)


class ApprovalReminder(_Event):
    """Nobody has answered a question with the default `remind` in time. `next` is the time of the next reminder, if there is one."""

    kind: Literal["approval_reminder"] = "approval_reminder"
    call_id: str = _payload("call_id")
    tool: str = _payload("tool")
    number: int = _payload("number")
    next: datetime | None = _payload("next", None)


class WaitStarted(_Event):
    """A tool or agent began to sleep, or to wait for a signal. It ends at `until`, if that is set, or when the signal `name` arrives."""

    kind: Literal["wait_started"] = "wait_started"
    call_id: str = _payload("call_id")
    wait: Literal["sleep", "signal"] = _payload("wait")
    until: datetime | None = _payload("until", None)
    name: str | None = _payload("name", None)


class WaitEnded(_Event):
    """A wait is over: its time has come, or its signal has arrived."""

    kind: Literal["wait_ended"] = "wait_ended"
    call_id: str = _payload("call_id")
    wait: Literal["sleep", "signal"] = _payload("wait")
    name: str | None = _payload("name", None)
    ended_by: Literal["time", "signal"] = _payload("ended_by")


class RunWaiting(_Event):
    """A run waits for times, signals or a budget. Its turn uses no process until then. `waits` has the call, the kind, the time, the signal and the budget of each."""

    kind: Literal["run_waiting"] = "run_waiting"
    waits: list[dict[str, Any]] = _payload("waits")


class SignalArrived(_Event):
    """A signal arrived, and is kept until a tool or agent receives it."""

    kind: Literal["signal_arrived"] = "signal_arrived"
    name: str = _payload("name")
    data: Any = _payload("data", None)


class TokenUsage(BaseModel):
    """The tokens of one model request."""

    model_config = ConfigDict(frozen=True)
    input_tokens: int = 0
    output_tokens: int = 0


class ModelRequestStarted(_Event):
    """A request was sent to the model."""

    kind: Literal["model_request_started"] = "model_request_started"


class ModelRequestCompleted(_Event):
    """The model responded. `cost` is in US dollars, as a decimal number, if the price of the model is known.

    `profile`, `sent` and `added` describe [the request](../how-to/requests.md).
    """

    kind: Literal["model_request_completed"] = "model_request_completed"
    model: str | None = _payload("model", None)
    usage: TokenUsage = _payload("usage", TokenUsage())
    cost: str | None = _payload("cost", None)
    profile: str | None = _payload("profile", None)
    sent: tuple[int | tuple[int, int], ...] | None = _payload("sent", None)
    added: Any = _payload("added", ())


class ModelRequestFailed(_Event):
    """A model request failed."""

    kind: Literal["model_request_failed"] = "model_request_failed"
    error: str | None = _payload("error", None)


class ToolCallStarted(_Event):
    """A tool is about to run. This event is durable before it does, unless the tool's policy is `readonly`."""

    kind: Literal["tool_call_started"] = "tool_call_started"
    tool: str = _payload("tool")
    call_id: str = _payload("call_id")


class ToolCallCompleted(_Event):
    """A tool call has a result.

    `manual`: a person, `actor`, recorded it. `answered`: the result came from outside, after the run had waited for it.
    `outcome` is `unknown` if the call was cut off, and the model was informed that its outcome is unknown.
    """

    kind: Literal["tool_call_completed"] = "tool_call_completed"
    tool: str = _payload("tool")
    call_id: str = _payload("call_id")
    manual: bool = _payload("manual", False)
    actor: str | None = _payload("actor", None)
    answered: bool = _payload("answered", False)
    outcome: Literal["unknown"] | None = _payload("outcome", None)


class ToolCallFailed(_Event):
    """A tool call failed. The fields are those of `ToolCallCompleted`."""

    kind: Literal["tool_call_failed"] = "tool_call_failed"
    tool: str = _payload("tool")
    call_id: str = _payload("call_id")
    error: str | None = _payload("error", None)
    manual: bool = _payload("manual", False)
    actor: str | None = _payload("actor", None)
    answered: bool = _payload("answered", False)


class StepStarted(_Event):
    """A step of a tool call or turn is about to run. This event is durable before it does. `call_id` is its ledger entry, `undo` the name of its undo."""

    kind: Literal["step_started"] = "step_started"
    name: str = _payload("name")
    call_id: str = _payload("call_id")
    attempt: int = _payload("attempt", 1)
    undo: str | None = _payload("undo", None)


class StepCompleted(_Event):
    """A step has a result. `probe`: the step was interrupted, and its probe found the result. `manual`: a person, `actor`, recorded it."""

    kind: Literal["step_completed"] = "step_completed"
    name: str = _payload("name")
    call_id: str = _payload("call_id")
    probe: bool = _payload("probe", False)
    manual: bool = _payload("manual", False)
    actor: str | None = _payload("actor", None)


class StepFailed(_Event):
    """An attempt of a step failed. With `retry_at` the step is tried again at that time. `manual`: a person, `actor`, recorded it."""

    kind: Literal["step_failed"] = "step_failed"
    name: str = _payload("name")
    call_id: str = _payload("call_id")
    error: str | None = _payload("error", None)
    retry_at: datetime | None = _payload("retry_at", None)
    manual: bool = _payload("manual", False)
    actor: str | None = _payload("actor", None)


class UndoStarted(_Event):
    """A step is about to be undone. `name` is the name of its undo, `call_id` the ledger entry of the undo, and `undoes` that of the step."""

    kind: Literal["undo_started"] = "undo_started"
    name: str = _payload("name")
    call_id: str = _payload("call_id")
    undoes: str = _payload("undoes")
    attempt: int = _payload("attempt", 1)


class EffectUndone(_Event):
    """The effect of a step was undone. `probe`: the undo was interrupted, and its probe found that it took effect. `manual`: a person, `actor`, recorded it."""

    kind: Literal["effect_undone"] = "effect_undone"
    name: str = _payload("name")
    call_id: str = _payload("call_id")
    undoes: str = _payload("undoes")
    probe: bool = _payload("probe", False)
    manual: bool = _payload("manual", False)
    actor: str | None = _payload("actor", None)


class UndoFailed(_Event):
    """An attempt to undo a step failed. With `retry_at` it is tried again at that time. `manual`: a person, `actor`, recorded it."""

    kind: Literal["undo_failed"] = "undo_failed"
    name: str = _payload("name")
    call_id: str = _payload("call_id")
    undoes: str = _payload("undoes")
    error: str | None = _payload("error", None)
    retry_at: datetime | None = _payload("retry_at", None)
    manual: bool = _payload("manual", False)
    actor: str | None = _payload("actor", None)


class ProbeAnswered(_Event):
    """A probe ran for a tool call or step with an unknown outcome. `error` is the reason if the probe failed."""

    kind: Literal["probe_answered"] = "probe_answered"
    name: str = _payload("name")
    call_id: str = _payload("call_id")
    answer: Literal["done", "not_done", "unknown"] = _payload("answer")
    error: str | None = _payload("error", None)


class MessageAdded(_Event):
    """A message was added to the history: a request to the model, or its response."""

    kind: Literal["message"] = "message"
    message: ModelMessage


class PartialPart(BaseModel):
    """Text or thinking that the model had streamed. `index` is its place in the response."""

    index: int
    part_kind: Literal["text", "thinking"]
    content: str


class PartialResponse(_Event):
    """The run ended before the model had completed this response: it was stopped, failed or timed out. The history does not have it.

    `truncated` is set if the text was longer than the 100,000 characters that are recorded.
    """

    kind: Literal["partial_response"] = "partial_response"
    parts: list[PartialPart] = _payload("parts")
    truncated: bool = _payload("truncated", False)


class Rewound(_Event):
    """The session continues from an earlier checkpoint. `length` is the number of messages that are left."""

    kind: Literal["rewound"] = "rewound"
    by: Literal["undo", "rewind"] | None = _payload("by", None)
    length: int | None = _payload("length", None)


class Compacted(_Event):
    """The history was replaced by a shorter one. `before` and `after` count its messages."""

    kind: Literal["compacted"] = "compacted"
    before: int = _payload("before")
    after: int = _payload("after")


class Forked(_Event):
    """The history was copied into another session."""

    kind: Literal["forked"] = "forked"
    session_id: str = _payload("session_id")


class Takeover(_Event):
    """A worker took the session over from a dead holder. `taken_from` is the id of that holder."""

    kind: Literal["takeover"] = "takeover"
    taken_from: str = _payload("taken_from")


class Handover(_Event):
    """A worker released the session in the middle of a turn. Another worker continues."""

    kind: Literal["handover"] = "handover"
    reason: str = _payload("reason")


class Imported(_Event):
    """The session, or an event that has no kind of its own here, was imported from another system."""

    kind: Literal["imported"] = "imported"
    payload: dict[str, Any] = Field(default_factory=dict[str, Any])


class OtherEvent(_Event):
    """An event of a kind that this version does not define, or whose payload it cannot read. `original_kind` is its recorded kind."""

    kind: Literal["other"] = "other"
    original_kind: str
    payload: Any = None
    message: Any = None


class DraftText(BaseModel):
    """Text that the model is streaming now. It is not durable, and has no number: the complete message follows as an event.

    `text` continues the earlier text at `offset`. At offset 0, the text starts again.
    """

    model_config = ConfigDict(frozen=True)

    run_id: str
    part: int
    kind: str
    offset: int
    text: str


KnownEvent: TypeAlias = (
    SubmissionQueued
    | SubmissionStarted
    | SubmissionDone
    | SubmissionFailed
    | StateChanged
    | RunStarted
    | RunCompleted
    | RunFailed
    | RunInterrupted
    | WaitingForThread
    | RunRecovered
    | ApprovalRequested
    | ApprovalAnswered
    | ApprovalReminder
    | WaitStarted
    | WaitEnded
    | RunWaiting
    | SignalArrived
    | ModelRequestStarted
    | ModelRequestCompleted
    | ModelRequestFailed
    | ToolCallStarted
    | ToolCallCompleted
    | ToolCallFailed
    | StepStarted
    | StepCompleted
    | StepFailed
    | UndoStarted
    | EffectUndone
    | UndoFailed
    | ProbeAnswered
    | MessageAdded
    | PartialResponse
    | Rewound
    | Compacted
    | Forked
    | Takeover
    | Handover
    | Imported
)
SessionEvent: TypeAlias = KnownEvent | OtherEvent

KINDS: Final[dict[str, type[KnownEvent]]] = {
    kind.model_fields["kind"].default: kind for kind in get_args(KnownEvent)
}
"""The class of each kind."""


def parse_event(event: dict[str, Any]) -> SessionEvent:
    """Return an event, as the HTTP API represents it, as an instance of its class."""
    kind = KINDS.get(event["kind"])
    if kind is not None:
        try:
            return kind.model_validate(event)
        except ValidationError:
            pass  # written by another version, or by another program under this kind
    return OtherEvent.model_validate({**event, "kind": "other", "original_kind": event["kind"]})
