"""Tools that are no functions: a server's (as MCP's are), behind whatever wraps it, or made anew for each step."""

import asyncio
from collections.abc import Callable
from typing import Any, Self

import pytest
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import BinaryImage, ModelMessage
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, CombinedToolset, FunctionToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from holdfast import Holdfast, Store, continue_session, inspect_run, load_history, resume
from holdfast.errors import Conflict
from holdfast.record import is_provider_valid
from tests.record.agents import call, scripted

ANYTHING = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))
OBJECT = {"type": "object", "additionalProperties": True}


class Server(AbstractToolset[Any]):
    """Behaves as an MCP server does: raw JSON and images as results, its errors told to the model."""

    def __init__(self, *names: str) -> None:
        self.names = names or ("search", "draw", "refuse", "hang")
        self.called: list[str] = []
        self.connected = 0
        self.hanging = asyncio.Event()

    @property
    def id(self) -> str:
        return "server"

    async def __aenter__(self) -> Self:
        self.connected += 1
        return self

    async def __aexit__(self, *args: object) -> None:
        self.connected -= 1

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        assert self.connected
        return {
            name: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(name=name, parameters_json_schema=OBJECT),
                max_retries=1,
                args_validator=ANYTHING,
            )
            for name in self.names
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        self.called.append(name)
        if name == "refuse":
            raise ModelRetry("the server says no")
        if name == "hang":
            self.hanging.set()
            await asyncio.sleep(60)
        if name == "draw":
            return ["a drawing", BinaryImage(b"\x89PNG", media_type="image/png")]
        return {"found": [tool_args, None, 1.5, {"deep": ["ü"]}]}


def _made_for(server: Server) -> Callable[[RunContext[Any]], Server]:
    def each_step(ctx: RunContext[Any]) -> Server:
        return server

    return each_step


WRAPPED: dict[str, tuple[str, Callable[[Server], Any]]] = {
    "plain": ("{}", lambda server: server),
    "combined": ("{}", lambda server: CombinedToolset([FunctionToolset(), server])),
    "filtered": ("{}", lambda server: server.filtered(lambda ctx, tool: True)),
    "prefixed": ("far_{}", lambda server: server.prefixed("far")),
    "renamed": ("{}", lambda server: server.renamed({"search": "search"})),
    "all": ("far_{}", lambda server: CombinedToolset([server.prefixed("far").filtered(lambda ctx, t: True)])),
    "dynamic": ("{}", _made_for),
}


@pytest.fixture(params=WRAPPED)
def wrapped(request: pytest.FixtureRequest) -> tuple[Callable[[str], str], Server, Any]:
    name, wrap = WRAPPED[request.param]
    server = Server()
    return name.format, server, wrap(server)


def made(store: Store, toolset: Any, *turns: Any, **options: Any) -> Agent[None, Any]:
    return Agent(scripted(*turns), toolsets=[toolset], capabilities=[Holdfast(store, **options)], retries=3)


async def history(store: Store) -> list[ModelMessage]:
    (latest,) = (await store.checkpoints(session_id="talk", limit=1)).items
    return await load_history(store, latest)


async def cut_off(agent: Agent[None, Any], server: Server, store: Store) -> str:
    """Cancel a run while a tool hangs and the other one's result is on record; return its id."""
    running = asyncio.create_task(agent.run("hi", conversation_id="talk"))
    await server.hanging.wait()
    while "tool_call_completed" not in [event.kind for event in await store.events("talk")]:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    (run,) = (await store.runs(session_id="talk")).items
    return run.id


async def test_results_of_any_toolset_are_recorded(memory: Store, wrapped: Any):
    name, server, toolset = wrapped
    turns = [[call(name("search"), "a", q=1), call(name("draw"), "b")], [call(name("refuse"), "c")]]
    result = await made(memory, toolset, *turns).run("hi", conversation_id="talk")
    assert result.output == "done"
    assert sorted(server.called) == ["draw", "refuse", "search"]
    assert await history(memory) == result.all_messages()
    assert is_provider_valid(result.all_messages())
    report = await inspect_run(memory, result.run_id)
    assert [(e.tool, e.state) for e in report.completed] == [
        (name(tool), "completed") for tool in ("search", "draw", "refuse")
    ]
    assert report.unresolved == []


@pytest.mark.parametrize("quick", ["search", "draw", "refuse"])
async def test_after_a_crash_what_is_known_is_told_again(memory: Store, wrapped: Any, quick: str):
    name, server, toolset = wrapped
    agent = made(memory, toolset, [call(name(quick), "a"), call(name("hang"), "b")])
    run_id = await cut_off(agent, server, memory)
    result = await resume(agent, memory, run_id)
    assert sorted(server.called) == sorted([quick, "hang"])  # both at once
    text = str(result.all_messages())
    assert {"search": "found", "draw": "a drawing", "refuse": "the server says no"}[quick] in text
    assert "it is unknown whether it took effect" in text
    assert await history(memory) == result.all_messages()


async def test_a_policy_goes_by_the_name_that_the_model_uses(memory: Store):
    server = Server("search", "hang")
    agent = made(
        memory,
        server.prefixed("far"),
        [call("far_search", "a"), call("far_hang", "b")],
        policies={"far_hang": "retry"},
    )
    run_id = await cut_off(agent, server, memory)
    running = asyncio.create_task(resume(agent, memory, run_id))
    server.hanging.clear()
    await server.hanging.wait()
    running.cancel()
    await asyncio.wait([running])
    assert sorted(server.called) == ["hang", "hang", "search"]


async def test_a_policy_in_the_metadata_of_a_toolset(memory: Store):
    server = Server("search", "hang")
    turn = [call("search", "a"), call("hang", "b")]
    agent = made(memory, server.with_metadata(recovery="retry"), turn)
    run_id = await cut_off(agent, server, memory)
    running = asyncio.create_task(resume(agent, memory, run_id))
    server.hanging.clear()
    await server.hanging.wait()
    running.cancel()
    await asyncio.wait([running])
    assert sorted(server.called) == ["hang", "hang", "search"]


async def test_a_server_that_has_lost_a_tool_is_named_and_nothing_is_forgotten(memory: Store):
    """Pydantic AI would tell the model that there is no such tool, of a call that was carried out."""
    server = Server("search", "hang")
    turn = [call("search", "a"), call("hang", "b")]
    run_id = await cut_off(made(memory, server, turn), server, memory)
    with pytest.raises(Conflict, match="no longer has the tool hang, search"):
        await resume(made(memory, Server("other"), turn), memory, run_id)
    # With its tools back it goes on, also after that; without them the next message does.
    *_, again = (await memory.runs(session_id="talk")).items
    result = await resume(made(memory, server, turn), memory, again.id)
    assert "found" in str(result.all_messages())
    assert server.called == ["search", "hang"]


async def test_the_next_message_needs_no_tool_that_is_gone(memory: Store):
    server = Server("search", "hang")
    await cut_off(made(memory, server, [call("search", "a"), call("hang", "b")]), server, memory)
    result = await continue_session(made(memory, Server("other")), memory, "talk", "and?")
    assert "found" in str(result.all_messages())
    assert is_provider_valid(result.all_messages())
