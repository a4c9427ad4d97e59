"""The hot path: convert a batch to rows, grouped by the statement ("arm") that writes them. Each engine has its own arms."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, cast

from holdfast.errors import BadInput, Conflict, MediaCollected
from holdfast.ids import check_choice, check_id, check_name
from holdfast.jsontext import check_recorded, parse_json, parse_object
from holdfast.types import (
    CHECKPOINT_KINDS,
    EFFECT_STATES,
    RUN_STATUSES,
    STATUSES,
    SUBMISSION_STATES,
    Batch,
    Checkpoint,
    Effect,
    Message,
    NewEvent,
    Record,
    Run,
    Segment,
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
    "change_submissions": _columns(
        "session_id text, id text, state text, reason text, run_id text, attempts bigint"
    ),
    "drop_drafts": _columns("session_id text, run_id text"),
    "drop_records": _columns("session_id text, kind text, key text"),
    "put_records": _columns("session_id text, kind text, key text, body text"),
    "refer_blobs": _columns("session_id text, sha256 text"),
    "set_status": _columns("session_id text, status text, waiting_for text"),
}
"""The arms of a write: each kind of row in a batch, with its columns in order. `later` counts events back from the last one."""

LONGEST_ERROR: Final = 1000
"""How many characters a session keeps of the reason why its last turn failed. The column is that of `waiting_for`."""

NUMBERED: Final = frozenset({"add_events", "add_checkpoints", "put_runs", "put_records"})
"""Arms whose rows also contain the session's event number after the fence."""

_TEXTS: Final = {
    arm: tuple((n, name.replace("_", " ")) for n, (name, kind) in enumerate(columns) if kind == "text" and n)
    for arm, columns in ARMS.items()
}
"""The text columns of each arm, after the session, and their names for error messages."""

Row = tuple[object, ...]
_NOWHERE = (None, None)


class Writing:
    """A batch to be written: how many event numbers it needs, and its rows by arm."""

    __slots__ = ("chain", "count", "release", "rows", "size")

    def __init__(self, session_id: str, batch: Batch, check: Callable[[str, str], int]) -> None:
        events = batch.events
        if batch.submissions:
            events = [*events, *filter(None, map(_ending, batch.submissions))]
        self.count = len(events)
        self.release = batch.release
        self.chain = batch.chain
        if batch.release and batch.status in {None, "running"}:
            raise BadInput(problem="a batch that releases its session must set a status other than running")
        self.rows: dict[str, list[Row]] = {}
        self.size = 0
        for arm, items in _items(batch, events):
            if items:
                to_row = _TO_ROW[arm]
                rows = self.rows[arm] = [(session_id, *to_row(item)) for item in items]
                self.size += _check_texts(arm, rows, check)
        _check_batch(batch)

    def refuse(self) -> None:
        """Raise the error of an earlier batch of the chain, if one failed."""
        if self.chain is not None and self.chain.failed is not None:
            raise self.chain.failed

    def fail(self, error: BaseException) -> None:
        """Record that this batch is not written, so that later ones of the chain are refused."""
        if self.chain is not None and self.chain.failed is None and isinstance(error, Exception):
            self.chain.failed = error


def _items(batch: Batch, events: Sequence[NewEvent]) -> tuple[tuple[str, Sequence[Any]], ...]:
    """Return the items of a batch by the arm that writes them. An event is numbered back from the last one."""
    return (
        ("add_events", [(len(events) - number, event) for number, event in enumerate(events, 1)]),
        ("add_segments", batch.segments),
        ("add_messages", batch.messages),
        ("add_checkpoints", batch.checkpoints),
        ("put_runs", batch.runs),
        ("put_effects", batch.effects),
        ("change_submissions", batch.submissions),
        ("drop_drafts", batch.drafts_done),
        ("drop_records", batch.records_dropped),
        ("put_records", batch.records),
        ("refer_blobs", batch.blobs and list(dict.fromkeys(batch.blobs))),
        ("set_status", () if batch.status is None else (batch,)),
    )


def _event_row(item: tuple[int, NewEvent]) -> Row:
    later, event = item
    kind = check_id(event.kind, "event kind")
    return later, kind, event.run_id, event.step, event.payload, *(event.message or _NOWHERE)


def _segment_row(segment: Segment) -> Row:
    return segment.number, segment.parent, segment.start


def _message_row(message: Message) -> Row:
    return message.segment, message.position, message.body


def _checkpoint_row(checkpoint: Checkpoint) -> Row:
    return (
        check_id(checkpoint.id, "checkpoint id"),
        checkpoint.run_id,
        checkpoint.step,
        check_choice(checkpoint.kind, CHECKPOINT_KINDS, "checkpoint kind"),
        checkpoint.segment,
        checkpoint.length,
    )


