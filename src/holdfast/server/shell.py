"""The routes of shell commands, wire-compatible with existing agent servers, and a few beside them.

They are there only if the server was made with a shell, and open only to principals with the scope `shell`.
"""

from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import Path, Query, Request, Response
from pydantic import BaseModel, Field

from holdfast.errors import BadInput, NotFound, SessionNotFound
from holdfast.server.channel import block
from holdfast.server.routes import new_router, principal_of, route, store_of
from holdfast.server.wire import Given, Id
from holdfast.shell import ShellService
from holdfast.types import Command, Output

router = new_router("shell")
Uuid = Annotated[
    str, Field(pattern="^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$")
]
Kind = Literal["BashCommand", "BashOutput"]
_BATCH = 100


class NewCommand(Given):
    """A command to run."""

    command: Annotated[str, Field(min_length=1, max_length=1_000_000, pattern=r"^[^\x00]+$")]
    cwd: Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")] | None = None
    timeout: Annotated[int, Field(gt=0, le=86_400, description="Seconds; then it is ended.")] = 300
    session_id: Id | None = Field(None, description="The session that it belongs to, and goes with.")


class BashCommand(BaseModel):
    """A command that was started."""

    id: str
    timestamp: datetime
    kind: Literal["BashCommand"] = "BashCommand"
    command: str
    cwd: str | None
    timeout: int


class BashOutput(BaseModel):
    """What a command wrote; the last one has its exit code."""

    id: str
    timestamp: datetime
    kind: Literal["BashOutput"] = "BashOutput"
    command_id: str
    order: int
    exit_code: int | None
    stdout: str | None
    stderr: str | None


BashEvent = BashCommand | BashOutput


class BashPage(BaseModel):
    """A part of the log."""

    items: list[BashEvent]
    next_page_id: str | None = None


class Cleared(BaseModel):
    """How much is gone."""

    cleared_count: int


class CommandResult(BaseModel):
    """How a command stands; this outlives its output."""

    id: str
    state: Literal["running", "done", "timed_out", "stopped", "killed", "lost"]
    exit_code: int | None
    stdout_bytes: int
    stderr_bytes: int
    left_out_bytes: int
    session_id: str | None
    started_at: datetime | None
    ended_at: datetime | None

    @classmethod
    def of(cls, command: Command) -> "CommandResult":
        """Return a command's result as it goes over the wire."""
        return cls(
            id=_hex(command.id),
            state=command.state,
            exit_code=command.exit_code,
            stdout_bytes=command.stdout_bytes,
            stderr_bytes=command.stderr_bytes,
            left_out_bytes=command.left_out_bytes,
            session_id=command.session_id,
            started_at=command.started_at,
            ended_at=command.ended_at,
        )


def _hex(uuid: str) -> str:
    return uuid.replace("-", "")


def _event(event: Command | Output) -> BashEvent:
    if isinstance(event, Command):
        return BashCommand(
            id=_hex(event.id),
            timestamp=event.started_at or datetime.now(UTC),
            command=event.command,
            cwd=event.cwd,
            timeout=round(event.timeout or 0),
        )
    return BashOutput(
        id=_hex(event.id),
        timestamp=event.at or datetime.now(UTC),
        command_id=_hex(event.command_id),
        order=event.order,
        exit_code=event.exit_code,
        stdout=event.stdout,
        stderr=event.stderr,
    )


def _shell(request: Request) -> ShellService:
    return request.app.state.shell


async def _start(request: Request, body: NewCommand) -> Command:
    principal = principal_of(request)
    if body.session_id is not None:
        session = await store_of(request).session(body.session_id)
        if not principal.may_see(session):
            raise SessionNotFound(id=body.session_id)
    return await _shell(request).start(
        body.command,
        cwd=body.cwd,
        timeout=body.timeout,
        session_id=body.session_id,
        owner=principal.owner,
    )


@route(router, "POST", "/api/bash/start_bash_command", "shell")
async def start_bash_command(request: Request, body: NewCommand) -> BashCommand:
    """Start a command. Its output appears in the log while it runs."""
    started = _event(await _start(request, body))
    if not isinstance(started, BashCommand):
        raise NotFound(what="command", id=started.id)
    return started


