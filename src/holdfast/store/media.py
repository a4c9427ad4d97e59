"""The register of blobs, and the chunks of blobs in this database. Never reads or writes bytes elsewhere."""

from collections.abc import Sequence

from holdfast.errors import BadInput, Conflict, MediaNotFound
from holdfast.ids import check_id
from holdfast.store.rows import Row, from_cursor, from_row, page_limit, to_cursor, to_page
from holdfast.store.transactions import Statement, Transactions, Tx, bounded, op, reading, writing
from holdfast.types import Blob, BlobState, Page

_MICROSECONDS = 1_000_000


class MediaMethods(Transactions):
    """The transactions of media.sql."""

    @writing(repeatable=True)
    def put_blob(self, blob: Blob, *, reuse: bool = True, body: bytes | None = None) -> Tx[Blob]:
        """Register bytes that are about to be stored. With `body`, which must be small, they are stored at once.

        If the location already has the same content, that blob is touched and returned instead, unless `reuse` is false.
        """
        if body is not None:
            yield op("lock_content", sha256=blob.sha256)
        if blob.sha256 and reuse:
            for row in (yield op("touch_stored", location=blob.location, sha256=blob.sha256)):
                return to_blob(row)
        for text, what in ((blob.media_type, "media type"), (blob.file_name or "", "file name")):
            self._check_size(text, what)
        self._check_object(blob.metadata, "metadata")
        rows = yield op(
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
            yield op("add_chunk", id=blob.id, number=0, body=body)
        return to_blob(rows[0])

    @writing(repeatable=True)
    def set_blob_digest(self, blob: Blob, *, reuse: bool = True) -> Tx[Blob]:
        """Complete an entry with the values that were unknown when its upload started: digest, key and size.

        As with `put_blob`, another blob with the same content is returned instead. Raises `Conflict` if the entry was collected.
        """
        if reuse:
            for row in (yield op("touch_stored", location=blob.location, sha256=blob.sha256)):
                return to_blob(row)
        rows = yield op("set_blob_digest", id=blob.id, sha256=blob.sha256, key=blob.key, size=blob.size)
        if not rows:
            raise _collected(blob.id)
        return to_blob(rows[0])

    @writing(repeatable=True)
    def mark_blob_stored(self, blob: Blob, *, replaces: str | None = None) -> Tx[Blob]:
        """Record that the bytes are stored, and return the blob that has them: this one, or another that was first.

        `replaces` is the id of a blob whose bytes are lost. Raises `Conflict` if the entry was collected meanwhile.
        """
        yield op("lock_content", sha256=blob.sha256)
        if replaces is not None:
            yield op("replace_blob", id=replaces)
        for row in (yield op("touch_stored", location=blob.location, sha256=blob.sha256)):
            return to_blob(row)
        rows = yield op("mark_blob_stored", id=blob.id)
        if not rows:
            raise _collected(blob.id)
        return to_blob(rows[0])

    @writing(repeatable=True)
    def touch_blob(self, blob_id: str) -> Tx[bool]:
        """Record that the upload is still in progress; return false if the blob was collected meanwhile."""
        return bool((yield op("touch_storing", id=blob_id)))

    @reading
    def blob(self, location: str, sha256: str, *, elsewhere: bool = False) -> Tx[Blob]:
        """Return the stored blob with this content in a location. Raises `MediaNotFound`.

        With `elsewhere`, return the blob of another location if this one has none.
        """
        digest = check_id(sha256, "SHA-256")
        rows = yield op("blob", location=None if elsewhere else location, sha256=digest)
        if not rows:
            raise MediaNotFound(uri=f"media+sha256://{sha256}", location=location)
        row = next((row for row in rows if row["location"] == location), rows[0])
        return to_blob(row, references=row["refs"])

    @reading
    def blobs(
        self,
        *,
        location: str | None = None,
        state: BlobState | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Tx[Page[Blob]]:
        """List blobs in the order in which they were first uploaded."""
        (after,) = from_cursor(cursor, str)
        wanted = op("blobs", location=location, state=state, after=after, limit=page_limit(limit))
        rows = yield bounded(wanted, "metadata")
        return to_page(rows, limit, [to_blob(row, references=row["refs"]) for row in rows], "id")

    @writing(repeatable=True)
    def mark_blobs_for_deletion(
        self,
        location: str,
        *,
        grace: float,
        dead_after: float = 120.0,
        cursor: str | None = None,
        limit: int = 100,
        dry_run: bool = False,
    ) -> Tx[Page[Blob]]:
        """Examine the next `limit` blobs and mark unneeded ones for deletion; return all marked blobs.

        A blob is unneeded if no session refers to it and it was not uploaded for `grace` seconds, or if its upload has shown no
        progress for that time, or for `dead_after` if that is longer. The next page continues after this one, even
        if this page is empty.
        """
        if not grace >= 0:
            raise BadInput(problem=f"grace must be 0 or more seconds, not {grace}")
        (after,) = from_cursor(cursor, str)
        ages = {
            "grace_us": int(grace * _MICROSECONDS),
            "dead_us": int(max(grace, dead_after) * _MICROSECONDS),
        }
        rows = yield op("unneeded_blobs", location=location, after=after, limit=page_limit(limit), **ages)
        more = to_cursor(rows[0]["looked"]) if rows and rows[0]["seen"] == limit else None
        results = [row for row in rows if row["unneeded"]]
        if results and not dry_run:
            results = yield from self._mark_for_deletion([row["id"] for row in results], ages)
        return Page(items=[to_blob(row) for row in results], next_cursor=more)

    @writing(repeatable=True)
    def mark_blob_for_deletion(self, location: str, sha256: str) -> Tx[Blob]:
        """Mark one blob for deletion. `Conflict` if a session refers to it. Raises `MediaNotFound`."""
        rows = yield op("blob", location=location, sha256=check_id(sha256, "SHA-256"))
        if not rows:
            raise MediaNotFound(uri=f"media+sha256://{sha256}", location=location)
        marked = yield from self._mark_for_deletion([rows[0]["id"]], {"grace_us": 0, "dead_us": 0})
        if not marked:
            raise Conflict(problem=f"a session refers to media+sha256://{sha256}; clean the session first")
        return to_blob(marked[0])

    def _mark_for_deletion(self, ids: list[str], ages: dict[str, int]) -> Tx[Sequence[Row]]:
        """Mark these blobs, unless they were uploaded or referred to since they were looked up."""
        yield op("lock_blobs", ids=ids)
        return (yield op("mark_blobs_for_deletion", ids=ids, **ages))

    @writing(repeatable=True)
    def replace_blob(self, blob: Blob, location: str) -> Tx[bool]:
        """Mark a blob for deletion if this other location has the same content; return whether it is marked."""
        yield op("lock_content", sha256=blob.sha256)
        if location == blob.location or not (yield op("touch_stored", location=location, sha256=blob.sha256)):
            return False
        yield op("lock_blobs", ids=[blob.id])
        yield op("replace_blob", id=blob.id)
        return True

    @writing(repeatable=True)
    def abandon_blob(self, blob_id: str) -> Tx[bool]:
        """Give up an upload and return whether its bytes may be deleted; false if they are stored after all."""
        yield op("abandon_blob", id=blob_id)
        return not (yield op("is_stored", id=blob_id))

    @writing(repeatable=True)
    def delete_blob_entry(self, blob_id: str) -> Tx[None]:
        """Remove the entry of a blob whose bytes are deleted or were never stored. Idempotent."""
        yield op("delete_blob_entry", id=blob_id)

    @writing(repeatable=True)
    def put_chunks(self, blob_id: str, first: int, bodies: Sequence[bytes]) -> Tx[None]:
        """Add chunks of a blob that is being uploaded to this database. Raises `Conflict` if it was collected meanwhile."""
        if not (yield op("touch_storing", id=blob_id)):
            raise _collected(blob_id)
        for number, body in enumerate(bodies, first):
            yield op("add_chunk", id=blob_id, number=number, body=body)

    @reading
    def chunks(self, blob_id: str, *, first: int, limit: int) -> Tx[list[bytes]]:
        """Return chunks of a blob from number `first` on, in order."""
        rows = yield op("chunks", id=blob_id, first=first, limit=page_limit(limit))
        return [row["body"] for row in rows]

    @writing(repeatable=True)
    def delete_chunks(self, blob_id: str, *, limit: int = 16) -> Tx[int]:
        """Delete up to `limit` chunks of a blob and return how many were deleted; 0 when none is left."""
        return len((yield op("delete_chunks", id=blob_id, limit=page_limit(limit))))

    @reading
    def references(
        self,
        *,
        session_id: str | None = None,
        sha256: str | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> Tx[list[tuple[str, str]]]:
        """Return references as (session_id, sha256): those of a session, or those to some content.

        Those of a session are in the order of their digests; `after` continues after one of them.
        """
        if (session_id is None) == (sha256 is None):
            raise BadInput(problem="pass either session_id or sha256 to list references")
        wanted = {"session_id": session_id, "sha256": sha256, "after": after, "limit": page_limit(limit)}
        rows = yield Statement("blob_references", wanted)
        return [(row["session_id"], row["sha256"]) for row in rows]

    @reading
    def archived_sessions(self, sha256: str, *, limit: int = 1000) -> Tx[list[str]]:
        """Return the sessions whose archive has this digest."""
        rows = yield op("archived_sessions", sha256=sha256, limit=page_limit(limit))
        return [row["id"] for row in rows]

    @reading
    def is_referenced(self, sha256: str, *, owner: str | None = None) -> Tx[bool]:
        """Return whether a session of this owner refers to some content; without an owner, whether any session does.

        The time that it takes does not depend on the sessions of other owners.
        """
        if owner is None:
            return bool((yield op("blob_references", session_id=None, sha256=sha256, limit=1)))
        return bool((yield op("owned_reference", owner=owner, sha256=sha256)))


def _collected(blob_id: str) -> Conflict:
    return Conflict(
        problem=f"blob {blob_id} was collected as a leftover while it was being uploaded; upload it again"
    )


def to_blob(row: Row, *, references: int = 0) -> Blob:
    """Return a row of the register as a blob."""
    return from_row(Blob, row, sha256=row["sha256"] or "", references=references)
