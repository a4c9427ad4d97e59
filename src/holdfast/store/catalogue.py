"""The plain statements: each reads, inserts, updates or deletes rows of one table.

The SQL engines derive a text from each, and MongoDB a filter and values. A statement that joins tables, locks, or decides something is
written by hand, in a .sql file and in `store/mongo/`.

The parts of a statement are lists, separated by commas:

- A column alone stands for the parameter of its name: `session_id` is `session_id = :session_id`.
- A value is `:parameter`, `now`, `null`, a number, a `'text'` or another column, or a sum such as `now + :ttl_us`.
- An item that ends with `if name` is omitted unless the parameter `name` is given.
- An order that ends with `desc` has a single column.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeAlias

from holdfast.store.retention import CONTENT
from holdfast.tables import BY_NAME, SHARED

_TERM = r"(?::?\w+|-\d+|'[^']*')"
_ITEM = re.compile(rf"(\w+)(?: (=|<>|<=|>=|<|>|is|in) ({_TERM}(?: [+-] {_TERM})?))?(?: if (\w+))?")


@dataclass(frozen=True, slots=True)
class Item:
    """A condition, or a column and its value. Without the parameter `given`, it is omitted."""

    column: str
    operator: str
    value: str
    given: str | None


@cache
def items(text: str) -> tuple[Item, ...]:
    """Parse a list of conditions, or of columns and their values."""
    found: list[Item] = []
    for part in filter(None, text.split(", ")):
        match = _ITEM.fullmatch(part)
        if match is None:
            message = f"{part!r} is not a valid item of a plain statement. See store/catalogue.py."
            raise ValueError(message)
        column, operator, value, given = match.groups()
        found.append(Item(column, operator or "=", value or f":{column}", given))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Read:
    """Return the rows that match: all columns or some, in order, and at most as many as `limit`."""

    table: str
    where: str = ""
    columns: str = "*"
    order: str = ""
    limit: str = ""


@dataclass(frozen=True, slots=True)
class Insert:
    """Add a row. If its key exists, that is an error, or the row is left unchanged (`once`), or it is replaced.

    MongoDB adds `many` consecutive rows in one command.
    """

    table: str
    values: str
    once: bool = False
    replaces: bool = False
    many: bool = False
    returning: str = ""


@dataclass(frozen=True, slots=True)
class Update:
    """Change the rows that match."""

    table: str
    where: str
    values: str
    returning: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the rows that match. If it is `limited`, delete the first `:limit` in the order of the key, and return a row for each."""

    table: str
    where: str
    limited: bool = False


Plain: TypeAlias = Read | Insert | Update | Delete


def _columns(table: str, *, without: str = "", **values: str) -> str:
    """Return all columns of a table except some, with these values instead of the parameters of their names."""
    omitted = without.split(", ")
    names = [name for name in (BY_NAME | SHARED)[table].names if name not in omitted]
    return ", ".join(f"{name} = {values[name]}" if name in values else name for name in names)


_NO_PAYLOAD: Final = _columns("submissions", without="payload")
_SUBMISSION: Final = "session_id, position, ended_at is null"
_QUEUED: Final = "ended_at is null, state = 'queued'"
_STORING: Final = "id, state = 'storing'"

