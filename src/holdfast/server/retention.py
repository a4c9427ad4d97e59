"""The routes of retention: export, clean, rehydrate, erase. Overriding a guard needs an administrator."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from holdfast.counting import count
from holdfast.errors import Forbidden
from holdfast.media import open_media
from holdfast.retention import clean as clean_session
from holdfast.retention import erase as erase_session
from holdfast.retention import rehydrate as rehydrate_session
from holdfast.retention import spool, write_archive
from holdfast.retention.archive import MEDIA_TYPE
from holdfast.server.routes import new_router, principal_of, route, store_of
from holdfast.server.sessions import SessionId

router = new_router("retention")
_ARCHIVE: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


class CleanBody(BaseModel):
    """How to clean a session."""

    model_config = ConfigDict(extra="forbid", strict=True)

    idle_days: float = Field(7.0, ge=0, le=36500, description="How long it must have been idle.")
    force: bool = Field(
        False, description="Whatever waits; never what runs or is on hold. For administrators."
    )
    archive: Literal["media"] | None = Field(None, description="Keep a verified archive in the media store.")
    dry_run: bool = Field(False, description="Only say what would be deleted.")


class CleanedOut(BaseModel):
    """What a clean did."""

    session_id: str
    cleaned_at: datetime | None
    archive: str | None
    deleted: dict[str, int]
    dry_run: bool


class ErasedOut(BaseModel):
    """What an erasure did."""

    session_id: str
    erased_at: datetime
    deleted: dict[str, int]
    children: list[str]


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
    pieces = write_archive(store, open_media(store=store), session_id, compress=gzip)
    first = await anext(pieces)  # what is wrong from the start is an answer of its own
    count("retention", action="export")
    name = f"{session_id}.ndjson" + (".gz" if gzip else "")
    return StreamingResponse(
        _from(first, pieces),
        media_type="application/gzip" if gzip else MEDIA_TYPE,
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


async def _from(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        async for piece in rest:
            yield piece


@route(router, "POST", "/api/sessions/{session_id}/clean", "delete")
async def clean(request: Request, session_id: SessionId, body: CleanBody) -> CleanedOut:
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
    count("retention", action="clean")
    return CleanedOut(
        session_id=session_id,
        cleaned_at=cleaned.cleaned_at,
        archive=cleaned.archive,
        deleted=dict(cleaned.deleted),
        dry_run=cleaned.dry_run,
    )


@route(
    router,
    "POST",
    "/api/sessions/{session_id}/rehydrate",
    "write",
    status_code=204,
    response_class=Response,
)
async def rehydrate(request: Request, session_id: SessionId) -> Response:
    """Bring a cleaned session back from the archive in the body; without a body, from the one that was stored."""
    store = store_of(request)
    with await spool(request.stream()) as archive:
        given = archive if archive.read(1) else None
        archive.seek(0)
        await rehydrate_session(
            store, open_media(store=store), session_id, given, actor=principal_of(request).owner
        )
    count("retention", action="rehydrate")
    return Response(status_code=204)


@route(router, "DELETE", "/api/sessions/{session_id}", "delete")
async def erase(request: Request, session_id: SessionId) -> ErasedOut:
    """Erase a session for good: content, archive, media. A tombstone and an audit entry remain."""
    store = store_of(request)
    erased = await erase_session(
        store, open_media(store=store), session_id, actor=principal_of(request).owner
    )
    count("retention", action="erase")
    return ErasedOut(
        session_id=session_id,
        erased_at=erased.erased_at,
        deleted=dict(erased.deleted),
        children=[child.session_id for child in erased.children],
    )
