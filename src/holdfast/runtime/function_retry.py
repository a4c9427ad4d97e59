"""The retry of a turn of a plain agent: which steps run again, and from which history."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
)

from holdfast.errors import NotFound
from holdfast.record import ledger
from holdfast.record.resume_point import load_history
from holdfast.record.undo_plan import undone
from holdfast.runtime.payloads import step_to_repeat
from holdfast.runtime.runner import TurnStart
from holdfast.types import Effect

ENTRY = "turn"
"""The ledger entry that the steps of a turn belong to."""


class TurnRetry:
    """A turn that may have begun before, as its last run recorded it. `last` is the metadata of that run."""

    def __init__(self, start: TurnStart) -> None:
        self._start = start
        point, submission = start.point, start.host.submission
        self.last: dict[str, Any] = json.loads(point.chain[0].metadata) if point.begun else {}
        self.origin: str | None = self.last.get("origin", point.chain[-1].id) if point.begun else None
        self._undone: set[str] = set()
        self.is_new = submission.kind == "retry" and submission.run_id is None
        """Whether a person has just requested it; a later run of the same retry only continues."""

    async def steps(self) -> dict[str, Effect]:
        """Return the recorded steps of a turn that is being retried; nothing for any other turn. Find those that were undone."""
        if not self.is_new or self.origin is None:
            return {}
        store, session_id = self._start.store, self._start.session.id
        entries = await ledger.run_entries(store, session_id, self.origin)
        known: list[str] = self.last.get("redone", [])
        self._undone = {entry for _, entry in undone(entries) if entry not in known}
        return ledger.steps_within(entries, ENTRY)

    async def history_before(self, step: str) -> list[ModelMessage]:
        """Return the history as it was when a step of this turn was started."""
        store, session_id = self._start.store, self._start.session.id
        seq, cursor = await self._started(step), None
        while True:
            page = await store.checkpoints(session_id=session_id, cursor=cursor)
            for checkpoint in page.items:
                if checkpoint.seq < seq:
                    return await load_history(store, checkpoint)
            cursor = page.next_cursor
            if cursor is None:
                return []

    def from_step(self, steps: Mapping[str, Effect]) -> str | None:
        """Return the latest entry of the step that a retry starts from; None if it only continues.

        Steps that were undone run again, and so do all later ones, which may depend on their results.
        """
        from_step = step_to_repeat(self._start.host.submission)
        if from_step is not None and from_step not in steps:
            return from_step
        requested: set[str] = set()
        if from_step is not None:  # the latest entry may not exist yet: it is about to run again anyway
            requested.add(ledger.next_entry(ledger.place(from_step), self.last.get("redone", [])))
        return next((entry for entry in steps if entry in requested | self._undone), None)

    def redone(self, steps: dict[str, Effect]) -> list[str]:
        """Return the entries that run again as new ones, because a person retries the turn: the failures that ended it, or all from a step."""
        known: list[str] = self.last.get("redone", [])
        ended_by: list[str] = self.last.get("ended_by", [])
        again = [entry for entry in ended_by if entry in steps and steps[entry].state == "failed"]
        if (from_step := self.from_step(steps)) and steps:
            again += ledger.entries_from({e: steps[e] for e in steps if e not in known}, from_step)
        again = list(dict.fromkeys(again))
        return [*known, *(entry for entry in again if entry not in known)]

    def renewed(self, steps: Mapping[str, Effect], redone: Sequence[str]) -> dict[str, str]:
        """Return, by place, the retry that repeats a completed step. One that failed, or may have failed, is the same request again."""
        known: dict[str, str] = self.last.get("renewed", {})
        again = (entry for entry in redone if entry in steps and steps[entry].state == "completed")
        before: list[str] = self.last.get("redone", [])
        retry = self._start.host.submission.id
        return known | {ledger.place(entry): retry for entry in again if entry not in before}

    async def _started(self, step: str) -> int:
        """Return the number of the event that records the start of a step."""
        for run in self._start.point.chain:
            after = 0
            while page := await self._start.store.events(self._start.session.id, run_id=run.id, after=after):
                for event in page:
                    if event.kind == "step_started" and json.loads(event.payload)["call_id"] == step:
                        return event.seq
                after = page[-1].seq
        raise NotFound(what="start of a step of this turn with the id", id=step)
