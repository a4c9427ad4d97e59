"""A run that is cancelled, wherever that hits it, leaves no lease behind."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from holdfast import Store
from holdfast.errors import SessionBusy
from tests.builders import until
from tests.record.agents import call, recorded

CANCELS = 1500


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
async def test_a_cancelled_run_does_not_keep_its_lease(store: Store, thorough: bool):
    """Cancelled after any number of turns of the event loop: Pydantic AI forgets `wrap_run` at one of them."""
    chance = random.Random(7)

    async def act() -> str:
        await asyncio.sleep(0)
        return "done"

    agent = recorded(store, [call("act")], tools=[act])

    async def cancelled(number: int) -> None:
        running: asyncio.Task[Any] = asyncio.create_task(
            agent.run("go", conversation_id=f"talk-{number % 10}")
        )
        for _ in range(chance.randrange(60)):
            await asyncio.sleep(0)
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() * 0.01)
        running.cancel()
        with suppress(asyncio.CancelledError, SessionBusy):
            await running

    async def no_holder_left() -> bool:
        return await store.holders() == []

    for number in range(CANCELS if thorough else CANCELS // 5):
        await cancelled(number)
    await until(no_holder_left, seconds=5)  # less than the deadline, after which a leaked one would be gone
    assert len([task for task in asyncio.all_tasks() if "wrap_run" in repr(task)]) == 0
    for number in range(10):
        assert (await agent.run("hello", conversation_id=f"talk-{number}")).output == "done"
    assert await store.check() == []
