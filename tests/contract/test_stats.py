"""`stats` reports what the store contains and how it grows."""

import json
import random
import sqlite3
import string
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.diagnostics import Growth
from holdfast.store import Store, open_store
from holdfast.store.sql import library
from holdfast.testing.agents import memory_store
from holdfast.types import Batch, Message, NewEvent, Segment
from tests.builders import held_session, new_session, ticks
from tests.conftest import Engine
from tests.contract.test_check import damage

DAY_US = timedelta(days=1) // timedelta(microseconds=1)


async def test_an_empty_store_has_a_size_and_no_growth(store: Store):
    stats = await store.stats()
    assert stats.engine == store.engine
    assert stats.bytes > 0
    assert stats.last_day == stats.last_week == Growth(sessions=0, events=0)


async def test_the_size_grows_with_the_content(store: Store):
    before = await store.stats()
    lease, _ = await held_session(store)
    await store.write(lease, ticks(2000))
    after = await store.stats()
    if store.engine != "mongodb":  # its files grow at the next checkpoint
        assert after.bytes > before.bytes


@pytest.mark.processes
async def test_events_are_counted_from_the_start_of_the_period(engine: Engine, tmp_path: Path):
    """Sessions from before, and events before, within and after the last day; and sessions that were not active since."""
    async with open_store(engine.url) as store:
        old, holder = await held_session(store)
        await store.write(old, ticks(6))
        cleaned = await store.acquire(await new_session(store), holder)
        await store.write(cleaned, ticks(3))
        untouched = await store.acquire(await new_session(store), holder)
        await store.write(untouched, ticks(3))
        new = await store.acquire(await new_session(store), holder)
        await store.write(new, ticks(5))
        now = (await store.now()).timestamp() * 1_000_000
        two_days, month = int(now) - 2 * DAY_US, int(now) - 30 * DAY_US
        for lease in (old, cleaned):
            await damage(
                engine, tmp_path, f"UPDATE sessions SET created_at = {month} WHERE id = '{lease.session_id}'"
            )
        await damage(
            engine,
            tmp_path,
            f"UPDATE sessions SET created_at = {month}, active_at = {month} WHERE id = '{untouched.session_id}'",
        )
        await damage(engine, tmp_path, f"UPDATE events SET at = {month} WHERE seq = 1")
        await damage(engine, tmp_path, f"UPDATE events SET at = {two_days} WHERE seq = 2")
        await damage(engine, tmp_path, f"DELETE FROM events WHERE session_id = '{cleaned.session_id}'")
        stats = await store.stats()
        assert stats.last_day == Growth(sessions=1, events=5 + 4)
        assert stats.last_week == Growth(sessions=1, events=5 + 5)


@pytest.mark.processes
async def test_tables_have_sizes_and_rows(engine: Engine, tmp_path: Path):
    async with open_store(engine.url) as store:
        lease, _ = await held_session(store)
        await store.write(lease, ticks(300))
        if engine.name == "postgres":
            await damage(engine, tmp_path, "ANALYZE events")
        stats = await store.stats()
        tables = {table.name: table for table in stats.tables}
        if engine.name == "sqlite":
            assert tables == {}
            assert (stats.free_bytes, stats.wal_bytes) == (0, (tmp_path / "store.db-wal").stat().st_size)
            assert stats.wal_bytes
            return
        assert tables["events"].rows == 300
        assert {"sessions", "heads", "messages", "blob_chunks"} <= set(tables)
        assert stats.bytes == sum(table.bytes for table in stats.tables)
        assert [table.bytes for table in stats.tables] == sorted(
            (table.bytes for table in stats.tables), reverse=True
        )
        assert (stats.free_bytes is None) == (engine.name == "postgres")
        assert stats.wal_bytes is None


async def test_the_pages_of_deleted_content_are_free():
    async with memory_store() as store:
        lease, _ = await held_session(store)
        await store.write(lease, Batch(events=[NewEvent(kind="tick", payload=f'"{"x" * 50_000}"')]))
        assert (await store.stats()).free_bytes == 0
        await store.delete_content(lease)
        freed = (await store.stats()).free_bytes
        assert freed is not None
        assert freed > 40_000


def test_growth_reads_only_recent_sessions():
    connection = sqlite3.connect(":memory:")
    connection.create_function("now_us", 0, lambda: 0)
    for _, _, script in library.migrations():
        for statement in library.split(script, "sqlite"):
            connection.execute(statement)
    plan = connection.execute(f"EXPLAIN QUERY PLAN {library.text('growth', 'sqlite')}", {"period_us": 1})
    steps: list[str] = [row[3] for row in plan]
    assert "SEARCH s USING INDEX sessions_active (active_at>?)" in steps
    assert {step for step in steps if step.startswith("SCAN")} <= {
        "SCAN CONSTANT ROW",
        "SCAN period",
        "SCAN recent",
    }


async def test_the_content_of_a_session_has_a_size(store: Store):
    lease, _ = await held_session(store)
    assert await store.content_bytes(lease.session_id) == 0
    other = await new_session(store)
    await store.submit(other, "message", '"hello"')
    text = "".join(
        random.Random(1).choices(string.printable.strip(), k=600_000)
    )  # which no engine can compress much
    body = json.dumps(text)
    await store.write(
        lease,
        Batch(
            segments=[Segment(number=1)],
            messages=[Message(segment=1, position=0, body=body)],
            events=[NewEvent(kind="tick")],
        ),
    )
    size = await store.content_bytes(lease.session_id)
    assert 0.7 * len(body) < size < len(body) + 10_000
    assert 0 < await store.content_bytes(other) < 10_000
    assert await store.content_bytes("none") == 0
