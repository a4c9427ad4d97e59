"""The hot path: a batch as rows, grouped by the statement ("arm") that writes them. Each engine has its own arms."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias, cast

from holdfast.errors import BadInput, Conflict, MediaCollected
from holdfast.ids import check_choice, check_id
from holdfast.jsontext import check_recorded, parse_json, parse_object
from holdfast.types import (
    CHECKPOINT_KINDS,
    EFFECT_STATES,
    RUN_STATUSES,
    STATUSES,
    SUBMISSION_STATES,
    Batch,
    NewEvent,
    SubmissionChange,
)

Kind: TypeAlias = Literal["text", "bigint"]


def _columns(text: str) -> tuple[tuple[str, Kind], ...]:
    pairs = (column.split() for column in text.split(", "))
    return tuple((name, cast("Kind", kind)) for name, kind in pairs)


ARMS: Final[Mapping[str, tuple[tuple[str, Kind], ...]]] = {
    "add_events": _columns(
        "session_id text, later bigint, kind text, run_id text, step bigint, payload text, segment bigint, position bigint"
    ),
    "add_segments": _columns("session_id text, number bigint, parent bigint, start bigint"),
    "add_messages": _columns("session_id text, segment bigint, position bigint, body text"),
    "add_checkpoints": _columns(
        "session_id text, id text, run_id text, step bigint, kind text, segment bigint, length bigint"
    ),
    "put_runs": _columns(
        "session_id text, id text, parent_id text, agent text, status text, error text, metadata text"
    ),
    "put_effects": _columns(
        "session_id text, run_id text, call_id text, tool text, state text, step bigint, arguments_digest text,"
        " idempotency_key text, result text, error text, summary text, segment bigint, position bigint, attempts bigint"
    ),
    "change_submissions": _columns("session_id text, id text, state text, reason text, run_id text"),
    "drop_drafts": _columns("session_id text, run_id text"),
    "refer_blobs": _columns("session_id text, sha256 text"),
    "set_status": _columns("session_id text, status text, waiting_for text"),
}
"""The arms of a write: each kind of row that a batch may carry, with its columns in order. `later` counts events back from the last one."""

NUMBERED: Final = frozenset({"add_events", "add_checkpoints", "put_runs"})
"""Arms whose rows also get the number of the session after the fence."""

_TEXTS: Final = {
    arm: tuple((n, name.replace("_", " ")) for n, (name, kind) in enumerate(columns) if kind == "text" and n)
    for arm, columns in ARMS.items()
}
"""Where the rows of an arm have text, after the session, and what it is called for a person."""

Row = tuple[object, ...]
_NOWHERE = (None, None)


class Writing:
    """A batch on its way into the store: how many numbers it needs, and its rows by arm."""

    __slots__ = ("chain", "count", "release", "rows", "size")

    def __init__(self, session_id: str, batch: Batch, check: Callable[[str, str], int]) -> None:
        events = batch.events
        if batch.submissions:
            events = [*events, *filter(None, map(_ending, batch.submissions))]
        self.count = len(events)
        self.release = batch.release
        self.chain = batch.chain
        if batch.release and batch.status in {None, "running"}:
            raise BadInput(problem="a session that is let go is not running: give its status")
        _once([run.id for run in batch.runs], "run")
        _once([(effect.run_id, effect.call_id) for effect in batch.effects], "effect")
        _once([change.id for change in batch.submissions], "submission")
        self.rows = {arm: rows for arm, rows in _rows(session_id, batch, events).items() if rows}
        self.size = sum(_check_texts(arm, rows, check) for arm, rows in self.rows.items())
        for event in batch.events:
            parse_json(event.payload, "payload")
        for run in batch.runs:
            parse_object(run.metadata, "metadata")
        for message in batch.messages:
            check_recorded(message.body, "message")
        for effect in batch.effects:
            check_recorded(effect.result or "", "result")

    def refuse(self) -> None:
        """Raise what a batch before this one has failed with."""
        if self.chain is not None and self.chain.failed is not None:
            raise self.chain.failed

    def fail(self, error: BaseException) -> None:
        """Say that it is not written: what builds on it must not be."""
        if self.chain is not None and self.chain.failed is None and isinstance(error, Exception):
            self.chain.failed = error


def _rows(session_id: str, batch: Batch, events: Sequence[NewEvent]) -> dict[str, list[Row]]:
    """Return the rows of each arm, with their columns in the order of `ARMS`."""
    return {
        "add_events": [
            (
                session_id,
                len(events) - number,
                check_id(event.kind, "kind of event"),
                event.run_id,
                event.step,
                event.payload,
                *(event.message or _NOWHERE),
            )
            for number, event in enumerate(events, 1)
        ],
        "add_segments": [(session_id, s.number, s.parent, s.start) for s in batch.segments],
        "add_messages": [(session_id, m.segment, m.position, m.body) for m in batch.messages],
        "add_checkpoints": [
            (
                session_id,
                check_id(c.id, "checkpoint id"),
                c.run_id,
                c.step,
                check_choice(c.kind, CHECKPOINT_KINDS, "kind of checkpoint"),
                c.segment,
                c.length,
            )
            for c in batch.checkpoints
        ],
        "put_runs": [
            (
                session_id,
                check_id(r.id, "run id"),
                r.parent_id,
                r.agent,
                check_choice(r.status, RUN_STATUSES, "run's status"),
                r.error,
                r.metadata,
            )
            for r in batch.runs
        ],
        "put_effects": [
            (
                session_id,
                e.run_id,
                e.call_id,
                e.tool,
                check_choice(e.state, EFFECT_STATES, "effect's state"),
                e.step,
                e.arguments_digest,
                e.idempotency_key,
                e.result,
                e.error,
                e.summary,
                *(e.message or _NOWHERE),
                e.attempts,
            )
            for e in batch.effects
        ],
        "change_submissions": [
            (
                session_id,
                check_id(c.id, "submission id"),
                check_choice(c.state, SUBMISSION_STATES, "submission's state"),
                c.reason,
                c.run_id,
            )
            for c in batch.submissions
        ],
        "drop_drafts": [(session_id, run_id) for run_id in batch.drafts_done],
        "refer_blobs": [(session_id, check_id(sha256)) for sha256 in dict.fromkeys(batch.blobs)],
        "set_status": []
        if batch.status is None
        else [(session_id, check_choice(batch.status, STATUSES, "session's status"), batch.waiting_for)],
    }


def _check_texts(arm: str, rows: list[Row], check: Callable[[str, str], int]) -> int:
    """Refuse what cannot be stored exactly and return the size. The first column, the session, is known to be good."""
    columns = _TEXTS[arm]
    size = 0
    for row in rows:
        for column, name in columns:
            value = row[column]
            if value is not None:
                size += check(value, name)  # pyright: ignore[reportArgumentType]
    return size


def missing(changed: int, writing: Writing) -> Conflict | None:
    """Return what is wrong if not every submission that a batch changes was there to be changed."""
    rows = writing.rows.get("change_submissions", ())
    if changed == len(rows):
        return None
    ids = ", ".join(str(row[1]) for row in rows)
    return Conflict(problem=f"of the submissions {ids} of this session, not all exist and are still open")


def unstored(referred: int, writing: Writing) -> Conflict | None:
    """Return what is wrong if not every blob that a batch refers to is stored."""
    rows = writing.rows.get("refer_blobs", ())
    if referred == len(rows):
        return None
    return MediaCollected(uris=", ".join(f"media+sha256://{row[1]}" for row in rows))


def _ending(change: SubmissionChange) -> NewEvent | None:
    """Return the event that a submission's end is told with."""
    if change.state not in {"done", "failed", "dead"}:
        return None
    payload: dict[str, object] = {"submission_id": change.id}
    if change.state != "done":
        payload |= {"state": change.state, "reason": change.reason}
    kind = "submission_done" if change.state == "done" else "submission_failed"
    return NewEvent(kind=kind, payload=json.dumps(payload), run_id=change.run_id)


def _once(keys: list[object] | list[str] | list[tuple[str, str]], what: str) -> None:
    if len(set(keys)) != len(keys):
        raise BadInput(problem=f"a batch names the same {what} twice; give each in its last state only")
