"""A session that is attached to those who stream it, with real processes."""

import asyncio
import json

import pytest

from holdfast import Store
from tests.builders import until
from tests.conftest import Engine
from tests.raw_client import ServerError
from tests.server.fronts import front

GRACE = 1.5
pytestmark = pytest.mark.processes


@pytest.mark.thorough("postgres")
async def test_a_turn_lasts_as_long_as_somebody_streams_it(engine: Engine, store: Store):
    attached = {"attached": {"grace": GRACE, "on_unwatched": "interrupt"}}
    async with front(engine.url, "tests.server.talker:agent") as server, server.client() as client:
        session = (await client.create_session("agent", metadata=attached))["id"]
        await client.submit(session, "hang")

        async def watch() -> None:
            async for _ in client.stream(session):
                pass

        watching = asyncio.create_task(watch())

        async def is_running() -> bool:
            return (await store.session(session)).status == "running"

        await until(is_running)
        await asyncio.sleep(GRACE * 3)
        assert await is_running()
        assert await store.seconds_unwatched(session) < GRACE
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        async with asyncio.timeout(30):
            while (await store.session(session)).status == "running":
                await asyncio.sleep(0.05)
    (submission,) = (await store.submissions(session)).items
    assert (submission.state, submission.reason) == ("failed", "interrupted")
    assert json.loads((await store.session(session)).metadata) == attached


async def test_a_bad_attachment_is_refused_over_http(engine: Engine):
    async with front(engine.url, "--role", "api") as server, server.client() as client:
        for attached in ("yes", {"grace": 0}, {"grace": 1e-9}, {"on_unwatched": "dance"}):
            with pytest.raises(ServerError, match="attached") as refused:
                await client.create_session("agent", metadata={"attached": attached})
            assert refused.value.facts["status"] == 422
