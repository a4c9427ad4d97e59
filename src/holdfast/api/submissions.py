"""The models of submissions: the requests that a client can send to a session, and their state."""

from datetime import datetime
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AliasChoices,
    AwareDatetime,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
)

from holdfast.api.models import Id, Name, RequestBody, ResponseBody, StoredJson
from holdfast.content import Content
from holdfast.priority import Priority
from holdfast.types import (
    SubmissionState,
    WhenBusy,
)


class _Submitted(RequestBody):
    """The fields of every submission."""

    when_busy: WhenBusy = Field(
        "queue",
        description="If a turn is running: queue the submission, add it to the turn at its next model request, interrupt the turn, or fail with 409.",
    )
    idempotency_key: Name | None = Field(
        None, description="A second submission with the same key is not queued; the first one is returned."
    )
    deliver_at: AwareDatetime | None = Field(
        None,
        description="The time from which a worker may start it, with a time zone; by default now. At most ten years ahead.",
    )
    priority: Priority = Field(
        "normal",
        description="The order among the sessions of an owner if they have to wait. A session has the highest priority of its pending submissions.",
    )


class TextMessage(_Submitted):
    """A message of text."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"kind": "message", "text": "Hello", "when_busy": "queue"}]},
    )
    kind: Literal["message"] = "message"
    text: str = Field(description="The text of the message.")


class ContentMessage(_Submitted):
    """A message of several parts: text and files."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"content": ["What is this?", {"kind": "image-url", "url": "https://example.com/a.png"}]}
            ]
        }
    )
    kind: Literal["message"] = "message"
    content: Content = Field(description="The parts of the message.")


class HistoryCommand(_Submitted):
    """A command on the history or on the session."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"kind": "undo"}]})
    kind: Literal["undo", "compact", "shutdown"]


class Rewind(_Submitted):
    """Continue from an earlier checkpoint."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"kind": "rewind", "checkpoint_id": "019a7d3e-5c1b-7f00-8a2e-3d4f5a6b7c8d"}]
        }
    )
    kind: Literal["rewind"]
    checkpoint_id: Id = Field(description="The checkpoint to continue from.")


StepEntry = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"^[^\x00]*$")]


_FROM_STEP = "For a plain agent: the call id of a step. That step and all later ones are repeated, even if the turn is done."


class RetryTurn(_Submitted):
    """Continue a turn that failed, was interrupted or was given up."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"kind": "retry", "submission_id": "019a7d3e-5c1b-7f00-8a2e-3d4f5a6b7c8d"}]
        }
    )
    kind: Literal["retry"]
    submission_id: Id = Field(description="The turn to continue.")
    from_step: StepEntry | None = Field(None, description=_FROM_STEP)


class Fork(_Submitted):
    """Copy the history into a new session."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"kind": "fork", "session_id": "copy-of-s1"}]})
    kind: Literal["fork"]
    checkpoint_id: Id | None = Field(None, description="The checkpoint to copy; by default the latest.")
    session_id: Id | None = Field(None, description="The id of the new session; by default it is generated.")


def _kind(body: Any) -> str:
    given = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    kind: Any = given.get("kind", "message")
    if kind == "message":
        return "(content)" if "content" in given and "text" not in given else "(text)"
    return f"({kind})" if kind in ("rewind", "retry", "fork") else "(command)"


NewSubmission = Annotated[
    Annotated[TextMessage, Tag("(text)")]
    | Annotated[ContentMessage, Tag("(content)")]
    | Annotated[HistoryCommand, Tag("(command)")]
    | Annotated[Rewind, Tag("(rewind)")]
    | Annotated[RetryTurn, Tag("(retry)")]
    | Annotated[Fork, Tag("(fork)")],
    Discriminator(_kind),
]


