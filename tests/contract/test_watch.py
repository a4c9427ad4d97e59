import asyncio
import random

import pytest

from holdfast.errors import EventNotFound, SessionNotFound, StoreClosed
from holdfast.store import Store, open_store
from holdfast.store.hub import Hub
from holdfast.testing.store import collect
from tests.builders import held_session, new_session, ticks, within
from tests.conftest import Engine


async def test_a_reader_that_reconnects_at_random_sees_everything_once(store: Store):
    chance = random.Random(7)
    lease, _ = await held_session(store)
    total = 400

    async def write() -> None:
        while total > (done := (await store.session(lease.session_id)).seq):
            await store.write(lease, ticks(min(chance.randint(1, 3), total - done)))
            await asyncio.sleep(chance.choice([0, 0, 0.001]))

    async def read() -> list[int]:
        seen: list[int] = []
        while len(seen) < total:
            watching = store.watch(lease.session_id, after=seen[-1] if seen else 0)
            for _ in range(min(chance.randint(1, 20), total - len(seen))):
                seen.append((await anext(watching)).seq)
            await watching.aclose()
        return seen

    async with within(store, 60):
        _, *readers = await asyncio.gather(write(), *(read() for _ in range(3)))
    assert readers == [list(range(1, total + 1))] * 3


async def test_what_is_submitted_is_watched_too(store: Store):
    session_id = await new_session(store)
    watching = store.watch(session_id)
    first = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0.01)
    await store.submit(session_id, "message")
    async with within(store, 5):
        assert (await first).kind == "submission_queued"
    await watching.aclose()


async def test_an_unknown_session(store: Store):
    with pytest.raises(SessionNotFound):
        await anext(store.watch("nowhere"))


async def test_a_reader_that_is_ahead_of_the_session_is_told_so(store: Store):
    """It has numbers that a restored store has not; it would wait until they are reached, and miss what has them now."""
    lease, _ = await held_session(store)
    await store.write(lease, ticks(2))
    waiting = asyncio.ensure_future(anext(store.watch(lease.session_id, after=5)))
    async with within(store, 10):
        with pytest.raises(EventNotFound, match="its last event is 2"):
            await waiting


@pytest.mark.processes
async def test_across_stores(engine: Engine, store: Store):
    """A second store on the same database is what another process has."""
    lease, _ = await held_session(store)
    async with open_store(engine.url) as other:
        watching = asyncio.create_task(collect(other, lease.session_id, after=0, upto=200))
        for _ in range(200):
            await store.write(lease, ticks())
        async with within(store, 20):
            assert await watching == list(range(1, 201))


def forget(*_: object) -> None:
    """Tell nobody."""


@pytest.mark.processes
async def test_a_lost_hint_costs_a_moment_not_an_event(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
):
    lease, _ = await held_session(store)
    async with open_store(engine.url) as other:
        watching = asyncio.create_task(collect(other, lease.session_id, after=0, upto=1))
        await asyncio.sleep(0.05)
        monkeypatch.setattr(Hub, "changed", forget)
        monkeypatch.setattr("holdfast.store.postgres.notifier.Notifier.announce", forget)
        await store.write(lease, ticks())
        async with within(store, 5):
            assert await watching == [1]


async def test_nobody_waits_for_a_store_that_is_closed(engine: Engine):
    store = await open_store(engine.url).open()
    session_id = await new_session(store)
    waiting = asyncio.ensure_future(anext(store.watch(session_id)))
    await asyncio.sleep(0.05)
    await store.close()
    async with within(store, 5):
        with pytest.raises(StoreClosed):
            await waiting
