"""Schedules: create, list, change, pause, resume, run and delete them. An owner sees only its own."""

from typing import Annotated

from pydantic import Field

from holdfast.api.models import Id, Items
from holdfast.api.schedules import NewSchedule, ScheduleChange, ScheduleInfo, ScheduleTimes
from holdfast.api.submissions import SubmissionInfo
from holdfast.counting import count as count_metric
from holdfast.cron import next_times
from holdfast.errors import Forbidden, NotFound, SessionNotFound
from holdfast.operations.access import Caller
from holdfast.operations.registry import NO_NUL, ClientMethod, CursorText, Limit, operation
from holdfast.operations.sessions import refuse_unknown_agent
from holdfast.schedules import Schedule, ScheduleTerms

_S = "/api/schedules/{schedule_id}"
ScheduleId = Annotated[Id, Field(description="Id of the schedule.")]


async def _own(caller: Caller, schedule_id: str) -> Schedule:
    """Return a schedule that the caller may see. One of another owner looks like one that does not exist."""
    schedule = await caller.store.schedule(schedule_id)
    if caller.principal.owner_filter not in {None, schedule.owner}:
        raise NotFound(what="schedule", id=schedule_id)
    return schedule


@operation(
    "POST",
    "/api/schedules",
    "user",
    ClientMethod("Client.create_schedule", "schedule create"),
    topic="schedules",
    status=201,
)
async def create_schedule(caller: Caller, body: NewSchedule) -> ScheduleInfo:
    """Create a schedule for a session or for an agent. It submits its text at each time of the cron expression."""
    principal = caller.principal
    if body.owner not in {None, principal.owner} and not principal.is_admin:
        raise Forbidden(required="the role admin to create schedules for others", principal=principal.owner)
    owner = body.owner or principal.owner
    if body.session_id is not None:
        session = await caller.store.session(body.session_id)
        if not principal.may_see(session):
            raise SessionNotFound(id=body.session_id)
        owner = body.owner or session.owner
    if body.agent is not None:
        refuse_unknown_agent(caller.service, body.agent)
    terms = body.model_dump(exclude={"agent", "session_id", "id", "owner"})
    created = await caller.store.create_schedule(
        ScheduleTerms(**terms),
        owner=owner,
        agent=body.agent,
        session_id=body.session_id,
        id=body.id,
        actor=caller.actor,
    )
    return ScheduleInfo.of(created)


@operation(
    "GET", "/api/schedules", "user", ClientMethod("Client.schedules", "schedule list"), topic="schedules"
)
async def list_schedules(
    caller: Caller,
    owner: Annotated[
        str | None,
        Field(
            max_length=200, pattern=NO_NUL, description="Only schedules of this owner. For administrators."
        ),
    ] = None,
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Items[ScheduleInfo]:
    """List schedules, in the order of their ids."""
    principal = caller.principal
    page = await caller.store.schedules(
        owner=owner if principal.is_admin else principal.owner, cursor=cursor, limit=limit
    )
    return Items[ScheduleInfo].of(page)


@operation(
    "GET",
    _S,
    "user",
    ClientMethod("Client.schedule", "schedule show"),
    ClientMethod("ScheduleHandle.info", "schedule show"),
    topic="schedules",
)
async def read_schedule(caller: Caller, schedule_id: ScheduleId) -> ScheduleInfo:
    """Return a schedule, its next tick, and the outcome of the last one."""
    return ScheduleInfo.of(await _own(caller, schedule_id))


@operation(
    "PATCH",
    _S,
    "user",
    ClientMethod("ScheduleHandle.change", "schedule change"),
    ClientMethod("ScheduleHandle.pause", "schedule pause"),
    ClientMethod("ScheduleHandle.resume", "schedule resume"),
    topic="schedules",
)
async def change_schedule(caller: Caller, schedule_id: ScheduleId, body: ScheduleChange) -> ScheduleInfo:
    """Change, pause or resume a schedule. With new times, or resumed, it continues with the first tick from now on."""
    await _own(caller, schedule_id)
    changed = await caller.store.change_schedule(
        schedule_id,
        body.model_dump(exclude_none=True, exclude={"paused"}),
        paused=body.paused,
        actor=caller.actor,
    )
    return ScheduleInfo.of(changed)


@operation(
    "DELETE",
    _S,
    "user",
    ClientMethod("ScheduleHandle.delete", "schedule delete"),
    topic="schedules",
    status=204,
)
async def delete_schedule(caller: Caller, schedule_id: ScheduleId) -> None:
    """Delete a schedule with its text. The sessions and submissions that it created remain."""
    await _own(caller, schedule_id)
    await caller.store.delete_schedule(schedule_id, actor=caller.actor)


@operation(
    "POST",
    f"{_S}/run",
    "user",
    ClientMethod("ScheduleHandle.run", "schedule run"),
    topic="schedules",
    status=202,
)
async def run_schedule(caller: Caller, schedule_id: ScheduleId) -> SubmissionInfo:
    """Submit the message of a schedule now, even if it is paused. Its ticks stay as they are."""
    await _own(caller, schedule_id)
    sent = await caller.store.run_schedule(schedule_id, actor=caller.actor)
    count_metric("submissions", kind=sent.kind)
    return SubmissionInfo.of(sent)


@operation(
    "GET",
    f"{_S}/times",
    "user",
    ClientMethod("ScheduleHandle.times", "schedule times"),
    topic="schedules",
)
async def schedule_times(
    caller: Caller,
    schedule_id: ScheduleId,
    count: Annotated[int, Field(ge=1, le=100, description="Number of times.")] = 10,
) -> ScheduleTimes:
    """Return the next times of a schedule."""
    schedule = await _own(caller, schedule_id)
    now = await caller.store.now()
    return ScheduleTimes(items=next_times(schedule.cron, schedule.timezone, now, count))
