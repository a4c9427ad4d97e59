from collections.abc import AsyncGenerator

import pytest

from holdfast import Store, open_store


@pytest.fixture
async def memory() -> AsyncGenerator[Store, None]:
    """A store in memory whose invariants hold when the test has ended."""
    async with open_store("sqlite://:memory:") as opened:
        yield opened
        assert await opened.check() == []