def _run_row(run: Run) -> Row:
    status = check_choice(run.status, RUN_STATUSES, "run status")
    if run.parent_id is not None:
        check_id(run.parent_id, "parent run id")
    return check_id(run.id, "run id"), run.parent_id, run.agent, status, run.error, run.metadata


def _effect_row(effect: Effect) -> Row:
    return (
        effect.run_id,
        effect.call_id,
        effect.tool,
        check_choice(effect.state, EFFECT_STATES, "effect state"),
        effect.step,
        effect.arguments_digest,
        effect.idempotency_key,
        effect.result,
        effect.error,
        effect.summary,
        *(effect.message or _NOWHERE),
        effect.attempts,
    )


def _change_row(change: SubmissionChange) -> Row:
    state = check_choice(change.state, SUBMISSION_STATES, "submission state")
    return check_id(change.id, "submission id"), state, change.reason, change.run_id, change.attempts


def _record_row(record: Record) -> Row:
    return (*_record_key((record.kind, record.key)), record.body)


def _record_key(key: tuple[str, str]) -> Row:
    return check_name(key[0], "record kind"), check_name(key[1], "record key")


def _status_row(batch: Batch) -> Row:
    status = check_choice(str(batch.status), STATUSES, "session status")
    return status, (batch.error or "")[:LONGEST_ERROR] if status == "failed" else batch.waiting_for


_TO_ROW: Final[Mapping[str, Callable[[Any], Row]]] = {
    "add_events": _event_row,
    "add_segments": _segment_row,
    "add_messages": _message_row,
    "add_checkpoints": _checkpoint_row,
    "put_runs": _run_row,
    "put_effects": _effect_row,
    "change_submissions": _change_row,
    "drop_drafts": lambda run_id: (run_id,),
    "drop_records": _record_key,
    "put_records": _record_row,
    "refer_blobs": lambda sha256: (check_id(sha256),),
    "set_status": _status_row,
}
"""Convert an item to the columns of a row, after the session, in the order of `ARMS`."""


def _check_batch(batch: Batch) -> None:
    """Raise `BadInput` if a batch contains something twice, or a text that readers would reject."""
    _once([run.id for run in batch.runs], "run")
    _once([(effect.run_id, effect.call_id) for effect in batch.effects], "effect")
    _once([change.id for change in batch.submissions], "submission")
    _once([*((record.kind, record.key) for record in batch.records), *batch.records_dropped], "record")
    for event in batch.events:
        if event.payload != "{}":
            parse_json(event.payload, "payload")
    for run in batch.runs:
        parse_object(run.metadata, "metadata")
    for message in batch.messages:
        check_recorded(message.body, "message")
    for record in batch.records:
        parse_json(record.body, "record")
    for effect in batch.effects:
        check_recorded(effect.result or "", "result")


def _check_texts(arm: str, rows: list[Row], check: Callable[[str, str], int]) -> int:
    """Reject text that cannot be stored exactly, and return the total size. The first column, the session id, is already checked."""
    columns = _TEXTS[arm]
    size = 0
    for row in rows:
        for column, name in columns:
            value = row[column]
            if value is not None:
                size += check(value, name)  # pyright: ignore[reportArgumentType]
    return size


def missing(changed: int, writing: Writing) -> Conflict | None:
    """Return an error if some submission that a batch changes does not exist or has ended."""
    rows = writing.rows.get("change_submissions", ())
    if changed == len(rows):
        return None
    ids = ", ".join(str(row[1]) for row in rows)
    return Conflict(
        problem=f"some of the submissions {ids} do not exist in this session or have already ended"
    )


def unstored(referred: int, writing: Writing) -> Conflict | None:
    """Return an error if some blob that a batch refers to is not stored."""
    rows = writing.rows.get("refer_blobs", ())
    if referred == len(rows):
        return None
    return MediaCollected(uris=", ".join(f"media+sha256://{row[1]}" for row in rows))


def _ending(change: SubmissionChange) -> NewEvent | None:
    """Return the event for the end of a submission; None if it has not ended."""
    if change.state not in {"done", "failed", "dead"}:
        return None
    payload: dict[str, object] = {"submission_id": change.id}
    if change.state != "done":
        payload |= {"state": change.state, "reason": change.reason}
    kind = "submission_done" if change.state == "done" else "submission_failed"
    return NewEvent(kind=kind, payload=json.dumps(payload), run_id=change.run_id)


def _once(keys: list[object] | list[str] | list[tuple[str, str]], what: str) -> None:
    if len(keys) > 1 and len(set(keys)) != len(keys):
        raise BadInput(
            problem=f"a batch contains the same {what} twice; include each only once, in its latest state"
        )
