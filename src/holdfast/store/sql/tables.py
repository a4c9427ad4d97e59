"""The rows of a session as an archive has them: which tables, which columns, in which order.

A test compares this list with the schema of each engine, so that a new table or column cannot be forgotten.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["id", "text", "int"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `id` is text that is checked like an id from outside."""

    name: str
    kind: Kind
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table with rows of a session. `key` orders them; `unique` is a column whose values no two sessions share."""

    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    unique: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its columns."""
        return tuple(column.name for column in self.columns)


def _columns(text: str) -> tuple[Column, ...]:
    pairs = (column.split() for column in text.split(","))
    return tuple(Column(name, kind.rstrip("?"), kind.endswith("?")) for name, kind in pairs)  # pyright: ignore[reportArgumentType]


SESSION: Final = Table(
    "session",
    ("id",),
    _columns(
        "id id, agent text, owner text, title text, status text, waiting_for text?, hold int, metadata text,"
        " created_at int, active_at int, seq int"
    ),
)
"""The session and its number. Its lease is not part of it, and neither is where its archive is."""

TABLES: Final = (
    Table(
        "runs",
        ("id",),
        _columns(
            "session_id id, id id, parent_id text?, agent text, status text, error text?, metadata text,"
            " first_seq int, started_at int, ended_at int?"
        ),
        unique="id",
    ),
    Table(
        "events",
        ("seq",),
        _columns(
            "session_id id, seq int, kind text, run_id text?, step int?, at int, payload text, segment int?,"
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
            "session_id id, id id, run_id text?, step int?, kind text, segment int, length int, seq int, at int"
        ),
        unique="id",
    ),
    Table(
        "effects",
        ("run_id", "call_id"),
        _columns(
            "session_id id, run_id text, call_id text, tool text, state text, step int?, arguments_digest text?,"
            " idempotency_key text?, result text?, error text?, summary text?, segment int?, position int?,"
            " attempts int, started_at int, ended_at int?"
        ),
    ),
    Table(
        "submissions",
        ("position",),
        _columns(
            "session_id id, position int, id id, kind text, lane text, when_busy text, payload text,"
            " idempotency_key text?, state text, attempts int, reason text?, run_id text?, created_at int,"
            " started_at int?, ended_at int?, trace text?"
        ),
        unique="id",
    ),
    Table("states", ("session_id",), _columns("session_id id, version int, body text, at int")),
    Table("cursors", ("consumer",), _columns("session_id id, consumer id, seq int, at int")),
    Table(
        "commands",
        ("id",),
        _columns(
            "id id, session_id id, owner text, call_id text?, command text, cwd text?, timeout_us int?, holder text, host text,"
            " pid int, pid_started int?, state text, stop_requested int, exit_code int?, outputs int,"
            " stdout_bytes int, stderr_bytes int, left_out_bytes int, damaged int, started_at int, last_at int,"
            " ended_at int?, purged_at int?"
        ),
        unique="id",
    ),
    Table(
        "outputs",
        ("command_id", "number"),
        _columns(
            "command_id id, number int, session_id id, owner text, id id, stdout text?, stderr text?, exit_code int?,"
            " damaged int, at int"
        ),
        unique="id",
    ),
    Table("blob_references", ("sha256",), _columns("session_id id, sha256 id")),
)
"""Every table with content of a session, in the order of the archive; drafts are not kept."""

BY_NAME: Final = {table.name: table for table in (SESSION, *TABLES)}
