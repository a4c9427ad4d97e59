"""The transactions of the sweep: find due sessions in index order, and let one holder at a time sweep."""

import math
from collections.abc import Sequence

from holdfast.errors import BadInput
from holdfast.ids import check_choice, check_id
from holdfast.store.rows import Row, from_cursor, from_row, is_part, page_limit, to_cursor
from holdfast.store.stored_bytes import outdate
from holdfast.store.transactions import Transactions, Tx, bounded, op, reading, writing
from holdfast.types import DUE_BY, Due, DueBy, Duty, Holder, Json, Page

_MICROSECONDS = 1_000_000
_LONGEST = 2**62


class SweepMethods(Transactions):
    """The transactions of sweep.sql."""

    @reading
    def agents(self) -> Tx[list[str]]:
        """Return the names of all agents that have sessions."""
        return [row["agent"] for row in (yield op("agents"))]

    @reading
    def due(
        self,
        by: DueBy,
        *,
        agent: str | None = None,
        older_than: float,
        held: bool = False,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Tx[Page[Due]]:
        """List sessions and submissions that may be due for retention, longest due first. The cost is proportional to the result.

        `idle`: sessions of the agent that were last active at least `older_than` seconds ago. `age`: sessions created that long ago.
        `cleaned`: cleaned sessions created that long ago; the others exclude cleaned sessions. `submissions`: submissions of all
        agents that ended that long ago. Sessions on hold are excluded, unless `held` is set, which applies to `idle` and `age`.
        """
        check_choice(by, DUE_BY, "value for by")
        after, after_id, after_position = from_cursor(cursor, int, str, int)
        wanted = op(
            f"due_{by}",
            agent=agent,
            free=None if held else True,
            older_us=_microseconds(older_than),
            after=after,
            after_id=after_id,
            after_position=after_position,
            limit=page_limit(limit),
        )
        rows = yield bounded(wanted, "metadata")
        submissions = by == "submissions"
        more = None
        if is_part(rows, limit):
            last = rows[-1]
            more = to_cursor(last["place"], last["id"], last["position"] if submissions else 0)
        return Page(items=[_due(row, submissions) for row in rows], next_cursor=more)

    @writing(repeatable=True)
    def drop_submissions(self, ids: Sequence[str]) -> Tx[int]:
        """Delete those of the submissions that have ended and whose session is not on hold; return how many."""
        for submission_id in ids:
            check_id(submission_id, "submission id")
        rows = yield op("drop_submissions", ids=list(ids))
        yield from outdate([row["session_id"] for row in rows])
        return len(rows)

    @writing(repeatable=True)
    def take_duty(self, name: str, holder: Holder, *, every: float = 0.0) -> Tx[bool]:
        """Take a duty, which one holder at a time performs for all; false if a live holder has it, or did it within `every` seconds."""
        every_us = _microseconds(every)
        return bool((yield op("take_duty", name=_name(name), holder=holder.id, every_us=every_us)))

    @writing(repeatable=True)
    def leave_duty(self, name: str, holder: Holder, *, detail: Json | None = None) -> Tx[None]:
        """Give up a duty; with `detail`, record that it is done. Does nothing if another holder has it."""
        if detail is None:
            yield op("leave_duty", name=_name(name), holder=holder.id)
        else:
            self._check_json(detail, "detail")
            yield op("finish_duty", name=_name(name), holder=holder.id, detail=detail)

    @reading
    def duty(self, name: str) -> Tx[Duty | None]:
        """Return the current holder of a duty and the result of its last run; None if it was never taken."""
        rows = yield op("duty", name=_name(name))
        return from_row(Duty, rows[0]) if rows else None


def _name(name: str) -> str:
    return check_id(name, "duty")


def _microseconds(seconds: float) -> int:
    if not seconds >= 0:
        raise BadInput(problem=f"a duration must be 0 or more seconds, not {seconds}")
    return _LONGEST if math.isinf(seconds) else min(round(seconds * _MICROSECONDS), _LONGEST)


def _due(row: Row, submissions: bool) -> Due:
    submission_id = row["submission_id"] if submissions else None
    return from_row(Due, row, session_id=row["id"], submission_id=submission_id)
