"""Runs outside a worker whose tools sleep: the run ends, and is resumed after the time."""

import asyncio

from pydantic_ai import Agent, DeferredToolRequests, RunContext
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import holdfast
from holdfast import Holdfast, Store, resume


def clerk(store: Store, *tools: str) -> Agent[object, str | DeferredToolRequests]:
    """Return an agent whose model calls these tools at once, and answers with their results."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        results = [p.content for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
        calls = [ToolCallPart(tool, {}, f"call-{tool}") for tool in tools]
        return ModelResponse(parts=[TextPart(", ".join(map(str, results)))] if results else [*calls])

    agent = Agent(
        FunctionModel(respond),
        name="clerk",
        output_type=[str, DeferredToolRequests],
        capabilities=[Holdfast(store)],
    )

    @agent.tool(metadata={"recovery": "steps"})
    async def nap(ctx: RunContext[object]) -> str:  # pyright: ignore[reportUnusedFunction]
        await holdfast.sleep(seconds=2)
        return f"slept, approved: {ctx.tool_call_approved}"

    @agent.tool(metadata={"recovery": "steps"})
    async def ask(ctx: RunContext[object]) -> str:  # pyright: ignore[reportUnusedFunction]
        await holdfast.sleep(seconds=0.3)
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return "asked"

    @agent.tool_plain
    async def quick() -> str:  # pyright: ignore[reportUnusedFunction]
        return "quick"

    return agent


async def latest(store: Store) -> str:
    return (await store.find_runs(session_id="s", limit=1)).items[0].id


async def test_a_run_that_sleeps_is_resumed_after_its_time(store: Store):
    agent = clerk(store, "nap", "quick")
    result = await agent.run("go", conversation_id="s", run_id="r1")
    assert isinstance(result.output, DeferredToolRequests)
    session = await store.session("s")
    assert session.status == "sleeping"
    assert (session.waiting_for or "").startswith("timer until")
    early = await resume(agent, store, "r1")
    assert isinstance(early.output, DeferredToolRequests)
    await asyncio.sleep(2.1)
    done = await resume(agent, store, await latest(store))
    assert sorted(str(done.output).split(", ")) == ["approved: False", "quick", "slept"]
    assert (await store.session("s")).status == "idle"
    assert await store.check() == []


async def test_a_resumed_call_that_slept_is_not_approved_by_that(store: Store):
    agent = clerk(store, "ask", "quick")
    await agent.run("go", conversation_id="s", run_id="r1")
    await asyncio.sleep(0.4)
    asked = (await resume(agent, store, "r1")).output
    assert isinstance(asked, DeferredToolRequests)
    assert [call.tool_name for call in asked.approvals] == ["ask"]
