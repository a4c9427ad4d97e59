"""Mirrors: how far the files of each session follow its journal, and the files that must be deleted.

A mirror is a folder of files. A session has a row for each mirror that may have files of it: the row is written before the first file, and
deleted after the last one. The clean or erasure of a session marks its rows in the transaction that deletes its first content.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.errors import SessionCleaned, SessionMoved, SessionNotFound
from holdfast.ids import check_id
from holdfast.store.activity import activity
from holdfast.store.rows import from_row, page_limit
from holdfast.store.transactions import Transactions, Tx, op, reading, writing

_RECENT_US: Final = 10 * 1_000_000
_MOST: Final = 2000


@dataclass(frozen=True, slots=True)
class MirrorPosition:
    """How far a mirror follows a session: the last event in its files, the day of the latest file since 1970, and its size in bytes."""

    session_id: str
    seq: int = 0
    day: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorWork:
    """The work of a mirror: sessions whose files must be deleted, those that have new events, and which of these have no row yet.

    `after` is the last session that was compared in the order of ids, or empty at the end.
    """

    deleting: Sequence[str]
    behind: Sequence[tuple[MirrorPosition, int]]
    unknown: frozenset[str]
    after: str


class MirrorMethods(Transactions):
    """The transactions of mirrors."""

    @reading
    def mirror_work(
        self, mirror: str, *, also: Sequence[str] = (), after: str | None = "", limit: int = 1000
    ) -> Tx[MirrorWork]:
        """Find sessions with events that a mirror does not have, among those that are active, those in `also`, and the `limit` sessions after `after`.

        Those in `also` come first. `after=None` omits the sessions in the order of ids.
        """
        deleting = yield op("files_to_delete", mirror=mirror, limit=page_limit(limit))
        found = yield from activity(age_us=_RECENT_US, most=_MOST, also=also, after=after, limit=limit)
        rows = yield op("mirror_positions", mirror=mirror, session_ids=list(found.last))
        waiting = {row["session_id"] for row in rows if row["deleting"]}
        known = {row["session_id"]: from_row(MirrorPosition, row) for row in rows}
        behind = [
            (position, seq)
            for session_id, seq in found.last.items()
            if session_id not in waiting
            if (position := known.get(session_id, MirrorPosition(session_id))).seq < seq
        ]
        return MirrorWork(
            deleting=[row["session_id"] for row in deleting],
            behind=behind,
            unknown=frozenset(position.session_id for position, _ in behind) - known.keys(),
            after=found.after,
        )

    @writing(repeatable=True)
    def begin_mirroring(self, mirror: str, session_id: str) -> Tx[bool]:
        """Add the row of a session, before its first file exists. False if the session was cleaned, moved or erased."""
        try:
            yield from self._refuse_cleaned(session_id)
        except (SessionCleaned, SessionMoved, SessionNotFound):
            return False
        yield op("insert_mirrored", mirror=check_id(mirror, "mirror"), session_id=session_id)
        return True

    @writing(repeatable=True)
    def record_mirrored(self, mirror: str, positions: Sequence[MirrorPosition]) -> Tx[list[str]]:
        """Record how far the files follow. Return the sessions that have no row: their files must be deleted."""
        gone: list[str] = []
        for each in positions:
            values = {"session_id": each.session_id, "seq": each.seq, "day": each.day, "size": each.size}
            if not (yield op("change_mirrored", mirror=mirror, **values)):
                gone.append(each.session_id)
        return gone

    @writing(repeatable=True)
    def forget_files(self, mirror: str, session_ids: Sequence[str]) -> Tx[None]:
        """Delete the rows of sessions whose files were deleted."""
        for session_id in session_ids:
            yield op("delete_mirrored", mirror=mirror, session_id=session_id)

    @reading
    def undeleted_files(self, session_id: str) -> Tx[list[str]]:
        """Return the mirrors that may still have files of a session that was cleaned or erased."""
        return [row["mirror"] for row in (yield op("undeleted_files", session_id=session_id))]

    @reading
    def mirrors(self, *, most: int = 1000) -> Tx[dict[str, int]]:
        """Return each mirror that has files, and of how many sessions it must delete the files, counted up to `most`."""
        result: dict[str, int] = {}
        after = ""
        while rows := (yield op("next_mirror", after=after)):
            after = rows[0]["mirror"]
            result[after] = len((yield op("files_to_delete", mirror=after, limit=page_limit(most))))
        return result

    @writing(repeatable=True)
    def drop_mirror(self, mirror: str, *, limit: int = 1000) -> Tx[int]:
        """Delete up to `limit` rows of a mirror whose folder no longer exists; return how many."""
        rows = yield op("some_mirrored", mirror=mirror, limit=page_limit(limit))
        yield op("drop_mirrored", mirror=mirror, session_ids=[row["session_id"] for row in rows])
        return len(rows)
