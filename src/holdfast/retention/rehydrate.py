"""Rehydrate: bring a cleaned session back from its archive, all or nothing, with every id and time as it was.

The archive is verified from its first to its last byte before anything is stored. Never overwrites a session.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO

from holdfast.errors import BadArchive, NotCleaned, NotFound, SessionErased, SessionExists, SessionNotFound
from holdfast.media import MediaStore, to_uri
from holdfast.retention.archive import Archive, longest_line, put_blobs, rows_of, spool, verify_archive
from holdfast.retention.holding import held
from holdfast.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What came back: how many records of each kind, from the archive with this SHA-256."""

    session_id: str
    archive_sha256: str
    restored: Mapping[str, int] = field(default_factory=dict[str, int])


async def rehydrate(
    store: Store,
    media: MediaStore,
    session_id: str,
    archive: IO[bytes] | None = None,
    *,
    actor: str,
    force: bool = False,
) -> Restored:
    """Bring a cleaned session back from `archive`, a file, or from the one that was stored when it was cleaned.

    An archive with another title, metadata or cursors than the session had when it was cleaned is refused unless `force` is given. Raises `BadArchive`, `NotCleaned`, `SessionErased`, `SessionNotFound`, `Conflict` for an id that another session
    has; in every case nothing was changed, and it may be tried again.
    """
    if await store.erased_at(session_id) is not None:
        raise SessionErased(id=session_id)
    state = await store.retention_state(session_id)
    if state.status != "cleaned":
        raise NotCleaned(id=session_id, status=state.status)
    if archive is not None:
        return await _restore(store, media, session_id, archive, actor, force)
    if state.archive is None:
        raise NotFound(what="stored archive of session", id=session_id)
    async with media.open(to_uri(state.archive)) as chunks:
        stored = await spool(chunks)
    with stored:
        return await _restore(store, media, session_id, stored, actor, force)


async def import_archive(
    store: Store,
    media: MediaStore,
    archive: IO[bytes],
    *,
    actor: str,
    force: bool = False,
    action: str | None = None,
) -> Restored:
    """Add the session of an archive to a store that does not have it, under the same ids.

    If the store has it and it is cleaned there, it is brought back, as `rehydrate` does. Raises `SessionExists` if it has content. `action` is
    for the audit.
    """
    longest = longest_line(store.settings.max_payload_bytes)
    verified = await asyncio.to_thread(verify_archive, archive, longest=longest)
    session_id = verified.session_id
    if await store.erased_at(session_id) is not None:
        raise SessionErased(id=session_id)
    try:
        state = await store.retention_state(session_id)
    except SessionNotFound:
        await _put_blobs(media, archive, verified, longest)
        counts = await store.import_rows(
            session_id,
            lambda: rows_of(archive, verified, longest=longest),
            action=action,
            actor=actor,
            detail=_detail(verified),
        )
        return Restored(session_id=session_id, archive_sha256=verified.sha256, restored=counts)
    if state.status != "cleaned":
        raise SessionExists(id=session_id)
    await asyncio.to_thread(archive.seek, 0)
    return await _restore(store, media, session_id, archive, actor, force)


async def _restore(
    store: Store, media: MediaStore, session_id: str, archive: IO[bytes], actor: str, force: bool
) -> Restored:
    longest = longest_line(store.settings.max_payload_bytes)
    verified = await asyncio.to_thread(verify_archive, archive, longest=longest)
    if verified.session_id != session_id:
        raise BadArchive(problem=f"it is of session {verified.session_id}, not {session_id}")
    # Content nobody refers to yet: if the rest fails, the collector takes it.
    await _put_blobs(media, archive, verified, longest)
    async with held(store, session_id) as lease:
        counts = await store.import_rows(
            session_id,
            lambda: rows_of(archive, verified, longest=longest),
            lease=lease,
            actor=actor,
            detail=_detail(verified, force=force),
            force=force,
        )
    return Restored(session_id=session_id, archive_sha256=verified.sha256, restored=counts)


async def _put_blobs(media: MediaStore, archive: IO[bytes], verified: Archive, longest: int) -> None:
    if verified.counts.get("blob_references"):  # else there is no need to read it once more
        await put_blobs(media, archive, longest=longest)


def _detail(archive: Archive, *, force: bool = False) -> str:
    detail = {"archive_sha256": archive.sha256, "restored": dict(archive.counts)}
    return json.dumps({**detail, "force": True} if force else detail)
