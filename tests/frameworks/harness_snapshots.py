"""Snapshots for the tests of the harness's stores."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai_harness.step_persistence import ContinuableSnapshot

from holdfast.frameworks.framework_store import FrameworkStore

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def said(*texts: Any) -> list[ModelMessage]:
    return [ModelRequest(parts=[UserPromptPart(text, timestamp=NOON)]) for text in texts]


def snapshot(*texts: Any) -> ContinuableSnapshot:
    return ContinuableSnapshot(run_id="r", step_index=1, messages=said(*texts))


async def released(store: FrameworkStore, name: str) -> str:
    """Return the id of a session once no process holds it."""
    async with asyncio.timeout(30):
        while True:
            session = await store.call(store.find(name))
            assert session is not None
            if session.holder is None:
                return session.id
            await asyncio.sleep(0.05)
