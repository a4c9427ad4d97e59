"""Facts about a store itself: its schema, its size, its server and violations of its invariants."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A violated invariant, and where it was found."""

    invariant: str
    session_id: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStatus:
    """The schema version of a store, the version that this code needs, and how much data the store has.

    `queue_wait` is the longest time, in seconds, that a ready session has waited for a worker.
    """

    engine: str
    version: int
    latest: int
    sessions: int = 0
    events: int = 0
    pending: int = 0
    holders: int = 0
    expired_holders: int = 0
    leases: int = 0
    queue_wait: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetting:
    """A setting of the database server that works against the store: its value and effect, and a value that does not.

    If it is `overridden`, the connections of the store use another value, and it has no effect.
    """

    name: str
    value: str
    overridden: bool = False
    effect: str = ""
    wanted: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStats:
    """The size of a table with its indexes, and how many rows it has, by the estimate of the database server."""

    name: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How many sessions were created in a period, and how many events were written in it."""

    sessions: int
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """The size of a store, and its growth in the last 24 hours and the last seven days.

    `free_bytes` is the part of `bytes` that new rows reuse, and `wal_bytes` the write-ahead log next to the file; both are None if the
    engine does not report them. `tables` is empty for SQLite, which would have to read the whole file.
    """

    engine: str
    bytes: int
    free_bytes: int | None
    wal_bytes: int | None
    tables: Sequence[TableStats]
    last_day: Growth
    last_week: Growth
