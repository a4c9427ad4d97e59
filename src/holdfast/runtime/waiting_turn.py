"""Apply the deadlines of open questions when their time has come: record the default, fail the turn, or remind.

The worker that claims the waiting turn does this under the session's lease, before the turn continues. So an answer and a default
exclude each other: each is recorded by the holder of the lease, and only if the other is not recorded yet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from holdfast.budgets import Account
from holdfast.errors import BudgetReached
from holdfast.jsontext import lenient_json
from holdfast.questions import ANSWERED, DEADLINE, ApprovalAnswer, Questions
from holdfast.record.deadlines import deadline_of, reminded
from holdfast.record.ending import continues_at, describe_waiting
from holdfast.record.waits import Wait, for_budget, open_waits
from holdfast.runtime.delivery import deliver, stop_delegates
from holdfast.runtime.leased_session import LeasedSession
from holdfast.runtime.undo_request import undo_first
from holdfast.types import SIGNAL, Batch, NewEvent, Run, Submission, SubmissionChange

_LATE = "Nobody answered before the deadline."
_LONGEST_QUESTION = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTurn:
    """A turn that a worker has claimed although questions of its last run are open."""

    leased: LeasedSession
    submission: Submission
    run: Run
    """The run that waits."""
    origin: str
    """The run whose model asked the questions, or began to wait."""
    questions: Questions

    async def continues(self) -> bool:
        """Apply the deadlines that have passed, and return whether the turn continues now.

        If not, it is recorded that it has failed, or that it waits on: its agent does not run for a reminder, or while other questions
        are open.
        """
        now = await self.leased.store.now()
        due = [question for question in self.questions.open.values() if _is_due(question, now)]
        if (failing := next((each for each in due if each["default"] == "fail"), None)) is not None:
            await self._fail(failing)
            return False
        events = [await self._apply(question, now) for question in due]
        # A call that runs outside cannot be run again to wait on, so no other wait continues the turn before its result is there.
        runs_outside = any(question.get("external") for question in self.questions.open.values())
        waits = [] if runs_outside else await self._waits()
        if not self.questions.open or await self._is_any_over(waits, now):
            if events:
                await self.leased.store.write(self.leased.lease, Batch(events=events))
            return True
        await self._wait_on(events, waits)
        return False

    async def _apply(self, question: Mapping[str, Any], now: datetime) -> NewEvent:
        """Answer a question by default, or add a reminder to it. Return the event."""
        call_id, run_id = question["call_id"], self.run.id
        if question["default"] == "remind":
            after = self.questions.asked[call_id] = reminded(question, now)
            reminder = {
                "call_id": call_id,
                "tool": question["tool"],
                "number": after["reminders"],
                "next": after["deadline"],
            }
            return NewEvent(kind="approval_reminder", run_id=run_id, payload=lenient_json(reminder))
        approved = question["default"] == "approve"
        default = ApprovalAnswer(
            call_id=call_id,
            digest=question["digest"],
            approved=approved,
            feedback=None if approved else _LATE,
            by=DEADLINE,
        )
        answer = self.questions.answers[call_id] = await deliver(
            self.leased.store, self.leased.id, question, default
        )
        return NewEvent(kind=ANSWERED, run_id=run_id, payload=answer.as_json())

    async def _waits(self) -> list[Wait]:
        """Return what the turn waits for besides answers."""
        waits = await open_waits(self.leased.store, self.leased.id)
        return [wait for wait in waits if wait.ref[0] == self.origin]

    async def _is_any_over(self, waits: Sequence[Wait], now: datetime) -> bool:
        for wait in waits:
            if wait.is_over(now) or wait.budget is not None:  # then the budget is checked again
                return True
            if wait.name is not None:
                prefix = f"{wait.name}/"
                if await self.leased.store.records(
                    self.leased.id, SIGNAL, prefix=prefix, bodies=False, limit=1
                ):
                    return True
        return False

    async def _wait_on(self, events: Sequence[NewEvent], waits: Sequence[Wait]) -> None:
        questions = self.questions.open.values()
        waiting_for = describe_waiting(questions, waits)
        change = SubmissionChange(
            id=self.submission.id,
            state="waiting",
            reason=waiting_for,
            attempts=1,
            deliver_at=continues_at(questions, waits),
        )
        batch = Batch(events=events, submissions=[change], status="waiting", waiting_for=waiting_for)
        await self.leased.store.write(self.leased.lease, batch)

    async def _fail(self, question: Mapping[str, Any]) -> None:
        """End the turn as failed, with its waiting run. Its effects are undone before, if its agent declares that."""
        at = deadline_of(question)
        reason = f"{_describe(question)} was not answered before its deadline, {at and at.isoformat(timespec='seconds')}"
        await stop_delegates(self.leased.store, self.run.id)
        run = replace(self.run, status="failed", error=reason)
        event = NewEvent(kind="run_failed", run_id=run.id, payload=lenient_json({"error": reason}))
        batch = Batch(events=[event], runs=[run], status="failed", error=reason)
        if await self.leased.undoable_turn(self.submission) is not None:
            undo_first(batch, self.submission.id, run, reason)
            await self.leased.store.write(self.leased.lease, batch)
            return
        await self.leased.end(self.submission, "failed", reason, batch=batch, run_id=run.id)


async def wait_for_budget(
    leased: LeasedSession, submission: Submission, reached: BudgetReached, accounts: Sequence[Account]
) -> None:
    """Let a turn wait on for a budget that is used up, until it is checked again."""
    wait = for_budget(reached, submission.run_id or "", await leased.store.now())
    change = SubmissionChange(
        id=submission.id, state="waiting", reason=str(wait), attempts=1, deliver_at=wait.until
    )
    payload = lenient_json({"waits": [{"call_id": wait.ref[1], **wait.facts()}]})
    event = NewEvent(kind="run_waiting", run_id=submission.run_id, payload=payload)
    batch = Batch(events=[event], submissions=[change], status="sleeping", waiting_for=str(wait))
    await leased.store.write(leased.lease, batch)
    await leased.store.recheck_budgets(leased.id, accounts)


def _is_due(question: Mapping[str, Any], now: datetime) -> bool:
    at = deadline_of(question)
    return at is not None and at <= now


def _describe(question: Mapping[str, Any]) -> str:
    text = question["arguments"].get("question") if question["tool"] == "ask" else None
    what = (
        f"the question {text[:_LONGEST_QUESTION]!r}"
        if isinstance(text, str)
        else f"the question about {question['tool']}"
    )
    return f"{what} ({question['call_id']})"
