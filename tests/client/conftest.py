"""One client in two ways: on a store, and through a server on a real port that has its own connections to that store."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from holdfast import Client, connect, open_store
from holdfast.config import load_settings
from holdfast.server import create_app
from tests.client.agents import AGENTS
from tests.server.serving import serving, working

TOKEN = "hf_the_clients_own"
TRANSPORTS = ("in process", "server")


@pytest.fixture(params=TRANSPORTS)
async def hf(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Client, None]:
    """A client whose agents run on a worker in this process."""
    url = f"sqlite:///{tmp_path}/store.db"
    if request.param == "in process":
        async with connect(url, agents=AGENTS) as client:
            yield client
        return
    settings = load_settings(token=TOKEN, credential_key="a key that is long enough")
    async with (
        open_store(url) as store,
        open_store(url) as served,
        working(store, AGENTS),
        serving(create_app(settings, served)) as address,
        connect(address, token=TOKEN) as client,
    ):
        yield client
