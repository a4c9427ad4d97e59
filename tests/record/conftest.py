from collections.abc import AsyncGenerator

import pytest

from holdfast import Store, open_store
from holdfast.testing.agents import ManualClock, memory_store
from tests.record.stepping import done


@pytest.fixture
async def memory() -> AsyncGenerator[Store, None]:
    """A store in memory whose invariants hold when the test has ended."""
    async with open_store("sqlite://:memory:") as opened:
        yield opened
        assert await opened.check() == []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def timed(clock: ManualClock) -> AsyncGenerator[Store, None]:
    """A store in memory on a clock that the test controls."""
    async with memory_store(clock) as opened:
        yield opened
        clock.advance(60)
        assert await opened.check() == []
