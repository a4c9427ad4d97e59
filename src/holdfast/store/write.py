"""The hot path: convert a batch to rows, grouped by the statement ("arm") that writes them. Each engine has its own arms."""

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias, cast

from holdfast.budgets import MEASURES, Account, BudgetSums, amount, describe, used_up
from holdfast.errors import BadInput, BudgetReached, Conflict, MediaCollected, PayloadTooLarge
from holdfast.ids import check_choice, check_id, check_name, check_run_id, check_text
from holdfast.jsontext import check_recorded, parse_json, parse_object
from holdfast.store.rows import microseconds
from holdfast.subscriptions import ANNOUNCING, kind_of_event
from holdfast.tables import BY_NAME, SHARED
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
from holdfast.usage import MOST, USAGE_SUMS, Usage

Kind: TypeAlias = Literal["text", "bigint"]


def _columns(
    table: str, names: str = "", *, without: str = "", later: str = ""
) -> tuple[tuple[str, Kind], ...]:
    """Return columns of a table and their types in arrays of PostgreSQL: those with these names, or all `without` some.

    The column `later` is replaced by one of that name.
    """
    columns = {column.name: column for column in (BY_NAME | SHARED)[table].columns}
    wanted = names.split() or [name for name in columns if name not in without.split()]
    return tuple(
        ("later" if name == later else name, "text" if columns[name].is_text else "bigint") for name in wanted
    )


ARMS: Final[Mapping[str, tuple[tuple[str, Kind], ...]]] = {
    "add_events": _columns("events", without="at", later="seq"),
    "add_notices": (("session_id", "text"), ("later", "bigint"), ("kind", "text")),
    "add_segments": _columns("segments"),
    "add_messages": _columns("messages"),
    "add_checkpoints": _columns("checkpoints", without="seq at"),
    "put_runs": _columns("runs", without="first_seq started_at ended_at"),
    "put_effects": _columns("effects", without="started_at ended_at"),
    "change_submissions": _columns("submissions", "session_id id state reason run_id attempts deliver_at"),
    "drop_drafts": (("session_id", "text"), ("run_id", "text")),
    "drop_records": _columns("records", "session_id kind key"),
    "put_records": _columns("records", without="seq"),
    "add_usage": _columns("usage", without="day owner"),
    "refer_blobs": _columns("blob_references"),
    "set_status": (("session_id", "text"), ("status", "text"), ("waiting_for", "text")),
}
"""The arms of a write: each kind of row in a batch, with its columns in order. `later` counts events back from the last one."""

LONGEST_ERROR: Final = 1000
"""How many characters a session keeps of the reason why its last turn failed. The column is that of `waiting_for`."""

NUMBERED: Final = frozenset({"add_events", "add_notices", "add_checkpoints", "put_runs", "put_records"})
"""Arms whose rows also contain the session's event number after the fence."""

CONTENT: Final = frozenset(
    {
        "add_events",
        "add_segments",
        "add_messages",
        "add_checkpoints",
        "put_effects",
        "drop_records",
        "put_records",
    }
)
"""Arms of the tables in which the SQL engines store the session's number instead of its id."""


def _check_payload(text: str, what: str) -> None:
    if text != "{}":
        parse_json(text, what)


_CONTENT: Final[Mapping[str, tuple[str, str, Callable[[str, str], object]]]] = {
    "add_events": ("payload", "payload", _check_payload),
    "add_messages": ("body", "message", check_recorded),
    "put_runs": ("metadata", "metadata", parse_object),
    "put_effects": ("result", "result", check_recorded),
    "put_records": ("body", "record", parse_json),
}
"""The column of an arm that contains JSON, its name for error messages, and its check."""


def _texts(arm: str) -> Generator[tuple[int, str, Callable[[str, str], object] | None], None, None]:
    content, what, check = _CONTENT.get(arm, ("", "", None))
    for number, (name, kind) in enumerate(ARMS[arm]):
        if kind == "text" and number:
            yield (number, what, check) if name == content else (number, name.replace("_", " "), None)


_TEXTS: Final = {arm: tuple(_texts(arm)) for arm in ARMS}
"""The text columns of each arm, after the session, their names for error messages, and their checks."""

Row = tuple[object, ...]
_NOWHERE = (None, None)


