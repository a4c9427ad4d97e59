"""Plans of our statements: none scans a table unless it must read all of it, and none is compiled, whatever the server's defaults are."""

import re
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from holdfast import open_store
from holdfast.store import Store
from holdfast.store.postgres.settings import SETTINGS
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.writer import _group, execute  # pyright: ignore[reportPrivateUsage]
from holdfast.store.sql import library
from holdfast.store.sql.check import invariants
from holdfast.store.sql.library import Script
from holdfast.store.sql.store import page_text
from holdfast.store.transactions import scanning
from holdfast.store.write import ARMS
from holdfast.tables import TABLES
from tests.conftest import new_database
from tests.pooler import pooled
from tests.servers import Postgres

pytestmark = pytest.mark.new_database

_MAX_COST = 1e7
"""A disabled scan adds 10¹⁰ before PostgreSQL 18. Later versions mark it."""
_NOT_PLANNED = {"create_schema", "create_migrations"}
_PARTS = {*ARMS, "fence_group"}
"""Parts of the statement that writes a group, and statements that have numbered parameters."""
_SQLITE_ONLY = {"number_begun", "insert_begun_events"}
_SCANS = {"totals"}
_READS_MANY = {"growth"}
"""It reads all sessions of a period, which the planner does not know."""
_ALWAYS: dict[str, tuple[frozenset[str], ...]] = {
    "checkpoints": (frozenset({"id"}), frozenset({"session_id"})),
    "log_of_outputs": (frozenset({"oldest_first"}), frozenset({"newest_first"})),
}
"""Optional parameters: the code always passes one of them."""
_HOSTILE = {
    "jit": "on",
    "jit_above_cost": "0",
    "enable_indexscan": "off",
    "enable_bitmapscan": "off",
    "enable_nestloop": "off",
    "max_parallel_workers_per_gather": "4",
    "statement_timeout": "777",
    "lock_timeout": "777",
    "synchronous_commit": "off",
    "default_transaction_isolation": "serializable",
    "plan_cache_mode": "force_custom_plan",
}


@pytest.fixture
async def hostile_url(postgres_server: Postgres) -> str:
    """A database whose defaults work against the store."""
    url = await new_database(postgres_server)
    connection = await asyncpg.connect(url)
    for name, value in _HOSTILE.items():
        await connection.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET {name} = '{value}'")
    await connection.close()
    return url


@pytest.fixture
async def store(hostile_url: str) -> AsyncGenerator[Store, None]:
    async with open_store(hostile_url) as store:
        yield store


def _variants(name: str) -> Generator[str, None, None]:
    """Yield the texts of a statement: with each optional line alone, and without any."""
    for always in _ALWAYS.get(name, (frozenset[str](),)):
        yield library.text(name, "postgres", always)
        for one in library.optional(name):
            if not (one.endswith("_first") and any(each.endswith("_first") for each in always)):
                yield library.text(name, "postgres", always | {one})


def _statements() -> Generator[tuple[str, str], None, None]:
    """Yield the name and text of each statement that the store runs, except those that scan."""
    scans = {name for name in library.statement_names() if name.startswith("check_")} | _SCANS
    for name in sorted(library.statement_names("postgres") - scans - _PARTS - _NOT_PLANNED - _SQLITE_ONLY):
        for text in _variants(name):
            yield name, library.numbered(text)[0]
    for name, text in invariants("postgres", of_session=True):
        yield name, library.numbered(text)[0]
    for table in TABLES:
        for after in (False, True):
            yield table.name, library.numbered(page_text(table, bounded=True, after=after))[0]
    separate = {"drop_drafts", "refer_blobs"}
    for name in separate:
        yield name, library.text(name, "postgres")
    arms = tuple(arm for arm in ARMS if arm not in separate)
    for group in (arms, *((arm,) for arm in arms)):
        yield "+".join(group), _group(group)


