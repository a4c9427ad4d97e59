"""The rows of a session in an archive: their tables, columns and order.

A test compares this list with the schema of each engine, so that no table or column is forgotten.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from holdfast.commands import COMMAND_STATES
from holdfast.errors import BadText
from holdfast.ids import check_choice, check_id, check_name, check_run_id, check_text, check_title
from holdfast.jsontext import parse_json, parse_object
from holdfast.priority import PRIORITIES
from holdfast.schedules import CATCH_UPS, OVERLAPS
from holdfast.types import (
    CHECKPOINT_KINDS,
    EFFECT_STATES,
    LANES,
    RUN_STATUSES,
    STATUSES,
    SUBMISSION_STATES,
    WHEN_BUSY,
)

Kind: TypeAlias = Literal["id", "name", "run", "title", "text", "json", "object", "int", "count", "time"]
_NUMBERS: Final = frozenset({"int", "count", "time"})
_LATEST: Final = 253_402_300_799_999_999
"""Times are microseconds since 1970, up to the year 9999."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column and its valid values, which are those that the methods of the store accept from outside.

    `json` and `object` are checked like JSON from outside. `choices` limits the values. The bodies of messages
    and the results of calls are plain text here, as they are for `write`: every recorded value must be restorable.
    """

    name: str
    kind: Kind
    optional: bool = False
    choices: tuple[str, ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether it contains text rather than numbers."""
        return self.kind not in _NUMBERS

    def check(self, value: Any, what: str) -> None:
        """Raise `BadInput` unless the value is valid."""
        if not (self.optional and value is None):
            self._check(value, what)

    def _check(self, value: Any, what: str) -> None:
        if not self.is_text:
            _check_number(value, self.kind, what)
            return
        match self.kind:
            case "id":
                check_id(value, what)
            case "name":
                check_name(value, what)
            case "run":
                check_run_id(value)
            case "title":
                check_title(value)
            case _:
                check_text(value, what)
        match self.kind:
            case "json":
                parse_json(value, what)
            case "object":
                parse_object(value, what)
            case _:
                pass
        if self.choices:
            check_choice(value, self.choices, what)


def _check_number(value: object, kind: Kind, what: str) -> None:
    least = -(2**63) if kind == "int" else 0
    most = _LATEST if kind == "time" else 2**63 - 1
    if type(value) is not int or not least <= value <= most:
        raise BadText(what=what, problem=f"is not a number from {least} to {most}")


