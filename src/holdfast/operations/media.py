"""Media, by digest. Access requires a session that refers to it."""

from holdfast.errors import NotFound
from holdfast.media import MediaStore, open_media
from holdfast.operations.access import Caller


async def find_media(caller: Caller, sha256: str) -> MediaStore:
    """Return the media store, if a session that the caller may see refers to the content. Raises `NotFound`."""
    if not await caller.store.is_referenced(sha256, owner=caller.principal.owner_filter):
        raise NotFound(what="media", id=sha256)
    return open_media(store=caller.store)
