"""A database of every tagged schema, with sessions in flight, goes on under today's code."""

import asyncio
import base64
import json
import sqlite3
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast.runtime import Worker
from holdfast.store import Store, open_store
from holdfast.store.schema import LATEST
from tests.builders import until
from tests.conftest import Engine
from tests.upgrade.app import agent

MADE = sorted(Path(__file__).parent.glob("schema-*.json"))
pytestmark = pytest.mark.processes  # a database that was there before is on disk


def test_there_is_one_to_try():
    assert MADE


@pytest.mark.new_database
@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("made", MADE, ids=lambda made: made.stem)
async def test_sessions_in_flight_go_on(engine: Engine, made: Path):
    before = json.loads(made.read_text())
    await (_fill_sqlite if engine.name == "sqlite" else _fill_postgres)(engine.url, before)
    async with open_store(engine.url) as store:
        assert (await store.schema()).version == LATEST
        assert await store.check() == []
        await _go_on(store)
        assert await store.check() == []


async def _go_on(store: Store) -> None:
    """What was said is there; what was running ends, without its tool being run again; what waited is answered."""
    assert [event.seq for event in await store.events("talked")] == list(
        range(1, (await store.session("talked")).seq + 1)
    )
    assert json.loads((await store.state("talked")).body) == {"kept": True}
    await store.submit("talked", "message", '{"text": "again"}')
    asked = (await store.effects("waiting")).items[0]
    answer = {"call_id": asked.call_id, "digest": asked.arguments_digest, "approved": True}
    await store.submit("waiting", "approval", json.dumps(answer), lane="control")
    worker = Worker(store, agent)
    serving = asyncio.create_task(worker.run())
    try:
        for session in ("talked", "running", "waiting"):

            async def is_over(session: str = session) -> bool:
                found = await store.session(session)
                return found.status == "idle" and found.pending == 0

            await until(is_over)
    finally:
        worker.stop()
        await serving
    assert await _last(store, "talked") == "You said: again"
    assert "it is unknown whether it took effect" in await _last(store, "running")
    assert await _last(store, "waiting") == "deploy: deployed"
    assert (await store.session("queued")).pending == 1  # nobody serves its agent here


async def _last(store: Store, session: str) -> str:
    texts = [event.message for event in await store.events(session) if event.message is not None]
    return str(json.loads(texts[-1])["parts"][0]["content"])


async def _fill_sqlite(url: str, before: dict[str, Any]) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    for statement in before["schema"]["sqlite"]:
        connection.execute(statement)
    for table, rows in before["rows"].items():
        for row in rows:
            marks = ", ".join("?" * len(row))
            connection.execute(
                f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", [*map(_value, row.values())]
            )
    connection.commit()
    connection.close()


async def _fill_postgres(url: str, before: dict[str, Any]) -> None:
    connection = await asyncpg.connect(url, server_settings={"search_path": "holdfast"})
    try:
        for statement in before["schema"]["postgres"]:
            await connection.execute(statement)
        for table, rows in before["rows"].items():
            for row in rows:
                marks = ", ".join(f"${n}" for n in range(1, len(row) + 1))
                await connection.execute(
                    f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", *map(_value, row.values())
                )
    finally:
        await connection.close()


def _value(value: "dict[str, str] | str | int | None") -> object:
    return base64.b64decode(value["bytes"]) if isinstance(value, dict) else value
