"""Garbage collection: delete media that no session refers to. It may be killed, paused or run twice at any point.

A blob is first marked in the register, then its bytes are deleted under the key in the register, then the entry is
removed. The next collection finishes blobs that are still marked.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.errors import HoldfastError
from holdfast.media.media_store import DEAD_SECONDS, MediaStore

_PAGES = 1000
"""How many free pages are returned to the file system at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """The result of a collection: how many blobs and bytes were deleted, and which could not be deleted, with the reasons."""

    blobs: int = 0
    bytes: int = 0
    dry_run: bool = False
    failed: tuple[str, ...] = ()


async def collect(
    media: MediaStore,
    *,
    grace: float | None = None,
    dead_after: float = DEAD_SECONDS,
    dry_run: bool = False,
    limit: int = 100,
    progress: Callable[[Collection], None] | None = None,
) -> Collection:
    """Delete media that no session has referred to and that was not uploaded for `grace` seconds, by default as in the settings.

    An upload in progress regularly updates its entry. An entry without an update for `dead_after` seconds, or `grace` if that is
    longer, is a leftover and is deleted too. Processes the register `limit` blobs at a time. With `dry_run` it only
    counts.
    """
    grace = media.store.settings.media_grace_seconds if grace is None else grace
    done = Collection(dry_run=dry_run)
    cursor: str | None = None
    while True:
        page = await media.store.mark_blobs_for_deletion(
            media.location, grace=grace, dead_after=dead_after, cursor=cursor, limit=limit, dry_run=dry_run
        )
        for blob in page.items:
            try:
                if not dry_run:
                    await media.remove(blob)
            except HoldfastError as error:  # it stays marked, and the others continue
                done = replace(done, failed=(*done.failed, f"{blob.sha256 or blob.id}: {error}"))
                continue
            done = replace(done, blobs=done.blobs + 1, bytes=done.bytes + blob.size)
            if progress is not None:
                progress(done)
        cursor = page.next_cursor
        if cursor is None:
            break
    if done.blobs and not dry_run and media.location == "database":
        left = await media.store.shrink(limit=_PAGES)
        while left and (now := await media.store.shrink(limit=_PAGES)) < left:
            left = now
    return done
