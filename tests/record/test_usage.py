"""What a run counts, for metrics and as usage: its model requests and tool calls, by agent, model, tool and outcome."""

import asyncio
import json
import random
import threading
from collections.abc import Generator, Sequence
from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from holdfast import Holdfast, Store, open_store
from holdfast.config import Price, load_settings
from holdfast.counting import counted_by
from holdfast.record.usage import UsageMeter
from holdfast.types import Batch, Lease
from holdfast.usage import UsageGroup, UsageOf
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


def priced(parts: Sequence[ModelResponsePart], tokens: RequestUsage) -> ModelResponse:
    return ModelResponse(parts=parts, usage=tokens)


async def used(store: Store, *by: UsageGroup) -> list[UsageOf]:
    return list((await store.usage(by)).items)


async def test_a_run_records_what_it_used():
    """With the step of each response, at the price in the settings."""
    responses = iter(
        [
            priced([call("look"), call("look", "call-2")], RequestUsage(input_tokens=1000, output_tokens=10)),
            priced(
                [TextPart("done")],
                RequestUsage(
                    input_tokens=1500, output_tokens=20, cache_read_tokens=1000, cache_write_tokens=100
                ),
            ),
        ]
    )

    def look() -> str:
        return "seen"

    price = Price(input=Decimal(2), output=Decimal(10), cache_read=Decimal("0.5"))
    settings = load_settings(prices={"m": price})
    async with open_store("sqlite://:memory:", settings=settings) as store:
        agent = Agent(
            FunctionModel(lambda messages, info: next(responses), model_name="m"),
            name="a",
            tools=[look],
            capabilities=[Holdfast(store, owner="ada")],
        )
        await agent.run("hello", conversation_id="s")
        (usage,) = await used(store, "owner", "agent", "model", "session_id")
        assert (usage.owner, usage.agent, usage.model, usage.session_id) == ("ada", "a", "m", "s")
        assert (usage.requests, usage.unpriced, usage.tool_calls) == (2, 0, 2)
        assert (usage.input_tokens, usage.output_tokens) == (2500, 30)
        assert (usage.cache_read_tokens, usage.cache_write_tokens) == (1000, 100)
        # In millionths of a dollar: 1,500 tokens at 2, 30 at 10, and 1,000 from the cache at 0.5.
        assert usage.cost_nanos == (1500 * 2 + 30 * 10 + 500) * 1000
        assert usage.working_us > 0
        events = [event for event in await store.events("s") if event.kind == "model_request_completed"]
        costs = [Decimal(json.loads(event.payload)["cost"]) for event in events]
        assert sum(costs) * 10**9 == usage.cost_nanos


async def test_a_request_without_a_price_counts_as_unpriced(memory: Store):
    await recorded(memory, name="a").run("hello")
    (usage,) = await used(memory)
    assert (usage.requests, usage.unpriced, usage.cost_nanos) == (1, 1, 0)


async def test_a_failed_run_records_what_it_used_until_then(memory: Store):
    def look() -> str:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await recorded(memory, [call("look")], tools=[look], name="a").run("hello")
    (usage,) = await used(memory)
    assert (usage.requests, usage.tool_calls) == (1, 1)


async def test_a_delegate_uses_in_its_own_session(memory: Store):
    inner = recorded(memory, name="inner")

    async def ask() -> str:
        return (await inner.run("question")).output

    await recorded(memory, [call("ask")], tools=[ask], name="outer").run("hello")
    assert [(each.agent, each.requests) for each in await used(memory, "agent")] == [
        ("inner", 1),
        ("outer", 2),
    ]
    assert len(await used(memory, "session_id")) == 2


async def test_a_strange_name_of_a_model_fails_nothing(memory: Store):
    strange = "m\0\ud800" + "x" * 1000
    model = FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart("done")]), model_name=strange)
    await Agent(model, name="a", capabilities=[Holdfast(memory)]).run("hello")
    (usage,) = await used(memory, "model")
    assert (usage.model, usage.requests) == ("m?" + "x" * 197, 1)


async def test_nothing_used_is_lost_or_counted_twice_when_a_batch_is_written_again(memory: Store):
    meter = UsageMeter("a", {})
    meter.add(meter.measure(priced([TextPart("one")], RequestUsage(input_tokens=1)), "m"))
    first = meter.take()
    meter.give_back(first)
    meter.add(meter.measure(priced([TextPart("two")], RequestUsage(input_tokens=2)), "m"))
    assert [(each.requests, each.input_tokens) for each in meter.take()] == [(2, 3)]
    assert meter.take() == []


async def test_numbers_that_cannot_be_right_fail_no_turn(memory: Store):
    tokens = RequestUsage(input_tokens=2**63, output_tokens=-5)
    model = FunctionModel(lambda messages, info: priced([TextPart("done")], tokens), model_name="m")
    await Agent(model, name="a", capabilities=[Holdfast(memory)]).run("hello")
    (usage,) = await used(memory)
    assert (usage.requests, usage.input_tokens, usage.output_tokens) == (1, 10**12, 0)


def test_no_count_of_a_thread_is_lost():
    meter, taken = UsageMeter("a", {}), list[int]()

    def work() -> None:
        for _ in range(2000):
            meter.add(meter.count("m", RequestUsage(), cost=None, tool_calls=0))
            if random.random() < 0.1:
                taken.extend(each.requests for each in meter.take())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) + sum(each.requests for each in meter.take()) == 16_000


async def test_a_response_that_arrives_while_the_run_is_stopped_is_counted(
    memory: Store, monkeypatch: pytest.MonkeyPatch
):
    write, responded = memory.write, asyncio.Event()

    async def slow(lease: Lease, batch: Batch) -> int:
        if any(event.kind == "model_request_started" for event in batch.events):
            await responded.wait()
            await asyncio.sleep(0.1)
        return await write(lease, batch)

    monkeypatch.setattr(memory, "write", slow)

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        responded.set()
        return ModelResponse(parts=[TextPart("done")])

    agent = Agent(FunctionModel(respond, model_name="m"), name="a", capabilities=[Holdfast(memory)])
    running = asyncio.create_task(agent.run("hello", conversation_id="s"))
    await responded.wait()
    await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [each.requests for each in await used(memory)] == [1]
    kinds = [event.kind for event in await memory.events("s")]
    assert kinds.count("model_request_completed") == 1
