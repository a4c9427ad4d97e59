"""Routes for stock front ends: `useChat` of the Vercel AI SDK and the `HttpAgent` of AG-UI, without code of ours in the browser.

A chat or thread is a session of the same id. Only the last message of a request is new. The response is the turn that answers it, in
the protocol of the front end; it continues when a worker is replaced.
"""

import hashlib
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from holdfast.api.models import FORMAT_HEADERS, Format, Id, NewSession
from holdfast.errors import BadInput, Conflict, IdUnavailable, SessionExists, SessionNotFound
from holdfast.framework_sessions import NO_WORKER, refuse_foreign
from holdfast.operations.events import grace_of
from holdfast.operations.registry import SessionId
from holdfast.operations.sessions import create_session
from holdfast.operations.submissions import submit_kind
from holdfast.questions import pending_approvals
from holdfast.server.long_responses import EventStream
from holdfast.server.routes import (
    access_of,
    caller_of,
    channels_of,
    new_router,
    principal_of,
    route,
    session_of,
    store_of,
)
from holdfast.store import Store
from holdfast.types import SUSPENDED, TURNS, Session, Submission

router = new_router("chat")
_LONGEST_KEY = 200
AgentName = Annotated[
    str | None,
    Query(max_length=200, description="The agent of a new session. Needed if the server has several."),
]


class ChatRequest(BaseModel):
    """Request body of `useChat`. Only the last message counts; other fields are ignored."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "examples": [
                {
                    "id": "s1",
                    "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}],
                }
            ]
        },
    )
    id: Id = Field(description="The id of the chat, which is the session.")
    messages: list[dict[str, Any]] = Field(
        min_length=1, fail_fast=True, description="The messages of the chat, in the form of the AI SDK."
    )
    trigger: Literal["submit-message", "regenerate-message"] = Field(
        default="submit-message", description="Whether the last message is new, or must be answered again."
    )


class ThreadRequest(BaseModel):
    """Request body of AG-UI's `HttpAgent`. Only the last message, or `resume`, counts."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "examples": [
                {
                    "threadId": "s1",
                    "runId": "r1",
                    "messages": [{"id": "m1", "role": "user", "content": "Hello"}],
                }
            ]
        },
    )
    threadId: Id = Field(description="The id of the thread, which is the session.")  # noqa: N815
    runId: Id = Field(description="The id of the run. The same id again returns the same response.")  # noqa: N815
    messages: list[dict[str, Any]] = Field(
        default=[], fail_fast=True, description="The messages of the thread."
    )
    resume: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = Field(
        default=None, description="The answers to open interrupts."
    )


