"""Test your own agents: a store in memory, a clock that you control, a process that dies where you want, and the ledger.

    async def test_a_letter_is_sent_once():
        clock = ManualClock()
        async with memory_store(clock) as store:
            with pytest.raises(Killed), killed_after(store, "tool_call_started"):
                await agent.run("Write to Ada.", conversation_id="letters", capabilities=[Holdfast(store)])
            clock.advance(60)  # the lease of the dead process expires
            async with connect(store, agents=[agent]) as hf:
                session = await hf.session("letters")
                await (await session.send("Go on."))
            assert [(call.tool, call.attempts) for call in await ledger(store, "letters")] == [("send_letter", 1)]

`docs/how-to/testing.md` has the whole example.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from holdfast.config import Settings, load_settings
from holdfast.errors import StoreClosed
from holdfast.store import Store
from holdfast.store.sqlite.store import SqliteStore
from holdfast.types import Batch, Effect, Lease


class ManualClock:
    """A clock that stands still until you advance it. It starts at the current time."""

    def __init__(self, start: float | None = None) -> None:
        self._now = time.time() if start is None else start

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Leases, credentials and tokens expire, and sessions become due for retention."""
        self._now += seconds


def memory_store(clock: Callable[[], float] = time.time, *, settings: Settings | None = None) -> Store:
    """Return a store in memory, whose time is that of the clock. Open it with `async with`."""
    return SqliteStore(
        "sqlite://:memory:", ":memory:", upgrade=True, settings=settings or load_settings(), clock=clock
    )


class Killed(BaseException):
    """The simulated end of the process. It is not an `Exception`, so that agents and tools do not catch it."""


@contextmanager
def killed_after(store: Store, kind: str, *, number: int = 1) -> Generator[None, None, None]:
    """Simulate that the process is killed right after an event of this kind is durable, for the `number`-th time.

    That write raises `Killed`. After it, the store rejects all writes under a lease until the block ends, so that no run can record
    or release anything, as after `kill -9`. The lease stays until it expires: advance the clock, or wait. `holdfast.events` lists the kinds.
    """
    original = {name: getattr(store, name) for name in ("write", "release", "leave", "renew")}
    left = number

    async def write(lease: Lease, batch: Batch) -> int:
        nonlocal left
        if left <= 0:
            raise StoreClosed(url=store.url)
        seq: int = await original["write"](lease, batch)
        left -= sum(event.kind == kind for event in batch.events)
        if left <= 0:
            raise Killed
        return seq

    def rejecting(name: str) -> Callable[..., Any]:
        async def method(*args: Any, **options: Any) -> Any:
            if left <= 0:
                raise StoreClosed(url=store.url)
            return await original[name](*args, **options)

        return method

    patched = {"write": write, **{name: rejecting(name) for name in ("release", "leave", "renew")}}
    for name, method in patched.items():
        setattr(store, name, method)
    try:
        yield
    finally:
        for name in patched:
            delattr(store, name)


async def ledger(store: Store, session_id: str) -> list[Effect]:
    """Return the ledger entries of all tool calls of a session, in the order of its runs."""
    entries: list[Effect] = []
    cursor: str | None = None
    while True:
        runs = await store.runs(session_id=session_id, cursor=cursor)
        for run in runs.items:
            page_cursor: str | None = None
            while True:
                page = await store.effects(session_id, run_id=run.id, cursor=page_cursor)
                entries += page.items
                page_cursor = page.next_cursor
                if page_cursor is None:
                    break
        cursor = runs.next_cursor
        if cursor is None:
            return entries
