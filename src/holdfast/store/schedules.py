"""Schedules: create, list, change and delete them. Each change requires the version that it read."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any, Final

from holdfast.cron import check_cron, next_time
from holdfast.errors import (
    BadId,
    BadInput,
    BadText,
    Conflict,
    NotFound,
    SessionNotFound,
)
from holdfast.framework_sessions import NO_WORKER, refuse_foreign
from holdfast.ids import check_choice, check_id, check_name, check_title, new_id
from holdfast.schedules import CATCH_UPS, MOST_CAUGHT_UP, OVERLAPS, Schedule, ScheduleTerms
from holdfast.store.rows import Row, from_cursor, from_row, microseconds, moment, page_limit, to_page
from holdfast.store.sessions import SessionMethods
from holdfast.store.submissions import SubmissionMethods
from holdfast.store.transactions import Tx, bounded, op, reading, writing
from holdfast.types import Page

MOST_SCHEDULES: Final = 1000
"""How many schedules an owner may have. Concurrent requests may exceed it by a few."""
LONGEST_ID: Final = 80
"""The ids of its sessions begin with the id of the schedule."""
LONGEST_TEXT: Final = 65_536
_TERMS: Final = tuple(field.name for field in fields(ScheduleTerms))


class Outrun(Exception):
    """Another process has changed the schedule since it was read. The transaction is rolled back."""


class ScheduleMethods(SessionMethods, SubmissionMethods):
    """The transactions of schedules.sql."""

    @writing()
    def create_schedule(
        self,
        terms: ScheduleTerms,
        *,
        owner: str,
        actor: str,
        agent: str | None = None,
        session_id: str | None = None,
        id: str | None = None,
    ) -> Tx[Schedule]:
        """Create a schedule for one session of its owner, or for an agent, which then gets a new session for each tick.

        Raises `SessionNotFound`, `SessionCleaned`, `BadInput` for terms that are not valid, and `Conflict` if the id is taken, the owner has
        too many schedules, or the session is that of another framework.
        """
        schedule_id = new_id() if id is None else check_id(id, "schedule id")
        if len(schedule_id) > LONGEST_ID:
            raise BadId(what=f"schedule id of more than {LONGEST_ID} characters", value=schedule_id)
        check_name(owner, "owner")
        if (agent is None) == (session_id is None):
            raise BadInput(problem="a schedule needs either an agent or a session")
        agent = check_name(agent, "agent") if agent is not None else None
        if session_id is not None:
            agent = yield from self._agent_of(session_id, owner)
        now = yield from self._time()
        terms = self._checked(terms, now)
        if len((yield op("owned_schedules", owner=owner, limit=MOST_SCHEDULES))) >= MOST_SCHEDULES:
            raise Conflict(problem=f"{owner} has {MOST_SCHEDULES} schedules, which is the limit")
        created = yield op(
            "insert_schedule",
            id=schedule_id,
            owner=owner,
            agent=agent,
            session_id=session_id,
            next_at=microseconds(next_time(terms.cron, terms.timezone, now)),
            **asdict(terms),
        )
        if not created:
            problem = f"the schedule id {schedule_id} is not available; choose another one, or omit it"
            raise Conflict(problem=problem)
        yield from self._audit_schedule(new_id(), actor, "create schedule", schedule_id, session_id)
        return (yield from self._schedule(schedule_id))

    def _agent_of(self, session_id: str, owner: str) -> Tx[str]:
        """Return the agent of an owner's session that accepts submissions. Locks it, so that it is not erased meanwhile."""
        yield from self._lock_head(check_id(session_id, "session id"))
        session = yield from self._session(session_id)
        if session.owner != owner:
            raise SessionNotFound(id=session_id)
        yield from self._refuse_cleaned(session_id)
        refuse_foreign(session, NO_WORKER)
        return session.agent

    def _checked(self, terms: ScheduleTerms, now: datetime) -> ScheduleTerms:
        check_title(terms.title)
        if not terms.text:
            raise BadText(what="text", problem="is empty")
        if self._check_size(terms.text, "text") > LONGEST_TEXT:
            raise BadText(what="text", problem=f"has more than {LONGEST_TEXT} bytes")
        check_choice(terms.overlap, OVERLAPS, "overlap")
        check_choice(terms.catch_up, CATCH_UPS, "catch_up")
        if not 1 <= terms.catch_up_limit <= MOST_CAUGHT_UP:
            raise BadInput(
                problem=f"catch_up_limit must be 1 to {MOST_CAUGHT_UP}, not {terms.catch_up_limit}"
            )
        return replace(terms, cron=check_cron(terms.cron, terms.timezone, now))

    @reading
    def schedule(self, schedule_id: str) -> Tx[Schedule]:
        """Return a schedule with the outcome of its last submission. Raises `NotFound`."""
        return (yield from self._schedule(schedule_id))

    def _schedule(self, schedule_id: str) -> Tx[Schedule]:
        rows = yield op("schedules", id=check_id(schedule_id, "schedule id"), limit=1)
        if not rows:
            raise NotFound(what="schedule", id=schedule_id)
        return from_row(Schedule, rows[0])

    @reading
    def schedules(
        self, *, owner: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> Tx[Page[Schedule]]:
        """List schedules in the order of their ids, which is that of their creation unless ids were chosen."""
        (after,) = from_cursor(cursor, str)
        wanted = op("schedules", owner=owner, after=after, limit=page_limit(limit))
        rows = yield bounded(wanted, "text", "title", "problem")
        return to_page(rows, limit, [from_row(Schedule, row) for row in rows], "id")

    @reading
    def upcoming_schedules(self, *, limit: int = 20) -> Tx[tuple[list[Schedule], datetime]]:
        """Return the schedules with the earliest next ticks, due or not, and the current time. Their texts are not read and are empty."""
        rows = yield op("upcoming_schedules", limit=page_limit(limit))
        return [_without_text(row) for row in rows], (yield from self._time())

    async def change_schedule(
        self,
        schedule_id: str,
        changes: Mapping[str, Any] | None = None,
        *,
        paused: bool | None = None,
        actor: str,
    ) -> Schedule:
        """Change some of the terms, by name; pause or resume. Raises `NotFound`, `BadInput`, and `Conflict` if it was moved.

        A schedule that is resumed, or that gets other times, continues with the first tick from now on.
        """
        audit_id = new_id()
        while True:
            try:
                return await self._change_schedule(schedule_id, changes or {}, paused, (audit_id, actor))
            except Outrun:
                continue

    @writing(repeatable=True)
    def _change_schedule(
        self, schedule_id: str, changes: Mapping[str, Any], paused: bool | None, audit: tuple[str, str]
    ) -> Tx[Schedule]:
        before = yield from self._here(schedule_id)
        now = yield from self._time()
        terms = self._checked(_terms(before, **changes), now)
        is_paused = before.paused if paused is None else paused
        next_at = before.next_at
        if is_paused:
            next_at = None
        elif before.paused or (terms.cron, terms.timezone) != (before.cron, before.timezone):
            next_at = next_time(terms.cron, terms.timezone, now)
        if not (
            yield op(
                "change_schedule",
                id=schedule_id,
                version=before.version,
                paused=int(is_paused),
                problem=None if paused is False else before.problem,
                next_at=None if next_at is None else microseconds(next_at),
                **asdict(terms),
            )
        ):
            raise Outrun
        action = (
            "change schedule"
            if changes or paused is None
            else "pause schedule"
            if paused
            else "resume schedule"
        )
        audit_id, actor = audit
        yield from self._audit_schedule(
            audit_id, actor, action, schedule_id, before.session_id, changed=sorted(changes)
        )
        return (yield from self._schedule(schedule_id))

    @writing()
    def delete_schedule(self, schedule_id: str, *, actor: str) -> Tx[None]:
        """Delete a schedule with its text. Its submissions remain. Raises `NotFound`."""
        schedule = yield from self._schedule(schedule_id)
        yield op("delete_schedule", id=schedule_id)
        yield from self._audit_schedule(new_id(), actor, "delete schedule", schedule_id, schedule.session_id)

    def _here(self, schedule_id: str) -> Tx[Schedule]:
        schedule = yield from self._schedule(schedule_id)
        if schedule.moved:
            raise Conflict(problem=f"schedule {schedule_id} was moved to another store; use it there")
        return schedule

    def _time(self) -> Tx[datetime]:
        return moment((yield op("now"))[0]["now"])

    def _audit_schedule(
        self, id: str, actor: str, action: str, schedule_id: str, session_id: str | None, **facts: object
    ) -> Tx[None]:
        detail = json.dumps({"schedule": schedule_id, **{name: fact for name, fact in facts.items() if fact}})
        check_name(actor, "actor")
        yield op("add_audit", id=id, actor=actor, action=action, session_id=session_id, detail=detail)


def _terms(schedule: Schedule, **changes: Any) -> ScheduleTerms:
    return ScheduleTerms(**{name: getattr(schedule, name) for name in _TERMS} | changes)


def _without_text(row: Row) -> Schedule:
    return from_row(Schedule, row, text="", last_state=None, last_reason=None)
