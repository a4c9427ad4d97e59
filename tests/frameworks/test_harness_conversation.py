"""The conversation in a session of pydantic-ai-harness, as people read it."""

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from pydantic_ai_harness.step_persistence import StepPersistence

from holdfast import Store
from holdfast.frameworks.conversations import conversation
from holdfast.frameworks.harness import HoldfastStepStore

pytestmark = pytest.mark.processes


async def test_messages_of_the_harness(store: Store):
    steps = HoldfastStepStore(store, owner="ada")
    try:
        agent = Agent(TestModel(), capabilities=[StepPersistence(store=steps)])

        @agent.tool_plain
        def look() -> str:  # pyright: ignore[reportUnusedFunction]
            return "found"

        await agent.run("Look.")
    finally:
        steps.close()
    (session,) = (await store.sessions(agent="harness")).items
    entries = await conversation(store, session)
    assert [(entry.role, entry.text) for entry in entries] == [
        ("user", "Look."),
        ("assistant", "look({})"),
        ("tool", "found"),
        ("assistant", '{"look":"found"}'),
    ]
    assert await conversation(store, session, after=entries[1].key) == entries[2:]
