import os
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from pymongo import MongoClient

from holdfast.store import Store, open_store
from holdfast.store.mongo.schema import COLLECTIONS
from tests import pooler
from tests.servers import EMULATED, Mongo, Postgres, mongo, mongod, postgres

TESTS = Path(__file__).parent
_numbers = count(1)
_dropped = pytest.StashKey[int]()
_without_mongodb = pytest.StashKey[int]()
_without_pooler = pytest.StashKey[int]()
MONGODB = "HOLDFAST_TEST_MONGODB"
"""Names the server to test with, as a URL without a database; else there is a `mongod` on the path, or none."""
_MONGODB_SECONDS = 900
"""How long a test may take there: its server may run in an emulator."""
ONLY_WITH_MONGOD = (
    pytest.mark.mongodb,
    pytest.mark.skipif(mongod() is None, reason="starts a MongoDB server of its own"),
)


@dataclass(frozen=True)
class Engine:
    """A store to test: `url` names a fresh, empty one; `shared` says whether other processes can open it."""

    name: str
    url: str
    shared: bool = True


@pytest.fixture(scope="session")
def postgres_server() -> Generator[Postgres, None, None]:
    with postgres(syncs=False) as server:  # without syncing, a quarter less time
        yield server


@pytest.fixture(scope="session")
def mongo_server() -> Generator[Mongo, None, None]:
    with mongo() as server:
        yield server


@pytest.fixture(scope="session")
def mongo_address(request: pytest.FixtureRequest) -> str:
    given = os.environ.get(MONGODB)
    return request.getfixturevalue("mongo_server").url("") if given is None else given


@pytest.fixture(scope="session")
def mongo_client(mongo_address: str) -> Generator[MongoClient[dict[str, Any]], None, None]:
    with MongoClient[dict[str, Any]](mongo_address) as client:
        yield client


@pytest.fixture(scope="session")
def emptied() -> list[str]:
    """MongoDB's databases that were used, and have their collections and nothing in them."""
    return []


@pytest.fixture(scope="session")
def truncated() -> list[str]:
    """The same of PostgreSQL, as URLs."""
    return []


@pytest.fixture
def mongo_url(
    request: pytest.FixtureRequest,
    mongo_address: str,
    mongo_client: MongoClient[dict[str, Any]],
    emptied: list[str],
) -> Generator[str, None, None]:
    """A database of its own on the server that all tests share; made anew only where a test is about that."""
    anew = request.node.get_closest_marker("new_database") is not None
    name = emptied.pop() if emptied and not anew else f"test_{os.getpid()}_{next(_numbers)}"
    url = urlunsplit(urlsplit(mongo_address)._replace(path=f"/{name}"))
    yield url
    database = mongo_client[name]
    if anew or "migrations" not in database.list_collection_names():
        mongo_client.drop_database(name)
        return
    first, *others = sorted(COLLECTIONS - {"migrations"})
    union = [{"$unionWith": {"coll": table, "pipeline": _is_filled(table)}} for table in others]
    for row in database[first].aggregate([*_is_filled(first), *union]):
        database[row["table"]].delete_many({})
    emptied.append(name)


def _is_filled(table: str) -> list[dict[str, Any]]:
    return [{"$limit": 1}, {"$project": {"_id": 0, "table": {"$literal": table}}}]


async def new_database(server: Postgres) -> str:
    return await server.create_database(f"test_{os.getpid()}_{next(_numbers)}")


