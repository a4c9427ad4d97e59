"""Submissions: the durable queue of a session, and its control lane."""

import json
from datetime import datetime
from typing import Final, TypedDict

from holdfast.errors import (
    BadInput,
    Conflict,
    KeyReused,
    NotFound,
    QueueFull,
    SessionNotFound,
    TurnInProgress,
)
from holdfast.framework_sessions import NO_WORKER, refuse_foreign
from holdfast.ids import check_choice, check_id, check_name, check_time, new_id, title_from
from holdfast.jsontext import read_recorded
from holdfast.priority import PRIORITIES, RANKS, Priority
from holdfast.schedules import schedule_of
from holdfast.store.rows import Row, from_cursor, from_row, microseconds, page_limit, to_page
from holdfast.store.transactions import (
    Statement,
    Transactions,
    Tx,
    bounded,
    lease_lost,
    op,
    reading,
    refuse_closed,
    writing,
)
from holdfast.store.write import LONGEST_ERROR
from holdfast.types import (
    LANES,
    SUBMISSION_STATES,
    SUSPENDED,
    TURNS,
    WHEN_BUSY,
    Json,
    Lane,
    Lease,
    Page,
    Session,
    Submission,
    SubmissionState,
    WhenBusy,
)

_FARTHEST_US: Final = 3653 * 86_400 * 1_000_000
"""How far ahead the time of a submission may be: ten years."""


class NewSubmission(TypedDict):
    """A submission to be queued."""

    session_id: str
    id: str
    kind: str
    lane: Lane
    when_busy: WhenBusy
    payload: Json
    idempotency_key: str | None
    trace: str | None
    deliver_at: int
    """In microseconds; 0 means at once."""
    priority: Priority


