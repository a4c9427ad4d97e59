import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Holdfast
from holdfast.commands import Command
from holdfast.shell import ShellService
from holdfast.shell.tools import shell_tools
from holdfast.store import Store
from tests.builders import within


def script(*calls: ToolCallPart) -> tuple[FunctionModel, list[Any]]:
    """Return a model that makes these calls one after the other, and what it was told."""
    told: list[Any] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        for part in messages[-1].parts:
            if part.part_kind in {"tool-return", "retry-prompt"}:
                told.append(getattr(part, "content", None))
        call = calls[len(told)] if len(told) < len(calls) else None
        if call is not None and told and isinstance(told[-1], dict) and "command_id" in call.args_as_dict():
            call = ToolCallPart(call.tool_name, {**call.args_as_dict(), "command_id": told[0]["command_id"]})
        return ModelResponse(parts=[TextPart("done") if call is None else call])

    return FunctionModel(answer), told


async def test_an_agent_runs_reads_and_stops(service: ShellService, store: Store):
    model, told = script(
        ToolCallPart("shell_run", {"command": "echo hi; sleep 100", "background": True}),
        ToolCallPart("shell_output", {"command_id": "?"}),
        ToolCallPart("shell_stop", {"command_id": "?"}),
        ToolCallPart("shell_run", {"command": "printf %50000d 7; exit 3"}),
    )
    agent = Agent(model, name="bot", toolsets=[shell_tools(service)], capabilities=[Holdfast(store)])
    result = await agent.run("go", conversation_id="talk")
    assert result.output == "done"
    started, seen, stopped, ended = told
    assert started["state"] == "running"
    assert seen["state"] == "running"
    assert (stopped["state"], stopped["exit_code"]) == ("stopped", -1)
    assert (ended["state"], ended["exit_code"]) == ("done", 3)
    assert "[20,000 characters omitted here]" in ended["stdout"]
    # Each call is an effect in the ledger, and the commands belong to the session.
    effects = (await store.effects("talk")).items
    assert [effect.tool for effect in effects] == ["shell_run", "shell_output", "shell_stop", "shell_run"]
    assert {effect.state for effect in effects} == {"completed"}
    commands = (await store.commands(session_id="talk")).items
    session = await store.session("talk")
    assert [command.owner for command in commands] == [session.owner, session.owner]


async def test_a_mistake_of_the_model_is_told_to_it(service: ShellService):
    model, told = script(
        ToolCallPart("shell_run", {"command": "ls", "cwd": "/nowhere"}),
        ToolCallPart("shell_output", {"command_id": "7"}),
        ToolCallPart("shell_run", {"command": "echo fine"}),
    )
    agent = Agent(model, toolsets=[shell_tools(service)])
    await agent.run("go")
    assert "The working directory /nowhere does not exist" in str(told[0])
    assert "UUID" in str(told[1])
    assert told[2]["stdout"] == "fine\n"
    assert [c.session_id for c in (await service.store.commands()).items] == [None]


async def test_the_policy_is_to_report(service: ShellService):
    seen: list[dict[str, Any] | None] = []

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.extend(tool.metadata for tool in info.function_tools)
        return ModelResponse(parts=[TextPart("ok")])

    await Agent(FunctionModel(look), toolsets=[shell_tools(service)]).run("go")
    assert [metadata and metadata["recovery"] for metadata in seen] == ["report"] * 3


async def test_a_command_whose_call_is_cancelled_while_it_starts_is_stopped(
    service: ShellService, store: Store, monkeypatch: pytest.MonkeyPatch
):
    """Nobody learned its id, so nobody else would stop it."""
    starting = asyncio.Event()
    start_command = store.start_command

    async def slowly(command: Command) -> Command:
        starting.set()
        await asyncio.sleep(0.3)
        return await start_command(command)

    monkeypatch.setattr(store, "start_command", slowly)
    task = asyncio.create_task(service.start("sleep 60"))
    await asyncio.wait_for(starting.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with within(store, 10):
        while True:
            found = (await store.commands()).items
            if found and found[0].ended_at is not None:
                break
            await asyncio.sleep(0.05)
    assert found[0].state == "stopped"


async def test_commands_of_other_sessions_do_not_exist(service: ShellService, store: Store):
    await store.create_session(agent="bot", owner="ada", id="hers")
    hers = await service.start("echo secret; sleep 100", session_id="hers")
    for tool in ("shell_output", "shell_stop"):
        model, told = script(ToolCallPart(tool, {"command_id": hers.id}))
        agent = Agent(model, name="bot", toolsets=[shell_tools(service)], capabilities=[Holdfast(store)])
        await agent.run("go", conversation_id=f"his-{tool}")
        assert "There is no command" in str(told[0])
    assert (await store.command(hers.id)).state == "running"
    await service.stop(hers.id)