class Writing:
    """A batch to be written: how many event numbers it needs, its rows by arm, and the runs that they name."""

    __slots__ = ("accounts", "asks", "chain", "charges", "count", "release", "rows", "runs", "size")

    def __init__(self, session_id: str, batch: Batch, largest: int) -> None:
        events = batch.events
        if batch.submissions:
            events = [*events, *filter(None, map(_ending, batch.submissions))]
        self.count = len(events)
        self.release = batch.release
        self.chain = batch.chain
        self.accounts = batch.accounts
        self.asks = batch.asks
        self.charges = _charges(batch) if batch.accounts and (batch.usage or batch.asks) else ()
        if batch.release and batch.status in {None, "running"}:
            raise BadInput(problem="a batch that releases its session must set a status other than running")
        self.rows: dict[str, list[Row]] = {}
        self.runs: set[str] = set()
        self.size = 0
        if events:
            last = self.count
            rows = [(session_id, last - n, *_event_row(event)) for n, event in enumerate(events, 1)]
            self._add("add_events", rows, largest)
            if not ANNOUNCING.isdisjoint([event.kind for event in events]):
                self._announce(rows)
        lists = _lists(batch)
        for number in compress(_NUMBERS, lists):
            arm, to_row = _ROWS[number]
            self._add(arm, [(session_id, *to_row(item)) for item in lists[number]], largest)
        if batch.records and batch.records_dropped:
            _once([row[1:3] for arm in ("put_records", "drop_records") for row in self.rows[arm]], "record")
        if batch.blobs:
            self._add(
                "refer_blobs",
                [(session_id, check_id(sha256)) for sha256 in dict.fromkeys(batch.blobs)],
                largest,
            )
        if batch.status is not None:
            self._add("set_status", [(session_id, *_status_row(batch))], largest)

    def _add(self, arm: str, rows: list[Row], largest: int) -> None:
        """Add rows after checking that every engine can store their texts, and that they have different keys."""
        self.rows[arm] = rows
        columns = _TEXTS[arm]
        for row in rows:
            for column, name, check in columns:
                text: Any = row[column]
                if text is not None:
                    size = check_text(text, name)
                    if size > largest:
                        raise PayloadTooLarge(what=name, size=size, limit=largest)
                    self.size += size
                    if check is not None:
                        check(text, name)
        if len(rows) > 1 and arm in _KEYS:
            what, key = _KEYS[arm]
            _once([row[key] for row in rows], what)
        if arm in _RUNS:
            column = _RUNS[arm]
            self.runs.update(cast("str", row[column]) for row in rows if row[column] is not None)
            for run_id in self.runs:
                check_run_id(run_id)

    def _announce(self, events: list[Row]) -> None:
        """Add the notices of these events, which are rows of `add_events`."""
        notices = [
            (session_id, later, noticed)
            for session_id, later, kind, _, _, payload, *_ in events
            if (noticed := kind_of_event(cast("str", kind), cast("str", payload)))
        ]
        if notices:
            self.rows["add_notices"] = notices

    def over_budget(self, charged: Iterable[BudgetSums]) -> BudgetReached | None:
        """Return an error if the batch starts a model request although one of its accounts, with these sums, is used up."""
        if not self.asks:
            return None
        return reached(self.accounts, {(each.per, each.name, each.daily): each for each in charged})

    def refuse(self) -> None:
        """Raise the error of an earlier batch of the chain, if one failed."""
        if self.chain is not None and self.chain.failed is not None:
            raise self.chain.failed

    def fail(self, error: BaseException) -> None:
        """Record that this batch is not written, so that later ones of the chain are refused."""
        if isinstance(error, BudgetReached):
            return  # its run writes the rest of the batch
        if self.chain is not None and self.chain.failed is None and isinstance(error, Exception):
            self.chain.failed = error


def _charges(batch: Batch) -> Sequence[tuple[Any, ...]]:
    """Return the key of each account of a batch, its turn, and what the batch adds to it."""
    added = [0] * len(MEASURES)
    for usage in batch.usage:
        tokens = usage.input_tokens + usage.output_tokens
        for place, number in enumerate((usage.requests, tokens, usage.cost_nanos, usage.working_us)):
            added[place] += number
    return [(each.per, each.name, int(each.daily), each.turn, *added) for each in batch.accounts]


