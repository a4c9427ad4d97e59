import os
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import asyncpg
import pytest

from holdfast.store import Store, open_store
from tests.servers import Postgres, postgres

_numbers = count(1)
_dropped = pytest.StashKey[int]()


@dataclass(frozen=True)
class Engine:
    """A store to test: `url` names a fresh, empty one; `shared` says whether other processes can open it."""

    name: str
    url: str
    shared: bool = True


@pytest.fixture(scope="session")
def postgres_server() -> Generator[Postgres, None, None]:
    with postgres(
        syncs=False
    ) as server:  # a new database for every test: without syncing, a quarter less time
        yield server


async def new_database(server: Postgres) -> str:
    name = f"test_{os.getpid()}_{next(_numbers)}"
    connection = await asyncpg.connect(server.url())
    try:
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()
    return server.url(name)


@pytest.fixture(params=["sqlite", "memory", "postgres"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """Every engine in turn. A test that is marked `processes` is not run on memory, which only one process can see."""
    match request.param:
        case "sqlite":
            return Engine("sqlite", f"sqlite:///{tmp_path}/store.db")
        case "memory":
            return Engine("memory", "sqlite://:memory:", shared=False)
        case _:
            server: Postgres = request.getfixturevalue("postgres_server")
            return Engine("postgres", await new_database(server))


@pytest.fixture
async def store(engine: Engine) -> AsyncGenerator[Store, None]:
    async with open_store(engine.url) as store:
        yield store
        # Whatever a test did through the public door, every invariant still holds.
        assert await store.check() == []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="do the drills at full length; takes minutes")


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    """Whether a drill is to be done at full length."""
    return bool(request.config.getoption("--long"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def runs(item: pytest.Item) -> bool:
        memory = "memory" in getattr(getattr(item, "callspec", None), "params", {}).values()
        return not (memory and item.get_closest_marker("processes"))

    dropped = [item for item in items if not runs(item)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        config.stash[_dropped] = len(dropped)
        items[:] = [item for item in items if runs(item)]


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    """Say aloud what an engine takes no part in, and why."""
    return f"memory takes no part in {config.stash.get(_dropped, 0)} tests: only one process can see it"
