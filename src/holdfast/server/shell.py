"""The routes of shell commands, wire-compatible with existing agent servers, and some additional ones.

They exist only if the server has a shell, and require the scope `shell`.
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
from holdfast.commands import Command, Output
from holdfast.errors import BadInput, NotFound, SessionNotFound
from holdfast.operations.access import Principal
from holdfast.operations.channel import COMMENT, REFUSED, block, ending
from holdfast.operations.registry import ClientMethod
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

router = new_router("shell")
Kind = Literal["BashCommand", "BashOutput"]
_BATCH = 100
_UUID = re.compile(UUID_PATTERN)
_IDS = TypeAdapter(
    Annotated[
        list[Annotated[str, Field(max_length=200)]], Field(min_length=1, max_length=_BATCH, fail_fast=True)
    ]
)
_COMMENT_SECONDS = 15.0


def shown(event: Command | Output) -> BashEvent:
    """Return an event of the log in its wire format."""
    return BashCommand.of(event) if isinstance(event, Command) else BashOutput.of(event)


def _shell(request: Request) -> ShellService:
    return request.app.state.shell


async def _start(request: Request, body: NewCommand) -> Command:
    return await start(_shell(request), principal_of(request), body)


async def start(shell: ShellService, principal: Principal, body: NewCommand) -> Command:
    """Start a command for a principal. If it belongs to a session, the principal must have access to the session."""
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


async def _own_command(request: Request, command_id: str) -> Command:
    """Return a command that the principal may see. Raises `NotFound`."""
    command = await store_of(request).command(command_id)
    if principal_of(request).owner_filter not in {None, command.owner}:
        raise NotFound(what="command", id=command.id)
    return command


@route(
    router,
    "POST",
    "/api/bash/start_bash_command",
    "shell",
    ClientMethod("ShellHandle.start", note="`holdfast shell run` waits for the end"),
    lenient=True,
)
async def start_bash_command(request: Request, body: NewCommand) -> BashCommand:
    """Start a command. Its output appears in the log while it runs."""
    started = shown(await _start(request, body))
    if not isinstance(started, BashCommand):
        raise NotFound(what="command", id=started.id)
    return started


@route(
    router,
    "POST",
    "/api/bash/execute_bash_command",
    "shell",
    ClientMethod("ShellHandle.run", "shell run"),
    lenient=True,
)
async def execute_bash_command(request: Request, body: NewCommand) -> BashOutput:
    """Run a command and return its recorded output when it has ended. It continues if you disconnect."""
    started = await _start(request, body)
    outputs = await while_allowed(request, _all_outputs(_shell(request), started.id))
    if not outputs:  # purged as soon as it ended
        raise NotFound(what="output of command", id=started.id)
    whole = replace(
        outputs[-1],
        stdout="".join(output.stdout or "" for output in outputs) or None,
        stderr="".join(output.stderr or "" for output in outputs) or None,
    )
    return BashOutput.of(whole)


async def _all_outputs(shell: ShellService, command_id: str) -> list[Output]:
    return [output async for output in shell.follow(command_id)]


@route(
    router,
    "GET",
    "/api/bash/bash_events/search",
    "shell",
    ClientMethod("ShellHandle.events", "shell list"),
    lenient=True,
)
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
    """Search the log. A page id stays valid after its event was deleted. `command_id__eq` finds the output of a command."""
    if command_id__eq is not None:
        if kind__eq == "BashCommand":
            return BashPage(items=[])  # only outputs have a command id
        kind__eq = "BashOutput"
    page = await _shell(request).search(
        kind=None if kind__eq is None else "command" if kind__eq == "BashCommand" else "output",
        command_id=command_id__eq,
        owner=principal_of(request).owner_filter,
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


@route(
    router,
    "GET",
    "/api/bash/bash_events/",
    "shell",
    no_method="for clients of other agent servers",
    lenient=True,
)
async def batch_get_bash_events(
    request: Request,
    event_ids: Annotated[
        list[Uuid],
        Query(
            default_factory=list,
            max_length=_BATCH,
            fail_fast=True,
            description="The ids. They may also be a list in the JSON body.",
        ),
    ],
) -> list[BashEvent | None]:
    """Return these events in this order, with null for each that does not exist."""
    wanted = event_ids or await _ids_in_body(request)
    valid = [each for each in wanted if _UUID.fullmatch(each)]
    results = await _shell(request).events(valid, owner=principal_of(request).owner_filter) if valid else []
    events = dict(zip(valid, results, strict=True))
    return [None if (event := events.get(each)) is None else shown(event) for each in wanted]


async def _ids_in_body(request: Request) -> list[str]:
    """Return the ids in the body, where clients of other agent servers put them. Ids that are not UUIDs match nothing."""
    if not await request.body():
        raise BadInput(problem=f"give 1 to {_BATCH} ids as event_ids")
    try:
        return _IDS.validate_python(await request.json())
    except ValidationError:
        raise BadInput(problem=f"the body is not a list of 1 to {_BATCH} ids") from None


@route(
    router,
    "GET",
    "/api/bash/bash_events/{event_id}",
    "shell",
    no_method="for clients of other agent servers",
    lenient=True,
)
async def get_bash_event(request: Request, event_id: Annotated[Uuid, Path()]) -> BashEvent:
    """Return an event of the log."""
    return shown(await _shell(request).event(event_id, owner=principal_of(request).owner_filter))


@route(
    router,
    "DELETE",
    "/api/bash/bash_events",
    "shell",
    ClientMethod("ShellHandle.clear", "shell sweep"),
    lenient=True,
)
async def clear_bash_events(request: Request) -> Cleared:
    """Delete the output in your log; as an administrator, in all logs. Running commands and sessions on hold are kept, and so are results."""
    return Cleared(cleared_count=await _shell(request).clear(owner=principal_of(request).owner_filter))


@route(router, "GET", "/api/bash/{command_id}", "shell", ClientMethod("ShellHandle.info", "shell list"))
async def read_command(request: Request, command_id: Annotated[Uuid, Path()]) -> CommandResult:
    """Return a command and its result, even after its output was deleted."""
    return CommandResult.of(await _own_command(request, command_id))


@route(router, "POST", "/api/bash/{command_id}/stop", "shell", ClientMethod("ShellHandle.stop", "shell stop"))
async def stop_command(request: Request, command_id: Annotated[Uuid, Path()]) -> CommandResult:
    """Stop a command of any server."""
    await _own_command(request, command_id)
    return CommandResult.of(await _shell(request).stop(command_id))


@route(
    router,
    "GET",
    "/api/bash/{command_id}/output",
    "shell",
    ClientMethod("ShellHandle.output", "shell output"),
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Output."}
    },
)
async def stream_output(
    request: Request,
    command_id: Annotated[Uuid, Path()],
    after: Annotated[
        int, Query(ge=-1, lt=2**31, description="The order number of the last output you have.")
    ] = -1,
) -> Response:
    """Stream the output of a command until it ends. `id:` is the order number to resume from."""
    from fastapi.responses import StreamingResponse

    shell = _shell(request)
    await _own_command(request, command_id)
    last = request.headers.get("last-event-id", "")
    if last:
        if not last.isdecimal() or len(last) > 10:  # noqa: PLR2004
            raise BadInput(problem="Last-Event-ID must be the order number of an output")
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