class ApprovalDecision(RequestBody):
    """A decision about a tool call."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "call_id": "call_1",
                    "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
                    "approved": True,
                }
            ]
        }
    )
    call_id: str = Field(
        min_length=1, max_length=500, description="The tool call, from `approvals` of the session."
    )
    digest: str = Field(
        min_length=64, max_length=64, description="The digest of the call's arguments, from the same list."
    )
    approved: bool = Field(description="Whether the tool may run.")
    feedback: str | None = Field(None, description="The reason for a denial. The model receives it.")
    arguments: dict[str, Any] | None = Field(
        None, description="Run the tool with these arguments instead. Only for tools that are `editable`."
    )


class SignalBody(RequestBody):
    """A signal to a session."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"data": {"amount": 5}, "idempotency_key": "k1"}]}
    )
    data: Any = Field(
        None, description="Any JSON value. The tool or agent that waits for the signal receives it."
    )
    idempotency_key: Name | None = Field(
        None, description="A second signal with the same key is not delivered; the first one is returned."
    )


class ToolResult(RequestBody):
    """The result of a tool call that ran outside of the agent."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "call_id": "call_1",
                    "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
                    "result": {"arrived": True},
                }
            ]
        }
    )
    call_id: str = Field(
        min_length=1, max_length=500, description="The tool call, from `approvals` of the session."
    )
    digest: str = Field(
        min_length=64, max_length=64, description="The digest of the call's arguments, from the same list."
    )
    result: Any = Field(None, description="Any JSON value. The model receives it as the result of the call.")
    error: str | None = Field(
        None,
        min_length=1,
        pattern=r"^[^\x00]*$",
        description="Why the call failed, instead of a result. The model receives it.",
    )
    idempotency_key: Name | None = Field(
        None, description="A second result with the same key is not delivered; the first one is returned."
    )


class RewindTarget(RequestBody):
    """The checkpoint to continue from."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"checkpoint_id": "019a7d3e-5c1b-7f00-8a2e-3d4f5a6b7c8d"}]}
    )
    checkpoint_id: Id = Field(description="The checkpoint to continue from.")


class InterruptTarget(RequestBody):
    """The submission to cancel. A running or waiting turn is stopped; a queued submission is removed."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"submission_id": "019a7d3e-5c1b-7f00-8a2e-3d4f5a6b7c8d"}]}
    )
    submission_id: Id | None = Field(
        None, description="The submission to cancel; by default the running turn."
    )


class RetryTarget(RequestBody):
    """The turn to continue."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"submission_id": "019a7d3e-5c1b-7f00-8a2e-3d4f5a6b7c8d"}]}
    )
    submission_id: Id = Field(description="The submission of the turn that failed.")
    from_step: StepEntry | None = Field(default=None, description=_FROM_STEP)


class UndoTarget(RequestBody):
    """The turn whose effects are undone."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"submission_id": "019a7d3e-5c1b-7f00-8a2e-3d4f5a6b7c8d"}]}
    )
    submission_id: Id = Field(description="The submission of a turn that has ended.")


class ForkTarget(RequestBody):
    """The checkpoint and the new session id of a fork."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"session_id": "copy-of-s1"}]})
    checkpoint_id: Id | None = Field(None, description="The checkpoint to copy; by default the latest.")
    session_id: Id | None = Field(None, description="The id of the new session; by default it is generated.")


class SubmissionInfo(ResponseBody):
    """A message or command that was sent to a session, and its state."""

    submission_id: str = Field(validation_alias=AliasChoices("submission_id", "id"))
    session_id: str
    position: int = Field(
        description="The number of the event that queued it. Read its own events after this number."
    )
    kind: str = Field(description="What it requests: `message`, `retry`, `undo`, `interrupt`, …")
    lane: Literal["main", "control"] = Field(description="`control` overtakes the queue.")
    when_busy: WhenBusy
    state: SubmissionState = Field(
        description="`claimed`: a worker processes it. `dead`: it was given up after too many attempts."
    )
    attempts: int = Field(description="How many times a worker has started it.")
    reason: str | None = Field(description="Why it failed, or what it waits for.")
    run_id: str | None = Field(description="Its last run.")
    idempotency_key: str | None
    created_at: datetime
    started_at: datetime | None = Field(description="When a worker started it.")
    ended_at: datetime | None = Field(description="When it was done or failed.")
    deliver_at: datetime | None = Field(
        None,
        description="The time before which it does not start. While its turn waits: when the turn continues without an answer.",
    )
    priority: Priority = Field("normal", description="The order among the sessions of its owner.")


class SubmissionDetail(SubmissionInfo):
    """A submission with its payload."""

    payload: StoredJson = Field(
        None, description="The submitted content. Lists include it only with `payloads`."
    )
