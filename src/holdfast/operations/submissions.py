"""Submissions: messages, decisions and all other requests to a session. The store decides whether the session accepts them."""

from typing import Annotated, Any

from pydantic import Field

from holdfast.api.models import Id, Items
from holdfast.api.submissions import (
    ApprovalDecision,
    ForkTarget,
    InterruptTarget,
    NewSubmission,
    RetryTarget,
    RetryTurn,
    RewindTarget,
    SignalBody,
    SubmissionDetail,
    SubmissionInfo,
    ToolResult,
    UndoTarget,
)
from holdfast.counting import count
from holdfast.errors import BadInput, Conflict, NotFound, TooMuchStored
from holdfast.jsontext import strict_json
from holdfast.operations.access import Caller
from holdfast.operations.registry import ClientMethod, CursorText, Limit, SessionId, operation
from holdfast.questions import addressee, waiting_turn
from holdfast.runtime.payloads import check_retry, check_undo
from holdfast.tracing import SUBMIT, carried, span
from holdfast.types import UNDO_EFFECTS, Lane, Submission, SubmissionState

_S = "/api/sessions/{session_id}"
SignalName = Annotated[Id, Field(description="Name of the signal.")]


async def submit_kind(
    caller: Caller,
    session_id: str,
    kind: str,
    payload: dict[str, Any],
    *,
    lane: Lane = "main",
    **options: Any,
) -> SubmissionInfo:
    """Queue a submission, count it, and pass the trace of the caller to the worker. The limits of an owner do not apply to the control lane."""
    if lane == "main" and not caller.principal.is_admin:
        caller.service.limits.use("submissions", caller.principal.owner)
        await _refuse_full(caller, session_id, options.get("idempotency_key"))
    with span("holdfast submit", SUBMIT, within=caller.trace, session_id=session_id, kind=kind):
        sent: Submission = await caller.store.submit(
            session_id, kind, strict_json(payload, "payload"), lane=lane, trace=carried(), **options
        )
    count("submissions", kind=kind)
    return SubmissionInfo.of(sent)


async def _refuse_full(caller: Caller, session_id: str, key: str | None) -> None:
    """Raise `TooMuchStored` if the owner is full, unless this is a repetition of a submission that was accepted."""
    try:
        await caller.check_stored_bytes()
    except TooMuchStored:
        if key is None or not await caller.store.is_submitted(session_id, key):
            raise


@operation(
    "POST",
    f"{_S}/submissions",
    "write",
    ClientMethod("SessionHandle.send", "send"),
    topic="sessions",
    status=202,
)
async def submit(caller: Caller, session_id: SessionId, body: NewSubmission) -> SubmissionInfo:
    """Submit a message or another request to a session. An accepted submission is durable: it ends, or visibly waits."""
    how: dict[str, Any] = {
        "when_busy": body.when_busy,
        "idempotency_key": body.idempotency_key,
        "deliver_at": body.deliver_at,
        "priority": body.priority,
    }
    given = body.model_dump(exclude_none=True, exclude={"kind", *how})
    if isinstance(body, RetryTurn):
        await check_retry(caller.store, session_id, body.submission_id, body.from_step)
    return await submit_kind(caller, session_id, body.kind, given, **how)


