"""Stores on a pool or a client that belongs to the application."""

import asyncio
import json
from collections.abc import AsyncGenerator
from datetime import timedelta, timezone
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from pymongo import AsyncMongoClient

from holdfast import open_store
from holdfast.errors import BadInput, StoreError, StoreUnavailable
from holdfast.store import Store
from holdfast.store.postgres import connections
from holdfast.testing.store import StoreConformance
from tests.builders import held_session, ticks, until

_SETTINGS = (
    "application_name",
    "search_path",
    "synchronous_commit",
    "statement_timeout",
    "idle_in_transaction_session_timeout",
    "enable_seqscan",
    "jit",
    "plan_cache_mode",
    "default_transaction_isolation",
)
_STATE = f"""
SELECT pg_backend_pid() AS pid, {", ".join(f"current_setting('{name}') AS {name}" for name in _SETTINGS)},
  (SELECT count(*) FROM pg_listening_channels()) AS channels,
  (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks
"""


async def _init(connection: Any) -> None:
    """Configure a connection as no store would: its reset is left out, so nothing hides a setting that stays."""
    await connection.set_type_codec("json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    await connection.execute("SET synchronous_commit = off; SET statement_timeout = '777ms'")


async def _no_reset(connection: object) -> None:
    """Keep all settings of a connection that is released."""


@pytest.fixture
async def pool(postgres_url: str) -> AsyncGenerator["asyncpg.Pool[Any]", None]:
    async with asyncpg.create_pool(
        postgres_url,
        min_size=6,
        max_size=6,
        init=_init,
        reset=_no_reset,
        server_settings={
            "application_name": "shop",
            "search_path": "shop, public",
            "default_transaction_isolation": "serializable",
        },
    ) as pool:
        yield pool


@pytest.fixture
async def store(pool: "asyncpg.Pool[Any]") -> AsyncGenerator[Store, None]:
    async with open_store(pool=pool) as store:
        yield store
        assert await store.check() == []


async def _states(pool: "asyncpg.Pool[Any]") -> list[dict[str, Any]]:
    """Return the state of all connections of the pool."""
    taken = [await pool.acquire(timeout=5) for _ in range(pool.get_max_size())]
    rows = [dict((await connection.fetch(_STATE))[0]) for connection in taken]
    for connection in taken:
        await pool.release(connection)
    return sorted(rows, key=lambda row: row["pid"])


class TestConformance(StoreConformance):
    """The core of the contract holds on a borrowed pool as well."""


async def test_a_pool_is_as_it_was_when_the_store_is_closed(pool: "asyncpg.Pool[Any]"):
    before = await _states(pool)
    assert before[0]["search_path"] == "shop, public"
    async with open_store(pool=pool) as store:
        lease, _ = await held_session(store)  # it does not leave: its lock is released all the same
        await store.write(lease, ticks(3))
        assert [event.seq for event in await store.events(lease.session_id)] == [1, 2, 3]
        assert [name async for name, _ in store._snapshot(lease.session_id)]
        async with pool.acquire() as connection:  # while the store is open as well
            assert await connection.fetchval("SHOW search_path") == "shop, public"
        assert store.url.startswith("postgresql://")
    assert await _states(pool) == before


async def test_a_reader_that_is_cancelled_leaves_the_pool_as_it_was(pool: "asyncpg.Pool[Any]"):
    before = await _states(pool)
    async with open_store(pool=pool) as store:
        lease, _ = await held_session(store)
        for delay in range(20):
            reading = asyncio.create_task(store.events(lease.session_id))
            await asyncio.sleep(delay / 2000)
            reading.cancel()
            await asyncio.wait([reading])
        assert (await store.session(lease.session_id)).seq == 0
    for after in await _states(pool):
        assert {**after, "pid": 0} == {**before[0], "pid": 0}


async def test_a_store_on_a_pool_recovers_when_its_connections_break(
    pool: "asyncpg.Pool[Any]", postgres_url: str
):
    async with open_store(pool=pool) as store:
        lease, _ = await held_session(store)
        await store.write(lease, ticks())
        killer = await asyncpg.connect(postgres_url)
        await killer.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await killer.close()
        assert await store.write(lease, ticks()) == 2
        assert (await store.session(lease.session_id)).seq == 2
    assert len(await _states(pool)) == pool.get_max_size()


async def test_a_pool_that_is_too_small(postgres_url: str):
    async with asyncpg.create_pool(postgres_url, min_size=0, max_size=4) as pool:
        with pytest.raises(StoreError, match="max_size=4, but a store needs at least 5"):
            await open_store(pool=pool).open()


async def test_a_pool_that_is_closed_or_not_open(postgres_url: str):
    pool = asyncpg.create_pool(postgres_url, min_size=0)
    with pytest.raises(StoreError, match="not initialized"):
        await open_store(pool=pool).open()
    async with pool:
        pass
    with pytest.raises(StoreUnavailable, match="its pool is closed"):
        await open_store(pool=pool).open()


async def test_a_pool_of_another_event_loop(pool: "asyncpg.Pool[Any]"):
    def open_elsewhere() -> None:
        asyncio.run(open_store(pool=pool).open())  # pyright: ignore[reportArgumentType]

    with pytest.raises(StoreError, match="another event loop"):
        await asyncio.to_thread(open_elsewhere)


async def test_a_pool_whose_connections_are_all_in_use(
    pool: "asyncpg.Pool[Any]", store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.2)

    async def is_listening() -> bool:
        return pool.get_idle_size() == pool.get_max_size() - 1

    await until(is_listening)
    taken = [await pool.acquire() for _ in range(pool.get_idle_size())]
    with pytest.raises(StoreUnavailable, match="all 6 connections of the pool were in use"):
        await store.sessions()
    for connection in taken:
        await pool.release(connection)
    assert (await store.sessions()).items == []


async def test_one_source_at_a_time(pool: "asyncpg.Pool[Any]"):
    with pytest.raises(BadInput, match="exactly one of"):
        open_store("sqlite://:memory:", pool=pool)
    with pytest.raises(BadInput, match="accepts a database only with a client"):
        open_store(pool=pool, database="shop")


@pytest.mark.mongodb
async def test_a_mongodb_client_is_as_it_was_when_the_store_is_closed(mongo_url: str):
    elsewhere = timezone(timedelta(hours=5))
    async with AsyncMongoClient[dict[str, Any]](
        mongo_url, w=1, readPreference="secondaryPreferred", tz_aware=True, tzinfo=elsewhere
    ) as client:
        options = client.codec_options
        name = urlsplit(mongo_url).path[1:]
        async with open_store(client=client) as store:
            assert store.url.endswith(f"/{name}")
            lease, _ = await held_session(store)
            await store.write(lease, ticks(2))
            watching = store.watch(lease.session_id)
            assert [(await anext(watching)).seq for _ in range(2)] == [1, 2]
            await watching.aclose()
            session = await store.session(lease.session_id)
            assert abs(session.created_at - session.active_at) < timedelta(minutes=5)
            assert [name async for name, _ in store._snapshot(lease.session_id)]
        assert (client.codec_options, client.write_concern.document) == (options, {"w": 1})
        assert (await client.admin.command("ping"))["ok"] == 1


@pytest.mark.mongodb
async def test_a_mongodb_client_that_cannot_be_used(mongo_url: str):
    async with AsyncMongoClient[dict[str, Any]](mongo_url, maxPoolSize=1) as small:
        with pytest.raises(StoreError, match="maxPoolSize=1"):
            await open_store(client=small).open()
    client = AsyncMongoClient[dict[str, Any]](mongo_url)
    await client.admin.command("ping")

    def open_elsewhere() -> None:
        asyncio.run(open_store(client=client, database="shop").open())  # pyright: ignore[reportArgumentType]

    with pytest.raises(StoreError, match="another event loop"):
        await asyncio.to_thread(open_elsewhere)
    await client.close()
    with pytest.raises(StoreError, match="after close"):
        await open_store(client=client).open()
