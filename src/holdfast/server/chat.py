"""Routes for stock front ends: `useChat` of the Vercel AI SDK and the `HttpAgent` of AG-UI, without code of ours in the browser.

A chat or thread is a session of the same id. Only the last message of a request is new. The response is the turn that answers it, in
the protocol of the front end; it continues when a worker is replaced.
"""

from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from holdfast.api.models import FORMAT_HEADERS, Format, Id, NewSession
from holdfast.errors import BadInput, Conflict, IdUnavailable, SessionExists, SessionNotFound
from holdfast.runtime.questions import pending_approvals
from holdfast.server.routes import (
    access_of,
    channels_of,
    new_router,
    principal_of,
    route,
    session_of,
    store_of,
)
from holdfast.server.sessions import SessionId, create_session, grace_of, submit_kind
from holdfast.server.stream import EventStream
from holdfast.types import TURNS, Session, Submission

router = new_router("chat")
AgentName = Annotated[
    str | None,
    Query(max_length=200, description="The agent of a new session. Needed if the server has several."),
]


class ChatRequest(BaseModel):
    """What `useChat` sends. Only the last message counts; other fields are ignored."""

    model_config = ConfigDict(extra="ignore")
    id: Id = Field(description="The id of the chat, which is the session.")
    messages: list[dict[str, Any]] = Field(
        min_length=1, description="The messages of the chat, in the form of the AI SDK."
    )
    trigger: Literal["submit-message", "regenerate-message"] = Field(
        default="submit-message", description="Whether the last message is new, or must be answered again."
    )


class ThreadRequest(BaseModel):
    """What an AG-UI `HttpAgent` sends. Only the last message, or `resume`, counts."""

    model_config = ConfigDict(extra="ignore")
    threadId: Id = Field(description="The id of the thread, which is the session.")  # noqa: N815
    runId: Id = Field(description="The id of the run. The same id again returns the same response.")  # noqa: N815
    messages: list[dict[str, Any]] = Field(default=[], description="The messages of the thread.")
    resume: list[dict[str, Any]] | None = Field(default=None, description="The answers to open interrupts.")


@route(router, "POST", "/api/chat", "user", responses={200: {"content": {"text/event-stream": {}}}})
async def chat(request: Request, body: ChatRequest, agent: AgentName = None) -> Response:
    """Answer `useChat`: queue the last message, or the answers to approvals in it, and stream the turn."""
    from holdfast.server.chat_content import parse_chat  # imports Pydantic AI

    answers, content, last_id = parse_chat(body.messages[-1])
    session = await _open(request, body.id, agent)
    if answers:
        turn, after = await _answer(request, session, answers)
        return _stream(request, session, "vercel", turn, after, last_id)
    key = last_id
    if body.trigger == "regenerate-message":
        undone = await submit_kind(request, session.id, "undo", {})
        key = f"{last_id} {undone.submission_id}"[:200]
    sent = await submit_kind(request, session.id, "message", content, idempotency_key=key)
    return _stream(request, session, "vercel", sent.submission_id, sent.position)


@route(
    router,
    "GET",
    "/api/chat/{session_id}/stream",
    "read",
    responses={200: {"content": {"text/event-stream": {}}}, 204: {"description": "No turn is active."}},
)
async def resume_chat(request: Request, session_id: SessionId) -> Response:
    """Resume the response of `useChat` after a reload: the active turn from its beginning."""
    del session_id
    session = session_of(request)
    active = await _active(request, session)
    if active is None:
        return Response(status_code=204)
    return _stream(request, session, "vercel", active.id, active.position)


@route(router, "GET", "/api/chat/{session_id}", "read")
async def chat_messages(request: Request, session_id: SessionId) -> list[dict[str, Any]]:
    """Return the messages of a chat in the form of the AI SDK, to start `useChat` with."""
    from holdfast.server.chat_content import dump_chat

    return await dump_chat(store_of(request), session_id)


