"""The routes of retention: export, clean, rehydrate, erase, sweep. Overriding a guard needs an administrator."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any, Final
from weakref import WeakValueDictionary

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.datastructures import State

from holdfast.api.retention import (
    CleanRequest,
    CleanResult,
    EraseResult,
    RehydrateResult,
    RetentionStatus,
    SweepOutcome,
    SweepRequest,
    SweepResult,
)
from holdfast.counting import count
from holdfast.errors import Forbidden, NotCleaned, RetentionRefused, SweepRunning, TooManyExports
from holdfast.media import open_media, to_uri
from holdfast.retention import Outcome, outlook, spool, write_archive
from holdfast.retention import clean as clean_session
from holdfast.retention import erase as erase_session
from holdfast.retention import rehydrate as rehydrate_session
from holdfast.retention.archive import MEDIA_TYPE
from holdfast.retention.erase import Erased
from holdfast.retention.sweep import DUTY
from holdfast.retention.sweeper import sweep_apart
from holdfast.server.routes import (
    access_of,
    new_router,
    principal_of,
    route,
    session_of,
    store_of,
    while_allowed,
)
from holdfast.server.sessions import SessionId
from holdfast.server.stream import Download

router = new_router("retention")
MAX_EXPORTS: Final = 8
"""How many archives a process sends at once. Each needs some 30 MB and, on PostgreSQL, a connection until it is read."""
_IMPORTS: Final = 2
_ARCHIVE: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


class Imports:
    """Lets a process read a few archives at once, and one of each owner. Reading a large one takes a thread for seconds."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_IMPORTS)
        self._owners = WeakValueDictionary[str, asyncio.Lock]()

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncGenerator[None, None]:
        """Wait until an archive of this owner may be read."""
        async with self._owners.setdefault(owner, asyncio.Lock()), self._places:
            yield


