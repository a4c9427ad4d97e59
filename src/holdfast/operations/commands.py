"""The shell commands of a session. They can also be read on servers without a shell."""

from typing import Annotated

from pydantic import Field

from holdfast.api.models import Items
from holdfast.api.shell import BashOutput, SessionCommand, Uuid
from holdfast.errors import NotFound
from holdfast.operations.access import Caller
from holdfast.operations.registry import ClientMethod, CursorText, Limit, SessionId, operation

_C = "/api/sessions/{session_id}/commands"


@operation("GET", _C, "read", ClientMethod("SessionHandle.commands", "shell list"), topic="commands")
async def list_commands(
    caller: Caller, session_id: SessionId, cursor: CursorText = None, limit: Limit = 50
) -> Items[SessionCommand]:
    """List the shell commands of a session, newest first."""
    page = await caller.store.commands(session_id=session_id, cursor=cursor, limit=limit)
    return Items[SessionCommand].of(page)


@operation(
    "GET",
    f"{_C}/{{command_id}}/output",
    "read",
    ClientMethod("SessionHandle.command_output", "shell output"),
    topic="commands",
)
async def read_output(
    caller: Caller,
    session_id: SessionId,
    command_id: Uuid,
    after: Annotated[
        int, Field(ge=-1, lt=2**31, description="The order number of the last output you have.")
    ] = -1,
    limit: Limit = 50,
) -> Items[BashOutput]:
    """Read the output of a session's command, after an order number."""
    command = await caller.store.command(command_id)
    if command.session_id != session_id:
        raise NotFound(what="command", id=command.id)
    outputs = await caller.store.outputs(command_id, after=after, limit=limit)
    return Items(items=[BashOutput.of(output) for output in outputs])
