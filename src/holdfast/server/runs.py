"""The routes of runs, their events, checkpoints and effects."""

from typing import Annotated

from fastapi import Path, Query, Request, Response

from holdfast.api.models import (
    CallOutcome,
    CheckpointInfo,
    EffectInfo,
    EventInfo,
    Id,
    Items,
    RunInfo,
    event_json,
)
from holdfast.server.routes import new_router, principal_of, route, session_of, store_of
from holdfast.server.sessions import CursorText, Limit
from holdfast.types import CheckpointKind

router = new_router("runs")
RunId = Annotated[Id, Path(description="Id of the run.")]


@route(router, "GET", "/api/runs", "user")
async def list_runs(
    request: Request,
    session_id: Annotated[Id | None, Query(description="Only runs of this session.")] = None,
    parent_id: Annotated[Id | None, Query(description="Only delegate runs of this run.")] = None,
    interrupted: Annotated[bool, Query(description="Only interrupted runs, which can be resumed.")] = False,
    unresolved: Annotated[
        bool, Query(description="Only ended runs with a tool call whose outcome is unknown.")
    ] = False,
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Items[RunInfo]:
    """List the runs of your sessions, newest first."""
    page = await store_of(request).find_runs(
        owner=principal_of(request).owner_filter,
        session_id=session_id,
        parent_id=parent_id,
        interrupted=interrupted,
        unresolved=unresolved,
        cursor=cursor,
        limit=limit,
    )
    return Items[RunInfo].of(page)


@route(router, "GET", "/api/runs/{run_id}", "read")
async def read_run(request: Request, run_id: RunId) -> RunInfo:
    """Return a run."""
    return RunInfo.of(await store_of(request).run(run_id))


@route(router, "GET", "/api/runs/{run_id}/runs", "read")
async def delegates(
    request: Request, run_id: RunId, cursor: CursorText = None, limit: Limit = 50
) -> Items[RunInfo]:
    """List the delegate runs of a run that belong to the same owner."""
    store, session = store_of(request), session_of(request)
    page = await store.runs(parent_id=run_id, cursor=cursor, limit=limit)
    seen = [
        run
        for run in page.items
        if run.session_id == session.id or (await store.session(run.session_id)).owner == session.owner
    ]
    return Items(items=[RunInfo.of(item) for item in seen], next_cursor=page.next_cursor)


@route(
    router,
    "GET",
    "/api/runs/{run_id}/events",
    "read",
    responses={200: {"model": Items[EventInfo], "description": "A page of events."}},
)
async def run_events(
    request: Request,
    run_id: RunId,
    after: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    limit: Limit = 500,
) -> Response:
    """List the events of a run."""
    page = await store_of(request).events(session_of(request).id, after=after, run_id=run_id, limit=limit)
    # The run may have no more events, so its last page may be empty.
    is_part = bool(page) and (len(page) == limit or page[-1].seq < session_of(request).seq)
    more = f'"{page[-1].seq}"' if is_part else "null"
    items = ",".join(map(event_json, page))
    return Response(f'{{"items":[{items}],"next_cursor":{more}}}', media_type="application/json")


@route(router, "GET", "/api/runs/{run_id}/checkpoints", "read")
async def checkpoints(
    request: Request,
    run_id: RunId,
    kind: CheckpointKind | None = None,
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Items[CheckpointInfo]:
    """List the checkpoints of a run, newest first."""
    page = await store_of(request).checkpoints(run_id=run_id, kind=kind, cursor=cursor, limit=limit)
    return Items[CheckpointInfo].of(page)


@route(router, "GET", "/api/runs/{run_id}/effects", "read")
async def effects(
    request: Request,
    run_id: RunId,
    unresolved: bool = False,
    cursor: CursorText = None,
    limit: Limit = 200,
) -> Items[EffectInfo]:
    """List the tool calls of a run and their outcomes."""
    page = await store_of(request).effects(
        session_of(request).id, run_id=run_id, unresolved=unresolved, cursor=cursor, limit=limit
    )
    return Items[EffectInfo].of(page)


@route(router, "POST", "/api/runs/{run_id}/effects/{call_id:path}", "write")
async def settle(
    request: Request,
    run_id: RunId,
    call_id: Annotated[str, Path(max_length=1000, pattern=r"^[^\x00-\x1f\x7f]+$")],
    body: CallOutcome,
) -> EffectInfo:
    """Record the outcome of a tool call or step whose outcome is unknown. Its id may contain slashes."""
    from holdfast.record.settling import settle_effect  # imports Pydantic AI

    settled = await settle_effect(
        store_of(request),
        run_id,
        call_id,
        actor=principal_of(request).owner,
        result=body.result,
        error=body.error,
    )
    return EffectInfo.of(settled)
