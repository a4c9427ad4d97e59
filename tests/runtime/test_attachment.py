"""Sessions that are attached to those who watch them."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from pydantic_ai import Agent

from holdfast import Store
from holdfast.errors import BadInput, SessionNotFound
from holdfast.runtime.attachment import Attachment, attachment, detached
from tests.record.agents import call, scripted
from tests.runtime.agents import ended, kinds, reread, send, working

GRACE = 2.5
"""A slow disk may keep whoever watches waiting for a second."""


def patient(steps: int = 3) -> "Agent[None, str]":
    """Return an agent that takes a moment in each of its tools."""
    agent = Agent(scripted(*[[call("rest", f"c{n}")] for n in range(steps)]))

    @agent.tool_plain
    async def rest() -> str:
        await asyncio.sleep(0.4)
        return "ok"

    return agent


@asynccontextmanager
async def watching(store: Store, session_id: str) -> AsyncGenerator[None, None]:
    async def go_on() -> None:
        while True:
            await store.mark_watched([session_id])
            await asyncio.sleep(GRACE / 8)

    task = asyncio.create_task(go_on())
    yield
    task.cancel()


async def attached(store: Store, **more: object) -> str:
    metadata = json.dumps({"attached": {"grace": GRACE, **more}, "colour": "blue"})
    return (await store.create_session(agent="agent", owner="you", metadata=metadata)).id


async def test_while_somebody_watches_the_turn_goes_on(store: Store):
    session_id = await attached(store, on_unwatched="interrupt")
    async with watching(store, session_id), working(store, patient(10)):
        assert (await ended(store, await send(store, session_id, "go"))).state == "done"
    assert "handover" not in await kinds(store, session_id)


async def test_a_turn_that_nobody_watches_is_handed_over_and_goes_on_in_the_background(store: Store):
    session_id = await attached(store)
    async with working(store, patient(10)):
        submission = await ended(store, await send(store, session_id, "go"))
    assert submission.state == "done"
    found = await kinds(store, session_id)
    assert found.count("handover") == 1
    told = next(event for event in await store.events(session_id) if event.kind == "handover")
    assert json.loads(told.payload) == {"reason": "unwatched"}
    assert found.count("tool_call_started") == 10  # none twice
    assert json.loads((await store.session(session_id)).metadata) == {"colour": "blue"}


async def test_or_it_is_interrupted(store: Store):
    session_id = await attached(store, on_unwatched="interrupt")
    async with working(store, patient(10)):
        first = await ended(store, await send(store, session_id, "go"))
        assert (first.state, first.reason) == ("failed", "interrupted")
        async with watching(store, session_id):
            again = await send(store, session_id, "go on")
            assert (await ended(store, again)).state == "done"
    assert "run_interrupted" in await kinds(store, session_id)


async def test_other_sessions_go_on_unwatched(store: Store):
    session_id = (await store.create_session(agent="agent", owner="you")).id
    async with working(store, patient()):
        assert (await ended(store, await send(store, session_id, "go"))).state == "done"
    assert "handover" not in await kinds(store, session_id)


async def test_whoever_asks_for_something_is_there(store: Store):
    session_id = await attached(store)
    assert await store.seconds_unwatched(session_id) < 30
    with pytest.raises(SessionNotFound):
        await store.seconds_unwatched("nobody")
    await store.mark_watched([session_id, "nobody"])
    await store.mark_watched([])
    assert 0 <= await store.seconds_unwatched(session_id) < 30


async def test_a_bad_attachment_fails_the_message_visibly(store: Store):
    metadata = json.dumps({"attached": {"grace": -1}})
    session_id = (await store.create_session(agent="agent", owner="you", metadata=metadata)).id
    async with working(store, patient()):
        submission = await ended(store, await send(store, session_id, "go"))
    assert submission.state == "failed"
    assert "attached.grace" in str((await reread(store, submission)).reason)


def test_what_metadata_says():
    assert attachment("{}") is None
    assert attachment('{"attached": false}') is None
    assert attachment('{"attached": true}') == Attachment(grace=180, on_unwatched="handover")
    assert attachment('{"attached": {"on_unwatched": "interrupt"}}') == Attachment(on_unwatched="interrupt")
    for bad in (
        '"yes"',
        '{"grace": 0}',
        '{"grace": 1e-9}',
        '{"grace": 0.99}',
        '{"grace": 1e9}',
        '{"on_unwatched": "dance"}',
        '{"grce": 5}',
        "5",
    ):
        with pytest.raises(BadInput, match="attached"):
            attachment(f'{{"attached": {bad}}}')
    assert detached('{"a": 1}') is None
    assert detached('{"a": 1, "attached": true}') == '{"a": 1}'


def test_the_grace_period_has_a_default_from_the_settings():
    assert attachment('{"attached": true}', 60) == Attachment(grace=60)
    assert attachment('{"attached": {"on_unwatched": "interrupt"}}', 60) == Attachment(
        grace=60, on_unwatched="interrupt"
    )
    assert attachment('{"attached": {"grace": 5}}', 60) == Attachment(grace=5)
