"""Short ways to a session that is held, so that a test can begin with what it is about."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from holdfast.store import Store
from holdfast.testing.store import held_session, new_session, ticks, within
from holdfast.types import Blob, Holder, Lease

__all__ = ["brief", "claim", "held_session", "new_session", "ticks", "until", "within"]


def brief(store: Store) -> float:
    """Return a lifetime short enough to wait for its end, and long enough to take a lease before."""
    return 2.0 if store.engine == "mongodb" else 0.3


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 30.0) -> None:
    """Wait for the thing itself."""
    deadline = monotonic() + seconds
    while not await condition():
        assert monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


async def claim(store: Store, holder: Holder, **options: Any) -> Lease | None:
    """Return the lease of the session that has been ready longest, if there is one. Its first submission has begun."""
    for work in await store.next_work(holder, **options):
        return work.lease
    return None


async def contents(store: Store) -> list[Blob]:
    """The blobs that are not profiles of model requests."""
    return [blob for blob in (await store.blobs()).items if blob.media_type != "application/json"]


async def referred(store: Store, session_id: str) -> set[str]:
    """The digests of those that a session refers to."""
    found = {blob.sha256 for blob in await contents(store)}
    return {sha256 for _, sha256 in await store.references(session_id=session_id)} & found
