"""Sessions, their states and cursors."""

from contextlib import suppress
from typing import Annotated, Any

from pydantic import Field

from holdfast.api.models import (
    AgentState,
    Id,
    Items,
    NewCursor,
    NewSession,
    NewState,
    ReadCursor,
    SessionChange,
    SessionDetail,
    SessionInfo,
    StateList,
    StateVersion,
)
from holdfast.approval import ApprovalRequest
from holdfast.budgets import own_budgets
from holdfast.counting import count
from holdfast.errors import (
    BadInput,
    Forbidden,
    IdUnavailable,
    SessionErased,
    SessionExists,
    SessionNotFound,
    TooManySessions,
    TooMuchStored,
)
from holdfast.framework_sessions import refuse_foreign
from holdfast.ids import did_you_mean
from holdfast.jsontext import strict_json
from holdfast.leases import why_waiting
from holdfast.operations.access import Caller, Service
from holdfast.operations.registry import (
    NO_NUL,
    ClientMethod,
    CursorText,
    JsonText,
    Limit,
    SessionId,
    operation,
)
from holdfast.questions import open_questions
from holdfast.runtime.attachment import parse as parse_attachment
from holdfast.types import State, Status

_S = "/api/sessions/{session_id}"
StateName = Annotated[
    str | None,
    Field(min_length=1, max_length=256, description="Name of a named state. Default: the agent state."),
]


@operation(
    "POST",
    "/api/sessions",
    "user",
    ClientMethod("Client.session", "send", note="`holdfast send --agent` creates a session"),
    topic="sessions",
    status=201,
)
async def create_session(caller: Caller, body: NewSession) -> SessionInfo:
    """Create a session. It is idle until the first submission."""
    principal, service = caller.principal, caller.service
    if body.owner not in {None, principal.owner} and not principal.is_admin:
        raise Forbidden(required="the role admin to create sessions for others", principal=principal.owner)
    refuse_unknown_agent(service, body.agent)
    await _check_limits(caller, body.id)
    try:
        session = await caller.store.create_session(
            agent=body.agent,
            owner=body.owner or principal.owner,
            id=body.id,
            title=body.title,
            metadata=_metadata(service.attached.get(body.agent, {}) | body.metadata),
        )
    except SessionExists as error:
        if principal.may_see(await caller.store.session(str(error.facts["id"]))):
            raise
        raise IdUnavailable(id=body.id) from None
    except SessionErased:
        raise IdUnavailable(id=body.id) from None
    return SessionInfo.of(session)


async def _check_limits(caller: Caller, session_id: str | None) -> None:
    """Raise `TooManySessions` or `TooMuchStored` if the owner may not have one more. One that exists can be opened."""
    if caller.principal.is_admin:
        return
    try:
        await _refuse_more(caller, caller.principal.owner)
    except (TooManySessions, TooMuchStored):
        if session_id is not None:
            with suppress(SessionNotFound):
                await caller.store.session(session_id)
                return
        raise


async def _refuse_more(caller: Caller, owner: str) -> None:
    most = caller.settings.max_sessions
    if most is not None and await caller.store.has_sessions(owner, most):
        count("limited", what="sessions")
        raise TooManySessions(owner=owner, limit=most)
    await caller.check_stored_bytes()


def refuse_unknown_agent(service: Service, agent: str) -> None:
    """Raise `BadInput` if the service has agents, but not this one."""
    if service.agents and agent not in service.agents:
        hint = did_you_mean(agent, service.agents)
        names = ", ".join(sorted(service.agents))
        raise BadInput(problem=f"there is no agent {agent!r}.{hint} This server has: {names}")


def _metadata(given: dict[str, Any]) -> str:
    parse_attachment(given.get("attached"))
    text = strict_json(given, "metadata")
    own_budgets(text)
    return text