_SESSIONS: Final[dict[str, Plain]] = {
    "create_session": Insert(
        "sessions",
        "id, agent, owner, title, title_folded, status = 'idle', hold = 0, metadata, created_at = now, active_at = now",
        once=True,
        returning="id",
    ),
    "touch_session": Update("sessions", "id = :session_id", "active_at = now"),
    "fail_session": Update(
        "sessions", "id = :session_id", "status = 'failed', waiting_for = :reason, active_at = now"
    ),
    "dismiss_failure": Update(
        "sessions", "id = :session_id, status = 'failed'", "status = 'idle', waiting_for = null"
    ),
    # Those of them whose waiting turn has begun again.
    "wake_sessions": Update(
        "sessions", "id in :session_ids, status <> 'failed'", "status = 'idle', waiting_for = null"
    ),
    "not_running": Update(
        "sessions", "id = :session_id, status = 'running'", "status = 'idle', active_at = now"
    ),
    # Without a parameter it changes nothing, but still returns the session.
    "update_session": Update(
        "sessions",
        "id",
        "active_at = active_at, title if title, title_folded if title, hold if hold, admin_hold if admin_hold,"
        " metadata if metadata, agent if agent",
        returning="id",
    ),
    "admin_hold": Read("sessions", "id, hold = 1, admin_hold = 1", "id"),
    "archived_sessions": Read("sessions", "archive = :sha256", "id", order="id", limit=":limit"),
    "keep_archive": Update("sessions", "id = :session_id, status = 'cleaning'", "archive", returning="id"),
    "drop_archive": Update("sessions", "id = :session_id", "archive = null"),
    # The owner and the times remain; the title and the metadata do not.
    "finish_cleaning": Update(
        "sessions",
        "id = :session_id, status = 'cleaning'",
        "status = 'cleaned', cleaned_at = now, resting = null, title = '', title_folded = '', metadata = '{}', waiting_for = null",
        returning="cleaned_at",
    ),
    # Restores the session, except its owner, its activity time, and the hold, which may have been set since.
    "rehydrate_session": Update(
        "sessions",
        "id",
        "status, title, title_folded, waiting_for, metadata, cleaned_at = null, resting = null, archive = null,"
        " rehydrated_at = now, fingerprint = null",
    ),
    "erase_session": Delete("sessions", "id = :session_id"),
    "erase_head": Delete("heads", "session_id"),
    "head": Read("heads", "session_id", "epoch, seq, holder, writes, written"),
    "held_heads": Read("heads", "holder", "session_id", order="session_id", limit=":limit"),
    # The lease that was already taken, although its response was lost.
    "tenure": Read("heads", "holder, tenure", "session_id, epoch, seq, orphaned_by"),
    "tombstone": Read("tombstones", "session_id", "at"),
    "add_tombstone": Insert("tombstones", _columns("tombstones", at="now"), once=True),
    "add_audit": Insert("audit", _columns("audit", at="now"), once=True),
}

_SUBMISSIONS: Final[dict[str, Plain]] = {
    "insert_submission": Insert(
        "submissions",
        _columns(
            "submissions",
            without="reason, run_id, started_at, ended_at",
            state="'queued'",
            attempts="0",
            created_at="now",
        ),
        returning="*",
    ),
    "submission_by_id": Read("submissions", "id"),
    "submission_by_key": Read("submissions", "session_id, idempotency_key"),
    "queued_submission": Read("submissions", f"id, session_id, {_QUEUED}"),
    # The lane 'control' sorts before 'main'.
    "next_submission": Read(
        "submissions",
        f"session_id, {_QUEUED}, deliver_at <= now, lane if lane",
        order="lane, position",
        limit="1",
    ),
    "later_submissions": Read("submissions", f"session_id, {_QUEUED}, deliver_at > now", "id"),
    # A turn that was interrupted. Only a turn that has begun has a run, and null is not greater than ''.
    "begun_turn": Read(
        "submissions", f"session_id, {_QUEUED}, lane = 'main', run_id > ''", order="position", limit="1"
    ),
    "submissions": Read(
        "submissions",
        "session_id, state if state, ended_at is null if still_open, position > :after if after",
        f"{_NO_PAYLOAD}, payload if payloads",
        order="position",
        limit=":limit",
    ),
    "claim_submission": Update(
        "submissions",
        f"{_SUBMISSION}, state = 'queued'",
        "state = 'claimed', attempts = attempts + 1, started_at = now",
        returning="*",
    ),
    "put_back": Update(
        "submissions", f"{_SUBMISSION}, state = 'claimed'", "state = 'queued', attempts = attempts - 1"
    ),
    "uncount_attempt": Update("submissions", f"{_SUBMISSION}, attempts > 0", "attempts = attempts - 1"),
    "give_up_submission": Update("submissions", _SUBMISSION, "state = 'dead', reason, ended_at = now"),
    "give_up_run": Update(
        "runs", "session_id, id, ended_at is null", "status = 'failed', error = :reason, ended_at = now"
    ),
    # The submissions that the previous holder had claimed in this session, or in these sessions.
    "requeue_claimed": Update(
        "submissions", "session_id, ended_at is null, state = 'claimed'", "state = 'queued'"
    ),
    "requeue_all_claimed": Update(
        "submissions", "session_id in :session_ids, ended_at is null, state = 'claimed'", "state = 'queued'"
    ),
}

