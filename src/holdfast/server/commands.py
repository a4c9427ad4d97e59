"""The routes of a session's shell commands. They also exist on servers without a shell."""

from typing import Annotated

from fastapi import Path, Query, Request

from holdfast.api.models import Items
from holdfast.api.shell import BashOutput, SessionCommand, Uuid
from holdfast.errors import NotFound
from holdfast.server.routes import new_router, route, store_of
from holdfast.server.sessions import CursorText, Limit, SessionId

router = new_router("commands")


@route(router, "GET", "/api/sessions/{session_id}/commands", "read")
async def list_commands(
    request: Request, session_id: SessionId, cursor: CursorText = None, limit: Limit = 50
) -> Items[SessionCommand]:
    """List the shell commands of a session, newest first."""
    page = await store_of(request).commands(session_id=session_id, cursor=cursor, limit=limit)
    return Items[SessionCommand].of(page)


@route(router, "GET", "/api/sessions/{session_id}/commands/{command_id}/output", "read")
async def read_output(
    request: Request,
    session_id: SessionId,
    command_id: Annotated[Uuid, Path()],
    after: Annotated[
        int, Query(ge=-1, lt=2**31, description="The order number of the last output you have.")
    ] = -1,
    limit: Limit = 50,
) -> Items[BashOutput]:
    """Read the output of a session's command, after an order number."""
    store = store_of(request)
    command = await store.command(command_id)
    if command.session_id != session_id:
        raise NotFound(what="command", id=command.id)
    outputs = await store.outputs(command_id, after=after, limit=limit)
    return Items(items=[BashOutput.of(output) for output in outputs])
