"""Calls that are answered later, by a person or from outside: the run waits, and the ledger has an end once they are."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, RunContext, Tool
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.messages import ModelMessage
from pydantic_ai.tools import ToolDefinition, ToolDenied
from pydantic_ai.toolsets import ExternalToolset

from holdfast import Holdfast, Store, continue_session, inspect_run, load_history, resume
from holdfast.errors import Conflict
from holdfast.record import is_provider_valid
from tests.record.agents import call, scripted


class Shop:
    """Tools that end at once, wait for a person, or wait for the world."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.hangs = asyncio.Event()
        self.hanging = False

    def look(self) -> str:
        self.did.append("look")
        return "seen"

    async def order(self) -> str:
        self.did.append("order")
        raise CallDeferred(metadata={"job": 7})

    async def pay(self, ctx: RunContext[None]) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"amount": 10})
        self.did.append("pay")
        if self.hanging:
            self.hangs.set()
            await asyncio.sleep(60)
        return "paid"

    async def ship(self) -> str:
        self.did.append("ship")
        return "shipped"

    def agent(self, store: Store, *calls: Any, **options: Any) -> Agent[None, Any]:
        extra = options.pop("capabilities", [])
        return Agent(
            scripted(list(calls)),
            tools=[self.look, self.order, self.pay, Tool(self.ship, requires_approval=True)],
            toolsets=[ExternalToolset([ToolDefinition(name="fetch", parameters_json_schema=OBJECT)])],
            output_type=[str, DeferredToolRequests],
            capabilities=[Holdfast(store, **options), *extra],
        )


OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
EACH = {
    "order": DeferredToolResults(calls={"b": {"arrived": 1}}),
    "fetch": DeferredToolResults(calls={"b": "fetched"}),
    "pay": DeferredToolResults(approvals={"b": True}),
    "ship": DeferredToolResults(approvals={"b": True}),
}
WAITS = {"order": "external", "fetch": "external", "pay": "approval", "ship": "approval"}


async def history(store: Store) -> list[ModelMessage]:
    (latest,) = (await store.checkpoints(session_id="talk", limit=1)).items
    return await load_history(store, latest)


async def states(store: Store) -> Mapping[str, str]:
    return {effect.tool: effect.state for effect in (await store.effects("talk")).items}


@pytest.mark.parametrize("beside", [True, False], ids=["beside another", "alone"])
@pytest.mark.parametrize("tool", EACH)
async def test_a_run_waits_and_goes_on_with_the_answer(memory: Store, tool: str, beside: bool):
    shop = Shop()
    agent = shop.agent(memory, *([call("look", "a")] if beside else []), call(tool, "b"))
    asked = await agent.run("hi", conversation_id="talk")
    assert isinstance(asked.output, DeferredToolRequests)
    session, run = await memory.session("talk"), await memory.run(asked.run_id)
    assert (run.status, session.status, session.waiting_for) == ("waiting", "waiting", f"{tool} (b)")
    (waiting,) = (await inspect_run(memory, asked.run_id)).unresolved
    assert (waiting.tool, waiting.call_id) == (tool, "b")
    assert f'"kind": "{WAITS[tool]}"' in (waiting.result or "")
    done = list(shop.did)

    result = await resume(agent, memory, asked.run_id, deferred_tool_results=EACH[tool])
    assert result.output == "done"
    assert shop.did == done + ([tool] if WAITS[tool] == "approval" else [])
    assert await history(memory) == result.all_messages()
    assert is_provider_valid(result.all_messages())
    report = await inspect_run(memory, asked.run_id)
    assert report.unresolved == []
    ended = next(e for e in report.completed if e.call_id == "b")
    assert ended.ended_at is not None
    assert ended.body is not None  # the answer is in the message
    assert (await memory.run(asked.run_id)).status == "completed"
    assert (await memory.session("talk")).status == "idle"


@pytest.mark.parametrize("tool", ["pay", "ship"])
async def test_a_denied_call_has_failed(memory: Store, tool: str):
    shop = Shop()
    agent = shop.agent(memory, call("look", "a"), call(tool, "b"))
    asked = await agent.run("hi", conversation_id="talk")
    no = DeferredToolResults(approvals={"b": ToolDenied("too dear")})
    result = await agent.run(
        message_history=asked.all_messages(), conversation_id="talk", deferred_tool_results=no
    )
    assert result.output == "done"
    assert shop.did == ["look"]
    (failed,) = (await inspect_run(memory, asked.run_id)).failed
    assert (failed.tool, failed.error) == (tool, "denied: too dear")
    ends = [e.kind for e in await memory.events("talk") if '"answered": true' in e.payload]
    assert ends == ["tool_call_failed"]
    assert await history(memory) == result.all_messages()


