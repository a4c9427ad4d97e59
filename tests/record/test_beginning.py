"""A run that ends before its first model request is on record, and goes on with the prompt it was given."""

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import BinaryImage, ModelMessage, ModelRequest, UserPromptPart

from holdfast import Store, continue_session, load_history, resume
from holdfast.record import buffer, is_provider_valid
from holdfast.types import Batch, Lease
from tests.record.agents import recorded


class Setup:
    """What an agent does before its first request: it fails, hangs or is well."""

    def __init__(self) -> None:
        self.fails = self.hangs = False
        self.inside = asyncio.Event()

    async def __call__(self) -> str:
        self.inside.set()
        if self.fails:
            raise OSError("no tools today")
        if self.hangs:
            await asyncio.sleep(60)
        return "be kind"


def made(store: Store, setup: Setup) -> Agent[None, Any]:
    agent = recorded(store, system_prompt="you are a clerk")
    agent.instructions(setup)
    return agent


async def history(store: Store) -> list[ModelMessage]:
    (latest,) = (await store.checkpoints(session_id="talk", limit=1)).items
    return await load_history(store, latest)


def prompts(messages: list[ModelMessage]) -> list[Any]:
    return [p.content for m in messages for p in m.parts if isinstance(p, UserPromptPart)]


PROMPTS = [
    "hi",
    ["look", BinaryImage(b"\x00\x01", media_type="image/png")],
    "\ud800\x00",
    "",
    "large " * 20_000,
]


@pytest.mark.parametrize("prompt", PROMPTS, ids=["text", "parts", "surrogate", "empty", "large"])
async def test_a_run_that_failed_before_its_first_request(memory: Store, prompt: Any):
    setup = Setup()
    agent = made(memory, setup)
    setup.fails = True
    with pytest.raises(OSError, match="no tools today"):
        await agent.run(prompt, conversation_id="talk")
    (run,) = (await memory.runs(session_id="talk")).items
    assert (run.status, run.agent) == ("failed", "agent")
    assert [e.kind for e in await memory.events("talk")] == ["run_started", "run_failed"]
    setup.fails = False
    result = await resume(agent, memory, run.id)
    assert result.output == "done"
    assert prompts(result.all_messages()) == [prompt]
    assert "you are a clerk" in str(result.all_messages())
    assert await history(memory) == result.all_messages()


async def test_a_run_that_was_cut_off_in_a_slow_setup(memory: Store):
    """Also one that was given a history which is not on record: that is kept with the prompt."""
    setup, began = Setup(), asyncio.Event()
    agent = made(memory, setup)
    given = (await recorded(memory).run("before", conversation_id="elsewhere")).all_messages()
    setup.hangs, write = True, memory.write

    async def watched(lease: Lease, batch: Batch) -> int:
        seq = await write(lease, batch)
        began.set()
        return seq

    memory.write = watched
    running = asyncio.create_task(agent.run("hi", message_history=given, conversation_id="talk"))
    await setup.inside.wait()
    await began.wait()
    (run,) = (await memory.runs(session_id="talk")).items
    assert (run.status, (await memory.session("talk")).status) == ("running", "running")
    running.cancel()
    await asyncio.wait([running])
    setup.hangs = False
    result = await resume(agent, memory, run.id)
    assert prompts(result.all_messages()) == ["before", "hi"]
    assert is_provider_valid(result.all_messages())
    assert await history(memory) == result.all_messages()
    # Readers of the journal see each message once.
    told = [e.message for e in await memory.events("talk") if e.kind == "message"]
    assert len(told) == len(set(told)) == len(result.all_messages())


async def test_it_can_fail_again_and_again(memory: Store):
    setup = Setup()
    agent = made(memory, setup)
    await agent.run("first", conversation_id="talk")
    setup.fails = True
    with pytest.raises(OSError, match="no tools"):
        await continue_session(agent, memory, "talk", "second")
    for _ in range(2):
        *_, run = (await memory.runs(session_id="talk")).items
        with pytest.raises(OSError, match="no tools"):
            await resume(agent, memory, run.id)
    setup.fails = False
    *_, run = (await memory.runs(session_id="talk")).items
    result = await resume(agent, memory, run.id)
    assert prompts(result.all_messages()) == ["first", "second"]
    assert await history(memory) == result.all_messages()


async def test_the_next_message_after_one_that_was_never_sent(memory: Store):
    setup = Setup()
    agent = made(memory, setup)
    setup.fails = True
    with pytest.raises(OSError, match="no tools"):
        await agent.run("first", conversation_id="talk")
    setup.fails = False
    result = await continue_session(agent, memory, "talk", "second")
    assert prompts(result.all_messages()) == ["second"]
    assert isinstance(result.all_messages()[0], ModelRequest)


async def test_beginning_costs_no_write_of_its_own(memory: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(buffer, "_SETUP", 60)  # however slow this machine is today
    batches: list[list[str]] = []
    write = memory.write

    async def counted(lease: Lease, batch: Batch) -> int:
        batches.append([event.kind for event in batch.events])
        return await write(lease, batch)

    memory.write = counted
    await recorded(memory).run("hi", conversation_id="talk")
    assert batches == [
        ["run_started", "message", "model_request_started"],
        ["model_request_completed", "message", "run_completed"],
    ]
