import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pymongo import AsyncMongoClient

from holdfast.errors import StoreClosed, StoreError, StoreTooNew, StoreTooOld
from holdfast.store import Store, open_store
from holdfast.store.schema import LATEST
from tests.builders import held_session, new_session, ticks
from tests.conftest import Engine


async def test_a_new_store_has_the_latest_schema(store: Store):
    schema = await store.schema()
    assert (schema.version, schema.latest, schema.sessions) == (LATEST, LATEST, 0)
    assert await store.upgrade() == LATEST


async def test_schema_counts_what_is_in_it(store: Store):
    lease, _ = await held_session(store)
    await store.write(lease, ticks(3))
    await store.submit(await new_session(store), "message")
    schema = await store.schema()
    assert (schema.sessions, schema.events, schema.pending, schema.holders) == (2, 4, 1, 1)
    assert schema.leases == 1
    assert 0 <= schema.queue_wait < 60


@pytest.mark.processes
async def test_opening_again_finds_everything(engine: Engine):
    async with open_store(engine.url) as store:
        lease, _ = await held_session(store)
        await store.write(lease, ticks(3))
    async with open_store(engine.url, upgrade=False) as store:
        assert (await store.session(lease.session_id)).seq == 3


@pytest.mark.processes
@pytest.mark.new_database
async def test_several_stores_open_at_once(engine: Engine):
    async def use() -> int:
        async with open_store(engine.url) as store:
            return (await store.schema()).version

    assert await asyncio.gather(*(use() for _ in range(8))) == [LATEST] * 8


async def _change_migrations(engine: Engine, version: int, name: str) -> None:
    """Record a migration as this code would have recorded it."""
    statement = (
        f"INSERT INTO migrations (version, name, applied_at) VALUES ({version}, '{name}', 0)"
        " ON CONFLICT (version) DO UPDATE SET name = excluded.name"
    )
    if engine.name == "mongodb":
        async with AsyncMongoClient[dict[str, Any]](engine.url) as client:
            migrations = client.get_default_database()["migrations"]
            await migrations.replace_one({"_id": version}, {"_id": version, "name": name}, upsert=True)
    elif engine.name == "sqlite":
        with closing(sqlite3.connect(engine.url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute(statement)
    else:
        server = await asyncpg.connect(engine.url, server_settings={"search_path": "holdfast"})
        await server.execute(statement)
        await server.close()


@pytest.mark.processes
@pytest.mark.new_database
async def test_a_database_newer_than_the_code_is_refused(engine: Engine):
    async with open_store(engine.url):
        pass
    await _change_migrations(engine, LATEST + 1, "future")
    for upgrade in (True, False):
        with pytest.raises(
            StoreTooNew,
            match=f"has schema version {LATEST + 1}; this version of Holdfast supports up to {LATEST}",
        ):
            await open_store(engine.url, upgrade=upgrade).open()


@pytest.mark.processes
@pytest.mark.new_database
async def test_a_database_from_before_the_first_release_is_refused_by_name(engine: Engine):
    async with open_store(engine.url):
        pass
    await _change_migrations(engine, 1, "0001_sessions")
    await _change_migrations(engine, 7, "0007_sessions_by_status")
    for upgrade in (True, False):
        with pytest.raises(
            StoreError, match=r"0001_sessions, is older than the first release .* use a new database"
        ):
            await open_store(engine.url, upgrade=upgrade).open()


@pytest.mark.processes
@pytest.mark.new_database
async def test_an_old_database_is_left_alone_if_asked(engine: Engine, tmp_path: Path):
    if engine.name == "sqlite":
        sqlite3.connect(tmp_path / "store.db").close()
    with pytest.raises(StoreTooOld, match="holdfast db upgrade"):
        await open_store(engine.url, upgrade=False).open()
    if engine.name == "sqlite":
        assert (tmp_path / "store.db").stat().st_size <= 4096


async def test_a_store_that_is_not_open(engine: Engine):
    store = open_store(engine.url)
    with pytest.raises(StoreClosed, match="async with"):
        await store.session("s")
    await store.open()
    session_id = await new_session(store)
    await store.close()
    await store.close()
    with pytest.raises(StoreClosed, match="async with"):
        await store.submit(session_id, "message")
    with pytest.raises(StoreClosed, match="async with"):
        await store.events(session_id)


async def test_what_was_accepted_is_finished_on_close(engine: Engine, tmp_path: Path):
    store = await open_store(engine.url).open()
    lease, _ = await held_session(store)
    writing = [asyncio.create_task(store.write(lease, ticks())) for _ in range(50)]
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.gather(*writing) == list(range(1, 51))


@pytest.mark.processes
@pytest.mark.new_database
async def test_a_database_of_something_else_is_left_alone(engine: Engine, tmp_path: Path):
    if engine.name == "sqlite":
        connection = sqlite3.connect(tmp_path / "store.db")
        connection.execute("CREATE TABLE sessions (id)")
        connection.close()
    elif engine.name == "mongodb":
        async with AsyncMongoClient[dict[str, Any]](engine.url) as client:
            await client.get_default_database().create_collection("sessions")
    else:
        server = await asyncpg.connect(engine.url)
        await server.execute("CREATE SCHEMA holdfast; CREATE TABLE holdfast.sessions (id text)")
        await server.close()
    for upgrade in (True, False):
        with pytest.raises(StoreError, match="tables of another application, such as sessions"):
            await open_store(engine.url, upgrade=upgrade).open()


async def test_a_store_is_found_through_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:///{tmp_path}/from-settings.db")
    async with open_store() as store:
        await new_session(store)
    assert (tmp_path / "from-settings.db").exists()


async def test_a_new_file_is_for_its_owner_only(tmp_path: Path):
    path = tmp_path / "store.db"
    async with open_store(f"sqlite:///{path}") as store:
        await store.create_session(agent="bot", owner="ada")
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.glob("store.db*")}
        assert set(modes.values()) == {0o600}, modes
    path.chmod(0o640)
    async with open_store(f"sqlite:///{path}"):
        assert path.stat().st_mode & 0o777 == 0o640
