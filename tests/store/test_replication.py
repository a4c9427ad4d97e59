"""A primary with a synchronous standby: what is acknowledged is on both, and a standby is never written to."""

import asyncio
import socket
from collections.abc import AsyncGenerator

import asyncpg
import pytest

from holdfast import open_store
from holdfast.errors import StoreError, StoreReadOnly, StoreUnavailable
from holdfast.store.postgres import connections, writer
from holdfast.store.postgres import store as postgres_store
from holdfast.store.postgres.beacons import ConnectionBeacons
from tests.builders import held_session, new_session, ticks
from tests.pooler import PgBouncer, pooled
from tests.servers import Pair, Postgres, replicated

_TTL = 4.0


@pytest.fixture
async def pair() -> AsyncGenerator[Pair, None]:
    async with replicated(syncs=False) as pair:
        yield pair


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up soon."""
    for module in (connections, writer):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 0.3)
    for module in (postgres_store, writer):
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.5)


@pytest.mark.usefixtures("impatient")
async def test_what_no_standby_has_is_neither_acknowledged_nor_visible(pair: Pair):
    async with open_store(pair.url()) as store, open_store(pair.url()) as other:
        session = await new_session(store)
        lease, _ = await held_session(store)
        pair.standby.stop()
        for _ in range(2):  # the second finds nothing that the first has left
            with pytest.raises(StoreUnavailable):
                await store.submit(session, "message", "{}", idempotency_key="k")
        with pytest.raises(StoreUnavailable):
            await store.write(lease, ticks())
        assert (await other.submissions(session)).items == []
        assert await other.events(lease.session_id) == []
        pair.standby.start()
        await pair.replicate()
        accepted = await store.submit(session, "message", "{}", idempotency_key="k")
        assert [found.id for found in (await other.submissions(session)).items] == [accepted.id]
        await pair.fail_over()
        assert [found.id for found in (await store.submissions(session)).items] == [accepted.id]
        assert await store.check() == []


async def test_the_server_that_accepts_writes_is_found(pair: Pair):
    """In any order, and without being asked for it: a store cannot use a standby."""
    ports = (pair.standby.port, pair.primary.port)
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    async with open_store(f"postgresql://postgres@{hosts}/postgres") as store:
        await store.submit(await new_session(store), "message", "{}")


async def test_a_server_that_does_not_respond_delays_nothing(postgres_server: Postgres, postgres_url: str):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{postgres_server.port}"
        url = postgres_url.replace(f"127.0.0.1:{postgres_server.port}", hosts)
        async with asyncio.timeout(connections.ANSWER_SECONDS / 2), open_store(url) as store:
            await new_session(store)


async def test_errors_name_what_can_be_changed(postgres_server: Postgres):
    hosts = f"127.0.0.1:1,127.0.0.1:{postgres_server.port}"
    with pytest.raises(StoreError, match="does not exist"):
        await open_store(f"postgresql://postgres:secret@{hosts}/nowhere").open()
    with pytest.raises(StoreUnavailable) as refused:
        await open_store("postgresql://postgres:secret@127.0.0.1:1,127.0.0.1:2/nowhere").open()
    assert "secret" not in str(refused.value)


@pytest.mark.pgbouncer
@pytest.mark.usefixtures("impatient")
async def test_a_primary_that_became_a_standby_is_left(pair: Pair):
    """Its connections stay open, as behind a proxy that has not noticed it yet."""
    with pooled(pair.primary.port) as pooler:
        async with open_store(pooler.url(pooler="transaction")) as store:
            session = await new_session(store)
            lease, _ = await held_session(store)
            await pair.caught_up()
            await _point(pooler, pair.standby)
            with pytest.raises(StoreReadOnly):
                await store.submit(session, "message", "{}")
            with pytest.raises(StoreReadOnly):
                await store.write(lease, ticks())
            assert lease.lost
            await _point(pooler, pair.primary)
            await store.submit(session, "message", "{}")
            assert await store.check() == []


async def _point(pooler: PgBouncer, server: Postgres) -> None:
    """Wait until the pooler uses a server."""
    pooler.point_at(server.port)
    connection = await asyncpg.connect(pooler.url(), statement_cache_size=0)
    try:
        async with asyncio.timeout(10):
            while await connection.fetchval("SELECT inet_server_port()") != server.port:
                await asyncio.sleep(0.02)
    finally:
        await connection.close()


async def test_after_a_failover_the_living_are_not_taken_for_dead(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
):
    """The new primary has no locks. A process that is slow to take its own again keeps its leases."""
    monkeypatch.setattr(ConnectionBeacons, "_on_disconnect", _ignore)
    async with open_store(pair.url()) as slow, open_store(pair.url()) as other:
        lease, holder = await held_session(slow, ttl=_TTL)
        while not await _has_run_for(
            pair.standby, _TTL
        ):  # else it is known that locks are missing after a start
            await slow.renew(holder)
        await pair.fail_over()
        await slow.renew(holder)
        for _ in range(3):  # a second look is needed to see that it is still gone
            assert await other.reclaim() == []
            await asyncio.sleep(1.1 * postgres_store._SUSPECT_SECONDS)  # pyright: ignore[reportPrivateUsage]
        assert await slow.write(lease, ticks()) == 1


def _ignore(beacons: ConnectionBeacons, connection: object) -> None:
    """Do not take the locks again."""
    del beacons, connection


async def _has_run_for(server: Postgres, seconds: float) -> bool:
    connection = await asyncpg.connect(server.url())
    try:
        age = "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float"
        return await connection.fetchval(age) > seconds
    finally:
        await connection.close()
