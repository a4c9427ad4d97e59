"""Compaction: a shorter history replaces the one that a session has."""

import asyncio
import json
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from holdfast import Store
from holdfast.record.resume_point import find_resume_point
from holdfast.runtime import AgentSetup
from tests.record.agents import scripted
from tests.runtime.agents import echo, ended, reread, said, send, working


@pytest.fixture
async def session(store: Store) -> str:
    return (await store.create_session(agent="agent", owner="you")).id


async def test_a_compaction_that_is_cut_off_is_handed_over(store: Store, session: str):
    inside = asyncio.Event()

    async def wait(_: object) -> Any:
        inside.set()
        await asyncio.Event().wait()

    async def shorten(_: object) -> list[ModelMessage]:
        return [ModelRequest(parts=[UserPromptPart("short")]), ModelResponse(parts=[TextPart("yes")])]

    async with working(store, AgentSetup(agent=Agent(scripted()), compactor=wait), grace=0):
        await ended(store, await send(store, session, "hello"))
        asked = await store.submit(session, "compact")
        await asyncio.wait_for(inside.wait(), 10)
    assert (await reread(store, asked)).state == "queued"
    async with working(store, AgentSetup(agent=Agent(scripted()), compactor=shorten)):
        assert (await ended(store, asked)).state == "done"


async def test_a_compactor_may_change_the_messages_in_place(store: Store, session: str):
    async def keep_last(messages: Any) -> Any:
        del messages[:-2]
        return messages

    async with working(store, AgentSetup(agent=Agent(echo()), compactor=keep_last)):
        for text in ("one", "two", "three"):
            await ended(store, await send(store, session, text))
        assert (await ended(store, await store.submit(session, "compact"))).state == "done"
        await ended(store, await send(store, session, "four"))
    place = await find_resume_point(store, session, None)
    assert said(place.messages) == ["three", "four"]


async def add_note(messages: Any) -> Any:
    return [*messages, ModelRequest(parts=[UserPromptPart("note")]), ModelResponse(parts=[TextPart("yes")])]


@pytest.mark.parametrize("back", ["undo", "rewind"])
async def test_a_session_is_compacted_after_it_went_back(store: Store, session: str, back: str):
    """The segment has the messages that were taken back, so a compactor that keeps the beginning needs a new one."""
    async with working(store, AgentSetup(agent=Agent(echo()), compactor=add_note)):
        await ended(store, await send(store, session, "one"))
        (first,) = (await store.checkpoints(session_id=session, limit=1)).items
        await ended(store, await send(store, session, "two"))
        payload = json.dumps({"checkpoint_id": first.id}) if back == "rewind" else "{}"
        assert (await ended(store, await store.submit(session, back, payload))).state == "done"
        compacted = await ended(store, await store.submit(session, "compact"))
        assert (compacted.state, compacted.reason) == ("done", None)
        assert (await ended(store, await send(store, session, "three"))).state == "done"
    point = await find_resume_point(store, session, None)
    assert said(point.messages) == ["one", "note", "three"]


async def test_nothing_is_compacted_after_everything_was_undone(store: Store, session: str):
    async with working(store, Agent(echo())):
        await ended(store, await send(store, session, "one"))
        assert (await ended(store, await store.submit(session, "undo"))).state == "done"
        compacted = await ended(store, await store.submit(session, "compact"))
        assert compacted.state == "failed"
        assert "no messages to compact" in str(compacted.reason)
        assert (await ended(store, await send(store, session, "two"))).state == "done"
    assert said((await find_resume_point(store, session, None)).messages) == ["two"]


async def test_the_model_of_the_session_writes_the_summary_and_its_tokens_are_on_record(store: Store):
    def summarize(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(
            parts=[TextPart("small talk")], usage=RequestUsage(input_tokens=7, output_tokens=2)
        )

    setup = AgentSetup(
        agent=Agent(echo(), name="agent"), models={"small": FunctionModel(summarize, model_name="small-1")}
    )
    metadata = json.dumps({"model": "small"})
    session = (await store.create_session(agent="agent", owner="you", metadata=metadata)).id
    async with working(store, setup):
        await ended(store, await send(store, session, "one"))
        assert (await ended(store, await store.submit(session, "compact"))).state == "done"
    events = await store.events(session)
    (at,) = [n for n, event in enumerate(events) if event.kind == "compacted"]
    request = events[at - 1]
    assert request.kind == "model_request_completed"
    facts = json.loads(request.payload)
    assert (facts["model"], facts["usage"]["input_tokens"]) == ("small-1", 7)
    assert "small talk" in said((await find_resume_point(store, session, None)).messages)[0]
    usage = {each.model: each.input_tokens for each in (await store.usage(["model"])).items}
    assert usage["small-1"] == 14, "for the message and for the summary"
