from collections.abc import Generator
from pathlib import Path

import pytest

from tests.conftest import Engine
from tests.promises.driver import Crash, Cutters


@pytest.fixture(params=["sqlite", "postgres", "mongodb"])
def crash(request: pytest.FixtureRequest, tmp_path: Path) -> Crash:
    if request.param == "sqlite":
        return Crash(tmp_path, "sqlite:///{place}/store.db")
    url: str = request.getfixturevalue("mongo_url" if request.param == "mongodb" else "postgres_url")
    return Crash(tmp_path, url)  # one for all of them: to make a new one takes longer than what is done in it


@pytest.fixture
def cutters(engine: Engine) -> Generator[Cutters, None, None]:
    made = Cutters(engine.url)
    yield made
    made.close()
