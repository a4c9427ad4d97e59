"""The routes of shell commands, wire-compatible with existing agent servers, and a few beside them.

They are there only if the server was made with a shell, and open only to principals with the scope `shell`.
"""

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import Path, Query, Request, Response
from pydantic import Field, TypeAdapter, ValidationError

from holdfast.api.shell import (
    UUID_PATTERN,
    BashCommand,
    BashEvent,
    BashOutput,
    BashPage,
    Cleared,
    CommandResult,
    NewCommand,
    Uuid,
)
from holdfast.errors import BadInput, NotFound, SessionNotFound
from holdfast.server.auth import Principal
from holdfast.server.channel import COMMENT, REFUSED, block, ending
from holdfast.server.routes import (
    access_of,
    channels_of,
    new_router,
    principal_of,
    route,
    store_of,
    while_allowed,
)
from holdfast.shell import ShellService
from holdfast.types import Command, Output

router = new_router("shell")
Kind = Literal["BashCommand", "BashOutput"]
_BATCH = 100
_UUID = re.compile(UUID_PATTERN)
_IDS = TypeAdapter(
    Annotated[list[Annotated[str, Field(max_length=200)]], Field(min_length=1, max_length=_BATCH)]
)
_COMMENT_SECONDS = 15.0


def shown(event: Command | Output) -> BashEvent:
    """Return an event of the log as it goes over the wire."""
    return BashCommand.of(event) if isinstance(event, Command) else BashOutput.of(event)


def _shell(request: Request) -> ShellService:
    return request.app.state.shell


async def _start(request: Request, body: NewCommand) -> Command:
    return await start(_shell(request), principal_of(request), body)


async def start(shell: ShellService, principal: Principal, body: NewCommand) -> Command:
    """Start a command for somebody. One of a session belongs to the session's owner, who must be they."""
    if body.session_id is not None:
        session = await shell.store.session(body.session_id)
        if not principal.may_see(session):
            raise SessionNotFound(id=body.session_id)
    return await shell.start(
        body.command,
        cwd=body.cwd,
        timeout=body.timeout,
        session_id=body.session_id,
        owner=principal.owner,
    )


async def _theirs(request: Request, command_id: str) -> Command:
    """Return a command that exists for the one who asks."""
    command = await store_of(request).command(command_id)
    if principal_of(request).sees not in {None, command.owner}:
        raise NotFound(what="command", id=command.id)
    return command


@route(router, "POST", "/api/bash/start_bash_command", "shell", lenient=True)
async def start_bash_command(request: Request, body: NewCommand) -> BashCommand:
    """Start a command. Its output appears in the log while it runs."""
    started = shown(await _start(request, body))
    if not isinstance(started, BashCommand):
        raise NotFound(what="command", id=started.id)
    return started


@route(router, "POST", "/api/bash/execute_bash_command", "shell", lenient=True)
async def execute_bash_command(request: Request, body: NewCommand) -> BashOutput:
    """Run a command to its end and return all of its output that is kept. It goes on if you leave."""
    started = await _start(request, body)
    outputs = await while_allowed(request, _all_outputs(_shell(request), started.id))
    if not outputs:  # it was purged in the very moment of its end
        raise NotFound(what="output of command", id=started.id)
    whole = replace(
        outputs[-1],
        stdout="".join(output.stdout or "" for output in outputs) or None,
        stderr="".join(output.stderr or "" for output in outputs) or None,
    )
    return BashOutput.of(whole)


async def _all_outputs(shell: ShellService, command_id: str) -> list[Output]:
    return [output async for output in shell.follow(command_id)]


@route(router, "GET", "/api/bash/bash_events/search", "shell", lenient=True)
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
    """Search the log. A page id stays valid when the event that it points at is gone. `command_id__eq` finds the output of a command."""
    if command_id__eq is not None:
        if kind__eq == "BashCommand":
            return BashPage(items=[])  # a command does not have the id of one
        kind__eq = "BashOutput"
    page = await _shell(request).search(
        kind=None if kind__eq is None else "command" if kind__eq == "BashCommand" else "output",
        command_id=command_id__eq,
        owner=principal_of(request).sees,
        since=_instant(timestamp__gte),
        until=_instant(timestamp__lt),
        after_order=order__gt,
        newest_first=sort_order == "TIMESTAMP_DESC",
        page_id=page_id,
        limit=limit,
    )
    return BashPage(items=[shown(item) for item in page.items], next_page_id=page.next_cursor)


