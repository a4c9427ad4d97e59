"""The transactions of retention: guards under the lock, deletion in bounded batches, and the marks that start and end it."""

import json
from datetime import datetime
from typing import Final

from holdfast.errors import Conflict, SessionErased, SessionNotFound
from holdfast.guards import refuse_cleaning, refuse_erasing
from holdfast.ids import check_id, new_id
from holdfast.store.archive import fingerprint
from holdfast.store.media import to_blob
from holdfast.store.rows import Row, maybe_moment, moment, page_limit
from holdfast.store.stored_bytes import forget_bytes
from holdfast.store.transactions import Transactions, Tx, lease_lost, op, reading, writing
from holdfast.types import Blob, Json, Lease, RetentionState

CONTENT: Final = (
    "drafts",
    "outputs",
    "commands",
    "effects",
    "checkpoints",
    "events",
    "messages",
    "segments",
    "runs",
    "submissions",
    "cursors",
    "states",
    "named_states",
    "records",
    "credentials",
    "blob_references",
)
"""Every table with content of a session, in the order in which it is deleted."""


KEPT: Final = frozenset(
    {
        "heads",
        "audit",
        "tombstones",
        "schedules",
        "usage",
        "notices",
        "deliveries",
        "mirrored",
        "stored_bytes",
    }
)
"""Tables that name sessions but contain none of their content. A schedule has its own text; an erasure of its session deletes it.

A row of `mirrored` remains until the files of its session are deleted."""
_DEEPEST: Final = 50
"""How many levels of delegates are checked."""


