"""The routes of retention: export, clean, rehydrate, erase, sweep. Only administrators can override guards."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
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
"""The maximum number of exports at once. Each needs some 30 MB and, on PostgreSQL, a connection until it ends."""
_IMPORTS: Final = 2
_ARCHIVE: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


class Imports:
    """Limits how many archives are read at once, and to one per owner. A large one occupies a thread for seconds."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_IMPORTS)
        self._owners = WeakValueDictionary[str, asyncio.Lock]()

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncGenerator[None, None]:
        """Wait for a turn to read an archive of this owner."""
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
    gzip: Annotated[bool, Query(description="Compress the archive.")] = False,
) -> Response:
    """Stream an archive of a session, as a snapshot. A truncated archive has no end record, and readers reject it."""
    store = store_of(request)
    pieces = _counted(
        request.app.state, write_archive(store, open_media(store=store), session_id, compress=gzip)
    )
    first = await anext(pieces)  # an early problem becomes an error response
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
    """Delete the content of a session, if the guards allow it. An archive can restore it."""
    principal = principal_of(request)
    least = request.app.state.settings.retention_min_idle_days
    if (body.force or body.idle_days < least) and not principal.is_admin:
        raise Forbidden(
            required=f"the role admin for force, and for fewer than {least:g} idle days",
            principal=principal.owner,
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
            description="Accept an archive whose title, metadata or cursors differ from those of the cleaned session."
            " For administrators."
        ),
    ] = False,
) -> RehydrateResult:
    """Restore a cleaned session from the archive in the body, or from the stored archive if there is no body."""
    principal = principal_of(request)
    if force and not principal.is_admin:
        raise Forbidden(required="the role admin for force", principal=principal.owner)
    store, session = store_of(request), session_of(request)
    if session.status != "cleaned":  # before the archive is read; `rehydrate_session` checks it again
        raise NotCleaned(id=session_id, status=session.status)
    with await while_allowed(request, spool(request.stream())) as archive:
        given = archive if archive.read(1) else None
        archive.seek(0)
        async with AsyncExitStack() as stack:
            turn = request.app.state.imports.turn(principal.owner)
            await while_allowed(request, stack.enter_async_context(turn))
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
        bool, Query(description="Also erase the sessions of its delegate runs, if they have the same owner.")
    ] = False,
) -> EraseResult:
    """Erase a session permanently: content, archive and media. A tombstone and an audit entry remain.

    Without the scope `delete`, the guards of a clean apply: nothing is pending, and the session was idle for
    `retention_min_idle_days`.
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
            hint = "Wait, or use a token with the scope delete."
            raise RetentionRefused(**error.facts | {"hint": hint}) from None
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
    """Show which policy applies to a session, when it is due, and what prevents it now."""
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
    """Apply the retention policies now, and return the result for each session."""
    store = store_of(request)
    outcomes: list[Outcome] = []
    done = await sweep_apart(
        store,
        actor=principal_of(request).owner,
        dry_run=body.dry_run,
        limit=body.limit,
        on_outcome=outcomes.append,
    )
    if done is None:
        duty = await store.duty(DUTY)
        raise SweepRunning(holder=duty.holder or "another" if duty else "another")
    return SweepResult(items=[SweepOutcome.of(outcome) for outcome in outcomes], **asdict(done))
