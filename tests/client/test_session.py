import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest
from pydantic_ai.messages import BinaryContent, ImageUrl, ModelResponse, UserPromptPart

from holdfast import Client
from holdfast.errors import BadInput, Conflict, SessionNotFound, TurnFailed, TurnInProgress
from holdfast.events import DraftText, Forked, MessageAdded, SessionEvent, SubmissionDone, SubmissionQueued
from tests.client.agents import echo, sleeper


async def test_a_session_is_created_once_and_opened_again(hf: Client):
    first = await hf.session("letters", agent="echo", title="Letters", metadata={"team": "post"})
    again = await hf.session("letters", agent=echo)
    opened = await hf.session("letters")
    assert first.id == again.id == opened.id == "letters"
    info = await opened.info()
    assert (info.agent, info.title, info.metadata, info.status) == (
        "echo",
        "Letters",
        {"team": "post"},
        "idle",
    )
    assert [session.id async for session in hf.sessions(search="ette")] == ["letters"]


async def test_a_session_of_another_agent_is_refused(hf: Client):
    await hf.session("letters", agent="echo")
    with pytest.raises(Conflict, match="belongs to agent 'echo', not 'clerk'"):
        await hf.session("letters", agent="clerk")


async def test_an_unknown_session_is_not_found(hf: Client):
    with pytest.raises(SessionNotFound) as missing:
        await hf.session("nowhere")
    assert missing.value.facts["id"] == "nowhere"


async def test_a_new_session_needs_an_agent(hf: Client):
    with pytest.raises(BadInput, match="needs an agent"):
        await hf.session()


async def test_messages_are_answered_in_order(hf: Client):
    session = await hf.session(agent="echo")
    turns = [await session.send(text) for text in ("one", "two", "three")]
    assert [await turn for turn in turns] == ["1: one", "2: two", "3: three"]
    texts = [message.text async for message in session.messages() if isinstance(message, ModelResponse)]
    assert texts == ["1: one", "2: two", "3: three"]
    assert [run.status async for run in session.runs()] == ["completed"] * 3
    states = [(each.state, each.payload["text"]) async for each in session.submissions(payloads=True)]
    assert states == [("done", "one"), ("done", "two"), ("done", "three")]


async def test_content_of_pydantic_ai_is_sent_as_it_is(hf: Client):
    session = await hf.session(agent="echo")
    picture = BinaryContent(data=b"\x89PNG", media_type="image/png")
    turn = await session.send(["Look:", ImageUrl(url="https://example.com/a.png"), picture])
    assert await turn == "1: 3 parts"
    (request, _) = [message async for message in session.messages()]
    (prompt,) = request.parts
    assert isinstance(prompt, UserPromptPart)
    sent = prompt.content[2]
    assert isinstance(sent, BinaryContent)
    assert sent.data == picture.data


async def test_the_same_key_sends_a_message_once(hf: Client):
    session = await hf.session(agent="echo")
    first, second = [await session.send("once", idempotency_key="k") for _ in range(2)]
    assert first.id == second.id
    assert await second == "1: once"


async def test_a_message_can_be_rejected_while_a_turn_runs(hf: Client):
    session = await hf.session(agent=sleeper)
    await session.send("sleep")
    with pytest.raises(TurnInProgress):
        await session.send("now", when_busy="reject")
    await (await session.interrupt()).result(timeout=30)


async def test_events_are_typed_live_and_resume_after_any_number(hf: Client):
    session = await hf.session(agent="echo")
    read = asyncio.create_task(_read(session.events(), 2))
    await (await session.send("one")).result(timeout=30)
    events = await asyncio.wait_for(read, 30)
    assert [event.seq for event in events] == [1, 2]
    assert isinstance(events[0], SubmissionQueued)
    rest = [event async for event in session.events(after=2, follow=False)]
    assert [event.seq for event in rest] == list(range(3, 3 + len(rest)))
    assert isinstance(rest[-1], SubmissionDone)
    assert any(isinstance(event, MessageAdded) for event in rest)


async def _read(events: AsyncGenerator[SessionEvent, None], count: int) -> list[SessionEvent]:
    async with aclosing(events):
        return [await anext(events) for _ in range(count)]