_CONTENT: Final[dict[str, Plain]] = {
    "insert_event": Insert("events", _columns("events", without="segment, position", at="now")),
    "drafts": Read("drafts", "session_id", "run_id, part, kind, body, follows, at", order="run_id, part"),
    "segments": Read("segments", "session_id", "number, parent, start", order="number"),
    # The version of a state was checked before, under the lock on the head.
    "state": Read("states", "session_id", "version, body"),
    "set_state": Insert("states", _columns("states", at="now"), replaces=True),
    "named_state": Read("named_states", "session_id, name", "version, body"),
    "set_named_state": Insert("named_states", _columns("named_states", at="now"), replaces=True),
    "set_credential": Insert(
        "credentials", _columns("credentials", expires_at="now + :ttl_us"), replaces=True
    ),
    "cursor": Read("cursors", "session_id, consumer", "consumer, seq, at"),
    "cursors": Read(
        "cursors",
        "session_id, consumer > :after if after",
        "consumer, seq, at",
        order="consumer",
        limit=":limit",
    ),
    "some_references": Read("blob_references", "session_id", "sha256", order="sha256", limit=":limit"),
    "blob_references": Read(
        "blob_references",
        "session_id if session_id, sha256 if sha256, sha256 > :after if after",
        "session_id, sha256",
        order="session_id, sha256",
        limit=":limit",
    ),
    **{f"delete_{table}": Delete(table, "session_id", limited=True) for table in CONTENT},
}

_MEDIA: Final[dict[str, Plain]] = {
    # Before anything refers to it: from now on it is too young to be collected.
    "touch_stored": Update("blobs", "location, sha256, state = 'stored'", "at = now", returning="*"),
    "touch_storing": Update("blobs", _STORING, "at = now", returning="id"),
    "set_blob_digest": Update("blobs", _STORING, "sha256, key, size, at = now", returning="*"),
    "mark_blob_stored": Update("blobs", _STORING, "state = 'stored', at = now", returning="*"),
    "abandon_blob": Update("blobs", _STORING, "state = 'deleting'"),
    "replace_blob": Update("blobs", "id, state = 'stored'", "state = 'deleting'", returning="id"),
    "is_stored": Read("blobs", "id, state = 'stored'", "id"),
    "blobs_of": Read("blobs", "state = 'stored', sha256 in :digests", "id", order="id"),
    "delete_blob_entry": Delete("blobs", "id, state <> 'stored'"),
    "add_chunk": Insert("blob_chunks", "blob_id = :id, number, body", once=True),
    "chunks": Read("blob_chunks", "blob_id = :id, number >= :first", "body", order="number", limit=":limit"),
    "delete_chunks": Delete("blob_chunks", "blob_id = :id", limited=True),
}

_SHELL: Final[dict[str, Plain]] = {
    "request_stop": Update("commands", "id, ended_at is null", "stop_requested = 1"),
    # The service that ran them is not here.
    "imported_commands_lost": Update(
        "commands", "session_id, ended_at is null", "state = 'lost', exit_code = -1, ended_at = last_at"
    ),
    # The result is kept.
    "purge_command": Update(
        "commands", "id, purged_at is null", "purged_at = now, command = '', cwd = null", returning="id"
    ),
    "insert_output": Insert("outputs", _columns("outputs"), many=True),
    "outputs_by_id": Read("outputs", "id in :ids, owner if owner"),
    # From the start, so that the remaining ones stay dense.
    "purge_outputs": Delete("outputs", "command_id", limited=True),
}

_SERVICE: Final[dict[str, Plain]] = {
    "tokens": Read("tokens", order="id"),
    "live_holder": Read("holders", "id, deadline > now", "id, name, deadline"),
    "remove_holder": Delete("holders", "id"),
    # Their processes have exited, so there is no need to wait for the deadline.
    "expire_holders": Update("holders", "id in :ids", "deadline = 0"),
    "set_budgets": Read("budgets", "per, name, daily, set_at > 0", "per"),
    "finish_duty": Update("duties", "name, holder", "holder = null, done_at = now, detail", returning="name"),
    "leave_duty": Update("duties", "name, holder", "holder = null"),
}

