"""One session on a worker: process its submissions in order, and watch for urgent ones while a turn runs.

Everything that a submission changes is written in one batch with its end. After an interruption the submission stays in its
state, and the next worker of the session continues from the recorded history.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from holdfast.counting import count
from holdfast.errors import BadInput, HoldfastError, LeaseLost, NotFound, StoreError
from holdfast.logs import log_context
from holdfast.record.loading import LargeHistories
from holdfast.record.threads import RunThreads, of_turn
from holdfast.runtime.attachment import UNWATCHED, Attachment, detached
from holdfast.runtime.compaction import prepare_compaction
from holdfast.runtime.context import SessionContext, start_in
from holdfast.runtime.handlers import HANDLERS
from holdfast.runtime.leased_session import LeasedSession
from holdfast.runtime.message import prepare_turn
from holdfast.runtime.runner import Runner
from holdfast.runtime.turn import Stop, WorkerTurn
from holdfast.runtime.undo import is_undo, prepare_undo
from holdfast.runtime.urgent_submissions import POLL_SECONDS, UrgentSubmissions
from holdfast.store import Store
from holdfast.tasks import end
from holdfast.tracing import TURN, span
from holdfast.types import (
    SUSPENDED,
    TURNS,
    UNDO_EFFECTS,
    Batch,
    NewEvent,
    Run,
    Session,
    Status,
    Submission,
    SubmissionChange,
    Work,
)

_SHORT_SECONDS = 0.05
"""A turn that ends within this time does not read its inbox. An urgent submission is noticed at most this much later."""
_CUT_OFF_SECONDS = 1.0
"""How long cancelled agent code may take to end. Nothing that it does later is recorded."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 60.0
"""How long a session is kept after its store failed: four times longer with each consecutive failure."""
_log = logging.getLogger(__name__)