@route(router, "POST", "/api/ag-ui", "user", responses={200: {"content": {"text/event-stream": {}}}})
async def ag_ui(request: Request, body: ThreadRequest, agent: AgentName = None) -> Response:
    """Answer an AG-UI `HttpAgent`: queue the last message, or the answers to interrupts, and stream the run under its id."""
    from holdfast.server.chat_content import parse_resume, parse_thread

    if body.resume:
        answers = parse_resume(body.resume)
        session = await _open(request, body.threadId, agent)
        turn, after = await _answer(request, session, answers)
        return _stream(request, session, "ag-ui", turn, after, body.runId)
    content = parse_thread(body.messages)
    session = await _open(request, body.threadId, agent)
    sent = await submit_kind(request, session.id, "message", content, idempotency_key=body.runId)
    return _stream(request, session, "ag-ui", sent.submission_id, sent.position, body.runId)


async def _open(request: Request, session_id: str, agent: str | None) -> Session:
    """Return the session, if the caller may write to it; create it if there is none."""
    principal = principal_of(request)
    try:
        session = await store_of(request).session(session_id)
    except SessionNotFound:
        agents = sorted(request.app.state.agents)
        if agent is None and len(agents) != 1:
            raise BadInput(
                problem=f"name the agent of a new session: `?agent=…`, one of {', '.join(agents)}"
            ) from None
        new = NewSession.model_validate({"agent": agent or agents[0], "id": session_id})
        with suppress(SessionExists):  # another request was faster
            await create_session(request, new)
        session = await store_of(request).session(session_id)
    if not principal.may_see(session):
        raise IdUnavailable(id=session_id)
    return session


async def _answer(request: Request, session: Session, answers: dict[str, dict[str, Any]]) -> tuple[str, int]:
    """Send the answers to the open questions of a session. Return the submission of its turn, and where its continuation starts."""
    store = store_of(request)
    waiting = (await store.submissions(session.id, state="waiting", payloads=False, limit=1)).items
    questions = {call["call_id"]: call for call in await pending_approvals(store, session.id)}
    if not waiting or not questions:
        raise Conflict(problem=f"session {session.id} does not wait for an answer")
    if missing := sorted(questions.keys() - answers.keys()):
        raise Conflict(problem=f"answer all calls at once; these are missing: {', '.join(missing)}")
    for call_id, call in questions.items():
        if answers[call_id].pop("input", call["arguments"]) != call["arguments"]:
            raise Conflict(problem=f"call {call_id} has other arguments than those that were answered")
    after = session.seq
    for call_id, call in questions.items():
        given = {name: value for name, value in answers[call_id].items() if value is not None}
        body = {"call_id": call_id, "digest": call["digest"], "by": principal_of(request).owner, **given}
        await submit_kind(request, session.id, "approval", body, lane="control")
    return waiting[0].id, after


async def _active(request: Request, session: Session) -> Submission | None:
    """Return the submission whose turn runs now, or else the next one."""
    store = store_of(request)
    for state in ("claimed", "queued"):
        found = await store.submissions(session.id, state=state, payloads=False, limit=100)
        for submission in found.items:
            if submission.kind in TURNS:
                return submission
    return None


def _stream(
    request: Request,
    session: Session,
    format: Format,
    submission_id: str,
    after: int,
    given_id: str | None = None,
) -> Response:
    from holdfast.server.formats import StreamFormatter, stream_factory

    make = stream_factory(format, session.id, given_id)
    formatter = StreamFormatter(store_of(request), session.id, make, False, submission_id)
    join = partial(channels_of(request).join, session.id, session.seq, grace_of(request, session))
    feed = partial(formatter.feed, after=after)
    dropped = request.app.state.metrics.dropped
    return EventStream(join, feed, watch=access_of(request), dropped=dropped, headers=FORMAT_HEADERS[format])
