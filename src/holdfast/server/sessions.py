"""The routes of sessions, their submissions, events, history, states and cursors."""

from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from fastapi import Header, Path, Query, Request, Response

from holdfast.api.models import (
    FORMAT_HEADERS,
    AgentState,
    ApprovalDecision,
    ApprovalRequest,
    ErrorBody,
    EventInfo,
    ForkTarget,
    Format,
    HistoryMessage,
    Id,
    InterruptTarget,
    Items,
    NewCursor,
    NewSession,
    NewState,
    NewSubmission,
    ReadCursor,
    RetryTarget,
    RetryTurn,
    RewindTarget,
    RunInfo,
    SessionChange,
    SessionDetail,
    SessionInfo,
    StateList,
    StateVersion,
    SubmissionDetail,
    SubmissionInfo,
    event_json,
)
from holdfast.counting import count
from holdfast.errors import (
    BadInput,
    EventNotFound,
    Forbidden,
    IdUnavailable,
    NotFound,
    SessionErased,
    SessionExists,
)
from holdfast.frameworks.foreign import refuse_foreign
from holdfast.ids import did_you_mean
from holdfast.jsontext import strict_json
from holdfast.leases import why_waiting
from holdfast.runtime.attachment import attachment
from holdfast.runtime.attachment import parse as parse_attachment
from holdfast.runtime.payloads import check_retry
from holdfast.runtime.questions import pending_approvals
from holdfast.server.channel import Channel
from holdfast.server.routes import (
    access_of,
    channels_of,
    new_router,
    principal_of,
    route,
    session_of,
    store_of,
)
from holdfast.server.stream import EventStream
from holdfast.tracing import SUBMIT, carried, span
from holdfast.types import Lane, Session, State, Status, Submission, SubmissionState

router = new_router("sessions")
SessionId = Annotated[Id, Path(description="Id of the session.")]
StateName = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=256,
        description="Name of a named state. Default: the agent state.",
    ),
]
Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items.")]
NO_NUL = r"^[^\x00]*$"
CursorText = Annotated[str | None, Query(max_length=1000, description="`next_cursor` of the previous page.")]


@route(router, "POST", "/api/sessions", "user", status_code=201)
async def create_session(request: Request, body: NewSession) -> SessionInfo:
    """Create a session. It is idle until the first submission."""
    principal = principal_of(request)
    if body.owner not in {None, principal.owner} and not principal.is_admin:
        raise Forbidden(required="the role admin to create sessions for others", principal=principal.owner)
    agents = request.app.state.agents
    if agents and body.agent not in agents:
        hint = did_you_mean(body.agent, agents)
        raise BadInput(
            problem=f"there is no agent {body.agent!r}.{hint} This server has: {', '.join(sorted(agents))}"
        )
    store = store_of(request)
    try:
        session = await store.create_session(
            agent=body.agent,
            owner=body.owner or principal.owner,
            id=body.id,
            title=body.title,
            metadata=_metadata(request.app.state.attached.get(body.agent, {}) | body.metadata),
        )
    except SessionExists as error:
        if principal.may_see(await store.session(str(error.facts["id"]))):
            raise
        raise IdUnavailable(id=body.id) from None
    except SessionErased:
        raise IdUnavailable(id=body.id) from None
    return SessionInfo.of(session)


def _metadata(given: dict[str, Any]) -> str:
    parse_attachment(given.get("attached"))
    return strict_json(given, "metadata")


def grace_of(request: Request, session: Session) -> float | None:
    """Return for how long an attached session may have no watcher."""
    with suppress(BadInput):  # a library may have written invalid metadata; the worker reports it
        attached = attachment(session.metadata, request.app.state.settings.attached_grace_seconds)
        return None if attached is None else attached.grace
    return None