@operation(
    "GET",
    f"{_S}/submissions",
    "read",
    ClientMethod("SessionHandle.submissions", note="part of `holdfast sessions show`"),
    topic="sessions",
)
async def list_submissions(
    caller: Caller,
    session_id: SessionId,
    state: SubmissionState | None = None,
    payloads: Annotated[bool, Field(description="Include the payloads.")] = False,
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Items[SubmissionDetail]:
    """List the submissions of a session in order, with their outcomes."""
    page = await caller.store.submissions(
        session_id, state=state, payloads=payloads, cursor=cursor, limit=limit
    )
    return Items[SubmissionDetail].of(page)


@operation(
    "GET",
    f"{_S}/submissions/{{submission_id}}",
    "read",
    ClientMethod("SessionHandle.turn", note="part of `holdfast sessions show`"),
    ClientMethod("TurnHandle.info", note="part of `holdfast sessions show`"),
    topic="sessions",
)
async def read_submission(caller: Caller, session_id: SessionId, submission_id: Id) -> SubmissionDetail:
    """Show one submission with its payload."""
    return SubmissionDetail.of(await _submission(caller, session_id, submission_id))


async def _submission(caller: Caller, session_id: str, submission_id: str) -> Submission:
    submission = await caller.store.submission(submission_id)
    if submission.session_id != session_id:
        raise NotFound(what="submission", id=submission_id)
    return submission


@operation(
    "POST",
    f"{_S}/interrupt",
    "write",
    ClientMethod("SessionHandle.interrupt", "interrupt"),
    ClientMethod("TurnHandle.cancel", "cancel"),
    topic="sessions",
    status=202,
)
async def interrupt(
    caller: Caller, session_id: SessionId, body: InterruptTarget | None = None
) -> SubmissionInfo:
    """Stop the running or waiting turn. The next message continues from there. With a body, cancel one submission."""
    payload = {} if body is None else body.model_dump(exclude_none=True)
    if "submission_id" in payload:
        await _submission(caller, session_id, payload["submission_id"])
    return await submit_kind(caller, session_id, "interrupt", payload, lane="control")


@operation(
    "POST",
    f"{_S}/approvals",
    "write",
    ClientMethod("SessionHandle.approve", "approve"),
    ClientMethod("SessionHandle.deny", "approve", note="`holdfast approve --deny`"),
    topic="sessions",
    status=202,
)
async def answer(caller: Caller, session_id: SessionId, body: ApprovalDecision) -> SubmissionInfo:
    """Approve or deny a tool call. The answer is bound to the digest of the call's arguments.

    An answer to a question of a delegate is submitted to the session at the root, which the response names.
    """
    session_id, call_id = await addressee(caller.store, caller.session, body.call_id)
    given = body.model_dump(exclude_none=True) | {"call_id": call_id, "by": caller.actor}
    return await submit_kind(caller, session_id, "approval", given, lane="control")


@operation(
    "POST",
    f"{_S}/tool-results",
    "write",
    ClientMethod("SessionHandle.tool_result", "tool-result"),
    topic="sessions",
    status=202,
)
async def tool_result(caller: Caller, session_id: SessionId, body: ToolResult) -> SubmissionInfo:
    """Deliver the result of a tool call that ran outside of the agent, or its error. It is bound to the digest of the call's arguments."""
    if body.error is not None and body.result is not None:
        raise BadInput(problem="pass either a result or an error")
    if caller.session.parent_id is not None and await waiting_turn(caller.store, session_id) is None:
        # Often no worker serves the session of a delegate: the result would stay queued.
        raise Conflict(problem=f"call {body.call_id} of session {session_id} does not wait for a result")
    payload = body.model_dump(exclude={"idempotency_key"}, exclude_none=True) | {"by": caller.actor}
    key = body.idempotency_key
    return await submit_kind(caller, session_id, "tool_result", payload, lane="control", idempotency_key=key)


@operation(
    "POST",
    f"{_S}/signals/{{name}}",
    "write",
    ClientMethod("SessionHandle.signal", "signal"),
    topic="sessions",
    status=202,
)
async def signal(
    caller: Caller, session_id: SessionId, name: SignalName, body: SignalBody | None = None
) -> SubmissionInfo:
    """Send a signal. A tool or agent of the session that waits for it continues. One that waits later receives it then."""
    payload = {"name": name, "data": body and body.data}
    key = body and body.idempotency_key
    return await submit_kind(caller, session_id, "signal", payload, lane="control", idempotency_key=key)


@operation(
    "POST", f"{_S}/undo", "write", ClientMethod("SessionHandle.undo", "undo"), topic="sessions", status=202
)
async def undo(caller: Caller, session_id: SessionId) -> SubmissionInfo:
    """Undo the last message and everything after it."""
    return await submit_kind(caller, session_id, "undo", {})


@operation(
    "POST",
    f"{_S}/rewind",
    "write",
    ClientMethod("SessionHandle.rewind", "rewind"),
    topic="sessions",
    status=202,
)
async def rewind(caller: Caller, session_id: SessionId, body: RewindTarget) -> SubmissionInfo:
    """Continue from an earlier checkpoint. The events after it are kept."""
    return await submit_kind(caller, session_id, "rewind", {"checkpoint_id": body.checkpoint_id})


@operation(
    "POST", f"{_S}/retry", "write", ClientMethod("TurnHandle.retry", "retry"), topic="sessions", status=202
)
async def retry(caller: Caller, session_id: SessionId, body: RetryTarget) -> SubmissionInfo:
    """Continue a turn that failed, was interrupted or was given up. Recorded tool calls and steps are not repeated."""
    await check_retry(caller.store, session_id, body.submission_id, body.from_step)
    return await submit_kind(caller, session_id, "retry", body.model_dump(exclude_none=True))


@operation(
    "POST",
    f"{_S}/undo-effects",
    "write",
    ClientMethod("TurnHandle.undo_effects", "undo-effects"),
    topic="sessions",
    status=202,
)
async def undo_effects(caller: Caller, session_id: SessionId, body: UndoTarget) -> SubmissionInfo:
    """Undo the effects of a turn that has ended: run the undo functions of its completed steps, the last one first. The history stays unchanged."""
    await check_undo(caller.store, session_id, body.submission_id)
    return await submit_kind(caller, session_id, UNDO_EFFECTS, body.model_dump())


@operation(
    "POST",
    f"{_S}/compact",
    "write",
    ClientMethod("SessionHandle.compact", "compact"),
    topic="sessions",
    status=202,
)
async def compact(caller: Caller, session_id: SessionId) -> SubmissionInfo:
    """Replace the history with a shorter one."""
    return await submit_kind(caller, session_id, "compact", {})


@operation(
    "POST",
    f"{_S}/fork",
    "write",
    ClientMethod("SessionHandle.fork", "fork", note="`holdfast fork --wait`"),
    ClientMethod("SessionHandle.start_fork", "fork"),
    topic="sessions",
    status=202,
)
async def fork(caller: Caller, session_id: SessionId, body: ForkTarget | None = None) -> SubmissionInfo:
    """Copy the history into a new session. The event `forked` has its id. Without a body, the latest checkpoint is copied."""
    payload = {} if body is None else body.model_dump(exclude_none=True)
    return await submit_kind(caller, session_id, "fork", payload)


@operation(
    "POST",
    f"{_S}/background",
    "write",
    ClientMethod("SessionHandle.background", note="for front ends that attach sessions"),
    topic="sessions",
    status=202,
)
async def background(caller: Caller, session_id: SessionId) -> SubmissionInfo:
    """Hand the session over to a background worker."""
    return await submit_kind(caller, session_id, "background", {}, lane="control")