async def truncate(url: str) -> bool:
    """Leave nothing in a database but its schema, and nobody connected; say whether it has one."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        tables = [
            row["name"]
            for row in await connection.fetch(
                "SELECT format('holdfast.%I', tablename) AS name FROM pg_tables "
                "WHERE schemaname = 'holdfast' AND tablename <> 'migrations'"
            )
        ]
        if tables:
            asked = " UNION ALL ".join(f"(SELECT '{name}' AS name FROM {name} LIMIT 1)" for name in tables)
            filled = [row["name"] for row in await connection.fetch(asked)]
            if filled:
                await connection.execute(f"TRUNCATE {', '.join(filled)} RESTART IDENTITY")
        return bool(tables)
    finally:
        await connection.close()


@pytest.fixture
async def postgres_url(
    request: pytest.FixtureRequest, postgres_server: Postgres, truncated: list[str]
) -> AsyncGenerator[str, None]:
    """A database of its own on the server that all tests share; made anew only where a test is about that."""
    anew = request.node.get_closest_marker("new_database") is not None
    url = truncated.pop() if truncated and not anew else await new_database(postgres_server)
    yield url
    if not anew and await truncate(url):
        truncated.append(url)


@dataclass(frozen=True)
class Boundaries:
    """Some of the boundaries at which a process is killed: one of `every` so many, on MongoDB half of these. The seed chooses the first."""

    every: int
    seed: int

    def of(self, points: Sequence[str], url: str = "") -> list[str]:
        """Return some of the points: fewer if the store that the URL names is emulated."""
        every = self._every(url)
        return list(points[self.seed % every :: every])

    def steps(self, engine: Engine) -> range:
        """Return the numbers of the steps to kill at. The last ones are beyond the end of what is killed."""
        every = self._every(engine.url)
        return range(1 + self.seed % every, 1000, every)

    def _every(self, url: str) -> int:
        if not url.startswith("mongodb"):
            return self.every
        if _EMULATED:
            return max(self.every, 10)
        return 1 if self.every == 1 else 2 * self.every  # a drill takes several times as long there


@pytest.fixture(params=["sqlite", "memory", "postgres", "mongodb"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """Every engine in turn. A test that is marked `processes` is not run on memory, which only one process can see."""
    match request.param:
        case "sqlite":
            return Engine("sqlite", f"sqlite:///{tmp_path}/store.db")
        case "memory":
            return Engine("memory", "sqlite://:memory:", shared=False)
        case "mongodb":
            return Engine("mongodb", request.getfixturevalue("mongo_url"))
        case _:
            return Engine("postgres", request.getfixturevalue("postgres_url"))


@pytest.fixture
async def store(engine: Engine) -> AsyncGenerator[Store, None]:
    async with open_store(engine.url) as store:
        yield store
        # Whatever a test did through the public door, every invariant still holds.
        assert await store.check() == []


_STORES = ("contract", "media", "store", "upgrade")
"""The tests of the stores. All others use a store through its interface: before a commit they run on SQLite, with `--all` also on PostgreSQL."""
_EMULATED = EMULATED and MONGODB not in os.environ


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="do the drills at full length; takes minutes")
    parser.addoption("--all", action="store_true", help="run all tests, on every engine")
    parser.addoption("--kills", action="store_true", help="kill at every boundary, not at a third of them")
    parser.addoption("--seed", type=int, help="which third of the boundaries to kill at; by default any")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.seed is None:
        config.option.seed = int(time.time())  # workers have the value of the process that starts them


@pytest.fixture
def boundaries(request: pytest.FixtureRequest) -> Boundaries:
    """The boundaries to kill at: with `--kills` each of them, else a third."""
    every = 1 if request.config.getoption("--kills") else 3
    return Boundaries(every=every, seed=request.config.option.seed)


@pytest.fixture
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether everything is tested, as with `--all`."""
    return bool(request.config.getoption("--all"))


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    """Whether a drill is to be done at full length."""
    return bool(request.config.getoption("--long"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def on(item: pytest.Item, engine: str) -> bool:
        return engine in getattr(getattr(item, "callspec", None), "params", {}).values()

    def is_thorough(item: pytest.Item) -> bool:
        marker = item.get_closest_marker("thorough")
        if marker is None:
            return on(item, "postgres") and item.path.relative_to(TESTS).parts[0] not in _STORES
        return not marker.args or any(on(item, value) for value in marker.args)

    for item in items:
        if on(item, "mongodb") and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_MONGODB_SECONDS))
    alone = [item for item in items if on(item, "memory") and item.get_closest_marker("processes")]
    if not config.getoption("--all"):
        alone += [item for item in items if on(item, "memory") or is_thorough(item)]
    without: list[pytest.Item] = []
    if MONGODB not in os.environ and mongod() is None:
        without = [item for item in items if on(item, "mongodb") or item.get_closest_marker("mongodb")]
    config.stash[_dropped], config.stash[_without_mongodb] = len(alone), len(without)
    unpooled = [item for item in items if pooler.missing() and item.get_closest_marker("pgbouncer")]
    config.stash[_without_pooler] = len(unpooled)
    dropped = {*alone, *without, *unpooled}
    if dropped:
        config.hook.pytest_deselected(items=list(dropped))
        items[:] = [item for item in items if item not in dropped]


def _left_out(config: pytest.Config) -> list[str]:
    """Say aloud what an engine takes no part in, and why."""
    alone, without = config.stash.get(_dropped, 0), config.stash.get(_without_mongodb, 0)
    lines = [
        f"{alone} tests are left out: those of the memory store that need other processes; without --all, all of these and more"
    ]
    if not config.getoption("--kills"):
        lines.append(
            f"kills at a third of the boundaries, on MongoDB at a sixth: --seed {config.option.seed}"
        )
    if without:
        reason = f"there is no mongod on the path, and {MONGODB} is not set"
        lines.append(f"MongoDB takes no part in {without} tests: {reason}")
    if unpooled := config.stash.get(_without_pooler, 0):
        lines.append(f"PgBouncer takes no part in {unpooled} tests: {pooler.missing()}")
    return lines


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    return _left_out(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """At the end as well, and with workers: they, not we, know what was collected."""
    if MONGODB not in os.environ and mongod() is None:
        terminalreporter.section("MongoDB was not tested")
        terminalreporter.line(f"There is no mongod on the path, and {MONGODB} is not set.")
    if reason := pooler.missing():
        terminalreporter.section("PgBouncer was not tested")
        terminalreporter.line(f"{reason[0].upper()}{reason[1:]}.")