async def test_all_at_once(memory: Store):
    shop = Shop()
    agent = shop.agent(memory, *(call(tool, tool) for tool in ("look", *EACH)))
    asked = await agent.run("hi", conversation_id="talk")
    answers = DeferredToolResults(
        calls={"order": 1, "fetch": 2}, approvals={"pay": True, "ship": ToolDenied("no")}
    )
    result = await resume(agent, memory, asked.run_id, deferred_tool_results=answers)
    assert await history(memory) == result.all_messages()
    assert await states(memory) == {
        **dict.fromkeys(("look", "order", "pay", "fetch"), "completed"),
        "ship": "failed",
    }
    assert sorted(shop.did) == ["look", "order", "pay"]


async def test_without_an_answer_nothing_runs_again(memory: Store):
    """A job that was handed on is not handed on twice, and a call beside it does not run again."""
    shop = Shop()
    agent = shop.agent(memory, call("order", "b"))
    asked = await agent.run("hi", conversation_id="talk")
    again = await resume(agent, memory, asked.run_id)
    assert isinstance(again.output, DeferredToolRequests)
    assert again.output.metadata == {"b": {"job": 7}}
    assert shop.did == ["order"]
    answered = await resume(agent, memory, again.run_id, deferred_tool_results=EACH["order"])
    assert answered.output == "done"
    assert await states(memory) == {"order": "completed"}

    both = shop.agent(memory, call("look", "a"), call("order", "b"))
    asked = await both.run("hi", conversation_id="other")
    with pytest.raises(Conflict, match="waits for answers to b"):
        await resume(both, memory, asked.run_id)


async def test_an_approval_counts_once(memory: Store):
    """A call that was approved, begun and cut off is not begun again by the same approval."""
    shop = Shop()
    agent = shop.agent(memory, call("pay", "b"))
    asked = await agent.run("hi", conversation_id="talk")
    shop.hanging = True
    running = asyncio.create_task(resume(agent, memory, asked.run_id, deferred_tool_results=EACH["pay"]))
    await shop.hangs.wait()
    running.cancel()
    await asyncio.wait([running])
    shop.hanging = False
    *_, cut_off = (await memory.runs(session_id="talk")).items
    result = await resume(agent, memory, cut_off.id, deferred_tool_results=EACH["pay"])
    assert shop.did == ["pay"]
    assert "it is unknown whether it took effect" in str(result.all_messages())
    assert await states(memory) == {"pay": "started"}  # until somebody finds out


async def test_a_new_message_instead_of_an_answer(memory: Store):
    shop = Shop()
    agent = shop.agent(memory, *(call(tool, tool) for tool in ("look", "order", "pay")))
    await agent.run("hi", conversation_id="talk")
    result = await continue_session(agent, memory, "talk", "never mind")
    assert result.output == "done"
    assert is_provider_valid(result.all_messages())
    assert await history(memory) == result.all_messages()
    # Nothing was paid. The job that was handed on may still be done.
    assert await states(memory) == {"look": "completed", "order": "started", "pay": "failed"}
    assert [run.status for run in (await memory.runs(session_id="talk")).items] == ["completed"] * 2


async def test_answers_that_come_in_the_same_run(memory: Store):
    """A capability may answer at once: the approved call is the one that asked, not another."""

    async def at_once(ctx: RunContext[Any], requests: DeferredToolRequests) -> DeferredToolResults:
        return requests.build_results(
            approvals={approval.tool_call_id: True for approval in requests.approvals},
            calls={asked.tool_call_id: "brought" for asked in requests.calls},
        )

    shop = Shop()
    agent = shop.agent(
        memory,
        *(call(tool, tool) for tool in EACH),
        capabilities=[HandleDeferredToolCalls(handler=at_once)],
    )
    result = await agent.run("hi", conversation_id="talk")
    assert result.output == "done"
    assert await history(memory) == result.all_messages()
    found = (await memory.effects("talk")).items
    assert {(e.call_id, e.state) for e in found} >= {("order", "completed"), ("pay", "completed")}
    assert all(e.state == "completed" for e in found), found