async def _plan(connection: Any, text: str) -> list[str]:
    count = max((int(number) for number in re.findall(r"\$(\d+)", text)), default=0)
    values = f"({', '.join(['NULL'] * count)})" if count else ""
    await connection.execute(f"PREPARE planned AS {text}")
    try:
        return [row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE planned {values}")]
    finally:
        await connection.execute("DEALLOCATE planned")


def _cost(plan: list[str]) -> float:
    return max((float(cost) for line in plan for cost in re.findall(r"\.\.([\d.]+) rows=", line)), default=0)


@asynccontextmanager
async def _connection(store: Store) -> AsyncGenerator[Any, None]:
    """Yield a connection of the store, in a transaction: in front of a pooler, nothing else has its settings."""
    assert isinstance(store, PostgresStore)
    connections = store._connections  # pyright: ignore[reportPrivateUsage]
    async with connections.acquire() as connection, connections.transaction(connection):
        yield connection


async def test_no_statement_scans_or_is_compiled(store: Store):
    async with _connection(store) as connection:
        bad: list[tuple[str, str]] = []
        for name, text in _statements():
            plan = await _plan(connection, text)
            if any("JIT" in line or "Disabled: true" in line for line in plan) or _cost(plan) > _MAX_COST:
                bad.append((name, "\n".join(plan)))
    assert not bad, "\n\n".join(f"{name}:\n{plan}" for name, plan in bad)


async def test_statements_that_read_everything_may_scan(store: Store):
    """They are planned for the tables as they are, and leave the settings of the transaction as they were."""
    text = "EXPLAIN SELECT count(*) FROM events WHERE kind <> :kind"
    async with _connection(store) as connection:
        plan = [
            row["QUERY PLAN"]
            for row in await execute(connection, scanning(Script("scan", {"kind": "x"}, text=text)))
        ]
        assert any("Seq Scan" in line for line in plan)
        assert _cost(plan) < _MAX_COST
        assert await _settings(connection) == await _wanted(connection)
    for name, text in invariants("postgres", of_session=False):
        async with _connection(store) as connection:
            explained = scanning(Script(name, {"limit": 1}, text=f"EXPLAIN {text}"))
            plan = [row["QUERY PLAN"] for row in await execute(connection, explained)]
            assert _cost(plan) < _MAX_COST, plan
    async with _connection(store) as connection:
        totals = "EXPLAIN " + library.text("totals", "postgres") + ", CAST(:x AS text) AS x"
        plan = [
            row["QUERY PLAN"]
            for row in await execute(connection, scanning(Script("totals", {"x": ""}, text=totals)))
        ]
        assert _cost(plan) < _MAX_COST, plan
    assert await store.check() == []
    assert (await store.schema()).events == 0


async def _settings(connection: Any) -> dict[str, str]:
    return {name: await connection.fetchval("SELECT current_setting($1)", name) for name in SETTINGS}


async def _wanted(connection: Any) -> dict[str, str]:
    """Return our settings as the server spells them."""
    idle = await connection.fetchval("SELECT current_setting('idle_in_transaction_session_timeout')")
    return {**SETTINGS, "idle_in_transaction_session_timeout": idle}


async def test_defaults_of_a_database_are_overridden(store: Store):
    async with _connection(store) as connection:
        assert await _settings(connection) == await _wanted(connection)


async def test_defaults_of_a_database_are_overridden_in_a_borrowed_pool(hostile_url: str):
    async with (
        asyncpg.create_pool(hostile_url, min_size=0, max_size=6) as pool,
        open_store(pool=pool) as store,
    ):
        async with _connection(store) as connection:
            assert await _settings(connection) == await _wanted(connection)
        async with pool.acquire() as connection:
            assert await connection.fetchval("SHOW jit") == "on"


@pytest.mark.pgbouncer
@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_defaults_of_a_database_are_overridden_behind_a_pooler(
    postgres_server: Postgres, hostile_url: str, mode: str
):
    database = hostile_url.rpartition("/")[2]
    with pooled(postgres_server.port, mode=mode, size=20) as pooler:
        async with open_store(pooler.url(database, mode)) as store, _connection(store) as connection:
            assert await _settings(connection) == await _wanted(connection)


async def test_settings_that_work_against_the_store_are_listed(store: Store):
    listed = {each.name: each for each in await store.harmful_settings()}
    assert {name for name, each in listed.items() if each.overridden} >= {
        "jit",
        "enable_indexscan",
        "statement_timeout",
        "synchronous_commit",
    }
    assert listed["jit"].value == "on"
    assert (listed["fsync"].value, listed["fsync"].overridden, listed["fsync"].wanted) == ("off", False, "on")
    assert "search_path" not in listed


_SESSIONS = 50_000
_FILL = """
INSERT INTO heads (session_id, agent, owner, epoch, seq, writes, written, ready_at)
  SELECT 's' || lpad(n::text, 9, '0'), 'agent', 'you', 1, 1, 1, 1, 2000000000000000 FROM generate_series(1, $1) AS n;
INSERT INTO sessions (id, agent, owner, title, title_folded, status, hold, metadata, created_at, active_at)
  SELECT session_id, agent, 'you', '', '', 'idle', 0, '{}', number, number FROM heads;
INSERT INTO submissions (session_id, position, id, kind, lane, when_busy, payload, state, attempts, created_at, deliver_at)
  SELECT session_id, 1, 'q' || session_id, 'message', 'main', 'queue', '{}', 'queued', 0, 0, ready_at FROM heads;
INSERT INTO events (session, seq, kind, at, payload) SELECT number, 1, 'submission_queued', 0, '{}' FROM heads;
ANALYZE
"""


async def test_no_statement_reads_a_whole_index_beside_many_sessions(store: Store):
    """Ids are in the order of creation. With statistics of that, reading a whole index seems cheap to the planner."""
    async with _connection(store) as connection:
        for statement in _FILL.replace("$1", str(_SESSIONS)).split(";"):
            await connection.execute(statement)
        plans = [
            (name, await _plan(connection, text)) for name, text in _statements() if name not in _READS_MANY
        ]
    bad = [f"{name}:\n" + "\n".join(plan) for name, plan in plans if _whole_reads(plan)]
    assert not bad, "\n\n".join(bad)


def _whole_reads(plan: list[str]) -> list[str]:
    """Return the lines that read the index of a large table without a condition and without a limit."""
    return [
        line
        for before, line, after in zip(["", *plan], plan, [*plan[1:], ""], strict=False)
        if "Scan using" in line
        and int(line.partition(" rows=")[2].partition(" ")[0]) >= _SESSIONS / 2
        and "Cond:" not in after
        and "Limit" not in before
    ]
