"""The ticks of schedules: each submits one message, in the transaction that sets the time of the next tick.

That transaction requires the version of the schedule that was read, and the submission has the schedule and the tick as its
idempotency key. So two processes that handle the same tick submit once, and a transaction that is sent again has no effect.
"""

import json
from dataclasses import replace
from datetime import datetime
from typing import Final

from holdfast.errors import Conflict, HoldfastError, SessionErased, SessionNotFound, StoreError
from holdfast.ids import new_id, title_from
from holdfast.schedules import KEY, Schedule
from holdfast.store.rows import from_row, microseconds
from holdfast.store.schedules import Outrun, ScheduleMethods
from holdfast.store.stored_bytes import refuse_full
from holdfast.store.submissions import NewSubmission
from holdfast.store.transactions import Tx, op, topics, writing
from holdfast.store.write import LONGEST_ERROR
from holdfast.types import Submission

ACTOR: Final = "schedules"
"""The name in audit entries of changes that no person made."""


class TickMethods(ScheduleMethods):
    """The transactions in which a schedule submits, or records why it does not."""

    async def run_schedule(self, schedule_id: str, *, actor: str) -> Submission:
        """Submit its message now, whether or not it is paused. Its ticks stay as they are.

        Raises `Conflict` if its last turn has not ended and `overlap` is `skip`.
        """
        submission_id, audit_id = new_id(), new_id()
        while True:
            schedule = await self.schedule(schedule_id)
            session_id = schedule.session_id or f"{schedule_id}-{submission_id}"
            try:
                sent = await self._run_schedule(schedule_id, session_id, submission_id, (audit_id, actor))
            except Outrun:
                continue
            self._announce_interrupt(schedule)
            return sent

    @writing(changes="session_id", wakes=True, repeatable=True)
    def _run_schedule(
        self, schedule_id: str, session_id: str, submission_id: str, audit: tuple[str, str]
    ) -> Tx[Submission]:
        schedule = yield from self._here(schedule_id)
        sent = yield op("submission_by_id", id=submission_id)
        if sent:
            return from_row(Submission, sent[0])
        if is_open(schedule) and schedule.overlap == "skip":
            raise Conflict(
                problem=f"the last turn of schedule {schedule_id} has not ended, and `overlap` is skip"
            )
        now = yield from self._time()
        submission = yield from self._deliver(schedule, session_id, submission_id, f"run {submission_id}")
        yield from self._record(schedule, submission, at=now, next_at=schedule.next_at)
        audit_id, actor = audit
        yield from self._audit_schedule(audit_id, actor, "run schedule", schedule_id, session_id)
        return submission

    async def fire_schedule(self, due: Schedule, *, tick: datetime, next_at: datetime) -> Submission | None:
        """Submit the message of a tick that is due, and set the next one. Returns None if that is not to be done, or another process did it.

        If the session refuses the submission, the schedule records the reason and continues with the next tick. If the session can never
        accept it, because it was erased, the schedule is paused. `due.overlap` applies, whatever is stored.
        """
        tick_id = f"{tick:%Y%m%dT%H%M%SZ}"
        session_id = due.session_id or f"{due.id}-{tick_id}"
        try:
            sent = await self._fire(due, session_id, (new_id(), tick_id), (tick, next_at))
        except StoreError:
            raise
        except Outrun:
            return None
        except HoldfastError as error:
            is_gone = due.session_id is not None and isinstance(error, (SessionErased, SessionNotFound))
            await self.miss_tick(due, tick=tick, next_at=None if is_gone else next_at, problem=str(error))
            return None
        self._announce_interrupt(due)
        return sent

    def _announce_interrupt(self, schedule: Schedule) -> None:
        """Wake the worker of the session of the last tick, whose turn may have been interrupted."""
        if schedule.last_session_id is not None and schedule.overlap == "interrupt":
            self._announce(*topics(schedule.last_session_id, wakes=True))

    @writing(changes="session_id", wakes=True, repeatable=True)
    def _fire(
        self, due: Schedule, session_id: str, ids: tuple[str, str], times: tuple[datetime, datetime]
    ) -> Tx[Submission | None]:
        rows = yield op("schedules", id=due.id, limit=1)
        tick, next_at = times
        if not rows or rows[0]["version"] != due.version or tick > (yield from self._time()):
            return None
        schedule = replace(from_row(Schedule, rows[0]), overlap=due.overlap)
        if is_open(schedule) and schedule.overlap == "skip":
            problem = f"skipped the tick at {tick.isoformat()}: the turn of the previous tick had not ended"
            yield from self._record_problem(schedule, tick, next_at, problem)
            return None
        submission_id, tick_id = ids
        submission = yield from self._deliver(schedule, session_id, submission_id, tick_id)
        yield from self._record(schedule, submission, at=tick, next_at=next_at)
        return submission

    def _deliver(
        self, schedule: Schedule, session_id: str, submission_id: str, occasion: str
    ) -> Tx[Submission]:
        """Submit the message of a schedule, after its session was created if that is new, and its last turn interrupted if wanted.

        Locks sessions before the schedule, like an erasure.
        """
        limit = self.settings.max_stored_bytes_per_owner
        if limit is not None:
            yield from refuse_full(schedule.owner, limit)
        key = f"{KEY}{schedule.id}/{occasion}"
        if is_open(schedule) and schedule.overlap == "interrupt":
            last = schedule.last_session_id or session_id
            stop = _new(last, new_id(), {"submission_id": schedule.last_submission_id}, f"{key}/interrupt")
            stop["kind"], stop["lane"] = "interrupt", "control"
            yield from self._accept(last, stop, [])
        if schedule.session_id is None:
            title = schedule.title or title_from(schedule.text)
            metadata = json.dumps({"schedule": schedule.id})
            yield from self._new_session(session_id, schedule.agent, schedule.owner, title, metadata)
        yield from self._lock_head(session_id)
        if (yield from self._session(session_id)).owner != schedule.owner:
            raise SessionNotFound(id=session_id)
        new = _new(session_id, submission_id, {"text": schedule.text}, key)
        return (yield from self._accept(session_id, new, []))

    def _record(
        self, schedule: Schedule, submission: Submission, *, at: datetime, next_at: datetime | None
    ) -> Tx[None]:
        recorded = yield op(
            "record_submission",
            id=schedule.id,
            version=schedule.version,
            next_at=None if next_at is None else microseconds(next_at),
            last_at=microseconds(at),
            last_session_id=submission.session_id,
            last_submission_id=submission.id,
        )
        if not recorded:
            raise Outrun

    async def miss_tick(
        self, due: Schedule, *, tick: datetime, next_at: datetime | None, problem: str
    ) -> None:
        """Record why a tick submitted nothing, and set the next one. Without a next one, the schedule is paused.

        Does nothing if another process has handled the tick.
        """
        await self._miss_tick(due, new_id(), (tick, next_at), problem)

    @writing(repeatable=True)
    def _miss_tick(
        self, due: Schedule, audit_id: str, times: tuple[datetime, datetime | None], problem: str
    ) -> Tx[None]:
        tick, next_at = times
        recorded = yield from self._record_problem(due, tick, next_at, problem)
        if recorded and next_at is None:
            yield from self._audit_schedule(audit_id, ACTOR, "pause schedule", due.id, due.session_id)

    def _record_problem(
        self, schedule: Schedule, tick: datetime, next_at: datetime | None, problem: str
    ) -> Tx[bool]:
        rows = yield op(
            "record_problem",
            id=schedule.id,
            version=schedule.version,
            next_at=None if next_at is None else microseconds(next_at),
            last_at=microseconds(tick),
            paused=int(next_at is None),
            problem=problem[:LONGEST_ERROR],
        )
        return bool(rows)


def is_open(schedule: Schedule) -> bool:
    """Return whether the last submission has not ended."""
    return schedule.last_state in {"queued", "claimed", "waiting"}


def _new(session_id: str, id: str, payload: dict[str, str | None], key: str) -> NewSubmission:
    return NewSubmission(
        session_id=session_id,
        id=id,
        kind="message",
        lane="main",
        when_busy="queue",
        payload=json.dumps(payload),
        idempotency_key=key,
        trace=None,
        deliver_at=0,
        priority="normal",
    )
