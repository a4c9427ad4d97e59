"""Move media from one location to another while sessions read and write it. It may be killed, paused or run twice at any point.

The content is copied to the new location and read back there, which checks its digest. Only then is the old entry in the register
marked, its bytes deleted and the entry removed. A run that was killed leaves content in both locations, or a marked entry; the
next run continues from there.
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace

from holdfast.errors import HoldfastError, MediaDamaged, MediaNotFound, StoreError
from holdfast.media.media_store import MediaStore, context_of, to_uri
from holdfast.types import Blob

_PAGE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The result of a move: how many blobs and bytes are now at the new location, and which are not, with the reasons."""

    blobs: int = 0
    bytes: int = 0
    failed: tuple[str, ...] = ()


async def move(
    target: MediaStore,
    *,
    session_id: str | None = None,
    progress: Callable[[Moved], None] | None = None,
) -> Moved:
    """Move all media in the register to the location of `target`; with `session_id`, that of one session and its archive.

    Content that several sessions refer to moves for all of them. Raises `SessionNotFound`.
    """
    done = Moved()
    async for blob in to_move(target, session_id):
        source = target.at(blob.location)
        try:
            if blob.state == "stored":
                await copy_blob(source, target, blob)
                if not await target.store.replace_blob(blob, target.location):
                    raise MediaNotFound(uri=blob.uri, location=target.location)
            await source.remove(blob)
        except StoreError:
            raise
        except HoldfastError as error:  # the others continue
            if isinstance(error, MediaNotFound) and not await _is_listed(source, blob):
                continue  # it was collected, or another process has moved it
            done = replace(done, failed=(*done.failed, f"{blob.sha256 or blob.id}: {error}"))
            continue
        if blob.state == "stored":
            done = replace(done, blobs=done.blobs + 1, bytes=done.bytes + blob.size)
        if progress is not None:
            progress(done)
    return done


async def to_move(target: MediaStore, session_id: str | None = None) -> AsyncGenerator[Blob, None]:
    """Yield the blobs at locations other than that of `target`: stored ones, and those marked for deletion."""
    store = target.store
    if session_id is not None:
        session = await store.session(session_id)
        digests = [] if session.archive is None else [session.archive]
        after: str | None = None
        while page := await store.references(session_id=session_id, after=after, limit=_PAGE):
            digests += [digest for _, digest in page]
            after = page[-1][1]
        for digest in digests:
            blob = await target.metadata(to_uri(digest))
            if blob.location != target.location:
                yield blob
        return
    cursor: str | None = None
    while True:
        blobs = await store.blobs(cursor=cursor, limit=_PAGE)
        for blob in blobs.items:
            if blob.location != target.location and blob.state != "storing":
                yield blob
        cursor = blobs.next_cursor
        if cursor is None:
            return


async def copy_blob(source: MediaStore, target: MediaStore, blob: Blob) -> None:
    """Copy the content of a blob to the target, unless it is there, and read it back, which checks its digest."""
    try:
        there = await target.store.blob(target.location, blob.sha256)
        is_there = await target._present(there)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    except MediaNotFound:
        is_there = False
    if not is_there:
        async with (
            source.open(blob.uri) as chunks,
            target.open(context=context_of(blob)) as writer,
        ):
            async for chunk in chunks:
                await writer.write(chunk)
        if writer.uri != blob.uri:
            raise MediaDamaged(
                uri=blob.uri, location=source.location, problem="they have a different SHA-256"
            )
    async with target.open(blob.uri) as chunks:
        async for _ in chunks:
            pass


async def _is_listed(media: MediaStore, blob: Blob) -> bool:
    try:
        return (await media.store.blob(media.location, blob.sha256)).id == blob.id
    except MediaNotFound:
        return False
