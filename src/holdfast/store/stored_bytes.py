"""Stored bytes: how much content each session has, as last measured, and the sum for its owner.

A worker measures sessions after they have changed; a write of a session costs nothing. A clean and an erasure subtract the session from
the sum in the transaction that ends them, and an import adds it.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.errors import SessionNotFound, TooMuchStored
from holdfast.ids import check_id
from holdfast.sentences import size_text
from holdfast.store.activity import activity
from holdfast.store.rows import Rows
from holdfast.store.transactions import Transactions, Tx, op, reading, writing

_MOST: Final = 10_000
_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """Sessions that changed since they were measured. `after` is the last one that was compared in the order of ids, or empty at the end."""

    session_ids: Sequence[str]
    after: str


class StoredBytesMethods(Transactions):
    """The transactions of the limit of stored bytes."""

    @reading
    def stored_bytes(self, owner: str) -> Tx[int]:
        """Return how many bytes an owner has stored, as last measured. Nothing is measured without a limit."""
        rows = yield op("owner_bytes", owner=owner)
        return rows[0]["bytes"] if rows else 0

    @reading
    def refuse_full(self, owner: str, limit: int) -> Tx[None]:
        """Raise `TooMuchStored` if an owner has stored as much as it may, or more."""
        yield from refuse_full(owner, limit)

    @reading
    def unmeasured(self, *, within: float, after: str = "", limit: int = 1000) -> Tx[Unmeasured]:
        """Find sessions to measure, among those that were active `within` seconds or are running, and the `limit` sessions after `after`."""
        outdated = yield op("outdated_sessions", limit=_MOST)
        found = yield from activity(
            age_us=round(within * 1_000_000),
            most=_MOST,
            also=[row["session_id"] for row in outdated],
            after=after,
            limit=limit,
        )
        rows = yield op("measured_sessions", session_ids=list(found.last))
        measured = {row["session_id"]: row["seq"] for row in rows}
        changed = [each for each, seq in found.last.items() if measured.get(each, 0) != seq]
        return Unmeasured(session_ids=changed, after=found.after)

    async def measure(self, session_id: str) -> None:
        """Measure the content of a session and its media, and add the difference to the sum of its owner. Reads all of it."""
        size, seq = await self._measured(session_id)
        await self._record_bytes(session_id, size, seq)

    @reading
    def content_bytes(self, session_id: str) -> Tx[int]:
        """Return about how many bytes the content of a session has in the database, without indexes and media."""
        rows = yield from self._content_sizes(check_id(session_id, "session id"))
        return sum(row["bytes"] for row in rows)

    @abstractmethod
    def _content_sizes(self, session_id: str) -> Tx[Rows]:
        """Return the bytes of a session's rows in each table with content."""

    @reading
    def _measured(self, session_id: str) -> Tx[tuple[int, int]]:
        heads = yield op("head", session_id=check_id(session_id, "session id"))
        size = yield from self._size(session_id)
        return size, heads[0]["seq"] if heads else 0

    def _size(self, session_id: str) -> Tx[int]:
        rows = yield from self._content_sizes(session_id)
        (media,) = yield op("media_bytes", session_id=session_id)
        return sum(row["bytes"] for row in rows) + media["bytes"]

    @writing(repeatable=True)
    def _record_bytes(self, session_id: str, size: int, seq: int) -> Tx[None]:
        try:
            head = yield from self._lock_head(session_id)
        except SessionNotFound:  # it was erased meanwhile
            return
        if head.status not in {"cleaning", "cleaned"}:
            yield from record_bytes(session_id, size, seq)


def refuse_full(owner: str, limit: int) -> Tx[None]:
    """Raise `TooMuchStored` if an owner has stored as much as it may, or more."""
    rows = yield op("owner_bytes", owner=owner)
    if not rows or rows[0]["bytes"] < limit:
        return
    largest = yield op("largest_sessions", owner=owner, limit=_NAMED + 1)
    sessions = {row["session_id"]: row["bytes"] for row in largest if row["session_id"]}
    named = list(sessions.items())[:_NAMED]
    raise TooMuchStored(
        owner=owner,
        stored=size_text(rows[0]["bytes"]),
        limit=size_text(limit),
        largest=", ".join(f"{session_id} ({size_text(size)})" for session_id, size in named),
        stored_bytes=rows[0]["bytes"],
        limit_bytes=limit,
        sessions=dict(named),
    )


def record_bytes(session_id: str, size: int, seq: int) -> Tx[None]:
    """Set the size of a session, whose head is locked, and add the difference to the sum of its owner."""
    (session,) = yield op("owners_of", session_ids=[session_id])
    before = yield op("measured_sessions", session_ids=[session_id])
    yield op("set_session_bytes", session_id=session_id, owner=session["owner"], bytes=size, seq=seq)
    yield from _add(session["owner"], size - sum(row["bytes"] for row in before))


def forget_bytes(session_id: str) -> Tx[None]:
    """Subtract a session whose content was deleted from the sum of its owner."""
    for row in (yield op("measured_sessions", session_ids=[session_id])):
        yield op("drop_session_bytes", session_id=session_id)
        yield from _add(row["owner"], -row["bytes"])
        yield op("drop_owner_bytes", owner=row["owner"])


def outdate(session_ids: Sequence[str | None]) -> Tx[None]:
    """Have these sessions measured again: some of their content was deleted, which is no event."""
    ids = sorted({each for each in session_ids if each is not None})
    if ids:
        yield op("outdate_sessions", session_ids=ids)


def _add(owner: str, more: int) -> Tx[None]:
    if not (yield op("add_owner_bytes", owner=owner, more=more)):
        # Another process may insert it at the same time.
        yield op("insert_owner_bytes", owner=owner)
        yield op("add_owner_bytes", owner=owner, more=more)
