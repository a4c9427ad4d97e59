"""Clean: check the guards, then delete the content of a session under its lease. A clean that was killed can be repeated.

Nothing is deleted before a requested archive has been read back and verified.
"""

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from time import monotonic
from typing import Literal

from holdfast.errors import BadArchive, BadInput, HoldfastError, RetentionRefused
from holdfast.guards import refuse_cleaning
from holdfast.media import MediaContext, MediaStore, digest_of, to_uri
from holdfast.notices.mirror import delete_files
from holdfast.retention.archive import longest_line, spool, verify_archive, write_archive
from holdfast.retention.holding import give_space_back, hold_for_retention, refuse_policy_hold
from holdfast.store import Store
from holdfast.types import Holder, Lease, RetentionState

IDLE_DAYS = 7.0
DAY = 86400.0
_FIRST_ROWS = 8
_ROWS = 1000
_QUICK_SECONDS = 0.1
_REFERENCES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """The result of a clean: how many rows of each table were deleted, and the archive, if one was made."""

    session_id: str
    cleaned_at: datetime | None
    archive: str | None = None
    deleted: Mapping[str, int] = field(default_factory=dict[str, int])
    dry_run: bool = False
    files_pending: bool = False
    """Whether files of a mirror are not deleted yet."""


async def clean(
    store: Store,
    media: MediaStore,
    session_id: str,
    *,
    actor: str,
    idle_days: float = IDLE_DAYS,
    grace_days: float | None = None,
    force: bool = False,
    archive: Literal["media"] | None = None,
    dry_run: bool = False,
    policy: str | None = None,
    holder: Holder | None = None,
    progress: Callable[[int], None] | None = None,
) -> Cleaned:
    """Delete the content of a session. Cleaning a cleaned session does nothing.

    Raises `RetentionRefused` with the guard: `running`, `hold`, and, unless `force` is set, `pending`, `cursor`,
    `idle` and `rehydrated`. A session that was restored from an archive is kept for `grace_days`: by default as long as the settings
    define, but at most `idle_days`. With `archive="media"` an archive is first stored in the media store. `dry_run` only returns what
    would be deleted. `policy` is recorded in the audit. A caller that passes a live `holder` must also return the freed space.

    If a mirror has files of the session, it waits some seconds until they are deleted, except with a `holder`; `files_pending` is set if
    some are left. A worker deletes them later.
    """
    if not idle_days >= 0:
        raise BadInput(problem=f"idle_days must be 0 or more, not {idle_days}")
    if archive not in {None, "media"}:
        raise BadInput(problem=f'archive must be "media" or None, not {archive!r}')
    grace = min(idle_days, store.settings.retention_rehydrated_days) if grace_days is None else grace_days
    if dry_run:
        return await _would_clean(store, session_id, idle_days * DAY, grace * DAY, force)
    await refuse_policy_hold(store, session_id)
    async with hold_for_retention(store, session_id, holder) as lease:
        state = await store.begin_cleaning(lease, idle=idle_days * DAY, grace=grace * DAY, force=force)
        if state.status == "cleaned":
            done = Cleaned(session_id=session_id, cleaned_at=state.cleaned_at, archive=_uri(state.archive))
        else:
            kept = state.archive
            if archive is not None:
                kept = await _archived(store, media, lease, state)
            deleted = await delete(store, media, lease, progress=progress)
            detail = {"deleted": deleted, "archive": _uri(kept), "force": force, "idle_days": idle_days}
            if policy is not None:
                detail["policy"] = policy
            cleaned_at = await store.finish_cleaning(lease, actor=actor, detail=json.dumps(detail))
            done = Cleaned(session_id=session_id, cleaned_at=cleaned_at, archive=_uri(kept), deleted=deleted)
    if holder is None:
        await give_space_back(store)
    return replace(done, files_pending=await delete_files(store, [session_id], wait=holder is None))


async def delete(
    store: Store,
    media: MediaStore,
    lease: Lease,
    *,
    progress: Callable[[int], None] | None = None,
) -> dict[str, int]:
    """Delete the content of a session, a bounded number of rows at a time, and count the rows by table.

    Media that no other session refers to is deleted without a grace period. A writer that was about to refer to it is refused, and
    uploads it again.
    """
    deleted: dict[str, int] = {}
    count = _REFERENCES
    overhead = math.inf  # of each transaction: the store may be far away
    while count == _REFERENCES:  # fewer means that none is left: no other process writes to the session
        began = monotonic()
        count, blobs = await store.drop_references(lease, limit=_REFERENCES)
        overhead = min(overhead, monotonic() - began)
        if count:
            deleted["blob_references"] = deleted.get("blob_references", 0) + count
        for blob in blobs:
            with suppress(HoldfastError):  # it is marked, and the collector deletes it
                await media.at(blob.location).remove(blob)
    limit = count = _FIRST_ROWS
    while count == limit:
        began = monotonic()
        batch = await store.delete_content(lease, limit=limit)
        seconds = monotonic() - began
        overhead = min(overhead, seconds)
        count = sum(batch.values())
        for table, number in batch.items():
            deleted[table] = deleted.get(table, 0) + number
        if progress is not None:
            progress(sum(deleted.values()))
        if count == limit:  # rows may be large, and other writers wait while they are deleted
            is_quick = seconds < 2 * overhead + _QUICK_SECONDS
            limit = count = min(limit * 4, _ROWS) if is_quick else max(limit // 4, 1)
    return deleted


async def _would_clean(store: Store, session_id: str, idle: float, grace: float, force: bool) -> Cleaned:
    state = await store.retention_state(session_id)
    if state.status != "cleaned":
        await refuse_policy_hold(store, session_id)
        refuse_cleaning(state, idle=idle, grace=grace, force=force)
    return Cleaned(
        session_id=session_id,
        cleaned_at=state.cleaned_at,
        archive=_uri(state.archive),
        deleted=await store.content_counts(session_id),
        dry_run=True,
    )


async def _archived(store: Store, media: MediaStore, lease: Lease, state: RetentionState) -> str:
    """Return the digest of an archive that is stored, verified and recorded, so that deletion may start."""
    if state.status == "cleaning" and state.cleaned_at is not None:
        if state.archive is not None:
            return state.archive  # an earlier attempt was killed after it had started to delete
        raise RetentionRefused(
            session_id=lease.session_id,
            guard="archive",
            problem="its deletion has started without an archive",
            hint="Finish it without an archive.",
        )
    try:
        sha256 = await _store_archive(store, media, lease.session_id)
        await store.keep_archive(lease, sha256)
    except BaseException:
        with suppress(HoldfastError):  # it stays `cleaning`, and the next clean continues
            await asyncio.shield(store.stop_cleaning(lease))
        raise
    return sha256


async def _store_archive(store: Store, media: MediaStore, session_id: str) -> str:
    context = MediaContext(media_type="application/gzip", file_name=f"{session_id}.ndjson.gz")
    async with media.open(context=context) as writer:
        async for piece in write_archive(store, media, session_id, compress=True):
            await writer.write(piece)
    async with media.open(writer.uri) as chunks:
        file = await spool(chunks)
    with file:
        longest = longest_line(store.settings.max_payload_bytes)
        archive = await asyncio.to_thread(verify_archive, file, longest=longest)
    if archive.session_id != session_id:
        raise BadArchive(problem=f"it belongs to session {archive.session_id}, not {session_id}")
    return digest_of(writer.uri)


def _uri(sha256: str | None) -> str | None:
    return None if sha256 is None else to_uri(sha256)
