"""A store behind PgBouncer, whose server connections are shared by all of its clients."""

import asyncio
from collections.abc import AsyncGenerator, Generator

import asyncpg
import pytest

from holdfast import open_store
from holdfast.errors import StoreError
from holdfast.store import Store
from holdfast.store.postgres import connections
from holdfast.store.postgres.address import parse_address
from holdfast.testing.store import StoreConformance, collect
from tests.builders import held_session, ticks, until
from tests.pooler import PgBouncer, pooled
from tests.servers import POSTGRES_VERSION, Postgres

pytestmark = pytest.mark.pgbouncer

_SIZE = 4
_LEFT_BEHIND = """
SELECT current_setting('search_path') AS search_path, current_setting('enable_seqscan') AS enable_seqscan,
  (SELECT count(*) FROM pg_listening_channels()) AS channels,
  (SELECT count(*) FROM pg_prepared_statements) AS statements,
  (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks
"""


@pytest.fixture(scope="module")
def pooler(postgres_server: Postgres) -> Generator[PgBouncer, None, None]:
    with pooled(postgres_server.port, size=_SIZE) as pooler:
        yield pooler


@pytest.fixture
def database(postgres_url: str) -> str:
    return postgres_url.rpartition("/")[2]


@pytest.fixture
async def store(pooler: PgBouncer, database: str) -> AsyncGenerator[Store, None]:
    async with open_store(pooler.url(database, "transaction")) as store:
        yield store
        assert await store.check() == []


class TestConformance(StoreConformance):
    """The core of the contract holds behind a pooler in transaction mode as well."""


async def test_more_stores_than_connections(pooler: PgBouncer, database: str, store: Store):
    """Twelve stores, each with several connections, share four to the server, and see what the others write."""
    stores = [open_store(pooler.url(database, "transaction")) for _ in range(12)]
    try:
        await asyncio.gather(*(each.open() for each in stores))
        lease, _ = await held_session(store)
        readers = [asyncio.create_task(collect(each, lease.session_id, after=0, upto=50)) for each in stores]
        for _ in range(50):
            await store.write(lease, ticks())
        async with asyncio.timeout(30):
            assert await asyncio.gather(*readers) == [list(range(1, 51))] * len(stores)
    finally:
        await asyncio.gather(*(each.close() for each in stores))


async def test_nothing_is_left_on_connections_that_others_use(pooler: PgBouncer, database: str, store: Store):
    lease, _ = await held_session(store)
    await store.write(lease, ticks(3))
    await store.submit(lease.session_id, "message", "{}", idempotency_key="k")
    assert [name async for name, _ in store._snapshot(lease.session_id)]  # pyright: ignore[reportPrivateUsage]
    others = [
        await asyncpg.connect(pooler.url(database), statement_cache_size=0, timeout=5) for _ in range(_SIZE)
    ]
    try:
        for other in others:  # each keeps a server connection as long as its transaction is open
            await other.execute("BEGIN")
        pids = {await other.fetchval("SELECT pg_backend_pid()") for other in others}
        assert len(pids) == _SIZE
        for other in others:
            row = await other.fetchrow(_LEFT_BEHIND)
            assert dict(row or {}) == {
                "search_path": '"$user", public',
                "enable_seqscan": "on",
                "channels": 0,
                "statements": 0,
                "locks": 0,
            }
    finally:
        for other in others:
            await other.close()


async def test_a_pooler_that_the_url_does_not_name_is_noticed(pooler: PgBouncer, database: str):
    with pytest.raises(StoreError, match=r"Add \?pooler=transaction to the URL"):
        await open_store(pooler.url(database)).open()
    other = await asyncpg.connect(pooler.url(database), statement_cache_size=0)
    try:
        assert await other.fetchval("SHOW search_path") == '"$user", public'
    finally:
        await other.close()


async def test_session_mode(postgres_server: Postgres, database: str):
    """In session mode a connection keeps its state, and notifications arrive."""
    with pooled(postgres_server.port, mode="session", size=40) as pooler:
        url = pooler.url(database, "session")
        async with open_store(url) as store, open_store(url) as other:
            lease, _ = await held_session(store)
            reading = asyncio.create_task(collect(other, lease.session_id, after=0, upto=3))
            await store.write(lease, ticks(3))
            async with asyncio.timeout(10):
                assert await reading == [1, 2, 3]
            listening = await asyncpg.connect(postgres_server.url(database))
            try:
                text = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' OR query LIKE '%pg_notify%'"
                assert await listening.fetchval(text) >= 1
            finally:
                await listening.close()


def test_an_invalid_mode_is_refused():
    with pytest.raises(StoreError, match="Invalid value 'statement' for pooler"):
        open_store("postgresql://ada:secret@localhost/x?pooler=statement")


@pytest.mark.skipif(POSTGRES_VERSION < 17, reason="PostgreSQL limits transactions since version 17")
async def test_a_process_paused_between_the_parts_of_a_statement_loses_its_locks(
    pooler: PgBouncer, database: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connections, "_LOCAL", connections._LOCAL.replace("'10s'", "'300ms'"))  # pyright: ignore[reportPrivateUsage]
    own = connections.OwnConnections(parse_address(pooler.url(database, "transaction")))
    connection = await own.connect()

    async def is_closed() -> bool:
        return connection.is_closed()

    async def pause() -> None:
        async with own.transaction(connection):
            await connection.prepare("SELECT 1", name="")  # the first part
            await until(is_closed)

    with pytest.raises(connections.GONE):
        await pause()