def charged(row: Sequence[Any]) -> BudgetSums:
    """Return the sums in a row that the charge of an account returns: its key, the sums, and the limits of an administrator."""
    per, name, daily, *numbers = row
    places = len(MEASURES)
    return BudgetSums(
        per=per, name=name, daily=bool(daily), spent=tuple(numbers[:places]), most=tuple(numbers[places:])
    )


def reached(
    accounts: Sequence[Account], rows: Mapping[tuple[str, str, bool], BudgetSums]
) -> BudgetReached | None:
    """Return an error for the first of these accounts that is used up."""
    for account in accounts:
        sums = rows.get(account.key)
        if sums is not None and (full := used_up(sums.spent, account.most, sums.most)) is not None:
            measure, spent, most = full
            budget = describe(account.per, account.name, account.daily)
            return BudgetReached(
                budget=budget,
                limit=amount(measure, most),
                used=amount(measure, spent),
                daily=account.daily,
            )
    return None


@lru_cache
def _event_kind(kind: str) -> str:
    return check_id(kind, "event kind")


def _event_row(event: NewEvent) -> Row:
    return _event_kind(event.kind), event.run_id, event.step, event.payload, *(event.message or _NOWHERE)


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
        effect.undo,
        *(effect.message or _NOWHERE),
        effect.attempts,
    )


def _change_row(change: SubmissionChange) -> Row:
    state = check_choice(change.state, SUBMISSION_STATES, "submission state")
    at = None if change.deliver_at is None else microseconds(change.deliver_at)
    return check_id(change.id, "submission id"), state, change.reason, change.run_id, change.attempts, at


def _record_row(record: Record) -> Row:
    return (*_record_key((record.kind, record.key)), record.body)


def _record_key(key: tuple[str, str]) -> Row:
    return check_name(key[0], "record kind"), check_name(key[1], "record key")


def _usage_row(usage: Usage) -> Row:
    numbers = [getattr(usage, name) for name in USAGE_SUMS]
    if not all(type(number) is int and 0 <= number <= MOST for number in numbers):
        raise BadInput(problem=f"the numbers of usage must be integers from 0 to {MOST}, not {numbers}")
    return usage.agent, usage.model, *numbers


def _status_row(batch: Batch) -> Row:
    status = check_choice(str(batch.status), STATUSES, "session status")
    return status, (batch.error or "")[:LONGEST_ERROR] if status == "failed" else batch.waiting_for


_ROWS: Final[tuple[tuple[str, Callable[[Any], Row]], ...]] = (
    ("add_segments", _segment_row),
    ("add_messages", _message_row),
    ("add_checkpoints", _checkpoint_row),
    ("put_runs", _run_row),
    ("put_effects", _effect_row),
    ("change_submissions", _change_row),
    ("drop_drafts", lambda run_id: (run_id,)),
    ("drop_records", _record_key),
    ("put_records", _record_row),
    ("add_usage", _usage_row),
)
"""Arms with a row for each item of a list, in the order of `ARMS`: the columns of an item after the session."""
_NUMBERS: Final = range(len(_ROWS))
_lists = attrgetter(
    *("segments", "messages", "checkpoints", "runs", "effects", "submissions"),
    *("drafts_done", "records_dropped", "records", "usage"),
)
"""Return the lists of a batch, in this order. Most are empty, and are skipped without running Python code for each."""

_RUNS: Final = {"add_events": 3, "add_checkpoints": 2, "put_effects": 1, "change_submissions": 4}
"""Arms whose rows name a run, in this column."""

_KEYS: Final = {
    "put_runs": ("run", slice(1, 2)),
    "put_effects": ("effect", slice(1, 3)),
    "change_submissions": ("submission", slice(1, 2)),
    "drop_records": ("record", slice(1, 3)),
    "put_records": ("record", slice(1, 3)),
    "add_usage": ("usage", slice(1, 3)),
}
"""Arms whose rows must differ in these columns."""


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


def _once(keys: list[Row], what: str) -> None:
    if len(set(keys)) != len(keys):
        raise BadInput(
            problem=f"a batch contains the same {what} twice; include each only once, in its latest state"
        )
