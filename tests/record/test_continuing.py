"""A run in a conversation that is on record: it continues from there. A delegate has a history of its own."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolReturnPart

from holdfast import Holdfast, Store, fork, load_history, resume
from holdfast.errors import HoldfastError, StoreMissing
from tests.record.agents import call, recorded, scripted
from tests.runtime.agents import echo, said


async def history(store: Store, session_id: str) -> list[ModelMessage]:
    (latest,) = (await store.checkpoints(session_id=session_id, limit=1)).items
    return await load_history(store, latest)


@pytest.mark.parametrize("mode", ["run", "stream", "iter"])
async def test_a_second_run_of_a_conversation_remembers_the_first(store: Store, mode: str):
    agent = Agent(echo(), capabilities=[Holdfast(store)], system_prompt="Be brief.")
    first = await agent.run("one", conversation_id="talk")
    match mode:
        case "run":
            result = await agent.run("two", conversation_id="talk")
            output, everything, new = result.output, result.all_messages(), result.new_messages()
        case "stream":
            async with agent.run_stream("two", conversation_id="talk") as streamed:
                output = await streamed.get_output()
            everything, new = streamed.all_messages(), streamed.new_messages()
        case _:
            async with agent.iter("two", conversation_id="talk") as run:
                async for _ in run:
                    pass
            assert run.result is not None
            output, everything, new = run.result.output, run.result.all_messages(), run.result.new_messages()
    assert output == "one | two"
    assert said(new) == ["two"]
    assert everything == [*first.all_messages(), *new]
    assert await history(store, "talk") == everything
    assert len(await store.segments("talk")) == 1


async def test_a_history_that_is_given_is_the_one_that_counts(store: Store):
    agent = Agent(echo(), capabilities=[Holdfast(store)])
    first = await agent.run("one", conversation_id="talk")
    await agent.run("two", conversation_id="talk")
    result = await agent.run("three", conversation_id="talk", message_history=first.all_messages())
    assert result.output == "one | three"


async def test_a_fresh_run_starts_with_an_empty_history(store: Store):
    agent = Agent(echo(), capabilities=[Holdfast(store)])
    await agent.run("one", conversation_id="talk")
    fresh = Holdfast(store, fresh=True)
    assert (await agent.run("two", conversation_id="talk", capabilities=[fresh])).output == "two"
    assert (await agent.run("three", conversation_id="talk")).output == "two | three"


async def test_the_next_run_closes_the_calls_that_a_cancelled_one_left_open(store: Store):
    inside = asyncio.Event()

    async def pay() -> str:
        inside.set()
        await asyncio.Event().wait()
        return "never"

    agent = recorded(store, [call("pay")], tools=[pay])
    running = asyncio.create_task(agent.run("pay", conversation_id="talk"))
    await asyncio.wait_for(inside.wait(), 10)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    messages = (await agent.run("and?", conversation_id="talk")).all_messages()
    closing = messages[2]
    assert isinstance(closing, ModelRequest)
    answer = closing.parts[0]
    assert isinstance(answer, ToolReturnPart)
    assert "it is unknown whether it took effect" in str(answer.content)
    assert said(messages) == ["pay", "and?"]


async def test_a_fork_and_its_source_continue_apart(store: Store):
    agent = Agent(echo(), capabilities=[Holdfast(store)])
    await agent.run("one", conversation_id="talk")
    (latest,) = (await store.checkpoints(session_id="talk", limit=1)).items
    copy = await fork(store, latest)
    assert (await agent.run("two", conversation_id=copy)).output == "one | two"
    assert (await agent.run("three", conversation_id="talk")).output == "one | three"


def orchestrator(store: Store, started: list[str]) -> Agent[object, str]:
    """Return an agent whose tool runs another agent in the same conversation."""
    helper = Agent(scripted([TextPart("helped")]), name="helper", capabilities=[Holdfast(store)])
    agent: Agent[None, str] = Agent(scripted([call("delegate")]), name="boss", capabilities=[Holdfast(store)])

    @agent.tool
    async def delegate(ctx: RunContext[object]) -> str:
        started.append(ctx.run_id or "")
        return (await helper.run("help", conversation_id=ctx.conversation_id)).output

    return agent


async def test_a_delegate_in_the_conversation_of_its_parent_is_a_child_with_its_own_history(store: Store):
    result = await orchestrator(store, []).run("go", conversation_id="talk")
    (child,) = (await store.runs(parent_id=result.run_id)).items
    assert (child.agent, child.status) == ("helper", "completed")
    assert child.session_id != "talk"
    assert said(await history(store, child.session_id)) == ["help"]
    assert said(await history(store, "talk")) == ["go"]


async def test_the_first_prompt_is_the_title_of_a_new_session(store: Store):
    result = await orchestrator(store, []).run(["go\nnow", "!"], conversation_id="talk")
    (child,) = (await store.runs(parent_id=result.run_id)).items
    await orchestrator(store, []).run("later", conversation_id="talk")
    assert (await store.session("talk")).title == "go"
    assert (await store.session(child.session_id)).title == "help"


async def test_a_parent_that_is_resumed_does_not_repeat_a_delegate_that_completed(store: Store):
    started: list[str] = []
    agent = orchestrator(store, started)
    answered = asyncio.Event()

    @agent.output_validator
    async def hang(output: str) -> str:
        if not answered.is_set():
            answered.set()
            await asyncio.Event().wait()
        return output

    running = asyncio.create_task(agent.run("go", conversation_id="talk"))
    await asyncio.wait_for(answered.wait(), 10)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    (parent,) = (await store.runs(session_id="talk")).items
    assert (await resume(agent, store, parent.id)).output == "done"
    assert len(started) == 1
    responses = [m for m in await history(store, "talk") if isinstance(m, ModelResponse)]
    assert len(responses) == 2


async def test_an_agent_of_a_specification_is_recorded(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    spec = {"model": "test", "name": "clerk", "capabilities": [{"Holdfast": url}]}
    agent = Agent.from_spec(spec, custom_capability_types=[Holdfast])
    await agent.run("one", conversation_id="talk")
    result = await agent.run("two", conversation_id="talk")
    assert said(result.all_messages()) == ["one", "two"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("redis://x", "redis://x"),
        ("store.db", "sqlite:///path"),
        (":memory:", "sqlite://:memory:"),
        ({"store": "sqlit:///x.db"}, "sqlit"),
        ({"store": 5}, "int"),
        ({"store": "sqlite:///x.db", "policies": {"deploy": "retri"}}, "retri"),
        ({"store": "sqlite:///x.db", "agent": ""}, "agent"),
        ({"store": "sqlite:///x.db", "owner": "a\nb"}, "owner"),
        ({"store": "sqlite:///x.db", "run_id": "a b"}, "run id"),
        ({"store": "sqlite:///x.db", "parent_run_id": "a b"}, "parent run id"),
    ],
)
def test_a_typo_in_a_specification_is_found_when_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any, named: str
):
    monkeypatch.chdir(tmp_path)
    spec = {"model": "test", "name": "clerk", "capabilities": [{"Holdfast": given}]}
    with pytest.raises(HoldfastError, match=named):
        Holdfast.from_spec(**given) if isinstance(given, dict) else Holdfast.from_spec(given)
    with pytest.raises(Exception, match=named):
        Agent.from_spec(spec, custom_capability_types=[Holdfast])
    assert list(tmp_path.iterdir()) == []


async def test_a_store_that_cannot_be_opened_is_named(tmp_path: Path):
    agent = Agent(echo(), capabilities=[Holdfast.from_spec(f"sqlite:///{tmp_path}/missing/store.db")])
    with pytest.raises(StoreMissing, match="missing"):
        await agent.run("one")
