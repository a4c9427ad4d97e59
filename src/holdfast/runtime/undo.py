"""Undo the effects of a turn on a worker: the undo functions of its completed steps, the last one first.

It is a run of its own, under the lease of the worker. After a crash, a hand-over or an answered question the same run continues, and what is
recorded as undone is not undone again. It stops at the first undo that fails, and at the first unknown outcome.
"""

from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pydantic_ai.messages import ToolCallPart

from holdfast.jsontext import lenient_json
from holdfast.questions import ApprovalAnswer, read_questions
from holdfast.record import ledger
from holdfast.record.buffer import Buffer
from holdfast.record.calls import Calls
from holdfast.record.ending import approval_request, fail_run
from holdfast.record.history import RecordedHistory
from holdfast.record.offloader import MediaOffloader
from holdfast.record.steps import Suspended
from holdfast.record.threads import RunThreads
from holdfast.record.undo_plan import Undoable
from holdfast.record.undoing import Undoing
from holdfast.runtime.leased_session import LeasedSession
from holdfast.runtime.payloads import check_undo, parse_payload
from holdfast.runtime.runner import Runner
from holdfast.runtime.turn import Stop, WorkerTurn
from holdfast.runtime.undo_request import (
    INTERRUPTED,
    joined,
    last_run,
    latest_attempt,
    left,
    new_undo,
    plan_of_turn,
    undo_reason,
    undone_run,
)
from holdfast.store import Store
from holdfast.tracing import mark_span
from holdfast.types import Batch, NewEvent, Run, Session, Status, Submission, SubmissionChange


async def is_undo(leased: LeasedSession, submission: Submission) -> bool:
    """Return whether a turn has failed, and its effects are undone before its submission ends."""
    if submission.run_id is None:
        return False
    return undone_run(await leased.store.run(submission.run_id)) is not None


@dataclass(kw_only=True)
class UndoTurn(WorkerTurn):
    """The host of a run that undoes effects. A first interrupt lets the undo that is running end; a second one cancels it."""

    turn: Run
    """The last run of the turn whose effects are undone."""
    reason: str | None
    """Why that turn failed, if its submission ends with this run."""
    shows: tuple[Status, str | None]
    """The status and error of the session when everything is undone."""
    since: datetime
    """When the undo was requested. Messages that were sent before do not interrupt it."""

    @property
    def began_at(self) -> datetime:
        """When the undo began: a message sent later may interrupt it."""
        return self.since

    def cancel(self, stop: Stop) -> None:
        """Stop before the next undo, or at once if that was requested before."""
        if stop == "interrupt" and self.stop is None:
            self.stop = stop
        else:
            super().cancel(stop)

    def end(self, batch: Batch, run: Run) -> None:
        """End the submission with the run. A turn that has failed fails for its own reason."""
        super().end(batch, run)
        if run.status in {"completed", "interrupted"}:
            batch.status, batch.error = self.shows
        if self.reason is None or run.status == "waiting":
            return
        reason = self.reason
        if run.status != "completed":
            reason = joined(reason, INTERRUPTED if run.status == "interrupted" else run.error or "")
            batch.status, batch.error = "failed", reason
        change = batch.submissions[0]
        batch.submissions = [replace(change, state="failed", reason=reason, run_id=self.turn.id)]


async def prepare_undo(
    leased: LeasedSession, session: Session, submission: Submission
) -> tuple[UndoTurn, Awaitable[None]] | None:
    """Return the undo that a submission requests or waits for; None if nothing is left to undo. Raises `Conflict` and `NotFound`."""
    store, runner = leased.store, leased.runner(session)
    if submission.run_id is None:
        requested = await check_undo(store, leased.id, str(parse_payload(submission).get("submission_id")))
        turn = await last_run(store, await latest_attempt(store, requested))
        plan = [] if turn is None else left(await plan_of_turn(store, leased.id, turn.id))
        if turn is None or not plan:
            return None
        run, started = new_undo(turn)
        events, since = [started], await store.now()
    else:
        run = await store.run(submission.run_id)
        turn = await store.run(undone_run(run) or run.id)
        plan = left(await plan_of_turn(store, leased.id, turn.id))
        events, since = list[NewEvent](), run.started_at or submission.created_at
    reason = undo_reason(run)
    host = UndoTurn(
        lease=leased.lease,
        submission=submission,
        checkpoint=None,
        recorded=(),
        limit=runner.run_timeout,
        turn=turn,
        reason=reason,
        shows=await _outcome(store, leased.id, reason),
        since=since,
    )
    answers = (await read_questions(store, leased.id, [] if events else [run])).answers
    running = replace(run, status="running", error=None)
    undo = UndoRun(
        store=store, runner=runner, host=host, run=running, plan=plan, started=events, answers=answers
    )
    return host, undo.undo()