class RetentionMethods(Transactions):
    """Deletion, table by table, in an order that leaves no dangling references."""

    @reading
    def retention_state(self, session_id: str) -> Tx[RetentionState]:
        """Return the facts about a session that decide whether it may be deleted. Raises `SessionNotFound`."""
        return (yield from self._retention_state(session_id))

    @reading
    def content_counts(self, session_id: str) -> Tx[dict[str, int]]:
        """Count the rows of a session by table, without empty tables."""
        rows = yield op("content_counts", session_id=session_id)
        return {row["kind"]: row["number"] for row in rows if row["number"]}

    def _delete_run_numbers(self, session_id: str) -> Tx[None]:
        """Delete the numbers of the session's runs, if the engine stores numbers instead of ids."""
        del session_id
        yield from ()

    @reading
    def child_sessions(
        self, session_id: str, *, after: str | None = None, limit: int = 1000
    ) -> Tx[list[str]]:
        """Return the other sessions of the same owner in which delegates of this session's runs run, ordered by id, after `after`."""
        rows = yield op("child_sessions", session_id=session_id, after=after, limit=page_limit(limit))
        return [row["session_id"] for row in rows]

    @reading
    def erased_at(self, session_id: str) -> Tx[datetime | None]:
        """Return when a session was erased; None if it was not."""
        rows = yield op("tombstone", session_id=session_id)
        return moment(rows[0]["at"]) if rows else None

    @writing(changes="lease", repeatable=True)
    def begin_cleaning(
        self, lease: Lease, *, idle: float, grace: float = 0.0, force: bool = False
    ) -> Tx[RetentionState]:
        """Check the guards and mark the session `cleaning`: from now on it accepts nothing. Return its state before.

        It must have been idle for `idle` seconds, and in the store for `grace` seconds if it was restored from an archive. Raises
        `RetentionRefused` or `SessionErased`. A cleaned session is left unchanged.
        """
        yield from self._fence(lease, 0)
        if (yield op("tombstone", session_id=lease.session_id)):
            raise SessionErased(id=lease.session_id)
        state = yield from self._retention_state(lease.session_id, lease)
        if state.status != "cleaned":
            refuse_cleaning(state, idle=idle, grace=grace, force=force)
            yield op("begin_cleaning", session_id=lease.session_id)
        return state

    @writing(changes="lease", repeatable=True)
    def stop_cleaning(self, lease: Lease) -> Tx[None]:
        """Undo `begin_cleaning`, if nothing was deleted yet."""
        yield from self._fence(lease, 0)
        yield op("stop_cleaning", session_id=lease.session_id)

    @writing(changes="lease", repeatable=True)
    def keep_archive(self, lease: Lease, sha256: str) -> Tx[None]:
        """Record the archive of a session that is being cleaned. It must be stored, and is kept from now on."""
        yield from self._fence(lease, 0)
        if not (yield op("lock_stored", sha256=check_id(sha256, "SHA-256"))):
            raise Conflict(problem=f"the archive media+sha256://{sha256} is not stored")
        if not (yield op("keep_archive", session_id=lease.session_id, archive=sha256)):
            refuse_erasing((yield from self._retention_state(lease.session_id, lease)))
            raise lease_lost(lease, "the session is not being cleaned")

    def _begin_deleting(self, lease: Lease) -> Tx[None]:
        state = yield from self._retention_state(lease.session_id, lease)
        kept = None
        if state.cleaned_at is None:
            kept = json.dumps((yield from fingerprint(lease.session_id, state.seq)))
        if not (yield op("begin_deleting", session_id=lease.session_id, fingerprint=kept)):
            refuse_erasing(state)
            raise SessionNotFound(id=lease.session_id)
        yield op("delete_files", session_id=lease.session_id)

    @writing(changes="lease")
    def delete_content(self, lease: Lease, *, limit: int = 1000) -> Tx[dict[str, int]]:
        """Delete up to `limit` rows of the session's content and count them by table; empty when none is left.

        Only the session itself, its head and its event number remain. From the first call on it is `cleaning` and accepts
        nothing. Raises `RetentionRefused` if the session is on hold.
        """
        yield from self._fence(lease, 0)
        yield from self._begin_deleting(lease)
        left = page_limit(limit)
        deleted: dict[str, int] = {}
        for table in CONTENT:
            rows = yield op(f"delete_{table}", session_id=lease.session_id, limit=left)
            if rows:
                deleted[table] = len(rows)
                left -= len(rows)
            if not left:
                break
        return deleted

    @writing(changes="lease")
    def drop_references(self, lease: Lease, *, limit: int = 100) -> Tx[tuple[int, list[Blob]]]:
        """Delete up to `limit` references to media and mark the blobs that are unneeded now; return both."""
        yield from self._fence(lease, 0)
        yield from self._begin_deleting(lease)
        rows = yield op("some_references", session_id=lease.session_id, limit=page_limit(limit))
        if not rows:
            return 0, []
        blobs = yield from self._mark_content_for_deletion([row["sha256"] for row in rows], lease.session_id)
        return len(rows), blobs

    @writing(changes="lease")
    def drop_archive(self, lease: Lease) -> Tx[list[Blob]]:
        """Drop the session's archive and mark its blobs for deletion, unless they are needed elsewhere."""
        yield from self._fence(lease, 0)
        state = yield from self._retention_state(lease.session_id, lease)
        yield op("drop_archive", session_id=lease.session_id)
        if state.archive is None:
            return []
        return (yield from self._mark_content_for_deletion([state.archive], None))

    def _mark_content_for_deletion(self, digests: list[str], session_id: str | None) -> Tx[list[Blob]]:
        """Drop the references to content and mark, in the same transaction, blobs that are unneeded now."""
        rows = yield op("blobs_of", digests=digests)
        ids = [row["id"] for row in rows]
        yield op("lock_blobs", ids=ids)
        if session_id is not None:
            # These are the rows with these digests, since both statements use the same order.
            yield op("delete_blob_references", session_id=session_id, limit=len(digests) or 1)
        marked = yield op("mark_blobs_for_deletion", ids=ids, grace_us=0, dead_us=2**62)
        return [to_blob(row) for row in marked]

    async def finish_cleaning(self, lease: Lease, *, actor: str, detail: Json = "{}") -> datetime:
        """Mark the session `cleaned`, delete its title and metadata, write an audit entry, and return the time."""
        return await self._finish_cleaning(lease, new_id(), actor, detail)

    @writing(changes="lease", repeatable=True)
    def _finish_cleaning(self, lease: Lease, audit_id: str, actor: str, detail: Json) -> Tx[datetime]:
        yield from self._fence(lease, 0)
        rows = yield op("finish_cleaning", session_id=lease.session_id)
        yield from self._delete_run_numbers(lease.session_id)
        yield from forget_bytes(lease.session_id)
        if rows:
            yield op(
                "add_audit",
                id=audit_id,
                actor=actor,
                action="clean",
                session_id=lease.session_id,
                detail=detail,
            )
            return moment(rows[0]["cleaned_at"])
        state = yield from self._retention_state(lease.session_id, lease)
        if state.cleaned_at is None:
            raise Conflict(problem=f"session {lease.session_id} is {state.status}, not being cleaned")
        return state.cleaned_at

    @writing(changes="lease", repeatable=True)
    def begin_erasing(self, lease: Lease) -> Tx[RetentionState]:
        """Write the tombstone. From now on the session accepts nothing. Raises `RetentionRefused`."""
        yield from self._fence(lease, 0)
        state = yield from self._retention_state(lease.session_id, lease)
        refuse_erasing(state)
        yield op("add_tombstone", session_id=lease.session_id)
        yield op("begin_deleting", session_id=lease.session_id, fingerprint=None)
        return state

    async def finish_erasing(self, lease: Lease, *, actor: str, detail: Json = "{}") -> datetime:
        """Delete the session and its head, write an audit entry, and return the time of the tombstone."""
        return await self._finish_erasing(lease, new_id(), actor, detail)

    @writing(changes="lease", repeatable=True)
    def _finish_erasing(self, lease: Lease, audit_id: str, actor: str, detail: Json) -> Tx[datetime]:
        (tombstone,) = yield op("tombstone", session_id=lease.session_id)
        if (yield op("lock_head", session_id=lease.session_id)):
            yield from self._fence(lease, 0)
            yield from self._delete_run_numbers(lease.session_id)
            yield from self._delete_schedules(lease.session_id, actor)
            yield from forget_bytes(lease.session_id)
            yield op("erase_session", session_id=lease.session_id)
            yield op("erase_head", session_id=lease.session_id)
            yield op(
                "add_audit",
                id=audit_id,
                actor=actor,
                action="erase",
                session_id=lease.session_id,
                detail=detail,
            )
        return moment(tombstone["at"])

    def _delete_schedules(self, session_id: str, actor: str) -> Tx[None]:
        """Delete the schedules of a session that is being erased: they can never submit to it again."""
        rows = yield op("session_schedules", session_id=session_id)
        if rows:
            yield op("delete_session_schedules", session_id=session_id)
            detail = json.dumps({"schedules": [row["id"] for row in rows], "reason": "erased session"})
            yield op(
                "add_audit",
                id=new_id(),
                actor=actor,
                action="delete schedule",
                session_id=session_id,
                detail=detail,
            )

    def _retention_state(self, session_id: str, lease: Lease | None = None) -> Tx[RetentionState]:
        rows = yield op("retention_state", session_id=check_id(session_id, "session id"))
        if not rows:
            raise SessionNotFound(id=session_id)
        behind = yield op("cursors_behind", session_id=session_id)
        awaited_by = yield from self._awaited_by(session_id)
        return _to_retention_state(rows[0], [row["consumer"] for row in behind], awaited_by, lease)

    def _awaited_by(self, session_id: str) -> Tx[str | None]:
        """Return the session above a delegate that has a turn which has not ended: it may continue the delegate, or read its result."""
        rows = yield op("sessions", id=session_id, limit=1)
        for _ in range(_DEEPEST):
            if not rows or rows[0]["parent_id"] is None:
                break
            rows = yield op("sessions", id=rows[0]["parent_id"], limit=1)
            if rows and rows[0]["pending"]:
                return rows[0]["id"]
        return None


def _to_retention_state(
    row: Row, behind: list[str], awaited_by: str | None, lease: Lease | None
) -> RetentionState:
    ours = lease is not None and row["holder"] == lease.holder
    return RetentionState(
        session_id=row["id"],
        status=row["status"],
        hold=bool(row["hold"]),
        holder=None if ours else row["holder_name"],
        seq=row["seq"],
        pending=row["pending"],
        awaited_by=awaited_by,
        behind=behind,
        commands=row["commands"],
        idle=row["idle_us"] / 1_000_000,
        cleaned_at=maybe_moment(row["cleaned_at"]),
        archive=row["archive"],
        now=moment(row["now"]),
        rehydrated_at=maybe_moment(row["rehydrated_at"]),
    )
