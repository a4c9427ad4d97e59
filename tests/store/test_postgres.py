"""What only PostgreSQL has."""

import asyncio

import asyncpg
import pytest

from holdfast import open_store
from holdfast.errors import StoreUnavailable
from holdfast.types import Batch, NewEvent
from tests.builders import held_session, ticks, until
from tests.servers import Postgres
from tests.torture.line import line_to

_RECORD_SETTING = """
CREATE TABLE public.seen (setting text);
CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$;
CREATE TRIGGER see BEFORE INSERT ON holdfast.events FOR EACH ROW EXECUTE FUNCTION public.see();
CREATE TRIGGER see BEFORE INSERT ON holdfast.submissions FOR EACH ROW EXECUTE FUNCTION public.see();
"""


@pytest.mark.new_database
@pytest.mark.parametrize(
    ("default", "used"),
    [("off", "on"), ("local", "on"), ("remote_write", "on"), ("remote_apply", "remote_apply")],
)
@pytest.mark.parametrize("whose", ["DATABASE {database}", "ROLE postgres IN DATABASE {database}"])
async def test_commits_are_durable_whatever_the_default_is(
    postgres_url: str, whose: str, default: str, used: str
):
    database = postgres_url.rpartition("/")[2]
    async with open_store(postgres_url):
        pass
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(_RECORD_SETTING)
        await connection.execute(
            f"ALTER {whose.format(database=database)} SET synchronous_commit = {default}"
        )
        async with open_store(postgres_url) as store:
            lease, _ = await held_session(store)  # over the pool
            await store.submit(lease.session_id, "message", "{}")
            await store.write(
                lease, Batch(events=[NewEvent(kind="tick")])
            )  # over the connection that commits
        seen = await connection.fetch("SELECT setting, count(*) AS n FROM public.seen GROUP BY setting")
        assert [row["setting"] for row in seen] == [used]
        assert seen[0]["n"] >= 3
    finally:
        await connection.close()


_LIMITS = {
    "statement_timeout": "100ms",
    "lock_timeout": "100ms",
    "idle_session_timeout": "300ms",
    "idle_in_transaction_session_timeout": "300ms",
    "transaction_timeout": "200ms",  # since PostgreSQL 17
    "default_transaction_isolation": "serializable",
}
_SLOW = """
CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.25); RETURN NEW; END $$;
CREATE TRIGGER wait BEFORE INSERT ON holdfast.events FOR EACH ROW EXECUTE FUNCTION public.wait();
"""
_OURS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'"
)
_LISTENING = f"{_OURS} AND (query LIKE 'LISTEN%' OR query LIKE '%pg_notify(%')"


@pytest.mark.new_database
async def test_limits_of_the_database_do_not_apply(postgres_url: str):
    """Managed servers limit how long statements, transactions and idle connections last. The store has its own limits."""
    database = postgres_url.rpartition("/")[2]
    async with open_store(postgres_url):
        pass
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(_SLOW)
        known = {row["name"] for row in await connection.fetch("SELECT name FROM pg_settings")}
        for name, value in _LIMITS.items():
            if name in known:
                await connection.execute(f"ALTER DATABASE {database} SET {name} = '{value}'")
        async with open_store(postgres_url) as store:
            lease, _ = await held_session(store)
            assert await store.write(lease, Batch(events=[NewEvent(kind="tick")])) == 1
            await store.submit(lease.session_id, "message", "{}")
            before = {row["pid"] for row in await connection.fetch(_OURS)}
            limited = await asyncpg.connect(postgres_url)

            async def is_closed() -> bool:
                return limited.is_closed()

            await until(is_closed)  # and those of the store have been idle for as long
            assert before <= {row["pid"] for row in await connection.fetch(_OURS)}
            assert await store.check() == []
    finally:
        await connection.close()


async def test_connections_that_were_ended_while_idle_are_replaced(postgres_url: str):
    """Also the one that listens, in a process that only reads."""
    connection = await asyncpg.connect(postgres_url)
    try:
        async with open_store(postgres_url) as store, open_store(postgres_url) as reader:
            lease, _ = await held_session(store)
            for count in range(1, 4):

                async def are_listening() -> bool:
                    return len(await connection.fetch(_LISTENING)) == 2

                await until(are_listening)
                await store.write(lease, ticks())
                assert len(await reader.events(lease.session_id)) == count
                await connection.fetch(f"SELECT pg_terminate_backend(pid) FROM ({_OURS}) AS ours")
            assert await store.write(lease, ticks()) == 4
            assert await store.check() == []
    finally:
        await connection.close()


async def test_a_connection_that_was_reset_is_replaced(postgres_server: Postgres, postgres_url: str):
    """As by a firewall that has forgotten it."""
    async with line_to(postgres_server.port) as line:
        url = postgres_url.replace(f":{postgres_server.port}", f":{line.port}")
        async with open_store(url) as store:
            lease, _ = await held_session(store)
            await store.write(lease, ticks())
            await line.silent(0, breaks=True)
            assert await store.write(lease, ticks()) == 2
            assert [event.seq for event in await store.events(lease.session_id)] == [1, 2]
            assert await store.check() == []


@pytest.mark.parametrize("ticks_before", range(4))
async def test_no_write_waits_for_a_writer_that_was_cancelled(postgres_url: str, ticks_before: int):
    """As the end of a program does it: with all tasks, while some of them still write."""
    async with open_store(postgres_url) as store:
        lease, _ = await held_session(store)
        other, _ = await held_session(store)
        writing = asyncio.create_task(store.write(lease, Batch(events=[NewEvent(kind="tick")])))
        for _ in range(ticks_before):
            await asyncio.sleep(0)
        (writer,) = [task for task in asyncio.all_tasks() if task.get_name() == "holdfast-committer"]
        writer.cancel()
        async with asyncio.timeout(10):
            with pytest.raises(StoreUnavailable, match="cancelled"):
                await writing
            with pytest.raises(StoreUnavailable, match="cancelled"):
                await store.write(other, Batch(events=[NewEvent(kind="tick")]))
        assert lease.lost
        assert len(await store.events(lease.session_id)) <= 1
