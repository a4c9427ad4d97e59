"""Promise 3: a reader that has n next gets n + 1, from any process, however often it reconnects."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from holdfast import Store
from holdfast.types import Batch, NewEvent
from tests.builders import within
from tests.conftest import Engine
from tests.raw_client import AsyncClient
from tests.server.fronts import front

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.mark.thorough("postgres")
async def test_streams_that_reconnect_at_random_miss_nothing_and_see_nothing_twice(
    engine: Engine, store: Store, long: bool, thorough: bool
):
    """A few seconds of it; with --long a minute."""
    events, pause = (3000, 0.25) if long else (300, 0.15)
    number_of_sessions, streams = (20, 200) if long or thorough else (8, 80)
    if engine.name == "mongodb" and not long:
        number_of_sessions, streams, events = 6, 40, 150
    chance = random.Random(11)
    async with AsyncExitStack() as stack:
        fronts = [
            await stack.enter_async_context(front(engine.url, "--role", "api", token="hf_test"))
            for _ in range(2)
        ]
        holder = await store.join("writer", ttl=550)
        sessions = [
            (await store.create_session(agent="agent", owner="you")).id for _ in range(number_of_sessions)
        ]
        clients = [await stack.enter_async_context(each.client()) for each in fronts]
        reading = [
            asyncio.create_task(read(chance.choice(sessions), clients, random.Random(n), events))
            for n in range(streams)
        ]
        await asyncio.gather(
            *(write(store, session, holder, random.Random(session), events, pause) for session in sessions)
        )
        async with within(store, 400 if long else 90):
            seen = await asyncio.gather(*reading)
    assert all(numbers == list(range(1, events + 1)) for numbers, _ in seen)
    assert sum(reconnects for _, reconnects in seen) > streams  # they did reconnect


async def write(
    store: Store, session_id: str, holder: object, chance: random.Random, events: int, pause: float
) -> None:
    lease = await store.acquire(session_id, holder)  # pyright: ignore[reportArgumentType]
    written = 0
    while written < events:
        count = min(chance.randint(1, 12), events - written)
        written = await store.write(lease, Batch(events=[NewEvent(kind="tick")] * count))
        await asyncio.sleep(chance.uniform(0, pause))


async def read(
    session_id: str, clients: list[AsyncClient], chance: random.Random, events: int
) -> tuple[list[int], int]:
    """Read a session to its end, leaving and coming back, now here, now there."""
    numbers: list[int] = []
    reconnects = 0
    while len(numbers) < events:
        reconnects += 1
        patience = chance.randint(1, 120)
        stream = chance.choice(clients).stream(session_id, after=numbers[-1] if numbers else 0)
        async for event in stream:
            numbers.append(event["seq"])
            patience -= 1
            if not patience or len(numbers) >= events:
                break
        await stream.aclose()
    return numbers, reconnects
