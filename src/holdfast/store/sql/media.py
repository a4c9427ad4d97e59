"""The register of blobs, and the chunks of those that are in this database. Never reads or writes bytes elsewhere."""

import json
from collections.abc import Sequence

from holdfast.errors import BadInput, Conflict, MediaNotFound
from holdfast.ids import check_id
from holdfast.store.sql.core import (
    Row,
    SqlCore,
    Tx,
    bounded,
    from_cursor,
    is_part,
    moment,
    page_limit,
    reading,
    sql,
    to_cursor,
    writing,
)
from holdfast.types import Blob, BlobState, Page

_MICROSECONDS = 1_000_000


class Media(SqlCore):
    """The transactions of media.sql."""

    @writing(repeatable=True)
    def put_blob(self, blob: Blob, *, anew: bool = False, body: bytes | None = None) -> Tx[Blob]:
        if body is not None:
            yield sql("lock_content", sha256=blob.sha256)
        if blob.sha256 and not anew:
            for row in (yield sql("touch_stored", location=blob.location, sha256=blob.sha256)):
                return to_blob(row)
        for text, what in ((blob.media_type, "media type"), (blob.file_name or "", "file name")):
            self._check_size(text, what)
        self._check_object(blob.metadata, "metadata")
        rows = yield sql(
            "add_blob",
            id=blob.id,
            location=blob.location,
            sha256=blob.sha256 or None,
            state="storing" if body is None else "stored",
            key=blob.key,
            size=blob.size,
            media_type=blob.media_type,
            file_name=blob.file_name,
            metadata=blob.metadata,
        )
        if not rows:
            raise _collected(blob.id)
        if body is not None:
            yield sql("add_chunk", id=blob.id, number=0, body=body)
        return to_blob(rows[0])

    @writing(repeatable=True)
    def name_blob(self, blob: Blob, *, anew: bool = False) -> Tx[Blob]:
        if not anew:
            for row in (yield sql("touch_stored", location=blob.location, sha256=blob.sha256)):
                return to_blob(row)
        rows = yield sql("name_blob", id=blob.id, sha256=blob.sha256, key=blob.key, size=blob.size)
        if not rows:
            raise _collected(blob.id)
        return to_blob(rows[0])

    @writing(repeatable=True)
    def keep_blob(self, blob: Blob, *, replaces: str | None = None) -> Tx[Blob]:
        yield sql("lock_content", sha256=blob.sha256)
        if replaces is not None:
            yield sql("replace_blob", id=replaces)
        for row in (yield sql("touch_stored", location=blob.location, sha256=blob.sha256)):
            return to_blob(row)
        rows = yield sql("keep_blob", id=blob.id)
        if not rows:
            raise _collected(blob.id)
        return to_blob(rows[0])

    @writing(repeatable=True)
    def touch_blob(self, blob_id: str) -> Tx[bool]:
        return bool((yield sql("touch_storing", id=blob_id)))

    @reading
    def blob(self, location: str, sha256: str) -> Tx[Blob]:
        rows = yield sql("blob", location=location, sha256=check_id(sha256, "SHA-256"))
        if not rows:
            raise MediaNotFound(uri=f"media+sha256://{sha256}", location=location)
        return to_blob(rows[0], references=rows[0]["refs"])

    @reading
    def blobs(
        self,
        *,
        location: str | None = None,
        state: BlobState | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Tx[Page[Blob]]:
        (after,) = from_cursor(cursor, str)
        wanted = sql("blobs", location=location, state=state, after=after, limit=page_limit(limit))
        rows = yield bounded(wanted, "metadata")
        more = to_cursor(rows[-1]["id"]) if is_part(rows, limit) else None
        return Page(items=[to_blob(row, references=row["refs"]) for row in rows], next_cursor=more)

    @writing(repeatable=True)
    def condemn_blobs(
        self,
        location: str,
        *,
        grace: float,
        dead_after: float = 120.0,
        cursor: str | None = None,
        limit: int = 100,
        dry_run: bool = False,
    ) -> Tx[Page[Blob]]:
        if not grace >= 0:
            raise BadInput(problem=f"a grace period has 0 or more seconds, not {grace}")
        (after,) = from_cursor(cursor, str)
        ages = {
            "grace_us": int(grace * _MICROSECONDS),
            "dead_us": int(max(grace, dead_after) * _MICROSECONDS),
        }
        rows = yield sql("unneeded_blobs", location=location, after=after, limit=page_limit(limit), **ages)
        more = to_cursor(rows[0]["looked"]) if rows and rows[0]["seen"] == limit else None
        found = [row for row in rows if row["unneeded"]]
        if found and not dry_run:
            found = yield from self._condemn([row["id"] for row in found], ages)
        return Page(items=[to_blob(row) for row in found], next_cursor=more)

    @writing(repeatable=True)
    def condemn_blob(self, location: str, sha256: str) -> Tx[Blob]:
        rows = yield sql("blob", location=location, sha256=check_id(sha256, "SHA-256"))
        if not rows:
            raise MediaNotFound(uri=f"media+sha256://{sha256}", location=location)
        condemned = yield from self._condemn([rows[0]["id"]], {"grace_us": 0, "dead_us": 0})
        if not condemned:
            raise Conflict(problem=f"a session refers to media+sha256://{sha256}; clean the session first")
        return to_blob(condemned[0])

    def _condemn(self, ids: list[str], ages: dict[str, int]) -> Tx[Sequence[Row]]:
        """Mark these, unless somebody has put or referred to them since they were looked up."""
        yield sql("lock_blobs", ids=json.dumps(ids))
        return (yield sql("condemn_blobs", ids=json.dumps(ids), **ages))

    @writing(repeatable=True)
    def abandon_blob(self, blob_id: str) -> Tx[bool]:
        yield sql("abandon_blob", id=blob_id)
        return not (yield sql("is_stored", id=blob_id))

    @writing(repeatable=True)
    def forget_blob(self, blob_id: str) -> Tx[None]:
        yield sql("forget_blob", id=blob_id)

    @writing(repeatable=True)
    def put_chunks(self, blob_id: str, first: int, bodies: Sequence[bytes]) -> Tx[None]:
        if not (yield sql("touch_storing", id=blob_id)):
            raise _collected(blob_id)
        for number, body in enumerate(bodies, first):
            yield sql("add_chunk", id=blob_id, number=number, body=body)

    @reading
    def chunks(self, blob_id: str, *, first: int, limit: int) -> Tx[list[bytes]]:
        rows = yield sql("chunks", id=blob_id, first=first, limit=page_limit(limit))
        return [row["body"] for row in rows]

    @writing(repeatable=True)
    def delete_chunks(self, blob_id: str, *, limit: int = 16) -> Tx[int]:
        return len((yield sql("delete_chunks", id=blob_id, limit=page_limit(limit))))

    @reading
    def references(
        self, *, session_id: str | None = None, sha256: str | None = None, limit: int = 1000
    ) -> Tx[list[tuple[str, str]]]:
        if (session_id is None) == (sha256 is None):
            raise BadInput(problem="name either the session or the content whose references you want")
        rows = yield sql("blob_references", session_id=session_id, sha256=sha256, limit=page_limit(limit))
        return [(row["session_id"], row["sha256"]) for row in rows]

    @reading
    def is_referenced(self, sha256: str, *, owner: str | None = None) -> Tx[bool]:
        if owner is None:
            return bool((yield sql("blob_references", session_id=None, sha256=sha256, limit=1)))
        return bool((yield sql("owned_reference", owner=owner, sha256=sha256)))


def _collected(blob_id: str) -> Conflict:
    return Conflict(problem=f"what was being stored as {blob_id} was collected as a leftover; put it again")


def to_blob(row: Row, *, references: int = 0) -> Blob:
    """Return a row of the register as a blob."""
    return Blob(
        id=row["id"],
        location=row["location"],
        sha256=row["sha256"] or "",
        key=row["key"],
        size=row["size"],
        media_type=row["media_type"],
        file_name=row["file_name"],
        metadata=row["metadata"],
        state=row["state"],
        at=moment(row["at"]),
        references=references,
    )