_SCHEDULES: Final[dict[str, Plain]] = {
    "insert_schedule": Insert(
        "schedules",
        _columns(
            "schedules",
            without="problem, last_at, last_session_id, last_submission_id",
            paused="0",
            moved="0",
            created_at="now",
            version="0",
        ),
        once=True,
        returning="id",
    ),
    "owned_schedules": Read("schedules", "owner", "id", order="id", limit=":limit"),
    "upcoming_schedules": Read(
        "schedules",
        "moved = 0, next_at > 0",
        _columns("schedules", without="text"),
        order="next_at",
        limit=":limit",
    ),
    # Every change of a schedule requires the version that it read: of two processes, one changes nothing.
    "change_schedule": Update(
        "schedules",
        "id, version",
        "title, text, cron, timezone, overlap, catch_up, catch_up_limit, paused, problem, next_at, version = version + 1",
        returning="id",
    ),
    "record_submission": Update(
        "schedules",
        "id, version",
        "next_at, last_at, last_session_id, last_submission_id, problem = null, version = version + 1",
        returning="id",
    ),
    "record_problem": Update(
        "schedules",
        "id, version",
        "next_at, last_at, paused, problem, version = version + 1",
        returning="id",
    ),
    "delete_schedule": Delete("schedules", "id"),
    "session_schedules": Read("schedules", "session_id", "id", order="id"),
    "delete_session_schedules": Delete("schedules", "session_id"),
    "move_schedules": Update("schedules", "id > '', moved = 0", "moved = 1, version = version + 1"),
    "reopen_schedule": Update("schedules", "id, moved = 1", "moved = 0, version = version + 1"),
}

_TERMS: Final = "url, kinds, agents, sessions, content"

_NOTICES: Final[dict[str, Plain]] = {
    "insert_subscription": Insert(
        "subscriptions",
        f"id, owner, everyone, {_TERMS}, secret, paused = 0, created_at = now, version = 0",
        once=True,
        returning="id",
    ),
    "subscription": Read("subscriptions", "id"),
    "subscriptions": Read(
        "subscriptions", "owner if owner, everyone = 0 if own_only, id > :after", order="id", limit=":limit"
    ),
    "owned_subscriptions": Read("subscriptions", "owner", "id", order="id", limit=":limit"),
    "subscriptions_for_all": Read("subscriptions", "everyone = 1"),
    "subscriptions_of": Read("subscriptions", "owner in :owners"),
    # Holds off the worker that sends its deliveries, and another one that adds some.
    "lock_subscriptions": Update("subscriptions", "id in :ids", "version = version + 1", returning="id"),
    "change_subscription": Update("subscriptions", "id", f"{_TERMS}, paused, problem = null, due_at"),
    "change_secret": Update(
        "subscriptions", "id", "secret, previous_secret, previous_until = now + :overlap_us"
    ),
    "delete_subscription": Delete("subscriptions", "id"),
    "wake_subscriptions": Update("subscriptions", "id in :ids, due_at is null, paused = 0", "due_at = now"),
    "hurry_subscription": Update("subscriptions", "id, claim is null, paused = 0", "due_at = now"),
    "due_subscriptions": Read("subscriptions", "due_at <= now", "id", order="due_at", limit=":limit"),
    "claim_subscription": Update(
        "subscriptions",
        "id, due_at <= now",
        "claim, due_at = now + :lease_us, version = version + 1",
        returning="*",
    ),
    "extend_claim": Update(
        "subscriptions", "id, claim, paused = 0", "due_at = now + :lease_us", returning="id"
    ),
    "end_claim": Update("subscriptions", "id, claim", "claim = null, due_at, problem, paused"),
    "owners_of": Read("sessions", "id in :session_ids", "id, owner, agent"),
    "insert_notice": Insert("notices", "session_id, seq, kind, at = now, detail", once=True),
    "insert_lost_worker": Insert(
        "notices", "session_id = '', seq, kind = 'worker_lost', at = now, detail", once=True
    ),
    "notices": Read("notices", "session_id >= ''", order="session_id, seq", limit=":limit"),
    "take_notice": Delete("notices", "session_id = :about, seq", limited=True),
    "insert_delivery": Insert(
        "deliveries",
        "id, subscription_id, session_id = :about, seq, kind, at, detail, state = 'pending', attempts = 0, due_at, since = now",
    ),
    "first_in_line": Read(
        "deliveries",
        "subscription_id, session_id = :about, state = 'pending'",
        "id, due_at",
        order="seq, id",
        limit="1",
    ),
    "due_deliveries": Read("deliveries", "subscription_id, due_at <= now", order="due_at", limit=":limit"),
    "next_delivery": Read("deliveries", "subscription_id, due_at > 0", "due_at", order="due_at", limit="1"),
    "end_delivery": Update(
        "deliveries",
        "id, state = 'pending'",
        "state, attempts = attempts + 1, result, due_at = null, ended_at = now",
        returning="id",
    ),
    "retry_delivery": Update(
        "deliveries",
        "id, state = 'pending'",
        "attempts = attempts + 1, result, due_at = now + :delay_us",
        returning="id",
    ),
    "advance_deliveries": Update("deliveries", "subscription_id, due_at > now", "due_at = now"),
    "advance_delivery": Update("deliveries", "id, state = 'pending'", "due_at = now"),
    "repeat_delivery": Update(
        "deliveries",
        "id, ended_at > 0",
        "state = 'pending', attempts = 0, due_at = now, since = now, ended_at = null",
        returning="id",
    ),
    "delivery": Read("deliveries", "id"),
    "deliveries": Read(
        "deliveries",
        "subscription_id, id < :before if before, state if state",
        order="id desc",
        limit=":limit",
    ),
    "old_deliveries": Read("deliveries", "ended_at < now - :age_us", "id", order="ended_at", limit=":limit"),
    "delete_delivery": Delete("deliveries", "id"),
    "drop_subscription_deliveries": Delete("deliveries", "subscription_id, id > ''", limited=True),
}