@operation("GET", "/api/sessions", "user", ClientMethod("Client.sessions", "sessions list"), topic="sessions")
async def list_sessions(
    caller: Caller,
    status: Status | None = None,
    agent: Annotated[str | None, Field(max_length=200, pattern=NO_NUL)] = None,
    owner: Annotated[
        str | None,
        Field(max_length=200, pattern=NO_NUL, description="Only sessions of this owner. For administrators."),
    ] = None,
    search: Annotated[
        str | None, Field(max_length=200, pattern=NO_NUL, description="Text in the title.")
    ] = None,
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Items[SessionInfo]:
    """List sessions, most recently active first."""
    principal = caller.principal
    page = await caller.store.sessions(
        owner=owner if principal.is_admin else principal.owner,
        agent=agent,
        status=status,
        search=search,
        cursor=cursor,
        limit=limit,
    )
    return Items[SessionInfo].of(page)


@operation(
    "GET",
    _S,
    "read",
    ClientMethod("SessionHandle.info", "sessions show"),
    ClientMethod("TurnHandle.problem", note="part of `holdfast sessions show`"),
    topic="sessions",
)
async def read_session(caller: Caller, session_id: SessionId) -> SessionDetail:
    """Return a session, with its lease holder, the reason why it waits, and the tool calls that wait for a person."""
    del session_id
    session = caller.session
    questions = await open_questions(caller.store, session)
    detail = SessionDetail.of(session)
    detail.approvals = [ApprovalRequest.model_validate(question) for question in questions]
    detail.problem = await why_waiting(caller.store, session)
    return detail


@operation(
    "PATCH",
    _S,
    "write",
    ClientMethod("SessionHandle.update", "sessions hold", note="the title and the metadata are for programs"),
    topic="sessions",
)
async def change_session(caller: Caller, session_id: SessionId, body: SessionChange) -> SessionInfo:
    """Change the title, the hold or the metadata of a session. Only an administrator can lift a hold that an administrator set."""
    if body.metadata is not None:
        refuse_foreign(caller.session, "its metadata cannot be changed")
    changed = await caller.store.update_session(
        session_id,
        title=body.title,
        hold=body.hold,
        metadata=None if body.metadata is None else _metadata(body.metadata),
        actor=caller.actor,
        is_admin=caller.principal.is_admin,
    )
    if body.metadata is not None:
        await caller.store.wake_for_budgets("session", session_id)
    return SessionInfo.of(changed)


@operation(
    "POST", f"{_S}/dismiss", "write", ClientMethod("SessionHandle.dismiss", "dismiss"), topic="sessions"
)
async def dismiss(caller: Caller, session_id: SessionId) -> SessionInfo:
    """Dismiss the failure of the last turn: the session is idle again. A session that is not failed stays unchanged."""
    return SessionInfo.of(await caller.store.dismiss(session_id))


@operation(
    "GET",
    f"{_S}/state",
    "read",
    ClientMethod("SessionHandle.state", note="for programs"),
    topic="sessions",
    response_model=AgentState,
)
async def read_state(caller: Caller, session_id: SessionId, name: StateName = None) -> JsonText:
    """Read the agent state, or a named state."""
    return _state(await caller.store.state(session_id, name=name))


@operation(
    "GET", f"{_S}/states", "read", ClientMethod("SessionHandle.states", note="for programs"), topic="sessions"
)
async def list_states(caller: Caller, session_id: SessionId) -> StateList:
    """List the states of a session and their versions."""
    versions = await caller.store.state_versions(session_id)
    return StateList(items=[StateVersion(name=name, version=version) for name, version in versions.items()])


def _state(state: State) -> JsonText:
    """Return the state as stored. Parsing and writing a large one would take seconds."""
    return JsonText(f'{{"version":{state.version},"body":{state.body}}}')


@operation(
    "PUT",
    f"{_S}/state",
    "write",
    ClientMethod("SessionHandle.set_state", note="for programs"),
    topic="sessions",
    response_model=AgentState,
)
async def set_state(
    caller: Caller, session_id: SessionId, body: NewState, name: StateName = None
) -> JsonText:
    """Replace the agent state, or a named state, if it has the expected version."""
    await caller.check_stored_bytes()
    state = await caller.store.set_state(
        session_id, strict_json(body.body, "state"), expected_version=body.expected_version, name=name
    )
    return _state(state)


@operation(
    "GET",
    f"{_S}/cursors",
    "read",
    ClientMethod("SessionHandle.cursors", note="for programs"),
    topic="sessions",
)
async def cursors(
    caller: Caller, session_id: SessionId, cursor: CursorText = None, limit: Limit = 200
) -> Items[ReadCursor]:
    """List the cursors of a session: the position of each consumer in the events."""
    return Items[ReadCursor].of(await caller.store.cursors(session_id, cursor=cursor, limit=limit))


@operation(
    "PUT",
    f"{_S}/cursors/{{consumer}}",
    "write",
    ClientMethod("SessionHandle.set_cursor", note="for programs"),
    topic="sessions",
)
async def set_cursor(caller: Caller, session_id: SessionId, consumer: Id, body: NewCursor) -> ReadCursor:
    """Move a consumer's cursor forward. Lower numbers are ignored."""
    return ReadCursor.of(await caller.store.set_cursor(session_id, consumer, body.seq))
