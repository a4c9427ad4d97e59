"""The routes of archives: export and rehydrate, which stream. The other routes of retention are operations."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Annotated, Any, Final
from weakref import WeakValueDictionary

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse

from holdfast.api.retention import RehydrateResult
from holdfast.operations import retention
from holdfast.operations.registry import ClientMethod, SessionId
from holdfast.retention import spool
from holdfast.retention.archive import MEDIA_TYPE
from holdfast.server.long_responses import Download
from holdfast.server.routes import access_of, caller_of, new_router, route, while_allowed

router = new_router("retention")
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
    ClientMethod("SessionHandle.archive", "sessions export"),
    ClientMethod("SessionHandle.export", "sessions export"),
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
    pieces = retention.export(caller_of(request), session_id, gzip=gzip)
    first = await anext(pieces)  # an early problem becomes an error response
    name = f"{session_id}.ndjson" + (".gz" if gzip else "")
    return Download(
        _from(first, pieces),
        watch=access_of(request),
        media_type="application/gzip" if gzip else MEDIA_TYPE,
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


async def _from(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        async for piece in rest:
            yield piece


@route(
    router,
    "POST",
    "/api/sessions/{session_id}/rehydrate",
    "write",
    ClientMethod("SessionHandle.rehydrate", "sessions rehydrate"),
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
    caller = caller_of(request)
    await retention.check_rehydrate(caller, force=force)
    with await while_allowed(request, spool(request.stream())) as archive:
        given = archive if archive.read(1) else None
        archive.seek(0)
        async with AsyncExitStack() as stack:
            turn = request.app.state.imports.turn(caller.principal.owner)
            await while_allowed(request, stack.enter_async_context(turn))
            return await retention.rehydrate(caller, session_id, given, force=force)
