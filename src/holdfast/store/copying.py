"""The transactions for copying a whole store: moving sessions, and copying rows that no archive contains."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import Conflict, SessionErased
from holdfast.ids import new_id
from holdfast.store.archive import ArchiveMethods
from holdfast.store.rows import Rows, page_limit
from holdfast.store.transactions import Tx, op, reading, writing
from holdfast.tables import CLEANED, SHARED, Table
from holdfast.types import SUSPENDED, Json, Lease


class CopyMethods(ArchiveMethods):
    """The transactions of copying.sql, and those that are the same for every table."""

    async def move_session(self, lease: Lease, *, actor: str, detail: Json = "{}") -> None:
        """Mark a session as moved to another store. It keeps its content, but accepts and runs nothing. Ends the lease."""
        await self._move_session(lease, new_id(), actor, detail)
        lease.lost = lease.released = True

    @writing(changes="lease", repeatable=True)
    def _move_session(self, lease: Lease, audit_id: str, actor: str, detail: Json) -> Tx[None]:
        head = yield from self._lock_head(lease.session_id)
        if head.status == "moved":
            return
        yield from self._fence(lease, 0)
        yield op("requeue_claimed", session_id=lease.session_id)
        if (yield op("move_session", session_id=lease.session_id)):
            yield op("park_head", session_id=lease.session_id)
            session_id = lease.session_id
            yield op(
                "add_audit", id=audit_id, actor=actor, action="move", session_id=session_id, detail=detail
            )

    @writing(changes="session_id", wakes=True, repeatable=True)
    def reopen_session(self, session_id: str) -> Tx[bool]:
        """Undo `move_session`, and return whether the session was moved. Only valid if the other store does not have the session."""
        yield from self._lock_head(session_id)
        rows = yield op("reopen_session", session_id=session_id)
        if rows:
            control_only = True if rows[0]["status"] in SUSPENDED else None
            yield op("ready_if_work", session_id=session_id, control_only=control_only)
        return bool(rows)

    @writing(repeatable=True)
    def move_schedules(self) -> Tx[None]:
        """Let all schedules continue only in another store. From now on they submit nothing here."""
        yield op("move_schedules")

    @writing(repeatable=True)
    def reopen_schedule(self, schedule_id: str) -> Tx[None]:
        """Undo `move_schedules` for one schedule. Only valid if the other store does not have it."""
        yield op("reopen_schedule", id=schedule_id)

    @reading
    def shared_rows(
        self, name: str, *, after: tuple[object, ...] | None = None, limit: int = 500
    ) -> Tx[list[dict[str, Any]]]:
        """Return the next rows of one of the `SHARED` in the order of their key."""
        table = SHARED[name]
        rows = yield from self._shared_rows(table, after, page_limit(limit))
        return [{column: row[column] for column in table.names} for row in rows]

    @writing(repeatable=True)
    def add_shared_rows(self, name: str, rows: Sequence[Mapping[str, Any]]) -> Tx[None]:
        """Add rows that `shared_rows` returned. Existing keys are left unchanged; of usage, the greater sums are kept."""
        if name == "usage":
            for row in rows:
                yield op("merge_usage", **row)
            return
        yield from self._add_rows(SHARED[name], rows, exist_ok=True)

    @writing(repeatable=True)
    def import_cleaned(self, row: Mapping[str, Any], seq: int) -> Tx[None]:
        """Add a cleaned session with its event number. Its archive must be stored. An existing session is left unchanged."""
        session_id = row["id"]
        if (yield op("tombstone", session_id=session_id)):
            raise SessionErased(id=session_id)
        if (yield op("head", session_id=session_id)):
            return
        if row["archive"] is not None and not (yield op("lock_stored", sha256=row["archive"])):
            raise Conflict(problem=f"the archive media+sha256://{row['archive']} is not stored")
        yield from self._add_rows(CLEANED, [row])
        yield op("import_head", id=session_id, agent=row["agent"], owner=row["owner"], seq=seq)

    @abstractmethod
    def _shared_rows(self, table: Table, after: tuple[object, ...] | None, limit: int) -> Tx[Rows]:
        """Return rows of a table, of all sessions, in the order of its key."""
