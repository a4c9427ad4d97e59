"""A holder is renewed in time, whatever happens around it, as often as the settings say."""

import gc
import resource
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from holdfast import Holdfast
from holdfast.config import load_settings
from holdfast.leases import Renewal
from holdfast.store import open_store
from tests.builders import until
from tests.record.agents import call, scripted
from tests.runtime.agents import ended, send, working


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_renewal_that_finds_no_file_descriptors_starts_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Else its holder would be taken for dead, and its sessions taken from a worker that goes on with them."""
    lost: list[bool] = []
    async with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        holder = await store.join("kept", ttl=20)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            renewal = Renewal(store, holder, lost=lambda: lost.append(True), every=0.05, in_thread=True)

            async def has_tried() -> bool:
                return "cannot start to renew" in caplog.text

            await until(has_tried, 5)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        async def is_renewed() -> bool:
            (found,) = await store.holders()
            return found.deadline > holder.deadline

        await until(is_renewed, 5)
        await renewal.stop()
    assert not lost
    caplog.clear()
    gc.collect()  # event loops that could not be made complain now, not in another test


@pytest.mark.parametrize("given", [None, 7.0])
async def test_recorder_and_worker_live_as_long_as_the_settings_say(given: float | None):
    """Unless they are told otherwise."""
    settings = load_settings(lease_ttl_seconds=4.0, lease_renew_seconds=1.0)
    async with open_store("sqlite://:memory:", settings=settings) as store:
        lives: list[float] = []

        async def note() -> str:
            lives.extend(holder.ttl for holder in await store.holders())
            return "noted"

        model = scripted([call("note")])
        options: dict[str, Any] = {} if given is None else {"lease_ttl": given}
        agent = Agent(model, tools=[note], capabilities=[Holdfast(store, **options)])
        await agent.run("hello", conversation_id="talk")
        session = await store.create_session(agent="agent", owner="you")
        async with working(store, Agent(model, tools=[note], name="agent"), ttl=given):
            await ended(store, await send(store, session.id, "hello"))
        assert lives == [given or 4.0] * 2
