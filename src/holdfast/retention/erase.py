"""Erase: a session and all that was kept of it are gone for good; a tombstone and an audit entry remain.

The tombstone comes first: from then on nothing is accepted, and whoever finishes it, finishes the same erasure.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.errors import HoldfastError, SessionNotFound
from holdfast.media import MediaStore
from holdfast.retention.clean import delete
from holdfast.retention.holding import give_space_back, held
from holdfast.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What an erasure did: when it began, how many rows of each table are gone, and which other sessions went too."""

    session_id: str
    erased_at: datetime
    deleted: Mapping[str, int] = field(default_factory=dict[str, int])
    children: tuple["Erased", ...] = ()


async def erase(
    store: Store, media: MediaStore, session_id: str, *, actor: str, children: bool = False
) -> Erased:
    """Erase a session: content, archive, and media that no other session refers to. Erasing it again changes nothing.

    Raises `RetentionRefused` if it runs or is on hold, `SessionNotFound`. With `children` the sessions of its delegate
    runs go first, and theirs; if one of them is refused, this one stays.
    """
    erased = await _erase(store, media, session_id, actor, children=children, seen={session_id})
    await give_space_back(store)
    return erased


async def _erase(
    store: Store, media: MediaStore, session_id: str, actor: str, *, children: bool, seen: set[str]
) -> Erased:
    try:
        await store.standing(session_id)
    except SessionNotFound:
        at = await store.erased_at(session_id)
        if at is None:
            raise
        return Erased(session_id=session_id, erased_at=at)
    gone: list[Erased] = []
    for child in await store.child_sessions(session_id) if children else ():
        if child not in seen:
            seen.add(child)
            gone.append(await _erase(store, media, child, actor, children=True, seen=seen))
    async with held(store, session_id) as lease:
        await store.begin_erasing(lease)
        for blob in await store.drop_archive(lease):
            if blob.location == media.location:
                with suppress(HoldfastError):  # it is marked, and the collector finishes it
                    await media.remove(blob)
        deleted = await delete(store, media, lease, grace=0.0)
        detail = {"deleted": deleted, "children": [child.session_id for child in gone]}
        erased_at = await store.finish_erasing(lease, actor=actor, detail=json.dumps(detail))
    return Erased(session_id=session_id, erased_at=erased_at, deleted=deleted, children=tuple(gone))