async def _outcome(store: Store, session_id: str, reason: str | None) -> tuple[Status, str | None]:
    """Return the status and error that the session shows afterwards: those of its last turn."""
    if reason is not None:
        return ("idle", None) if reason == "interrupted" else ("failed", reason)
    cursor: str | None = None
    while True:
        page = await store.find_runs(session_id=session_id, cursor=cursor, limit=50)
        for run in page.items:
            if run.parent_id is None and undone_run(run) is None:
                return ("failed", run.error) if run.status == "failed" else ("idle", None)
        if (cursor := page.next_cursor) is None:
            return "idle", None


@dataclass(slots=True, kw_only=True)
class UndoRun:
    """Runs the undo functions of a turn, and records them."""

    store: Store
    runner: Runner
    host: UndoTurn
    run: Run
    plan: list[Undoable]
    started: list[NewEvent]
    """The event of its start, unless that is recorded."""
    answers: dict[str, ApprovalAnswer]
    """The decisions of a person, by the id of the question."""
    _questions: list[ToolCallPart] = field(default_factory=list[ToolCallPart])
    _buffer: Buffer = field(init=False)

    async def undo(self) -> None:
        """Undo the effects, and record how that ended."""
        host, run = self.host, self.run
        session_id = host.lease.session_id
        mark_span(session_id=session_id, run_id=run.id)
        async with host.enter(session_id, run.id, run.agent) as entered:
            offloader, threads = MediaOffloader(self.store), RunThreads()
            self._buffer = Buffer(
                self.store,
                entered.lease,
                run,
                host=host,
                offloader=offloader,
                calls=Calls(run.id, {}),
                history=RecordedHistory(),
            )
            undoing = Undoing(
                store=self.store,
                buffer=self._buffer,
                offloader=offloader,
                threads=threads,
                host=host,
                undos=self.runner.undos,
                decide=self._decide,
            )
            try:
                claimed = SubmissionChange(id=host.submission.id, state="claimed", run_id=run.id)
                await self._buffer.write(
                    Batch(runs=[run], events=self.started, submissions=[claimed], status="running")
                )
                for item in self.plan:
                    await undoing.undo(item)
                await (await threads.recorded()).deliver()
                await self._end("completed", NewEvent(kind="run_completed", run_id=run.id), "idle")
            except Suspended:
                await self._wait()
            except BaseException as error:
                await fail_run(self._buffer, host, error, threads)
                raise

    async def _decide(self, name: str, entry: str, attempts: int, arguments: Any) -> bool:
        """Return whether an undo may run again although it may have taken effect."""
        question = (
            f"The undo {name!r} was interrupted, and it is unknown whether it took effect. Run it again?"
        )
        call = ToolCallPart(name, {"question": question, "arguments": arguments}, f"{entry}#{attempts}")
        given = self.answers.get(call.tool_call_id)
        if given is None or given.digest != ledger.digest(call.args_as_dict()):
            self._questions.append(call)
            raise Suspended
        return given.approved

    async def _wait(self) -> None:
        """Record that the undo waits for a decision."""
        (call,) = self._questions
        entry = call.tool_call_id.rpartition("#")[0]
        run_id = next(item.place[0] for item in self.plan if f"{entry}/".startswith(item.place[1]))
        unsettled = {"run_id": run_id, "call_id": entry}
        asked = approval_request(call, {call.tool_call_id: {"unsettled": unsettled}})
        payload = lenient_json({"calls": [asked]})
        event = NewEvent(kind="approval_requested", run_id=self.run.id, payload=payload)
        await self._end("waiting", event, "waiting", f"{call.tool_name} ({call.tool_call_id})")

    async def _end(self, status: Any, event: NewEvent, shows: Status, waiting_for: str | None = None) -> None:
        batch = self._buffer.take_pending()
        batch.events = [*batch.events, event]
        batch.status, batch.waiting_for = shows, waiting_for
        ended = replace(self.run, status=status)
        batch.runs = [ended]
        self.host.end(batch, ended)
        await self._buffer.write(batch)
        self.host.close(ended, None)