@dataclass(frozen=True, slots=True)
class Table:
    """A table with rows of a session. `key` is their order; `unique` is a column whose values are unique across sessions.

    `only` restricts the table to the rows with these values in these columns.
    """

    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    unique: str | None = None
    only: tuple[tuple[str, str | None], ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the names of its text columns."""
        return tuple(column.name for column in self.columns if column.is_text)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its columns."""
        return tuple(column.name for column in self.columns)


def _columns(text: str, **choices: tuple[str, ...]) -> tuple[Column, ...]:
    pairs = (column.split() for column in text.split(","))
    return tuple(
        Column(name, kind.rstrip("?"), kind.endswith("?"), choices.get(name, ()))  # pyright: ignore[reportArgumentType]
        for name, kind in pairs
    )


SESSION: Final = Table(
    "session",
    ("id",),
    _columns(
        "id id, agent name, owner name, title title, status text, waiting_for text?, hold int, metadata object,"
        " created_at time, active_at time, seq count",
        status=STATUSES,
    ),
)
"""The session and its event number, without its lease and the location of its archive."""

TABLES: Final = (
    Table(
        "runs",
        ("id",),
        _columns(
            "session_id id, id id, parent_id id?, agent text, status text, error text?, metadata object,"
            " first_seq count, started_at time, ended_at time?",
            status=RUN_STATUSES,
        ),
        unique="id",
    ),
    Table(
        "events",
        ("seq",),
        _columns(
            "session_id id, seq count, kind id, run_id run?, step int?, at time, payload json, segment int?,"
            " position int?"
        ),
    ),
    Table("segments", ("number",), _columns("session_id id, number int, parent int?, start int")),
    Table(
        "messages", ("segment", "position"), _columns("session_id id, segment int, position int, body text")
    ),
    Table(
        "checkpoints",
        ("seq", "id"),
        _columns(
            "session_id id, id id, run_id run?, step int?, kind text, segment int, length count, seq count, at time",
            kind=CHECKPOINT_KINDS,
        ),
        unique="id",
    ),
    Table(
        "effects",
        ("run_id", "call_id"),
        _columns(
            "session_id id, run_id run, call_id text, tool text, state text, step int?, arguments_digest text?,"
            " idempotency_key text?, result text?, error text?, summary text?, undo text?, segment int?, position int?,"
            " attempts count, started_at time, ended_at time?",
            state=EFFECT_STATES,
        ),
    ),
    Table(
        "submissions",
        ("position",),
        _columns(
            "session_id id, position count, id id, kind name, lane text, when_busy text, payload json,"
            " idempotency_key name?, state text, attempts count, reason text?, run_id run?, created_at time,"
            " started_at time?, ended_at time?, trace name?, deliver_at time?, priority text",
            lane=LANES,
            when_busy=WHEN_BUSY,
            priority=PRIORITIES,
            state=SUBMISSION_STATES,
        ),
        unique="id",
    ),
    Table("states", ("session_id",), _columns("session_id id, version count, body json, at time")),
    Table("named_states", ("name",), _columns("session_id id, name name, version count, body json, at time")),
    Table("records", ("kind", "key"), _columns("session_id id, kind name, key name, body json, seq count")),
    Table("cursors", ("consumer",), _columns("session_id id, consumer id, seq count, at time")),
    Table(
        "commands",
        ("id",),
        _columns(
            "id id, session_id id, owner text, call_id text?, command text, cwd text?, timeout_us int?, holder text, host text,"
            " pid int, pid_started int?, state text, stop_requested int, exit_code int?, outputs int,"
            " stdout_bytes count, stderr_bytes count, left_out_bytes count, damaged int, started_at time, last_at time,"
            " ended_at time?, purged_at time?",
            state=COMMAND_STATES,
        ),
        unique="id",
    ),
    Table(
        "outputs",
        ("command_id", "number"),
        _columns(
            "command_id id, number int, session_id id, owner text, id id, stdout text?, stderr text?, exit_code int?,"
            " damaged int, at time"
        ),
        unique="id",
    ),
    Table("blob_references", ("sha256",), _columns("session_id id, sha256 id")),
)
"""Every table with content of a session, in the order of the archive. Drafts are not archived."""

BY_NAME: Final = {table.name: table for table in (SESSION, *TABLES)}

CLEANED: Final = Table(
    "sessions",
    ("id",),
    _columns(
        "id id, agent name, owner name, title title, title_folded text, status text, waiting_for text?, hold int,"
        " metadata object, created_at time, active_at time, cleaned_at time?, resting text?, archive text?,"
        " rehydrated_at time?, fingerprint text?",
    ),
    only=(("status", "cleaned"),),
)
"""Cleaned sessions, which have no content and therefore no archive of their own in a copy."""

NUMBERED: Final = frozenset({"events", "segments", "messages", "checkpoints", "effects", "records"})
"""Tables that grow with every step. The SQL engines store the numbers of the session and the run there, as `session` and `run`."""

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "sessions": ("id",),
    "tombstones": ("session_id",),
    "heads": ("session_id",),
    "holders": ("id",),
    "duties": ("name",),
    "submissions": ("session_id", "position"),
    "schedules": ("id",),
    "usage": ("session_id", "day", "agent", "model"),
    "budgets": ("per", "name", "daily"),
    "subscriptions": ("id",),
    "notices": ("session_id", "seq"),
    "deliveries": ("id",),
    "mirrored": ("mirror", "session_id"),
    "stored_bytes": ("session_id", "owner"),
    "runs": ("session_id", "id"),
    "events": ("session_id", "seq"),
    "drafts": ("session_id", "run_id", "part"),
    "segments": ("session_id", "number"),
    "messages": ("session_id", "segment", "position"),
    "checkpoints": ("session_id", "seq", "id"),
    "effects": ("session_id", "run_id", "call_id"),
    "cursors": ("session_id", "consumer"),
    "states": ("session_id",),
    "named_states": ("session_id", "name"),
    "records": ("session_id", "kind", "key"),
    "credentials": ("session_id", "name"),
    "audit": ("id",),
    "tokens": ("id",),
    "blobs": ("id",),
    "blob_chunks": ("blob_id", "number"),
    "blob_references": ("session_id", "sha256"),
    "commands": ("id",),
    "outputs": ("command_id", "number"),
}
"""Every table besides `migrations`, and the columns of its primary key."""

SHARED: Final = {
    "cleaned": CLEANED,
    "tombstones": Table("tombstones", ("session_id",), _columns("session_id id, at time")),
    "tokens": Table(
        "tokens",
        ("id",),
        _columns(
            "id id, digest text, owner text, role text, scopes text, created_at time, expires_at time?, revoked_at time?"
        ),
    ),
    "credentials": Table(
        "credentials",
        ("session_id", "name"),
        _columns("session_id id, name id, sealed text, expires_at time?"),
    ),
    "schedules": Table(
        "schedules",
        ("id",),
        _columns(
            "id id, owner name, agent name, session_id id?, title title, text text, cron text, timezone text, overlap text,"
            " catch_up text, catch_up_limit count, paused int, moved int, problem text?, next_at time?, last_at time?,"
            " last_session_id id?, last_submission_id id?, created_at time, version count",
            overlap=OVERLAPS,
            catch_up=CATCH_UPS,
        ),
    ),
    "usage": Table(
        "usage",
        ("session_id", "day", "agent", "model"),
        _columns(
            "session_id id, day count, agent text, model text, owner text, requests count, unpriced count, input_tokens count,"
            " output_tokens count, cache_read_tokens count, cache_write_tokens count, cost_nanos count, tool_calls count,"
            " working_us count",
        ),
    ),
    "budgets": Table(
        "budgets",
        ("per", "name", "daily"),
        _columns(
            "per text, name text, daily int, period text, requests count, tokens count, cost_nanos count, working_us count,"
            " most_requests count?, most_tokens count?, most_cost_nanos count?, most_working_us count?, set_at time?, changed_at time",
        ),
    ),
    "subscriptions": Table(
        "subscriptions",
        ("id",),
        _columns(
            "id id, owner name, everyone int, kinds json, agents json, sessions json, url text, content int, secret text,"
            " previous_secret text?, previous_until time?, paused int, problem text?, due_at time?, claim id?,"
            " created_at time, version count"
        ),
    ),
    "commands": replace(BY_NAME["commands"], only=(("session_id", None),)),
    "outputs": replace(BY_NAME["outputs"], only=(("session_id", None),)),
    "audit": Table(
        "audit",
        ("id",),
        _columns("id id, at time, actor text, action text, session_id text?, detail text"),
    ),
}
"""The other rows in a copy of a store, besides the archives of its sessions, in the order in which they are copied."""