async def test_drafts_are_yielded_on_request(hf: Client):
    session = await hf.session(agent="streamer")
    turn = await session.send("count")
    seen = [event async for event in turn.events(drafts=True)]
    assert [event.text for event in seen if isinstance(event, DraftText)][0] == "one "  # noqa: RUF015
    assert isinstance(seen[-1], SubmissionDone)
    assert await turn == "one two"
    assert not any(isinstance(event, DraftText) for event in [e async for e in turn.events()])


async def test_undo_rewind_compact_and_fork(hf: Client):
    session = await hf.session(agent="echo")
    await (await session.send("one"))
    (run,) = [run async for run in session.runs()]
    (checkpoint, *_) = [each async for each in hf.run(run.id).checkpoints()]
    await (await session.send("two"))
    copy = await session.fork(timeout=30)
    await (await session.undo())
    assert await (await session.send("again")) == "2: again"
    await (await session.rewind(checkpoint.id))
    assert await (await session.send("from the first")) == "2: from the first"
    assert await (await copy.send("three")) == "3: three"
    assert copy.id in [e.session_id async for e in session.events(follow=False) if isinstance(e, Forked)]
    named = await session.fork(checkpoint.id, session_id="copy", timeout=30)
    assert await (await named.send("two")) == "2: two"


async def test_state_and_cursors(hf: Client):
    session = await hf.session(agent="echo")
    first = await session.set_state({"mood": "good"}, expected_version=0)
    assert (await session.state()).body == {"mood": "good"}
    with pytest.raises(Conflict):
        await session.set_state({}, expected_version=0)
    await session.set_state(["a"], expected_version=0, name="list")
    assert {(each.name, each.version) for each in await session.states()} == {
        (None, first.version),
        ("list", 1),
    }
    await (await session.send("one"))
    assert (await session.set_cursor("reader", 2)).seq == 2
    assert [(each.consumer, each.seq) async for each in session.cursors()] == [("reader", 2)]


async def test_title_hold_and_metadata_change(hf: Client):
    session = await hf.session(agent="echo")
    changed = await session.update(title="New", hold=True, metadata={"a": 1})
    assert (changed.title, changed.hold, changed.metadata) == ("New", True, {"a": 1})
    assert (await session.retention()).held_by == "session"


async def test_export_clean_rehydrate_and_erase(hf: Client, tmp_path: Path):
    session = await hf.session(agent="echo")
    await (await session.send("keep this"))
    size = await session.export(tmp_path / "archive")
    assert size == len(b"".join([piece async for piece in session.archive()]))
    assert (await session.clean(force=True)).deleted["messages"] == 2
    assert [message async for message in session.messages()] == []
    assert (await session.rehydrate(tmp_path / "archive")).restored["messages"] == 2
    assert await (await session.send("and on")) == "2: and on"
    await session.erase()
    with pytest.raises(SessionNotFound):
        await session.info()
    assert "erase" in [entry.action async for entry in hf.audit(session_id=session.id)]


async def test_the_client_knows_its_rights_workers_and_runs(hf: Client):
    assert (await hf.me()).role == "admin"
    assert (await hf.ready()).status == "ok"
    assert (await hf.server_info()).title == "Holdfast"
    assert "holdfast_sessions" in await hf.metrics()
    session = await hf.session(agent="echo")
    await (await session.send("one"))
    assert [sorted(worker.agents or ()) for worker in await hf.workers() if worker.agents]
    (run,) = [run async for run in hf.runs(session_id=session.id)]
    assert (await hf.run(run.id).info()).session_id == session.id
    assert "run_completed" in [event.kind async for event in hf.run(run.id).events()]
    assert [each async for each in hf.run(run.id).delegates()] == []
    assert (await hf.sweep(dry_run=True)).outcomes == {}
    assert (await hf.inbox()).items == []


async def test_a_failed_turn_is_the_status_of_the_session_until_it_is_dismissed(hf: Client):
    session = await hf.session("letters", agent="broken")
    with pytest.raises(TurnFailed):
        await (await session.send("hello"))
    info = await session.info()
    assert (info.status, info.error) == ("failed", "RuntimeError: no model today")
    assert [each.id for each in (await hf.inbox()).items] == ["letters"]
    assert [each.id async for each in hf.sessions(status="failed")] == ["letters"]
    assert (await session.dismiss()).status == "idle"
    assert (await hf.inbox()).items == []
