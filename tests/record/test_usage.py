"""What a run counts: its model requests and tool calls, by agent, model, tool and outcome."""

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Holdfast, Store
from holdfast.counting import counted_by
from tests.record.agents import call, recorded

Counted = list[tuple[str, float, dict[str, str]]]


@pytest.fixture
def counted() -> Generator[Counted, None, None]:
    facts: Counted = []
    with counted_by(lambda fact, amount, labels: facts.append((fact, amount, labels))):
        yield facts


def labels(counted: Counted, fact: str) -> list[dict[str, str]]:
    return [given for name, _, given in counted if name == fact]


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
async def test_a_request_without_a_response_counts_by_its_outcome(
    memory: Store, counted: Counted, outcome: str
):
    asked = asyncio.Event()

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.set()
        if outcome == "failed":
            raise OSError("the provider is down")
        return await asyncio.Event().wait()  # pyright: ignore[reportReturnType]

    agent = Agent(FunctionModel(respond, model_name="m"), name="a", capabilities=[Holdfast(memory)])
    running = asyncio.create_task(agent.run("hello"))
    await asked.wait()
    if outcome == "cancelled":
        running.cancel()
    with pytest.raises((OSError, asyncio.CancelledError)):
        await running
    assert labels(counted, "model_requests") == [{"agent": "a", "model": "m", "outcome": outcome}]
    assert labels(counted, "model_cost_usd") == []


async def test_a_model_without_a_price_has_no_cost(memory: Store, counted: Counted):
    await recorded(memory, name="a").run("hello")
    assert [given["outcome"] for given in labels(counted, "model_requests")] == ["completed"]
    assert labels(counted, "model_cost_usd") == []


async def test_a_call_counts_when_it_ends_and_not_while_it_waits(memory: Store, counted: Counted):
    def pay() -> Any:
        raise ApprovalRequired

    agent = recorded(memory, [call("pay")], tools=[pay], name="a", output_type=[str, DeferredToolRequests])
    await agent.run("hello")
    assert labels(counted, "tool_calls") == []
    assert labels(counted, "tool_seconds") == []