class SubmissionMethods(Transactions):
    """The transactions of submissions.sql."""

    async def submit(
        self,
        session_id: str,
        kind: str,
        payload: Json = "{}",
        *,
        id: str | None = None,
        lane: Lane = "main",
        when_busy: WhenBusy = "queue",
        idempotency_key: str | None = None,
        trace: str | None = None,
        deliver_at: datetime | None = None,
        priority: Priority = "normal",
    ) -> Submission:
        """Queue a submission exactly once: a repeated id or idempotency key returns the existing submission.

        A repetition must have exactly the same text, else it raises `KeyReused`. `when_busy` is stored for the worker, except `reject`,
        which raises `TurnInProgress` if any submission is in progress, or queued and not for later. Also raises `QueueFull`, `SessionCleaned` or
        `SessionNotFound`, and `Conflict` for a session of another framework, which no worker runs. The first message becomes the title of a session that has none. `trace` is the trace context for the worker.
        It does not start before `deliver_at`, by the clock of the database. A time in the past is now; it is at most ten years ahead.
        `priority` orders the ready sessions of an owner. A session has the highest priority of its pending submissions; their order stays.
        """
        # The id is chosen before the first attempt, so that an attempt whose response was lost is recognized.
        new = NewSubmission(
            session_id=check_id(session_id, "session id"),
            id=new_id() if id is None else check_id(id, "submission id"),
            kind=kind,
            lane=lane,
            when_busy=when_busy,
            payload=payload,
            idempotency_key=idempotency_key,
            trace=trace,
            deliver_at=0 if deliver_at is None else _delivery(deliver_at),
            priority=priority,
        )
        return await self._submit(session_id, new, [] if id is None else [id])

    @writing(changes="session_id", wakes=True, repeatable=True)
    def _submit(self, session_id: str, new: NewSubmission, tries: list[str]) -> Tx[Submission]:
        return (yield from self._accept(session_id, new, tries))

    def _accept(self, session_id: str, new: NewSubmission, tries: list[str]) -> Tx[Submission]:
        self._check_new(new)
        if new["deliver_at"]:
            yield from self._refuse_far(new["deliver_at"])
        head = yield from self._lock_head(session_id)
        submission_id, key, lane = new["id"], new["idempotency_key"], new["lane"]
        # An id generated for the first attempt cannot exist yet.
        same = (yield op("submission_by_id", id=submission_id)) if tries else ()
        tries.append(submission_id)
        if same and same[0]["session_id"] != session_id:
            raise Conflict(problem=f"submission {submission_id} belongs to another session")
        if not same and key is not None:
            same = yield op("submission_by_key", session_id=session_id, idempotency_key=key)
        if same:
            before = from_row(Submission, same[0])
            if (before.kind, before.lane, before.payload) != (new["kind"], lane, new["payload"]):
                if before.id == submission_id:
                    raise Conflict(
                        problem=f"submission {submission_id} was already sent with different content"
                    )
                raise KeyReused(session_id=session_id, key=key)
            return before
        refuse_closed(session_id, head)
        if head.names_framework:
            (session,) = yield op("sessions", id=session_id, limit=1)
            refuse_foreign(from_row(Session, session), NO_WORKER)
        if head.pending >= self._max_pending and (lane == "main" or new["kind"] == "signal"):
            raise QueueFull(session_id=session_id, pending=head.pending, limit=self._max_pending)
        if head.pending and new["when_busy"] == "reject":
            later = yield op("later_submissions", session_id=session_id)
            if busy := head.pending - len(later):
                raise TurnInProgress(session_id=session_id, pending=busy)
        if head.untitled and (title := title_of(new)):
            yield op("title_session", session_id=session_id, title=title, title_folded=title.casefold())
        ready = head.holder is None and (lane == "control" or head.status not in SUSPENDED)
        return from_row(Submission, (yield from self._queue(new, ready=ready, pending=head.pending)))

    def _check_new(self, new: NewSubmission) -> None:
        check_name(new["kind"], "kind")
        check_choice(new["lane"], LANES, "lane")
        check_choice(new["when_busy"], WHEN_BUSY, "when_busy")
        check_choice(new["priority"], PRIORITIES, "priority")
        self._check_json(new["payload"], "payload")
        if new["idempotency_key"] is not None:
            check_name(new["idempotency_key"], "idempotency key")
        if new["trace"] is not None:
            check_name(new["trace"], "trace context")

    def _refuse_far(self, at: int) -> Tx[None]:
        (clock,) = yield op("now")
        if at > clock["now"] + _FARTHEST_US:
            raise BadInput(problem="deliver_at is more than ten years ahead")

    def _queue(self, new: NewSubmission, *, ready: bool, pending: int) -> Tx[Row]:
        """Add a submission to the queue of a session whose head is locked, with its event."""
        session_id = new["session_id"]
        numbered = yield op(
            "number_submission",
            session_id=session_id,
            ready=int(ready),
            deliver_at=new["deliver_at"],
            rank=RANKS[new["priority"]],
            pending=pending,
        )
        seq = numbered[0]["seq"]
        rows = yield op("insert_submission", position=seq, **new)
        yield op(
            "insert_event",
            session_id=session_id,
            seq=seq,
            kind="submission_queued",
            run_id=None,
            step=None,
            payload=queued(new),
        )
        yield op("touch_session", session_id=session_id)
        return rows[0]

    async def take(
        self, lease: Lease, *, lane: Lane | None = None, id: str | None = None, max_attempts: int = 5
    ) -> Submission | None:
        """Claim the next submission, control lane first, then in queue order; or the one with this id.

        A submission that was claimed `max_attempts` times without ending is marked dead, with a reason and an event. Its run
        fails, and the next submission is taken.
        """
        if lane is not None:
            check_choice(lane, LANES, "lane")
        # If the caller is cancelled meanwhile, put the submission back.
        return await self._unfinished.run_or_undo(
            self._take_next(lease, lane, id, max_attempts), lambda taken: self._put_back(lease, taken)
        )

    @reading
    def urgent(self, session_id: str, *, limit: int = 1000) -> Tx[list[Submission]]:
        """Return the queued submissions that do not wait for their turn: the control lane, then `steer` and `interrupt`.

        Signals are not among them: they are received when the turn waits or has ended, so that none can arrive unseen in between. The
        payloads are not read and are empty; `take` returns them.
        """
        wanted = op("urgent_submissions", session_id=session_id, limit=page_limit(limit))
        return [from_row(Submission, row, payload="") for row in (yield bounded(wanted, "reason", "run_id"))]

    @writing(changes="lease")
    def _take_next(
        self, lease: Lease, lane: Lane | None, id: str | None, max_attempts: int
    ) -> Tx[Submission | None]:
        heads = yield op("lock_head", session_id=lease.session_id)
        if not heads:
            raise SessionNotFound(id=lease.session_id)
        if lease.lost or (heads[0]["epoch"], heads[0]["holder"]) != (lease.epoch, lease.holder):
            raise lease_lost(lease, "another holder has acquired it, or it was released")
        while True:
            if id is None:
                rows = yield op("next_submission", session_id=lease.session_id, lane=lane)
            else:
                rows = yield op("queued_submission", session_id=lease.session_id, id=id)
            if not rows:
                return None
            if id is None and rows[0]["deliver_at"] and rows[0]["run_id"] is None:
                # A message for later has its place in the queue from before. It must not overtake a turn that has begun.
                rows = (yield op("begun_turn", session_id=lease.session_id)) or rows
            first = from_row(Submission, rows[0])
            seq = yield from self._fence(lease, 1)
            key = {"session_id": lease.session_id, "position": first.position}
            if first.attempts < max_attempts:
                taken = yield op("claim_submission", **key)
                submission = from_row(Submission, taken[0])
                yield _event(submission, "submission_started", seq, started(submission))
                return submission
            reason = f"gave up after {first.attempts} attempts that did not end"
            if first.reason is not None:
                reason += f"; the last error: {first.reason}"
            yield op("give_up_submission", reason=reason, **key)
            if first.run_id is not None:
                yield op("give_up_run", session_id=lease.session_id, id=first.run_id, reason=reason)
            if first.kind in TURNS:
                yield op("fail_session", session_id=lease.session_id, reason=reason[:LONGEST_ERROR])
                yield op("insert_notice", session_id=lease.session_id, seq=seq, kind="given_up", detail=None)
            yield _event(first, "submission_failed", seq, _facts(first, state="dead", reason=reason))

    @writing()
    def uncount_attempt(self, submission: Submission) -> Tx[None]:
        """Do not count an attempt that ended because its worker lost the lease through no fault of the submission.

        Needs no lease, since another worker may already have the session. Does nothing if the submission has ended.
        """
        yield op("uncount_attempt", session_id=submission.session_id, position=submission.position)

    async def _put_back(self, lease: Lease, taken: Submission | None) -> None:
        if taken is not None:
            await self._requeue(lease, taken)

    @writing(changes="lease")
    def _requeue(self, lease: Lease, taken: Submission) -> Tx[None]:
        yield from self._fence(lease, 0)
        yield op("put_back", session_id=lease.session_id, position=taken.position)

    @reading
    def submission(self, id: str) -> Tx[Submission]:
        """Return one submission with its payload. Raises `NotFound`."""
        rows = yield op("submission_by_id", id=check_id(id, "submission id"))
        if not rows:
            raise NotFound(what="submission", id=id)
        return from_row(Submission, rows[0])

    @reading
    def is_submitted(self, session_id: str, idempotency_key: str) -> Tx[bool]:
        """Return whether the session has a submission with this idempotency key."""
        return bool((yield op("submission_by_key", session_id=session_id, idempotency_key=idempotency_key)))

    @reading
    def submissions(
        self,
        session_id: str,
        *,
        state: SubmissionState | None = None,
        payloads: bool = True,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Tx[Page[Submission]]:
        """List a session's submissions in queue order; without `payloads`, the payloads are empty."""
        (after,) = from_cursor(cursor, int)
        if state is not None:
            check_choice(state, SUBMISSION_STATES, "submission state")
        wanted = op(
            "submissions",
            session_id=session_id,
            state=state,
            still_open=True if state in {"queued", "claimed", "waiting"} else None,
            payloads=payloads or None,
            after=after,
            limit=page_limit(limit),
        )
        wanted = bounded(wanted, "reason", "run_id", *(("payload",) if payloads else ()))
        rows = yield from self._of_session(session_id, wanted)
        unread = {} if payloads else {"payload": ""}
        return to_page(rows, limit, [from_row(Submission, row, **unread) for row in rows], "position")


def _delivery(at: datetime) -> int:
    """Return the time of a submission as it is stored. A time before 1970 would be negative: it is now, like any in the past."""
    return max(0, microseconds(check_time(at, "deliver_at")))


def queued(new: NewSubmission) -> Json:
    """Return the payload of the event for a queued submission."""
    facts = {"submission_id": new["id"], "kind": new["kind"]}
    if (schedule := schedule_of(new["idempotency_key"])) is not None:
        facts["schedule"] = schedule
    return json.dumps(facts)


def started(submission: Submission) -> dict[str, object]:
    """Return the payload of the event for a started submission."""
    return _facts(submission, attempt=submission.attempts)


def _facts(submission: Submission, **more: object) -> dict[str, object]:
    return {"submission_id": submission.id, "kind": submission.kind, **more}


def _event(submission: Submission, kind: str, seq: int, payload: dict[str, object]) -> Statement:
    return op(
        "insert_event",
        session_id=submission.session_id,
        seq=seq,
        kind=kind,
        run_id=submission.run_id,
        step=None,
        payload=json.dumps(payload),
    )


def title_of(new: NewSubmission) -> str:
    """Return a title from the text of a message, or from the first text among its parts; empty if there is none."""
    if new["kind"] != "message":
        return ""
    match read_recorded(new["payload"]):
        case {"text": str(text)}:
            return title_from(text)
        case {"content": [*parts]}:
            return next((title for part in parts if (title := title_from(_text(part)))), "")
        case _:
            return ""


def _text(part: object) -> str:
    match part:
        case str(text) | {"type": "text", "text": str(text)} | {"kind": "text-content", "content": str(text)}:
            return text
        case _:
            return ""