@route(router, "GET", "/api/sessions", "user")
async def list_sessions(
    request: Request,
    status: Status | None = None,
    agent: Annotated[str | None, Query(max_length=200, pattern=NO_NUL)] = None,
    owner: Annotated[
        str | None,
        Query(max_length=200, pattern=NO_NUL, description="Only sessions of this owner. For administrators."),
    ] = None,
    search: Annotated[
        str | None, Query(max_length=200, pattern=NO_NUL, description="Text in the title.")
    ] = None,
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Items[SessionInfo]:
    """List sessions, last active first."""
    principal = principal_of(request)
    page = await store_of(request).sessions(
        owner=owner if principal.is_admin else principal.owner,
        agent=agent,
        status=status,
        search=search,
        cursor=cursor,
        limit=limit,
    )
    return Items[SessionInfo].of(page)


@route(router, "GET", "/api/sessions/{session_id}", "read")
async def read_session(request: Request, session_id: SessionId) -> SessionDetail:
    """Return a session: its lease holder, why it waits, and the tool calls that wait for a person."""
    session = session_of(request)
    questions = await pending_approvals(store_of(request), session_id) if session.status == "waiting" else []
    detail = SessionDetail.of(session)
    detail.approvals = [ApprovalRequest.model_validate(question) for question in questions]
    detail.problem = await why_waiting(store_of(request), session)
    return detail


@route(router, "PATCH", "/api/sessions/{session_id}", "write")
async def change_session(request: Request, session_id: SessionId, body: SessionChange) -> SessionInfo:
    """Change the title, the hold or the metadata of a session. Only an administrator can lift a hold that an administrator set."""
    principal = principal_of(request)
    if body.metadata is not None:
        refuse_foreign(session_of(request), "its metadata cannot be changed")
    changed = await store_of(request).update_session(
        session_id,
        title=body.title,
        hold=body.hold,
        metadata=None if body.metadata is None else _metadata(body.metadata),
        actor=principal.owner,
        is_admin=principal.is_admin,
    )
    return SessionInfo.of(changed)


@route(router, "POST", "/api/sessions/{session_id}/dismiss", "write")
async def dismiss(request: Request, session_id: SessionId) -> SessionInfo:
    """Dismiss the failure of the last turn: the session is idle again. A session that is not failed stays unchanged."""
    return SessionInfo.of(await store_of(request).dismiss(session_id))


# Submissions


async def submit_kind(
    request: Request,
    session_id: str,
    kind: str,
    payload: dict[str, Any],
    *,
    lane: Lane = "main",
    **options: Any,
) -> SubmissionInfo:
    """Queue a submission, count it, and pass the trace of the request to the worker."""
    within = request.headers.get("traceparent")
    with span("holdfast submit", SUBMIT, within=within, session_id=session_id, kind=kind):
        sent: Submission = await store_of(request).submit(
            session_id, kind, strict_json(payload, "payload"), lane=lane, trace=carried(), **options
        )
    count("submissions", kind=kind)
    return SubmissionInfo.of(sent)


@route(router, "POST", "/api/sessions/{session_id}/submissions", "write", status_code=202)
async def submit(request: Request, session_id: SessionId, body: NewSubmission) -> SubmissionInfo:
    """Submit a message or another request to a session. An accepted submission is durable: it ends, or visibly waits."""
    given = body.model_dump(exclude_none=True, exclude={"kind", "when_busy", "idempotency_key"})
    if isinstance(body, RetryTurn):
        await _check_retry(request, session_id, body)
    return await submit_kind(
        request,
        session_id,
        body.kind,
        given,
        when_busy=body.when_busy,
        idempotency_key=body.idempotency_key,
    )


@route(router, "GET", "/api/sessions/{session_id}/submissions", "read")
async def list_submissions(
    request: Request,
    session_id: SessionId,
    state: SubmissionState | None = None,
    payloads: Annotated[bool, Query(description="Include the payloads.")] = False,
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Items[SubmissionDetail]:
    """List the submissions of a session in order, with their outcomes."""
    page = await store_of(request).submissions(
        session_id, state=state, payloads=payloads, cursor=cursor, limit=limit
    )
    return Items[SubmissionDetail].of(page)


@route(router, "GET", "/api/sessions/{session_id}/submissions/{submission_id}", "read")
async def read_submission(
    request: Request, session_id: SessionId, submission_id: Annotated[Id, Path()]
) -> SubmissionDetail:
    """Show one submission with its payload."""
    return SubmissionDetail.of(await _submission(request, session_id, submission_id))


async def _submission(request: Request, session_id: str, submission_id: str) -> Submission:
    submission = await store_of(request).submission(submission_id)
    if submission.session_id != session_id:
        raise NotFound(what="submission", id=submission_id)
    return submission


@route(router, "POST", "/api/sessions/{session_id}/interrupt", "write", status_code=202)
async def interrupt(
    request: Request, session_id: SessionId, body: InterruptTarget | None = None
) -> SubmissionInfo:
    """Stop the turn that runs or waits now; the next message continues from there. With a body, cancel one submission."""
    payload = {} if body is None else body.model_dump(exclude_none=True)
    if "submission_id" in payload:
        await _submission(request, session_id, payload["submission_id"])
    return await submit_kind(request, session_id, "interrupt", payload, lane="control")


@route(router, "POST", "/api/sessions/{session_id}/approvals", "write", status_code=202)
async def answer(request: Request, session_id: SessionId, body: ApprovalDecision) -> SubmissionInfo:
    """Approve or deny a tool call. The answer is bound to the digest of the call's arguments."""
    given = body.model_dump(exclude_none=True) | {"by": principal_of(request).owner}
    return await submit_kind(request, session_id, "approval", given, lane="control")


@route(router, "POST", "/api/sessions/{session_id}/undo", "write", status_code=202)
async def undo(request: Request, session_id: SessionId) -> SubmissionInfo:
    """Go back to before the last message."""
    return await submit_kind(request, session_id, "undo", {})


@route(router, "POST", "/api/sessions/{session_id}/rewind", "write", status_code=202)
async def rewind(request: Request, session_id: SessionId, body: RewindTarget) -> SubmissionInfo:
    """Continue from an earlier checkpoint. The events after it are kept."""
    return await submit_kind(request, session_id, "rewind", {"checkpoint_id": body.checkpoint_id})


@route(router, "POST", "/api/sessions/{session_id}/retry", "write", status_code=202)
async def retry(request: Request, session_id: SessionId, body: RetryTarget) -> SubmissionInfo:
    """Continue a turn that failed, was interrupted or was given up. What is recorded of it is not done again."""
    await _check_retry(request, session_id, body)
    return await submit_kind(request, session_id, "retry", body.model_dump(exclude_none=True))


async def _check_retry(request: Request, session_id: str, wanted: RetryTarget | RetryTurn) -> None:
    await check_retry(store_of(request), session_id, wanted.submission_id, wanted.from_step)


@route(router, "POST", "/api/sessions/{session_id}/compact", "write", status_code=202)
async def compact(request: Request, session_id: SessionId) -> SubmissionInfo:
    """Replace the history with a shorter one."""
    return await submit_kind(request, session_id, "compact", {})


@route(router, "POST", "/api/sessions/{session_id}/fork", "write", status_code=202)
async def fork(request: Request, session_id: SessionId, body: ForkTarget | None = None) -> SubmissionInfo:
    """Copy the history into a new session. The event `forked` has its id. Without a body, the latest checkpoint is copied."""
    payload = {} if body is None else body.model_dump(exclude_none=True)
    return await submit_kind(request, session_id, "fork", payload)


@route(router, "POST", "/api/sessions/{session_id}/background", "write", status_code=202)
async def background(request: Request, session_id: SessionId) -> SubmissionInfo:
    """Hand the session over to a background worker."""
    return await submit_kind(request, session_id, "background", {}, lane="control")


# Events, history and state


@route(
    router,
    "GET",
    "/api/sessions/{session_id}/events",
    "read",
    responses={
        200: {
            "model": Items[EventInfo],
            "description": "A page of events; with `Accept: text/event-stream`, a stream of all events and new ones.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        204: {"description": "With `follow=false`: nothing is running, and there are no new events."},
        501: {"model": ErrorBody, "description": "The server is installed without this format."},
    },
)
async def events(
    request: Request,
    session_id: SessionId,
    after: Annotated[int, Query(ge=0, lt=2**63, description="The number of the last event you have.")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=1000, description="Maximum number of events; not for streams.")
    ] = 500,
    last_event_id: Annotated[
        str | None, Header(pattern="^[0-9]{0,18}$", description="Overrides `after`.")
    ] = None,
    format: Annotated[
        Format | None, Query(description="Stream in another protocol, regardless of `Accept`.")
    ] = None,
    follow: Annotated[
        bool, Query(description="With `format`: continue the stream after the run has ended.")
    ] = True,
) -> Response:
    """Read the events of a session, as pages or as a stream that starts after your last event and follows new ones."""
    store, session = store_of(request), session_of(request)
    if last_event_id:
        after = int(last_event_id)
    if after > session.seq:
        session = await store.session(session_id)  # it may have grown since
    if after > session.seq:
        raise EventNotFound(session_id=session_id, seq=session.seq, number=after)
    state, channels = request.app.state, channels_of(request)
    join = partial(channels.join, session_id, session.seq, grace_of(request, session))
    watch = access_of(request)
    if format is not None:
        from holdfast.server.formats import StreamFormatter, stream_factory  # imports Pydantic AI

        formatter = StreamFormatter(store, session_id, stream_factory(format, session_id), follow)
        if not follow and after == session.seq and session.status not in {"queued", "running"}:
            return Response(status_code=204)
        feed = partial(formatter.feed, after=after)
        return EventStream(
            join, feed, watch=watch, dropped=state.metrics.dropped, headers=FORMAT_HEADERS[format]
        )
    if "text/event-stream" in request.headers.get("accept", ""):
        feed = partial(Channel.feed, after=after)
        return EventStream(join, feed, watch=watch, dropped=state.metrics.dropped)
    page = await store.events(session_id, after=after, limit=limit)
    is_part = bool(page) and (len(page) == limit or page[-1].seq < session.seq)
    more = f'"{page[-1].seq}"' if is_part else "null"
    items = ",".join(map(event_json, page))
    return Response(f'{{"items":[{items}],"next_cursor":{more}}}', media_type="application/json")


@route(
    router,
    "GET",
    "/api/sessions/{session_id}/messages",
    "read",
    responses={200: {"model": Items[HistoryMessage], "description": "A page of the history."}},
)
async def messages(
    request: Request,
    session_id: SessionId,
    after: Annotated[
        int, Query(ge=-1, lt=2**31, description="The position of the last message you have.")
    ] = -1,
    limit: Limit = 200,
) -> Response:
    """Read the history that the next message continues."""
    store = store_of(request)
    latest = (await store.checkpoints(session_id=session_id, limit=1)).items
    items: list[str] = []
    more = "null"
    if latest:
        place = latest[0]
        page = await store.history(
            session_id, segment=place.segment, length=place.length, after=after, limit=limit
        )
        items = [f'{{"position":{m.position},"message":{m.body}}}' for m in page]
        if page and page[-1].position + 1 < place.length:
            more = f'"{page[-1].position}"'
    return Response(f'{{"items":[{",".join(items)}],"next_cursor":{more}}}', media_type="application/json")


@route(router, "GET", "/api/sessions/{session_id}/runs", "read")
async def runs(
    request: Request, session_id: SessionId, cursor: CursorText = None, limit: Limit = 50
) -> Items[RunInfo]:
    """List the runs of a session, oldest first."""
    page = await store_of(request).runs(session_id=session_id, cursor=cursor, limit=limit)
    return Items[RunInfo].of(page)


@route(router, "GET", "/api/sessions/{session_id}/state", "read", response_model=AgentState)
async def read_state(request: Request, session_id: SessionId, name: StateName = None) -> Response:
    """Read the agent state, or a named state."""
    return _state(await store_of(request).state(session_id, name=name))


@route(router, "GET", "/api/sessions/{session_id}/states", "read")
async def list_states(request: Request, session_id: SessionId) -> StateList:
    """List the states of a session and their versions."""
    versions = await store_of(request).state_versions(session_id)
    return StateList(items=[StateVersion(name=name, version=version) for name, version in versions.items()])


def _state(state: State) -> Response:
    """Return the state as stored. Parsing and writing a large one would take seconds."""
    text = f'{{"version":{state.version},"body":{state.body}}}'
    return Response(text.encode("utf-8", "replace"), media_type="application/json")


@route(router, "PUT", "/api/sessions/{session_id}/state", "write", response_model=AgentState)
async def set_state(
    request: Request, session_id: SessionId, body: NewState, name: StateName = None
) -> Response:
    """Replace the agent state, or a named state, if it has the expected version."""
    state = await store_of(request).set_state(
        session_id, strict_json(body.body, "state"), expected_version=body.expected_version, name=name
    )
    return _state(state)


@route(router, "GET", "/api/sessions/{session_id}/cursors", "read")
async def cursors(
    request: Request, session_id: SessionId, cursor: CursorText = None, limit: Limit = 200
) -> Items[ReadCursor]:
    """List the cursors of a session: how far each consumer has read."""
    page = await store_of(request).cursors(session_id, cursor=cursor, limit=limit)
    return Items[ReadCursor].of(page)


@route(router, "PUT", "/api/sessions/{session_id}/cursors/{consumer}", "write")
async def set_cursor(
    request: Request, session_id: SessionId, consumer: Annotated[Id, Path()], body: NewCursor
) -> ReadCursor:
    """Move a consumer's cursor forward. A lower number changes nothing."""
    return ReadCursor.of(await store_of(request).set_cursor(session_id, consumer, body.seq))