@route(router, "POST", "/api/bash/execute_bash_command", "shell")
async def execute_bash_command(request: Request, body: NewCommand) -> BashOutput:
    """Run a command to its end and return all of its output that is kept. It goes on if you leave."""
    started = await _start(request, body)
    result = await _shell(request).result(started.id)
    return BashOutput(
        id=_hex(result.command.id),
        timestamp=result.command.ended_at or datetime.now(UTC),
        command_id=_hex(result.command.id),
        order=max(0, result.command.outputs - 1),
        exit_code=result.command.exit_code,
        stdout=result.stdout or None,
        stderr=result.stderr or None,
    )


@route(router, "GET", "/api/bash/bash_events/search", "shell")
async def search_bash_events(
    request: Request,
    kind__eq: Kind | None = None,
    command_id__eq: Annotated[Uuid | None, Query()] = None,
    timestamp__gte: datetime | None = None,
    timestamp__lt: datetime | None = None,
    order__gt: Annotated[int | None, Query(ge=-1, lt=2**31)] = None,
    sort_order: Literal["TIMESTAMP", "TIMESTAMP_DESC"] = "TIMESTAMP",
    page_id: Annotated[str | None, Query(max_length=1000)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 100,
) -> BashPage:
    """Search the log. A page id stays valid when the event that it points at is gone."""
    page = await _shell(request).search(
        kind=None if kind__eq is None else "command" if kind__eq == "BashCommand" else "output",
        command_id=command_id__eq,
        since=_instant(timestamp__gte),
        until=_instant(timestamp__lt),
        after_order=order__gt,
        newest_first=sort_order == "TIMESTAMP_DESC",
        page_id=page_id,
        limit=limit,
    )
    return BashPage(items=[_event(item) for item in page.items], next_page_id=page.next_cursor)


def _instant(at: datetime | None) -> datetime | None:
    return at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at


@route(router, "GET", "/api/bash/bash_events/", "shell")
async def batch_get_bash_events(
    request: Request, event_ids: Annotated[list[Uuid], Query(min_length=1, max_length=_BATCH)]
) -> list[BashEvent | None]:
    """Return these events, in this order; null for each that is not there."""
    found = await _shell(request).events(event_ids)
    return [None if event is None else _event(event) for event in found]


@route(router, "GET", "/api/bash/bash_events/{event_id}", "shell")
async def get_bash_event(request: Request, event_id: Annotated[Uuid, Path()]) -> BashEvent:
    """Return one event."""
    return _event(await _shell(request).event(event_id))


@route(router, "DELETE", "/api/bash/bash_events", "shell")
async def clear_bash_events(request: Request) -> Cleared:
    """Delete the log, but for what runs and what is on hold. Results stay."""
    return Cleared(cleared_count=await _shell(request).clear())


@route(router, "GET", "/api/bash/{command_id}", "shell")
async def read_command(request: Request, command_id: Annotated[Uuid, Path()]) -> CommandResult:
    """Show how a command stands, also when its output is gone."""
    return CommandResult.of(await store_of(request).command(command_id))


@route(router, "POST", "/api/bash/{command_id}/stop", "shell")
async def stop_command(request: Request, command_id: Annotated[Uuid, Path()]) -> CommandResult:
    """Stop a command, whichever server runs it."""
    return CommandResult.of(await _shell(request).stop(command_id))


@route(
    router,
    "GET",
    "/api/bash/{command_id}/output",
    "shell",
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Output."}
    },
)
async def stream_output(
    request: Request,
    command_id: Annotated[Uuid, Path()],
    after: Annotated[
        int, Query(ge=-1, lt=2**31, description="The order number of the last one you have.")
    ] = -1,
) -> Response:
    """Stream a command's output, past and future, until it has ended; `id:` is the order number to resume from."""
    from fastapi.responses import StreamingResponse

    shell = _shell(request)
    await store_of(request).command(command_id)
    last = request.headers.get("last-event-id", "")
    if last:
        if not last.isdecimal() or len(last) > 10:  # noqa: PLR2004
            raise BadInput(problem="Last-Event-ID is the order number of an output")
        after = int(last)

    async def feed():  # noqa: ANN202 - a generator of bytes
        async for output in shell.follow(command_id, after=after):
            yield block(_event(output).model_dump_json(), "output", output.order)

    return StreamingResponse(feed(), media_type="text/event-stream", headers={"cache-control": "no-store"})
