"""A step is written while the model works. Nothing uses its response before the write is durable."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from holdfast import Holdfast, Store, annotate_effect
from holdfast.errors import Conflict, StoreFull
from holdfast.leases import hold_lease
from holdfast.record import buffer
from holdfast.record.buffer import Buffer
from holdfast.record.calls import Calls
from holdfast.record.history import open_history
from holdfast.record.offloader import MediaOffloader
from holdfast.record.run_host import StandaloneRun
from holdfast.types import Batch, Lease, NewEvent, Run
from tests.record.agents import call


@dataclass
class Slow:
    """A store whose writes wait, from the first one that `delays` is true for, until they are let through or refused."""

    store: Store
    delays: Callable[[Batch], bool]
    through: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: bool = False
    once: bool = False
    error: Exception | None = None

    def __post_init__(self) -> None:
        write = self.store.write

        async def delayed(lease: Lease, batch: Batch) -> int:
            if (self.waiting and not self.once) or self.delays(batch):
                self.waiting = True
                await self.through.wait()
                if self.error is not None:
                    raise self.error
            return await write(lease, batch)

        self.store.write = delayed


@dataclass
class World:
    """An agent that calls `step` once, and what happened."""

    policy: str = "report"
    seconds: float = 0  # that its tool takes
    happened: list[str] = field(default_factory=list[str])

    def agent(self, store: Store) -> Agent[None, str]:
        def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            self.happened.append("model")
            return after_one_call("step", messages)

        async def stream(
            messages: list[ModelMessage], info: AgentInfo
        ) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
            self.happened.append("model")
            if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
                yield "done"
            else:
                yield {0: DeltaToolCall("step", "{}", tool_call_id="call-1")}

        async def step() -> str:
            self.happened.append("tool")
            await asyncio.sleep(self.seconds)
            return "found"

        tool = Tool(step, metadata={"recovery": self.policy})
        return Agent(
            FunctionModel(model, stream_function=stream), tools=[tool], capabilities=[Holdfast(store)]
        )


def after_one_call(tool: str, messages: list[ModelMessage]) -> ModelResponse:
    """Answer as a model that calls this tool once."""
    if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(parts=[call(tool)])


async def happens(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def has_results(batch: Batch) -> bool:
    return any(effect.state == "completed" for effect in batch.effects)


def has_calls(batch: Batch) -> bool:
    return any(effect.state == "started" for effect in batch.effects)


async def test_the_model_works_while_results_are_written_and_its_response_waits(memory: Store):
    world, slow = World(), Slow(memory, has_results)
    running = asyncio.create_task(world.agent(memory).run("hi", conversation_id="talk"))
    await happens(lambda: world.happened == ["model", "tool", "model"])
    await asyncio.sleep(0.05)
    assert not running.done()
    slow.through.set()
    assert (await running).output == "done"


async def test_no_text_is_streamed_before_the_results_are_durable(memory: Store):
    world, slow = World(), Slow(memory, has_results)
    seen: list[str] = []

    async def consume() -> None:
        async with world.agent(memory).run_stream("hi", conversation_id="talk") as result:
            async for text in result.stream_text():
                seen.append(text)

    running = asyncio.create_task(consume())
    await happens(lambda: slow.waiting)
    await asyncio.sleep(0.05)
    assert seen == []
    slow.through.set()
    await running
    assert seen[-1] == "done"


@pytest.mark.parametrize("policy", ["report", "retry", "readonly"])
async def test_only_a_tool_that_changes_nothing_starts_before_its_call_is_durable(memory: Store, policy: str):
    world, slow = World(policy, seconds=0.05), Slow(memory, has_calls)
    running = asyncio.create_task(world.agent(memory).run("hi", conversation_id="talk"))
    await happens(lambda: slow.waiting)
    if policy == "readonly":
        await happens(lambda: world.happened == ["model", "tool", "model"])
    await asyncio.sleep(0.05)
    expected = ["model", "tool", "model"] if policy == "readonly" else ["model"]
    assert (world.happened, running.done()) == (expected, False)
    slow.through.set()
    assert (await running).output == "done"
    assert world.happened == ["model", "tool", "model"]
    (effect,) = (await memory.effects("talk")).items
    assert effect.state == "completed"
    assert await memory.check() == []


async def test_a_step_of_quick_calls_that_change_nothing_is_one_batch(
    memory: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(buffer, "_A_MOMENT", 60)  # they are quick on a busy machine as well
    batches: list[Batch] = []
    Slow(memory, lambda batch: bool(batches.append(batch)))
    assert (await World("readonly").agent(memory).run("hi", conversation_id="talk")).output == "done"
    assert [len(batch.messages) for batch in batches] == [1, 2, 1]
    step = batches[1]
    assert [event.kind for event in step.events] == [
        "model_request_completed",
        "message",
        "tool_call_started",
        "tool_call_completed",
        "message",
        "model_request_started",
    ]
    (effect,), (checkpoint,) = step.effects, step.checkpoints
    assert (effect.state, effect.message, checkpoint.kind) == ("completed", (1, 2), "settled")
    assert await memory.check() == []


async def test_an_annotation_follows_the_call_that_it_is_about(memory: Store):
    async def look(ctx: RunContext[None]) -> str:
        await annotate_effect(ctx, summary="looked")
        return "found"

    model = FunctionModel(lambda messages, _: after_one_call("look", messages))
    tools = [Tool(look, metadata={"recovery": "readonly"})]
    agent = Agent(model, deps_type=type(None), tools=tools, capabilities=[Holdfast(memory)])
    await agent.run("hi", conversation_id="talk")
    (effect,) = (await memory.effects("talk")).items
    assert (effect.state, effect.summary, effect.attempts) == ("completed", "looked", 1)


async def test_a_delegate_begins_after_the_call_that_starts_it(memory: Store):
    inner = Agent(FunctionModel(lambda _, __: ModelResponse(parts=[TextPart("found")])), name="inner")

    async def look() -> str:
        return (await inner.run("look", capabilities=[Holdfast(memory)])).output

    model = FunctionModel(lambda messages, _: after_one_call("look", messages))
    tools = [Tool(look, metadata={"recovery": "readonly"})]
    batches: list[Batch] = []
    Slow(memory, lambda batch: bool(batches.append(batch)))
    await Agent(model, tools=tools, capabilities=[Holdfast(memory)]).run("hi", conversation_id="talk")
    (called,) = [number for number, batch in enumerate(batches) if has_calls(batch)]
    begun = [number for number, batch in enumerate(batches) if batch.status == "running"]
    assert begun == [0, called + 1]


@pytest.mark.parametrize("delays", [has_results, has_calls])
async def test_a_response_to_results_that_could_not_be_written_is_not_used(memory: Store, delays: Any):
    world, slow = World("readonly", seconds=0.05), Slow(memory, delays)
    running = asyncio.create_task(world.agent(memory).run("hi", conversation_id="talk"))
    await happens(lambda: slow.waiting)
    slow.error = StoreFull(url=memory.url)
    slow.through.set()
    with pytest.raises(StoreFull):
        await running
    assert await memory.check() == []


async def test_a_run_that_is_cancelled_does_not_wait_for_a_write_without_an_answer(memory: Store):
    world, slow = World(), Slow(memory, has_results, once=True)
    running = asyncio.create_task(world.agent(memory).run("hi", conversation_id="talk"))
    await happens(lambda: slow.waiting)
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=20)
    assert done
    assert running.cancelled()
    (run,) = (await memory.runs(session_id="talk")).items
    assert run.status == "interrupted"


@pytest.mark.parametrize("ends", [True, False], ids=["durable", "given up"])
async def test_a_tool_does_not_run_if_the_run_is_cancelled_while_its_call_is_written(
    memory: Store, ends: bool
):
    world, slow = World(), Slow(memory, has_calls, once=True)
    running = asyncio.create_task(world.agent(memory).run("hi", conversation_id="talk"))
    await happens(lambda: slow.waiting)
    running.cancel()
    if ends:
        await asyncio.sleep(0)
        slow.through.set()
    await asyncio.wait([running], timeout=20)
    await asyncio.sleep(0.1)
    assert world.happened == ["model"]


async def test_a_write_that_was_given_up_is_never_taken_for_durable(memory: Store):
    """Another task than the one that is cancelled may wait for it: Pydantic AI runs every tool call in its own."""
    slow = Slow(memory, lambda _: True)
    async with hold_lease(memory, (await memory.create_session(agent="agent", owner="you")).id) as lease:
        offloader = MediaOffloader(memory, None, None)
        run = Run(id="run", agent="agent")
        host = StandaloneRun(memory, offloader, owner="you", ttl=None, title="")
        calls, history = Calls("run", {}), await open_history(memory, lease.session_id, None, [])
        buffer = Buffer(memory, lease, run, host=host, offloader=offloader, calls=calls, history=history)
        buffer.start(Batch(events=[NewEvent(kind="note")]))
        waiting = asyncio.create_task(buffer.join())
        await happens(lambda: slow.waiting)
        await buffer.finish()
        with pytest.raises(Conflict, match="the run ended"):
            await waiting
        assert not buffer.is_durable


async def test_calls_that_follow_each_other_do_not_delay_the_first(memory: Store):
    """Each of them takes less time than a call is held."""
    written: list[int] = []
    looked = 0
    Slow(memory, lambda batch: has_calls(batch) and bool(written.append(looked)))

    async def look() -> str:
        nonlocal looked
        await asyncio.sleep(0.003)
        looked += 1
        return "found"

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[call("look", call_id=f"call-{number}") for number in range(20)])

    tool = Tool(look, metadata={"recovery": "readonly"}, sequential=True)
    await Agent(FunctionModel(model), tools=[tool], capabilities=[Holdfast(memory)]).run("hi")
    assert written
    assert written[0] < 10
    assert looked == 20


async def test_a_held_call_is_durable_before_a_call_beside_it_that_could_change_something(memory: Store):
    seen: list[tuple[str, str]] = []

    async def look() -> str:
        await asyncio.sleep(0.001)
        return "found"

    async def act() -> str:
        seen.extend((effect.tool, effect.state) for effect in (await memory.effects("talk")).items)
        return "done"

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[call("look", call_id="call-1"), call("act", call_id="call-2")])

    tools = [Tool(look, metadata={"recovery": "readonly"}), Tool(act)]
    agent = Agent(FunctionModel(model), tools=tools, capabilities=[Holdfast(memory)])
    await agent.run("hi", conversation_id="talk")
    assert ("act", "started") in seen
    assert "look" in {tool for tool, _ in seen}
    assert await memory.check() == []