def _instant(at: datetime | None) -> datetime | None:
    return at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at


@route(router, "GET", "/api/bash/bash_events/", "shell", lenient=True)
async def batch_get_bash_events(
    request: Request,
    event_ids: Annotated[
        list[Uuid],
        Query(
            default_factory=list,
            max_length=_BATCH,
            description="The ids; or a list of them as the JSON body.",
        ),
    ],
) -> list[BashEvent | None]:
    """Return these events, in this order; null for each that is not there."""
    wanted = event_ids or await _ids_in_body(request)
    known = [each for each in wanted if _UUID.fullmatch(each)]
    found = await _shell(request).events(known, owner=principal_of(request).sees) if known else []
    events = dict(zip(known, found, strict=True))
    return [None if (event := events.get(each)) is None else shown(event) for each in wanted]


async def _ids_in_body(request: Request) -> list[str]:
    """Return the ids in the body, where clients of other agent servers put them. An id that is no UUID names nothing."""
    if not await request.body():
        raise BadInput(problem=f"name 1 to {_BATCH} events as event_ids")
    try:
        return _IDS.validate_python(await request.json())
    except ValidationError:
        raise BadInput(problem=f"the body is not a list of 1 to {_BATCH} ids") from None


@route(router, "GET", "/api/bash/bash_events/{event_id}", "shell", lenient=True)
async def get_bash_event(request: Request, event_id: Annotated[Uuid, Path()]) -> BashEvent:
    """Return one event."""
    return shown(await _shell(request).event(event_id, owner=principal_of(request).sees))


@route(router, "DELETE", "/api/bash/bash_events", "shell", lenient=True)
async def clear_bash_events(request: Request) -> Cleared:
    """Delete your log, as an administrator everybody's, but for what runs and what is on hold. Results stay."""
    return Cleared(cleared_count=await _shell(request).clear(owner=principal_of(request).sees))


@route(router, "GET", "/api/bash/{command_id}", "shell")
async def read_command(request: Request, command_id: Annotated[Uuid, Path()]) -> CommandResult:
    """Show how a command stands, also when its output is gone."""
    return CommandResult.of(await _theirs(request, command_id))


@route(router, "POST", "/api/bash/{command_id}/stop", "shell")
async def stop_command(request: Request, command_id: Annotated[Uuid, Path()]) -> CommandResult:
    """Stop a command, whichever server runs it."""
    await _theirs(request, command_id)
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
    await _theirs(request, command_id)
    last = request.headers.get("last-event-id", "")
    if last:
        if not last.isdecimal() or len(last) > 10:  # noqa: PLR2004
            raise BadInput(problem="Last-Event-ID is the order number of an output")
        after = int(last)

    watch = access_of(request)

    async def feed():  # noqa: ANN202 - a generator of bytes
        closing = asyncio.create_task(channels_of(request).closed.wait())
        refused = asyncio.Event()
        refusing = asyncio.create_task(refused.wait())
        outputs = shell.follow(command_id, after=after)
        coming = asyncio.ensure_future(anext(outputs, None))
        try:
            with watch(refused.set):
                while True:
                    await asyncio.wait(
                        [coming, closing, refusing],
                        timeout=_COMMENT_SECONDS,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    if refused.is_set():
                        yield ending(REFUSED)
                        return
                    if not coming.done():
                        if closing.done():
                            yield ending("closing")
                            return
                        yield COMMENT
                        continue
                    output = coming.result()
                    if output is None:
                        return
                    yield block(shown(output).model_dump_json(), "output", output.order)
                    coming = asyncio.ensure_future(anext(outputs, None))
        finally:
            tasks = coming, closing, refusing
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await outputs.aclose()

    return StreamingResponse(feed(), media_type="text/event-stream", headers={"cache-control": "no-store"})
