"""Rehydrate: restore a cleaned session from its archive, atomically and with its original ids and times.

The whole archive is verified before anything is stored. An existing session is never overwritten.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Final

from holdfast.errors import (
    BadArchive,
    HoldfastError,
    MediaCollected,
    NotCleaned,
    NotFound,
    SessionErased,
    SessionExists,
    SessionNotFound,
)
from holdfast.media import MediaStore, to_uri
from holdfast.retention.archive import Archive, longest_line, put_blobs, rows_of, spool, verify_archive
from holdfast.retention.holding import hold_for_retention
from holdfast.store import Store

_PUTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The result of a restore: how many records of each kind, and the SHA-256 of the archive."""

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
    """Restore a cleaned session from the file `archive`, or from the archive that was stored when it was cleaned.

    An archive with a different title, metadata or cursors than the session had when it was cleaned is refused unless `force` is
    set. Raises `BadArchive`, `NotCleaned`, `SessionErased`, `SessionNotFound`, or `Conflict` for an id that another session
    has. In every case nothing was changed, and the call can be retried.
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
    """Add the session of an archive to a store that does not have it, with the same ids.

    If the store has the session and it is cleaned, restore it as `rehydrate` does. Raises `SessionExists` if it has content.
    `action` is recorded in the audit.
    """
    longest = longest_line(store.settings.max_payload_bytes)
    verified = await asyncio.to_thread(verify_archive, archive, longest=longest)
    session_id = verified.session_id
    if await store.erased_at(session_id) is not None:
        raise SessionErased(id=session_id)
    try:
        state = await store.retention_state(session_id)
    except SessionNotFound:

        async def add() -> Mapping[str, int]:
            return await store.import_rows(
                session_id,
                lambda: rows_of(archive, verified, longest=longest),
                action=action,
                actor=actor,
                detail=_detail(verified),
            )

        counts = await _put_and_import(media, archive, verified, longest, add)
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
        raise BadArchive(problem=f"it belongs to session {verified.session_id}, not {session_id}")

    async def restore() -> Mapping[str, int]:
        async with hold_for_retention(store, session_id) as lease:
            return await store.import_rows(
                session_id,
                lambda: rows_of(archive, verified, longest=longest),
                lease=lease,
                actor=actor,
                detail=_detail(verified, force=force),
                force=force,
            )

    stored = (await store.retention_state(session_id)).archive
    counts = await _put_and_import(media, archive, verified, longest, restore)
    if stored is not None:
        with suppress(HoldfastError):  # no session refers to it any more, and the collector deletes it
            await media.delete(to_uri(stored))
    return Restored(session_id=session_id, archive_sha256=verified.sha256, restored=counts)


async def _put_and_import(
    media: MediaStore,
    archive: IO[bytes],
    verified: Archive,
    longest: int,
    import_rows: Callable[[], Awaitable[Mapping[str, int]]],
) -> Mapping[str, int]:
    """Put the media of an archive, then import its rows. Repeat the upload of media that another session's clean deleted in between.

    No session refers to this content yet: if the import fails, the collector deletes it.
    """
    left = _PUTS
    while True:
        left -= 1
        if verified.counts.get("blob_references"):  # else it need not be read again
            await put_blobs(media, archive, longest=longest)
        try:
            return await import_rows()
        except MediaCollected:
            if not left:
                raise


def _detail(archive: Archive, *, force: bool = False) -> str:
    detail = {"archive_sha256": archive.sha256, "restored": dict(archive.counts)}
    return json.dumps({**detail, "force": True} if force else detail)