@route(
    router,
    "POST",
    "/api/chat",
    "user",
    no_method="for `useChat` of the Vercel AI SDK",
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def chat(request: Request, body: ChatRequest, agent: AgentName = None) -> Response:
    """Answer `useChat`: queue the last message, or the answers to approvals in it, and stream the turn."""
    from holdfast.server.chat_content import parse_chat  # imports Pydantic AI

    answers, content, last_id = parse_chat(body.messages[-1])
    if answers:
        session = await _find(request, body.id)
        turn, after = await _answer(request, session, answers)
        return _stream(request, session, "vercel", turn, after, last_id)
    session = await _open(request, body.id, agent)
    key = last_id
    if body.trigger == "regenerate-message":
        await _check_last(request, session, last_id, content)
        undone = await submit_kind(caller_of(request), session.id, "undo", {})
        key = f"{undone.submission_id} {last_id}"[:_LONGEST_KEY]
    sent = await submit_kind(caller_of(request), session.id, "message", content, idempotency_key=key)
    return _stream(request, session, "vercel", sent.submission_id, sent.position)


@route(
    router,
    "GET",
    "/api/chat/{session_id}/stream",
    "read",
    no_method="for `useChat` of the Vercel AI SDK",
    responses={200: {"content": {"text/event-stream": {}}}, 204: {"description": "No turn is active."}},
)
async def resume_chat(request: Request, session_id: SessionId) -> Response:
    """Resume the response of `useChat` after a reload: the active turn from its beginning."""
    del session_id
    session = session_of(request)
    active = await _active(request, session)
    if active is None:
        return Response(status_code=204)
    return _stream(request, session, "vercel", active.id, active.position, answered=session.seq)


@route(
    router,
    "GET",
    "/api/chat/{session_id}",
    "read",
    no_method="for `useChat` of the Vercel AI SDK",
    responses={
        200: {
            "model": list[dict[str, Any]],
            "headers": {
                "link": {
                    "description": 'The address of the earlier messages, as `rel="prev"`, if there are any.',
                    "schema": {"type": "string"},
                }
            },
        }
    },
)
async def chat_messages(
    request: Request,
    session_id: SessionId,
    before: Annotated[
        int | None, Query(ge=1, lt=2**31, description="Where the next page begins: from the header `link`.")
    ] = None,
) -> Response:
    """Return the last messages of a chat in the form of the AI SDK, to start `useChat` with. `link` has the address of earlier ones."""
    from holdfast.server.chat_history import dump_chat  # imports Pydantic AI

    async with request.app.state.chat_pages:
        page = await dump_chat(store_of(request), session_id, before)
    earlier = f'</api/chat/{session_id}?before={page.before}>; rel="prev"'
    return Response(
        page.body,
        headers={} if page.before is None else {"link": earlier},
        media_type="application/json",
    )


@route(
    router,
    "POST",
    "/api/ag-ui",
    "user",
    no_method="for the `HttpAgent` of AG-UI",
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def ag_ui(request: Request, body: ThreadRequest, agent: AgentName = None) -> Response:
    """Answer an AG-UI `HttpAgent`: queue the last message, or the answers to interrupts, and stream the run under its id."""
    from holdfast.server.chat_content import parse_resume, parse_thread

    if body.resume:
        answers = parse_resume(body.resume)
        session = await _find(request, body.threadId)
        turn, after = await _answer(request, session, answers, body.runId)
        return _stream(request, session, "ag-ui", turn, after, body.runId)
    content = parse_thread(body.messages)
    session = await _open(request, body.threadId, agent)
    sent = await submit_kind(caller_of(request), session.id, "message", content, idempotency_key=body.runId)
    return _stream(request, session, "ag-ui", sent.submission_id, sent.position, body.runId)


async def _find(request: Request, session_id: str) -> Session:
    """Return the session, if the caller may write to it and workers run it."""
    session = await store_of(request).session(session_id)
    if not principal_of(request).may_see(session):
        raise IdUnavailable(id=session_id)
    refuse_foreign(session, NO_WORKER)
    return session


async def _open(request: Request, session_id: str, agent: str | None) -> Session:
    """Return the session, as `_find` does; create it if there is none."""
    try:
        return await _find(request, session_id)
    except SessionNotFound:
        agents = sorted(caller_of(request).service.agents)
        if agent is None and len(agents) != 1:
            raise BadInput(
                problem=f"name the agent of a new session: `?agent=…`, one of {', '.join(agents)}"
            ) from None
        new = NewSession.model_validate({"agent": agent or agents[0], "id": session_id})
        with suppress(SessionExists):  # another request was faster
            await create_session(caller_of(request), new)
        return await _find(request, session_id)


async def _check_last(request: Request, session: Session, message_id: str, content: dict[str, Any]) -> None:
    """Raise `Conflict` unless a message is the last one of the session, and nothing waits for a person."""
    if session.status in SUSPENDED:
        raise Conflict(
            problem=f"session {session.id} waits for {session.waiting_for}; answer or stop it before you regenerate"
        )
    store = store_of(request)
    named: Submission | None = None
    last: Submission | None = None
    async for sent in _submissions(store, session):
        if sent.kind == "message":
            last = sent
            key = sent.idempotency_key or ""
            named = sent if message_id in {key, key.partition(" ")[2]} else named
    if last is not None and named is None:  # a page that was reloaded has ids of ours
        whole = await store.submission(last.id)
        named = whole if json.loads(whole.payload) == content else None
    if last is None or named is None or named.id != last.id:
        raise Conflict(
            problem="only the last message can be answered again; rewind or fork the session instead"
        )


async def _answer(
    request: Request, session: Session, answers: dict[str, dict[str, Any]], run_id: str | None = None
) -> tuple[str, int]:
    """Send the answers to the open questions of a session. Return the submission of its turn, and where its continuation starts.

    With the id of a run, the same answers again return the same continuation.
    """
    store = store_of(request)
    waiting = (await store.submissions(session.id, state="waiting", payloads=False, limit=1)).items
    questions = {call["call_id"]: call for call in await pending_approvals(store, session.id)}
    keys = {call_id: hashlib.sha256(f"{run_id} {call_id}".encode()).hexdigest() for call_id in answers}
    sent = {} if run_id is None else await _sent(store, session, frozenset(keys.values()))
    if sent and (len(sent) == len(keys) or not answers.keys() & questions.keys()):
        return next(iter(sent.values()))
    if not waiting or not questions:
        raise Conflict(problem=f"session {session.id} does not wait for an answer")
    if missing := sorted(questions.keys() - answers.keys()):
        raise Conflict(problem=f"answer all calls at once; these are missing: {', '.join(missing)}")
    for call_id, call in questions.items():
        digest = answers[call_id].pop("digest", call["digest"])
        if digest != call["digest"] or answers[call_id].pop("input", call["arguments"]) != call["arguments"]:
            raise Conflict(problem=f"call {call_id} has other arguments than those that were answered")
    after = session.seq
    for call_id, call in questions.items():
        given = {name: value for name, value in answers[call_id].items() if value is not None}
        body = {"call_id": call_id, "digest": call["digest"], "by": principal_of(request).owner, **given}
        key = None if run_id is None else f"{waiting[0].id} {keys[call_id]}"
        await submit_kind(
            caller_of(request), session.id, "approval", body, lane="control", idempotency_key=key
        )
    return waiting[0].id, after


async def _sent(store: Store, session: Session, keys: frozenset[str]) -> dict[str, tuple[str, int]]:
    """Return the turn that each earlier answer with one of these keys continued, and where."""
    found: dict[str, tuple[str, int]] = {}
    async for sent in _submissions(store, session):
        turn, _, key = (sent.idempotency_key or "").partition(" ")
        if sent.kind == "approval" and key in keys:
            found.setdefault(key, (turn, sent.position))
    return found


async def _submissions(store: Store, session: Session) -> AsyncGenerator[Submission, None]:
    """Yield the submissions of a session in order, without their payloads."""
    cursor: str | None = None
    while True:
        page = await store.submissions(session.id, payloads=False, cursor=cursor, limit=1000)
        for submission in page.items:
            yield submission
        cursor = page.next_cursor
        if cursor is None:
            return


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
    *,
    answered: int = 0,
) -> Response:
    from holdfast.server.formats import StreamFormatter, stream_factory

    make = stream_factory(format, session.id, given_id)
    formatter = StreamFormatter(store_of(request), session.id, make, False, submission_id, answered)
    join = partial(channels_of(request).join, session.id, session.seq, grace_of(caller_of(request), session))
    feed = partial(formatter.feed, after=after)
    dropped = request.app.state.metrics.dropped
    return EventStream(join, feed, watch=access_of(request), dropped=dropped, headers=FORMAT_HEADERS[format])
