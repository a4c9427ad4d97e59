"""Short ways to a session that is held, so that a test can begin with what it is about."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from holdfast.store import Store
from holdfast.types import Batch, Holder, Lease, NewEvent


async def new_session(store: Store, **more: str) -> str:
    return (await store.create_session(**{"agent": "scribe", "owner": "ada", **more})).id  # pyright: ignore[reportArgumentType]


async def held_session(store: Store, *, ttl: float = 60.0) -> tuple[Lease, Holder]:
    session_id = await new_session(store)
    holder = await store.join("test", ttl=ttl)
    return await store.acquire(session_id, holder), holder


def brief(store: Store) -> float:
    """Return a lifetime short enough to wait for its end, and long enough to take a lease before."""
    return 2.0 if store.engine == "mongodb" else 0.3


def within(store: Store, seconds: float) -> asyncio.Timeout:
    """Give up after so long; later where the server may run in an emulator."""
    return asyncio.timeout(seconds * 5 if store.engine == "mongodb" else seconds)


def ticks(count: int = 1) -> Batch:
    return Batch(events=[NewEvent(kind="tick")] * count)


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
