"""Promise 7: recording a step costs what the first one cost, and stored bytes grow with content, not its square.

Counted, not timed: what a step writes does not depend on the machine. The times are in docs/performance.md.
"""

import sqlite3
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

from holdfast import Holdfast, Store, open_store

WORDS = "as many words as a step has, all of its own: "


def make_agent(store: Store, steps: int) -> Agent[None, str]:
    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        done = sum(isinstance(part, ToolReturnPart) for message in messages for part in message.parts)
        if done >= steps:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("act", {"text": f"{WORDS}{done:06}"}, f"call-{done:06}")])

    agent: Agent[None, str] = Agent(FunctionModel(respond), capabilities=[Holdfast(store)])

    @agent.tool_plain
    async def act(text: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return f"did {text}"

    return agent


async def recorded(file: Path, steps: int) -> tuple[int, int]:
    """Record a run of so many steps, and return the bytes of its texts and the rows of its session."""
    async with open_store(f"sqlite:///{file}") as store:
        agent = make_agent(store, steps)
        await agent.run("go", conversation_id="talk", usage_limits=UsageLimits(request_limit=None))
        assert await store.check() == []
    connection = sqlite3.connect(file)
    try:
        texts = connection.execute(
            "SELECT (SELECT sum(length(body)) FROM messages) + (SELECT sum(length(payload)) FROM events)"
        ).fetchone()[0]
        rows = sum(
            connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("events", "messages", "checkpoints", "effects", "segments", "runs")
        )
    finally:
        connection.close()
    return texts, rows


@pytest.mark.thorough
@pytest.mark.timeout(240)
async def test_what_is_stored_grows_with_the_steps(tmp_path: Path):
    short, half, whole = [await recorded(tmp_path / f"{n}.db", n) for n in (100, 200, 400)]
    for first, second, third in zip(short, half, whole, strict=True):
        # 200 steps after the first 200 add as much as twice 100 steps after the first 100, to within a hundredth.
        assert abs((third - second) - 2 * (second - first)) <= 0.01 * (third - second)
