"""Runs, their events, checkpoints and effects."""

from typing import Annotated

from pydantic import Field

from holdfast.api.models import CallOutcome, CheckpointInfo, EffectInfo, EventInfo, Id, Items, RunInfo
from holdfast.operations.access import Caller
from holdfast.operations.events import events_page
from holdfast.operations.registry import ClientMethod, CursorText, JsonText, Limit, operation
from holdfast.types import CheckpointKind

RunId = Annotated[Id, Field(description="Id of the run.")]
_R = "/api/runs/{run_id}"


@operation("GET", "/api/runs", "user", ClientMethod("Client.runs", "runs list"), topic="runs")
async def list_runs(
    caller: Caller,
    session_id: Annotated[Id | None, Field(description="Only runs of this session.")] = None,
    parent_id: Annotated[Id | None, Field(description="Only delegate runs of this run.")] = None,
    interrupted: Annotated[bool, Field(description="Only interrupted runs, which can be resumed.")] = False,
    unresolved: Annotated[
        bool, Field(description="Only ended runs with a tool call whose outcome is unknown.")
    ] = False,
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Items[RunInfo]:
    """List the runs of your sessions, newest first."""
    page = await caller.store.find_runs(
        owner=caller.principal.owner_filter,
        session_id=session_id,
        parent_id=parent_id,
        interrupted=interrupted,
        unresolved=unresolved,
        cursor=cursor,
        limit=limit,
    )
    return Items[RunInfo].of(page)


@operation(
    "GET",
    _R,
    "read",
    ClientMethod("Client.run", "runs show"),
    ClientMethod("RunHandle.info", "runs show"),
    topic="runs",
)
async def read_run(caller: Caller, run_id: RunId) -> RunInfo:
    """Return a run."""
    return RunInfo.of(await caller.store.run(run_id))


@operation("GET", f"{_R}/runs", "read", ClientMethod("RunHandle.delegates", "runs tree"), topic="runs")
async def delegates(
    caller: Caller, run_id: RunId, cursor: CursorText = None, limit: Limit = 50
) -> Items[RunInfo]:
    """List the delegate runs of a run that belong to the same owner."""
    store, session = caller.store, caller.session
    page = await store.runs(parent_id=run_id, cursor=cursor, limit=limit)
    seen = [
        run
        for run in page.items
        if run.session_id == session.id or (await store.session(run.session_id)).owner == session.owner
    ]
    return Items(items=[RunInfo.of(item) for item in seen], next_cursor=page.next_cursor)


@operation(
    "GET",
    f"{_R}/events",
    "read",
    ClientMethod("RunHandle.events", "runs events"),
    ClientMethod("RunHandle.journal", "runs events"),
    topic="runs",
    responses={200: {"model": Items[EventInfo], "description": "A page of events."}},
)
async def run_events(
    caller: Caller,
    run_id: RunId,
    after: Annotated[int, Field(ge=0, lt=2**63)] = 0,
    limit: Limit = 500,
) -> JsonText:
    """List the events of a run."""
    page = await caller.store.events(caller.session.id, after=after, run_id=run_id, limit=limit)
    return events_page(page, limit, caller.session.seq)  # the last page of a run may be empty


@operation(
    "GET", f"{_R}/checkpoints", "read", ClientMethod("RunHandle.checkpoints", "runs show"), topic="runs"
)
async def checkpoints(
    caller: Caller,
    run_id: RunId,
    kind: CheckpointKind | None = None,
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Items[CheckpointInfo]:
    """List the checkpoints of a run, newest first."""
    page = await caller.store.checkpoints(run_id=run_id, kind=kind, cursor=cursor, limit=limit)
    return Items[CheckpointInfo].of(page)


@operation("GET", f"{_R}/effects", "read", ClientMethod("RunHandle.effects", "runs effects"), topic="runs")
async def effects(
    caller: Caller,
    run_id: RunId,
    unresolved: bool = False,
    cursor: CursorText = None,
    limit: Limit = 200,
) -> Items[EffectInfo]:
    """List the tool calls of a run and their outcomes."""
    page = await caller.store.effects(
        caller.session.id, run_id=run_id, unresolved=unresolved, cursor=cursor, limit=limit
    )
    return Items[EffectInfo].of(page)


@operation(
    "POST",
    f"{_R}/effects/{{call_id:path}}",
    "write",
    ClientMethod("RunHandle.settle", "settle"),
    topic="runs",
)
async def settle(
    caller: Caller,
    run_id: RunId,
    call_id: Annotated[str, Field(max_length=1000, pattern=r"^[^\x00-\x1f\x7f]+$")],
    body: CallOutcome,
) -> EffectInfo:
    """Record the outcome of a tool call or step whose outcome is unknown. Its id may contain slashes."""
    from holdfast.runtime.settling import settle_effect  # imports Pydantic AI

    settled = await settle_effect(
        caller.store, run_id, call_id, actor=caller.actor, result=body.result, error=body.error
    )
    return EffectInfo.of(settled)
