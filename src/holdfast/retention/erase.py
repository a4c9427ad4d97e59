"""Erase: permanently delete a session and everything stored for it, except a tombstone and an audit entry.

The tombstone is written first: from then on the session accepts nothing, and a later call finishes the same erasure.
"""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from holdfast.errors import HoldfastError, SessionNotFound
from holdfast.media import MediaStore
from holdfast.notices.mirror import delete_files
from holdfast.retention.clean import DAY, delete
from holdfast.retention.holding import give_space_back, hold_for_retention, refuse_policy_hold
from holdfast.store import Store
from holdfast.types import Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """The result of an erasure: when it began, how many rows of each table were deleted, and which child sessions were erased."""

    session_id: str
    erased_at: datetime
    deleted: Mapping[str, int] = field(default_factory=dict[str, int])
    children: tuple["Erased", ...] = ()
    files_pending: bool = False
    """Whether files of a mirror are not deleted yet, of this session or of its children."""


async def erase(
    store: Store,
    media: MediaStore,
    session_id: str,
    *,
    actor: str,
    children: bool = False,
    idle_days: float | None = None,
    grace_days: float = 0.0,
    policy: str | None = None,
    holder: Holder | None = None,
) -> Erased:
    """Erase a session: its content, its archive, and media that no other session refers to. Erasing it again does nothing.

    Raises `RetentionRefused` if it is running or on hold, and `SessionNotFound`. With `children`, first erase the sessions of its
    delegate runs that have the same owner, recursively; if one of them is refused, this session is not erased. With `idle_days` the
    guards of a clean apply too, as for a policy; `grace_days` is for a session that was restored from an archive. `policy` is
    recorded in the audit. A caller that passes a live `holder` must also return the freed space.

    If a mirror has files of these sessions, it waits some seconds until they are deleted, except with a `holder`; `files_pending` is set
    if some are left. A worker deletes them later.
    """
    terms = _Terms(actor, children, idle_days, grace_days, policy, holder)
    erased = await _erase(store, media, session_id, terms, seen={session_id})
    if holder is None:
        await give_space_back(store)
    pending = await delete_files(store, list(_erased_ids(erased)), wait=holder is None)
    return replace(erased, files_pending=pending)


def _erased_ids(erased: Erased) -> Iterator[str]:
    yield erased.session_id
    for child in erased.children:
        yield from _erased_ids(child)


async def all_children(store: Store, session_id: str) -> AsyncGenerator[str, None]:
    """Yield the sessions with delegates of this session's runs, page by page."""
    after: str | None = None
    while page := await store.child_sessions(session_id, after=after):
        for child in page:
            yield child
        after = page[-1]


@dataclass(frozen=True, slots=True)
class _Terms:
    actor: str
    children: bool
    idle_days: float | None
    grace_days: float
    policy: str | None
    holder: Holder | None


async def _erase(
    store: Store, media: MediaStore, session_id: str, terms: _Terms, *, seen: set[str]
) -> Erased:
    try:
        await store.retention_state(session_id)
    except SessionNotFound:
        at = await store.erased_at(session_id)
        if at is None:
            raise
        return Erased(session_id=session_id, erased_at=at)
    await refuse_policy_hold(store, session_id)
    gone: list[Erased] = []
    if terms.children:
        async for child in all_children(store, session_id):
            if child not in seen:
                seen.add(child)
                gone.append(await _erase(store, media, child, terms, seen=seen))
    async with hold_for_retention(store, session_id, terms.holder) as lease:
        if terms.idle_days is not None:
            await store.begin_cleaning(lease, idle=terms.idle_days * DAY, grace=terms.grace_days * DAY)
        await store.begin_erasing(lease)
        for blob in await store.drop_archive(lease):
            with suppress(HoldfastError):  # it is marked, and the collector deletes it
                await media.at(blob.location).remove(blob)
        deleted = await delete(store, media, lease)
        detail: dict[str, object] = {"deleted": deleted, "children": [child.session_id for child in gone]}
        if terms.policy is not None:
            detail["policy"] = terms.policy
        erased_at = await store.finish_erasing(lease, actor=terms.actor, detail=json.dumps(detail))
    return Erased(session_id=session_id, erased_at=erased_at, deleted=deleted, children=tuple(gone))