class SessionRunner:
    """Processes the submissions of one session while the lease is held."""

    def __init__(
        self,
        store: Store,
        work: Work,
        agents: Mapping[str, Runner],
        *,
        max_attempts: int = 5,
        credential_key: str | None = None,
        histories: LargeHistories | None = None,
        store_failures: Counter[str] | None = None,
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._store_failures = Counter[str]() if store_failures is None else store_failures
        self._histories = histories or LargeHistories()
        self.begun = begun
        self.yields: Callable[[], bool] = lambda: False
        """Returns whether the worker has no place for another session."""
        self._work = work
        self._lease = work.lease
        self._leased = LeasedSession(store, work.lease, agents)
        self._urgent = UrgentSubmissions(self._leased, self.hand_over)
        self._max_attempts = max_attempts
        self._credential_key = credential_key
        self._turn: WorkerTurn | None = None
        self._reason: str | None = None  # why the session is handed over
        self._stopping = asyncio.Event()
        self._left = 0  # how many submissions may still be processed
        self._threads = RunThreads()
        self.unfinished: Submission | None = None
        """The submission in progress, also after the session was lost or its store failed."""

    def leave_threads(self) -> asyncio.Task[None] | None:
        """Return the end of the threads of a turn that was stopped. Until then, nothing else may continue the session."""
        return asyncio.create_task(self._threads.ended()) if self._threads.are_working else None

    def hand_over(self, reason: str) -> None:
        """Stop at the next settled point, so that another worker continues."""
        self._reason = self._reason or reason
        self._stopping.set()
        if self._turn is not None:
            self._turn.draining = True

    def stop(self, why: Stop) -> None:
        """Stop the running turn immediately."""
        self._stopping.set()
        if why == "handover":
            self._reason = self._reason or "shutdown"
        if self._turn is not None:
            self._turn.cancel(why)
        if why == "lost":
            self._lease.lost = True

    async def serve(self) -> None:
        """Process the submissions that were pending when the session was claimed: all, or one if the worker has no place for other sessions."""
        if self._lease.taken_from is not None:
            payload = json.dumps({"taken_from": self._lease.taken_from})
            await self._store.write(self._lease, Batch(events=[NewEvent(kind="takeover", payload=payload)]))
        session: Session | None = self._work.session
        submission = self._work.submission
        waiting = session.status in SUSPENDED
        # Later submissions are found when the session is released: then it becomes ready again.
        self._left = session.pending
        while self._left > 0 and self._reason is None and not self._lease.lost:
            self._left -= 1
            if submission is None:
                submission = await self._store.take(
                    self._lease, lane="control" if waiting else None, max_attempts=self._max_attempts
                )
            if submission is None:
                return
            self.unfinished = submission
            waiting = await self._carry_out(submission, session)
            if self._lease.released or not self._lease.lost:
                self.unfinished = None
                self._store_failures.pop(self._session_id, None)
            session = submission = None  # only valid for the first submission
            if self.yields():
                return  # others may wait for a place on this worker: the session continues when it is its turn

    @property
    def _session_id(self) -> str:
        return self._lease.session_id

    async def _carry_out(self, submission: Submission, session: Session | None) -> bool:
        """Process a submission and return whether the session now waits for a person. Every failure is recorded."""
        facts = {"session_id": self._session_id, "submission_id": submission.id}
        try:
            with (
                self._histories.turn(self._work.session.owner),
                span(f"holdfast {submission.kind}", TURN, within=submission.trace, **facts),
            ):
                if submission.kind == UNDO_EFFECTS or await is_undo(self._leased, submission):
                    return await self._undo(submission)
                if submission.kind in TURNS:
                    return await self._message(submission, session or await self._leased.read())
                await self._command(submission)
        except (LeaseLost, StoreError) as error:
            if isinstance(error, StoreError) and not self._lease.lost:
                await self._back_off(submission, error)
            raise  # not the submission's fault: the next worker of the session continues
        except HoldfastError as error:
            if self._lease.lost:
                raise
            await self._leased.fail(submission, str(error))
        except BaseException as error:
            if _is_closing(error):
                raise
            _log.exception("submission %s of session %s failed", submission.id, self._session_id)
            await self._leased.fail(submission, f"{type(error).__name__}: {error}")
        return (await self._leased.read()).status in SUSPENDED

    async def _back_off(self, submission: Submission, error: StoreError) -> None:
        """Record why an attempt ended, and wait before releasing the session, to give the store time."""
        with suppress(HoldfastError):
            change = SubmissionChange(id=submission.id, state="queued", reason=str(error))
            await self._store.write(
                self._lease, Batch(submissions=[change], status=_after_attempt(submission))
            )
        failures = self._store_failures[self._session_id]
        self._store_failures[self._session_id] += 1
        seconds = min(_FIRST_PAUSE_SECONDS * 4 ** min(failures, 9), _LONGEST_PAUSE_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _message(self, submission: Submission, session: Session) -> bool:
        """Run a turn and return whether it waits for a person."""
        is_first = submission == self._work.submission and submission.run_id is None
        prepared = await prepare_turn(
            self._leased,
            session,
            submission,
            fresh=self._work.fresh and is_first,
            last=self._left == 0 or self.yields(),
            take_steered=self._urgent.take_steered,
            begun=self.begun,
            budgeted=self._work.budgeted or not is_first,  # they may have been set since the claim
        )
        if prepared is None:
            return (await self._leased.read()).status in SUSPENDED
        turn, running = prepared
        log_context(lambda: {"session_id": self._session_id, "run_id": turn.run_id})
        task = await self._attend(turn, session, running)
        error = turn.failed or _error_of(task)
        how = turn.stop or ("completed" if error is None else f"failed, {type(error).__name__}")
        _log.info(
            "the run ended: %s", "waits for an answer, a time, a signal or a budget" if turn.waits else how
        )
        outcome = "waiting" if turn.waits else turn.stop or ("completed" if error is None else "failed")
        count("runs", agent=session.agent, outcome=outcome)
        if turn.ended:
            return turn.waits
        if not await self._gave_up(turn, error):
            text = (
                "CancelledError: the agent's code cancelled the run"
                if error is None
                else f"{type(error).__name__}: {error}"
            )
            _log.warning("session %s: the run failed before it started", self._session_id, exc_info=error)
            await self._leased.fail(submission, text, run_id=turn.run_id)
        return False

    async def _undo(self, submission: Submission) -> bool:
        """Undo the effects of a turn and return whether that waits for a person."""
        session = await self._leased.read()
        prepared = await prepare_undo(self._leased, session, submission)
        if prepared is None:
            await self._leased.end(submission, "done")
            return False
        turn, running = prepared
        error = _error_of(await self._attend(turn, session, running))
        if not turn.ended and not await self._gave_up(turn, turn.failed or error):
            await self._leased.fail(submission, f"{type(error).__name__}: {error}", run_id=submission.run_id)
        return turn.waits

    async def _command(self, submission: Submission) -> None:
        """Process any submission that is not a turn."""
        if submission.kind == "compact":
            await self._compact(submission)
            return
        handle = HANDLERS.get(submission.kind)
        if handle is None:
            raise BadInput(
                problem=f"unknown submission kind {submission.kind!r}; use one of {', '.join(sorted([*TURNS, UNDO_EFFECTS, 'compact', *HANDLERS]))}"
            )
        await self._leased.end(submission, "done", batch=await handle(self._leased, submission))
        if submission.kind == "shutdown":
            self.hand_over("shutdown")

    async def _compact(self, submission: Submission) -> None:
        session = await self._leased.read()
        turn, running = await prepare_compaction(self._leased, session, submission)
        task = await self._attend(turn, session, running)
        if not await self._gave_up(turn, _error_of(task)):
            await self._leased.end(submission, "done", batch=task.result())

    async def _attend(self, turn: WorkerTurn, session: Session, running: Awaitable[Any]) -> asyncio.Task[Any]:
        """Run the code of an agent until it has ended. Stop it on request or at its time limit."""
        context = SessionContext(session=session, store=self._store, keys=self._credential_key)
        with of_turn(self._threads):
            turn.task = task = start_in(context, running)
        turn.supervisor = asyncio.current_task()
        self._turn = turn
        turn.draining = self._reason is not None
        watchers: list[asyncio.Task[None]] = []
        if turn.attached is not None:
            watchers.append(asyncio.create_task(self._watch_attendance(turn, turn.attached)))
        try:
            if session.pending == 1:  # no other submission was pending
                await asyncio.wait([task], timeout=_SHORT_SECONDS)
            if not task.done():
                watchers.append(asyncio.create_task(self._urgent.watch(turn)))
                await asyncio.wait([task], timeout=turn.limit)
            if not task.done():
                turn.cancel("timeout")
                await asyncio.wait([task])
            if turn.recording is not None:
                await asyncio.wait([turn.recording])
            await self._threads.ended()  # of delegates as well
        except asyncio.CancelledError:
            turn.cancel("lost")  # this task is being stopped: leave everything as it is
            await asyncio.wait([task], timeout=_CUT_OFF_SECONDS)
            raise
        finally:
            self._turn = None
            await end(*watchers)  # a driver may swallow a cancellation
        return task

    async def _gave_up(self, turn: WorkerTurn, error: BaseException | None) -> bool:
        """Handle the reason why the code of an agent was stopped; return whether there was one."""
        if turn.stop == "lost" or self._lease.lost:
            self._lease.lost = True
        elif isinstance(error, StoreError):
            raise error
        elif turn.stop == "handover":
            await self._write_handover(turn)
        elif turn.stop == "interrupt":
            await self._leased.fail(turn.submission, "interrupted", run_id=turn.run_id)
        elif turn.stop == "timeout":
            await self._leased.fail(turn.submission, f"TimeoutError: {turn.timed_out()}", run_id=turn.run_id)
        else:
            return False
        return True

    async def _write_handover(self, turn: WorkerTurn) -> None:
        """Record why the turn is handed over, and queue its submission again without counting this attempt."""
        reason = self._reason = self._reason or "shutdown"
        if reason in {UNWATCHED, "background"}:
            session = await self._leased.read()
            if (metadata := detached(session.metadata)) is not None:
                await self._store.update_session(session.id, metadata=metadata)
        ended: list[Run] = []
        if turn.run_id is not None:
            with suppress(NotFound):  # it was stopped before its start was written
                run = await self._store.run(turn.run_id)
                ended = [replace(run, status="interrupted", error=f"handed over: {reason}")]
        run_id = ended[0].id if ended else None
        change = SubmissionChange(
            id=turn.submission.id, state="queued", run_id=run_id, attempts=turn.attempts - 1
        )
        await self._store.write(
            self._lease,
            Batch(
                events=[NewEvent(kind="handover", run_id=run_id, payload=json.dumps({"reason": reason}))],
                runs=ended,
                submissions=[change],
                drafts_done=[run_id] if run_id else [],
                status=_after_attempt(turn.submission),
            ),
        )

    async def _watch_attendance(self, turn: WorkerTurn, attached: Attachment) -> None:
        """Stop or hand over a turn that has not been watched for as long as the session allows."""
        while True:
            try:
                left = attached.grace - await self._store.seconds_unwatched(self._session_id)
            except HoldfastError as error:
                _log.warning("session %s: cannot read when it was last watched: %s", self._session_id, error)
                left = POLL_SECONDS
            if left <= 0:
                break
            await asyncio.sleep(min(left, attached.grace / 4) + 0.01)
        _log.info("session %s was not watched for %g s", self._session_id, attached.grace)
        if attached.on_unwatched == "interrupt":
            turn.cancel("interrupt")
        else:
            self.hand_over(UNWATCHED)


def _after_attempt(submission: Submission) -> Status | None:
    """Return the status after an attempt that did not end its submission. Only a turn or an undo changes it, and only if it is not refused."""
    begun = submission.kind in {"message", UNDO_EFFECTS} or submission.run_id is not None
    return "idle" if submission.kind in {*TURNS, UNDO_EFFECTS} and begun else None


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


def _is_closing(error: BaseException) -> bool:
    """Return whether this task is being cancelled or closed, as opposed to agent code having raised such an error."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop is running
        return True
    if isinstance(error, asyncio.CancelledError):
        return task is None or task.cancelling() > 0
    return task is None
