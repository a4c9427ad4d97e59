"""One client in two ways: on a store in this process, and against a real server process on the same store."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from holdfast import Client, Worker, connect, open_store
from tests.client.agents import AGENTS
from tests.server.fronts import front

TRANSPORTS = ("in process", "server")


@pytest.fixture(params=TRANSPORTS)
async def hf(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Client, None]:
    """A client whose agents run on a worker in this process."""
    url = f"sqlite:///{tmp_path}/store.db"
    if request.param == "in process":
        async with connect(url, agents=AGENTS) as client:
            yield client
        return
    async with open_store(url) as store:
        worker = Worker(store, AGENTS)
        serving = asyncio.create_task(worker.run())
        async with (
            front(url, "--role", "api", credential_key="a key that is long enough") as server,
            connect(server.url, token=server.token) as client,
        ):
            yield client
        worker.stop()
        await serving
