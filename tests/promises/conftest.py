from pathlib import Path

import pytest

from tests.conftest import new_database
from tests.promises.driver import Crash


@pytest.fixture(params=["sqlite", "postgres", "mongodb"])
def crash(request: pytest.FixtureRequest, tmp_path: Path) -> Crash:
    if request.param == "sqlite":
        return Crash(tmp_path)
    if request.param == "mongodb":
        url: str = request.getfixturevalue("mongo_url")

        async def shared() -> str:
            return url  # to make a new one takes longer than all that is done in it

        return Crash(tmp_path, shared)
    return Crash(tmp_path, lambda: new_database(request.getfixturevalue("postgres_server")))
