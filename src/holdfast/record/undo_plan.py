"""The steps of a turn that can be undone, in the order in which they are undone, as the ledger has them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.record import ledger
from holdfast.record.ledger import CallRef
from holdfast.store import Store
from holdfast.types import Effect

_ENDS = {"step_completed": "completed", "step_started": "started"}
"""The event that decides the place of a step in the order, and the state in which it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undoable:
    """A step with an undo that has taken effect, or may have."""

    step: Effect
    place: CallRef
    """The ledger entry of its undo, without the number of an attempt."""
    entry: str
    """The ledger entry of the undo's latest attempt, or of the next one if that failed."""
    known: Effect | None
    """That entry, if it is recorded."""
    failed: Effect | None
    """The attempt that failed before."""

    @property
    def is_undone(self) -> bool:
        """Whether the undo is recorded as completed."""
        return self.known is not None and self.known.state == "completed"

    @property
    def is_unknown(self) -> bool:
        """Whether it is unknown whether the step took effect."""
        return self.step.state == "started"

    @property
    def has_stopped(self) -> bool:
        """Whether the undo was attempted, and is not completed."""
        return not self.is_undone and (self.known or self.failed) is not None


async def undo_plan(store: Store, session_id: str, run_ids: Iterable[str]) -> list[Undoable]:
    """Return the steps of the runs of a turn, the last one first, that have an undo, in the reverse order of their completion.

    A step that failed had no effect. The undo of a completed step covers the steps within it. A step whose outcome is unknown counts from its
    start.
    """
    ids = list(dict.fromkeys(run_ids))
    entries = [effect for run_id in ids for effect in await ledger.run_entries(store, session_id, run_id)]
    by_ref = {(effect.run_id, effect.call_id): effect for effect in entries}
    steps = [effect for effect in entries if effect.undo is not None]
    done = {(step.run_id, ledger.place(step.call_id)) for step in steps if step.state == "completed"}
    wanted = [step for step in steps if _may_have_effect(step) and not _outer(step) & done]
    order = await _order(store, session_id, ids, wanted) if len(wanted) > 1 else {}
    wanted.sort(key=lambda step: order.get((step.run_id, step.call_id, step.state), 0), reverse=True)
    return [_undoable(step, by_ref) for step in wanted]


def undone(entries: Iterable[Effect]) -> list[CallRef]:
    """Return the steps whose undo is completed, as far as it is among these ledger entries."""
    done = (effect for effect in entries if effect.state == "completed")
    return [(effect.run_id, effect.undoes) for effect in done if effect.undoes is not None]


def _may_have_effect(step: Effect) -> bool:
    """Return whether a step took effect, or may have. One that waits to be tried again had none."""
    return step.state == "completed" or (step.state == "started" and ledger.waits_for(step) != "pause")


def _outer(step: Effect) -> set[CallRef]:
    """Return the places of the steps that a step is a part of."""
    parts = step.call_id.split("/")
    return {(step.run_id, "/".join(parts[:count])) for count in range(2, len(parts))}


def _undoable(step: Effect, by_ref: dict[CallRef, Effect]) -> Undoable:
    base = ledger.undo_entry(step.call_id)
    times, failed = 0, None
    while True:
        entry = ledger.numbered(base, times)
        known = by_ref.get((step.run_id, entry))
        if known is None or known.state != "failed":
            place = (step.run_id, base)
            return Undoable(step=step, place=place, entry=entry, known=known, failed=failed)
        times, failed = times + 1, known


async def _order(
    store: Store, session_id: str, run_ids: Sequence[str], steps: Iterable[Effect]
) -> dict[tuple[str, str, str], int]:
    """Return the number of the last event with which each step was started or completed, by its run, its call id and its state.

    `run_ids` begins with the last run. A later run may complete a step of an earlier one, or have one of its own with the same call id.
    """
    begun = {(step.run_id, step.call_id) for step in steps}
    order: dict[tuple[str, str, str], int] = {}
    for number, run_id in enumerate(run_ids):
        after = 0
        while page := await store.events(session_id, run_id=run_id, after=after):
            after = page[-1].seq
            for event in page:
                if event.kind in _ENDS:
                    call_id, state = json.loads(event.payload)["call_id"], _ENDS[event.kind]
                    owner = next((each for each in run_ids[number:] if (each, call_id) in begun), run_id)
                    order[owner, call_id, state] = max(event.seq, order.get((owner, call_id, state), 0))
    return order
