"""What retention stands on: deleting a session's content in bounded batches."""

from typing import Final

from holdfast.errors import Conflict
from holdfast.store.sql.core import SqlCore, Tx, page_limit, sql, writing
from holdfast.types import Lease

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
    "credentials",
    "blob_references",
)
"""Every table that holds a session's content, in the order in which it is deleted."""


KEPT: Final = frozenset({"heads", "audit"})
"""Tables that name sessions and hold none of their content."""


class Retention(SqlCore):
    """Deletion, table by table, in an order that leaves nothing pointing at what is gone."""

    @writing
    def delete_content(self, lease: Lease, *, limit: int = 1000) -> Tx[dict[str, int]]:
        yield from self._fence(lease, 0)
        if not (yield sql("begin_cleaning", session_id=lease.session_id)):
            raise Conflict(problem=f"session {lease.session_id} is on hold")
        left = page_limit(limit)
        deleted: dict[str, int] = {}
        for table in CONTENT:
            rows = yield sql(f"delete_{table}", session_id=lease.session_id, limit=left)
            if rows:
                deleted[table] = len(rows)
                left -= len(rows)
            if not left:
                break
        return deleted
