"""Read the history, runs, effects and records of a session."""

from typing import Any

from holdfast.errors import BadInput, NotFound
from holdfast.ids import check_id, check_text
from holdfast.store.rows import Row, from_cursor, from_row, page_limit, to_page
from holdfast.store.transactions import Transactions, Tx, bounded, op, reading
from holdfast.types import Checkpoint, CheckpointKind, Effect, Message, Page, Record, Run, Segment

_LAST = chr(0x10FFFF)
"""It sorts after every other character."""


class HistoryMethods(Transactions):
    """The transactions of history.sql."""

    @reading
    def history(
        self, session_id: str, *, segment: int, length: int, after: int = -1, limit: int = 1000
    ) -> Tx[list[Message]]:
        """Return the messages of a checkpoint, (segment, length), after position `after`, in order.

        A page ends with the message that reaches 4 MiB, so read until the last position.
        """
        wanted = op(
            "history",
            session_id=session_id,
            segment=segment,
            length=length,
            after=after,
            limit=page_limit(limit),
        )
        rows = yield from self._of_session(session_id, bounded(wanted, "body"))
        return [from_row(Message, row) for row in rows]

    @reading
    def history_size(self, session_id: str, *, segment: int, length: int) -> Tx[int]:
        """Return the size of a checkpoint's messages in bytes without reading them, excluding media."""
        rows = yield op("history_size", session_id=session_id, segment=segment, length=length)
        return rows[0]["bytes"]

    @reading
    def segments(self, session_id: str) -> Tx[list[Segment]]:
        """Return the segments of a session's history."""
        rows = yield from self._of_session(session_id, op("segments", session_id=session_id))
        return [from_row(Segment, row) for row in rows]

    @reading
    def checkpoint(self, checkpoint_id: str) -> Tx[Checkpoint]:
        """Return one checkpoint. Raises `NotFound`."""
        rows = yield op("checkpoints", id=check_id(checkpoint_id, "checkpoint id"), limit=1)
        if not rows:
            raise NotFound(what="checkpoint", id=checkpoint_id)
        return from_row(Checkpoint, rows[0])

    @reading
    def checkpoints(
        self,
        *,
        session_id: str | None = None,
        run_id: str | None = None,
        kind: CheckpointKind | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Tx[Page[Checkpoint]]:
        """List the checkpoints of a session, or of one of its runs, newest first."""
        if session_id is None:
            if run_id is None:
                raise BadInput(problem="pass session_id or run_id to list checkpoints")
            session_id = (yield from self._run(run_id)).session_id
        seq_before, id_before = from_cursor(cursor, int, str)
        wanted = op(
            "checkpoints",
            session_id=session_id,
            run_id=run_id,
            kind=kind,
            seq_after=None if run_id is None else (yield from before_run(session_id, run_id)),
            seq_before=seq_before,
            id_before=id_before,
            limit=page_limit(limit),
        )
        rows = yield from self._of_session(session_id, bounded(wanted, "run_id"))
        return to_page(rows, limit, [from_row(Checkpoint, row) for row in rows], "seq", "id")

    @reading
    def run(self, run_id: str) -> Tx[Run]:
        """Return one run. Raises `NotFound`."""
        return (yield from self._run(run_id))

    def _run(self, run_id: str) -> Tx[Run]:
        rows = yield op("runs", id=check_id(run_id, "run id"), limit=1)
        if not rows:
            raise NotFound(what="run", id=run_id)
        return from_row(Run, rows[0])

    @reading
    def runs(
        self,
        *,
        session_id: str | None = None,
        parent_id: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Tx[Page[Run]]:
        """List the runs of a session, or the delegates of a run, in the order in which they started."""
        if (session_id is None) == (parent_id is None):
            raise BadInput(problem="pass either session_id or parent_id to list runs")
        order = "first_seq" if parent_id is None else "started_at"
        after: dict[str, Any] = dict(zip((order, "after_id"), from_cursor(cursor, int, str), strict=True))
        wanted = op("runs", session_id=session_id, parent_id=parent_id, limit=page_limit(limit), **after)
        wanted = bounded(wanted, "error", "metadata", "parent_id", "agent")
        if session_id is None:
            rows = yield wanted
        else:
            rows = yield from self._of_session(session_id, wanted)
        return to_page(rows, limit, [from_row(Run, row) for row in rows], order, "id")

    @reading
    def find_runs(
        self,
        *,
        owner: str | None = None,
        session_id: str | None = None,
        parent_id: str | None = None,
        interrupted: bool = False,
        unresolved: bool = False,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Tx[Page[Run]]:
        """List runs of all sessions, newest first.

        `interrupted` lists only runs that can be resumed: they were interrupted and are the last of their session. `unresolved` lists only
        runs that have ended and have a tool call with an unknown outcome.
        """
        started_before, id_before = from_cursor(cursor, int, str)
        for text, what in ((owner, "owner"), (session_id, "session id"), (parent_id, "run id")):
            check_text("" if text is None else text, what)
        wanted = op(
            "find_runs",
            owner=owner,
            session_id=session_id,
            parent_id=parent_id,
            interrupted=interrupted or None,
            unresolved=unresolved or None,
            started_before=started_before,
            id_before=id_before,
            limit=page_limit(limit),
        )
        rows = yield bounded(wanted, "error", "metadata", "parent_id", "agent")
        return to_page(rows, limit, [from_row(Run, row) for row in rows], "started_at", "id")

    @reading
    def effects(
        self,
        session_id: str,
        *,
        run_id: str | None = None,
        call_id: str | None = None,
        unresolved: bool = False,
        cursor: str | None = None,
        limit: int = 200,
    ) -> Tx[Page[Effect]]:
        """List effects in the order in which they were started; `unresolved` lists only those without a recorded end."""
        started_at, after_run, after_call = from_cursor(cursor, int, str, str)
        wanted = op(
            "effects",
            session_id=session_id,
            run_id=run_id,
            call_id=call_id,
            unresolved=unresolved or None,
            started_at=started_at,
            after_run=after_run,
            after_call=after_call,
            limit=page_limit(limit),
        )
        names = ("run_id", "call_id", "tool", "arguments_digest", "idempotency_key")
        wanted = bounded(wanted, "result", "error", "summary", "undo", "body", *names)
        rows = yield from self._of_session(session_id, wanted)
        return to_page(rows, limit, [_effect(row) for row in rows], "started_at", "run_id", "call_id")

    @reading
    def records(
        self,
        session_id: str,
        kind: str,
        *,
        prefix: str = "",
        after: str | None = None,
        before: str | None = None,
        reverse: bool = False,
        bodies: bool = True,
        limit: int = 500,
    ) -> Tx[list[Record]]:
        """Return records of a kind in the order of their keys: those whose keys begin with `prefix` and are after or before a key.

        Without `bodies`, the bodies are empty. A page ends with the record that reaches 4 MiB; only an empty page means that there are no
        more.
        """
        wanted = op(
            "records",
            session_id=session_id,
            kind=kind,
            low=prefix,
            high=prefix + _LAST,
            after=after,
            before=before,
            bodies=bodies or None,
            ascending=None if reverse else True,
            descending=reverse or None,
            limit=page_limit(limit),
        )
        rows = yield from self._of_session(session_id, bounded(wanted, "body") if bodies else wanted)
        return [
            Record(kind=kind, key=row["key"], body=row["body"] if bodies else "", seq=row["seq"])
            for row in rows
        ]


def before_run(session_id: str, run_id: str) -> Tx[int]:
    """Return the number of the run before this one; 0 if there is none, or if the session does not have this run.

    All events and checkpoints of the run have higher numbers: a run is written before them, or in the same batch.
    """
    rows = yield op("before_run", session_id=session_id, run_id=run_id)
    return rows[0]["first_seq"] if rows else 0


def _effect(row: Row) -> Effect:
    moved = None if row["segment"] is None else (row["segment"], row["position"])
    return from_row(Effect, row, message=moved)
