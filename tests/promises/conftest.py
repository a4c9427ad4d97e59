from pathlib import Path

import pytest

from tests.promises.driver import Crash


@pytest.fixture(params=["sqlite", "postgres"])
def crash(request: pytest.FixtureRequest, tmp_path: Path) -> Crash:
    server = request.getfixturevalue("postgres_server") if request.param == "postgres" else None
    return Crash(tmp_path, server)