@route(
    router,
    "GET",
    "/api/sessions/{session_id}/export",
    "read",
    response_class=StreamingResponse,
    responses={
        200: {"content": {MEDIA_TYPE: _ARCHIVE, "application/gzip": _ARCHIVE}, "description": "The archive."},
        409: {"description": "The session is cleaned."},
    },
)
async def export(
    request: Request,
    session_id: SessionId,
    gzip: Annotated[bool, Query(description="Compress it.")] = False,
) -> Response:
    """Stream the archive of a session as it is at this moment. One that is cut short has no end, and no reader takes it."""
    store = store_of(request)
    pieces = _counted(
        request.app.state, write_archive(store, open_media(store=store), session_id, compress=gzip)
    )
    first = await anext(pieces)  # what is wrong from the start is an answer of its own
    count("retention", action="export")
    name = f"{session_id}.ndjson" + (".gz" if gzip else "")
    return Download(
        _from(first, pieces),
        watch=access_of(request),
        media_type="application/gzip" if gzip else MEDIA_TYPE,
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


async def _counted(state: State, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of an archive. Raises `TooManyExports` before the first one."""
    if state.exports >= MAX_EXPORTS:
        raise TooManyExports(limit=MAX_EXPORTS)
    state.exports += 1
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece
    finally:
        state.exports -= 1


async def _from(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        async for piece in rest:
            yield piece


@route(router, "POST", "/api/sessions/{session_id}/clean", "delete")
async def clean(request: Request, session_id: SessionId, body: CleanRequest) -> CleanResult:
    """Delete what a session contains, behind guards; it can be brought back from an archive."""
    principal = principal_of(request)
    least = request.app.state.settings.retention_min_idle_days
    if (body.force or body.idle_days < least) and not principal.is_admin:
        raise Forbidden(
            needs=f"the role admin for force, and for fewer than {least:g} idle days", who=principal.owner
        )
    store = store_of(request)
    cleaned = await clean_session(
        store,
        open_media(store=store),
        session_id,
        actor=principal.owner,
        idle_days=body.idle_days,
        force=body.force,
        archive=body.archive,
        dry_run=body.dry_run,
    )
    if not body.dry_run:
        count("retention", action="clean")
    return CleanResult.of(cleaned)


@route(
    router,
    "POST",
    "/api/sessions/{session_id}/rehydrate",
    "write",
    body_limit="max_archive_bytes",
)
async def rehydrate(
    request: Request,
    session_id: SessionId,
    force: Annotated[
        bool,
        Query(
            description="Accept an archive with another title, metadata or cursors than the session had when it was cleaned."
            " For administrators."
        ),
    ] = False,
) -> RehydrateResult:
    """Bring a cleaned session back from the archive in the body; without a body, from the one that was stored."""
    principal = principal_of(request)
    if force and not principal.is_admin:
        raise Forbidden(needs="the role admin for force", who=principal.owner)
    store, session = store_of(request), session_of(request)
    if session.status != "cleaned":  # before the archive is read; `rehydrate_session` checks it again
        raise NotCleaned(id=session_id, status=session.status)
    with await while_allowed(request, spool(request.stream())) as archive:
        given = archive if archive.read(1) else None
        archive.seek(0)
        async with request.app.state.imports.turn(principal.owner):
            restored = await rehydrate_session(
                store, open_media(store=store), session_id, given, actor=principal.owner, force=force
            )
    count("retention", action="rehydrate")
    return RehydrateResult(
        session_id=session_id, archive_sha256=restored.archive_sha256, restored=dict(restored.restored)
    )


@route(router, "DELETE", "/api/sessions/{session_id}", "delete")
async def erase(
    request: Request,
    session_id: SessionId,
    children: Annotated[
        bool, Query(description="Also the sessions of its delegate runs, if they have the same owner.")
    ] = False,
) -> EraseResult:
    """Erase a session for good: content, archive, media. A tombstone and an audit entry remain.

    Without the scope `delete` it has the guards of a clean: nothing is pending, and it was idle for `retention_min_idle_days`.
    """
    store, principal = store_of(request), principal_of(request)
    guarded = "delete" not in principal.scopes
    try:
        erased = await erase_session(
            store,
            open_media(store=store),
            session_id,
            actor=principal.owner,
            children=children,
            idle_days=request.app.state.settings.retention_min_idle_days if guarded else None,
        )
    except RetentionRefused as error:
        if guarded and error.facts["guard"] in {"pending", "cursor", "idle"}:
            lift = "Wait, or use a token with the scope delete."
            raise RetentionRefused(**error.facts | {"lift": lift}) from None
        raise
    count("retention", action="erase")
    return EraseResult(
        session_id=session_id,
        erased_at=erased.erased_at,
        deleted=dict(erased.deleted),
        children=list(_ids(erased.children)),
    )


def _ids(children: Iterable[Erased]) -> Iterator[str]:
    for child in children:
        yield child.session_id
        yield from _ids(child.children)


@route(router, "GET", "/api/sessions/{session_id}/retention", "read")
async def read_outlook(request: Request, session_id: SessionId) -> RetentionStatus:
    """Show which policy applies to a session, when it is due, and what stands against it now."""
    result = await outlook(store_of(request), session_id)
    terms = result.terms
    return RetentionStatus(
        session_id=session_id,
        policy=result.policy,
        action=terms and terms.action,
        idle_days=terms and terms.idle_days,
        max_age_days=terms and terms.max_age_days,
        keep_last_runs=terms and terms.keep_last_runs,
        rehydrated_at=result.rehydrated_at,
        due_at=result.due_at,
        held_by=result.held_by,
        guard=result.guard,
        problem=result.problem,
        cleaned_at=result.cleaned_at,
        archive=None if result.archive is None else to_uri(result.archive),
    )


@route(router, "POST", "/api/retention/sweep", "admin")
async def sweep(request: Request, body: SweepRequest) -> SweepResult:
    """Do now what the policies say is due, and say what came of each session."""
    store = store_of(request)
    outcomes: list[Outcome] = []
    done = await sweep_apart(
        store,
        actor=principal_of(request).owner,
        dry_run=body.dry_run,
        limit=body.limit,
        tell=outcomes.append,
    )
    if done is None:
        duty = await store.duty(DUTY)
        raise SweepRunning(holder=duty.holder or "another" if duty else "another")
    return SweepResult(items=[SweepOutcome.of(outcome) for outcome in outcomes], **asdict(done))