_MIRRORS: Final[dict[str, Plain]] = {
    "files_to_delete": Read(
        "mirrored", "mirror, deleting = 1", "session_id", order="session_id", limit=":limit"
    ),
    "recent_sessions": Read(
        "sessions", "active_at > now - :age_us", "id, status", order="active_at desc", limit=":limit"
    ),
    "held_sessions": Read("heads", "holder > ''", "session_id", limit=":limit"),
    "sessions_after": Read("sessions", "id > :after", "id, status", order="id", limit=":limit"),
    "session_statuses": Read("sessions", "id in :session_ids", "id, status"),
    "mirror_positions": Read("mirrored", "mirror, session_id in :session_ids"),
    "insert_mirrored": Insert(
        "mirrored", "mirror, session_id, seq = 0, day = 0, size = 0, deleting = 0", once=True
    ),
    "change_mirrored": Update("mirrored", "mirror, session_id", "seq, day, size", returning="session_id"),
    "delete_files": Update("mirrored", "session_id, deleting = 0", "deleting = 1"),
    "undeleted_files": Read("mirrored", "session_id, deleting = 1", "mirror"),
    "delete_mirrored": Delete("mirrored", "mirror, session_id, deleting = 1"),
    "next_mirror": Read("mirrored", "mirror > :after", "mirror", order="mirror", limit="1"),
    "some_mirrored": Read("mirrored", "mirror", "session_id", order="session_id", limit=":limit"),
    "drop_mirrored": Delete("mirrored", "mirror, session_id in :session_ids"),
}

_OF_OWNER: Final = "session_id = '', owner"

_STORED_BYTES: Final[dict[str, Plain]] = {
    "owner_bytes": Read("stored_bytes", _OF_OWNER, "bytes"),
    # The sum is among them, and is never smaller than one of the others.
    "largest_sessions": Read(
        "stored_bytes", "owner", "session_id, bytes", order="bytes desc", limit=":limit"
    ),
    "measured_sessions": Read("stored_bytes", "session_id in :session_ids", "session_id, owner, bytes, seq"),
    "outdated_sessions": Read("stored_bytes", "seq < 0", "session_id", limit=":limit"),
    "set_session_bytes": Insert("stored_bytes", "session_id, owner, bytes, seq", replaces=True),
    "insert_owner_bytes": Insert("stored_bytes", "session_id = '', owner, bytes = 0, seq = 0", once=True),
    "add_owner_bytes": Update("stored_bytes", _OF_OWNER, "bytes = bytes + :more", returning="bytes"),
    "outdate_sessions": Update("stored_bytes", "session_id in :session_ids", "seq = -1"),
    "drop_session_bytes": Delete("stored_bytes", "session_id"),
    "drop_owner_bytes": Delete("stored_bytes", f"{_OF_OWNER}, bytes = 0"),
}

PLAIN: Final = (
    _SESSIONS
    | _SUBMISSIONS
    | _SCHEDULES
    | _NOTICES
    | _MIRRORS
    | _STORED_BYTES
    | _CONTENT
    | _MEDIA
    | _SHELL
    | _SERVICE
)
"""All plain statements by name."""
