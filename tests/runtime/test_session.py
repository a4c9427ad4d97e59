"""A session on a worker: what is asked of it, in order, and what overtakes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Store, open_store
from holdfast.config import load_settings
from holdfast.errors import BadInput, SessionExists, StoreFull, TurnInProgress
from holdfast.ids import new_id
from holdfast.record import buffer
from holdfast.record.forking import fork
from holdfast.record.open_calls import is_provider_valid
from holdfast.record.resume_point import find_resume_point
from holdfast.runtime import AgentSetup, Worker, current_session, turn
from holdfast.types import Batch, Lease, Session, Submission
from tests.builders import within
from tests.conftest import Engine
from tests.record.agents import call, scripted
from tests.runtime.agents import echo, ended, is_kind, kinds, reread, said, send, texts, until, working


@pytest.fixture
async def session(store: Store) -> str:
    return (await store.create_session(agent="agent", owner="you")).id


async def test_messages_are_answered_in_order(store: Store, session: str):
    async with working(store, Agent(echo())):
        sent = [await send(store, session, text) for text in ("one", "two", "three")]
        for submission in sent:
            assert (await ended(store, submission)).state == "done"
    assert "one | two | three" in await texts(store, session)
    found = await store.session(session)
    assert (found.status, found.holder, found.pending) == ("idle", None, 0)


async def test_what_was_sent_before_the_worker_came_is_done(store: Store, session: str):
    submission = await send(store, session, "early")
    async with working(store, Agent(echo())):
        assert (await ended(store, submission)).state == "done"


async def test_a_bad_payload_fails_and_the_next_message_works(store: Store, session: str):
    bad = await store.submit(session, "message", "[]")
    unknown = await store.submit(session, "dance")
    good = await send(store, session, "hello")
    async with working(store, Agent(echo())):
        assert (await ended(store, good)).state == "done"
    assert [(await reread(store, s)).state for s in (bad, unknown)] == ["failed", "failed"]
    assert "dance" in str((await reread(store, unknown)).reason)


async def test_a_model_that_raises_fails_visibly_and_the_session_stays_usable(store: Store, session: str):
    broken = [True]

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if broken[0]:
            raise RuntimeError("no model today")
        return ModelResponse(parts=[TextPart("fine")])

    async with working(store, Agent(FunctionModel(respond))):
        first = await ended(store, await send(store, session, "hi"))
        assert (first.state, first.reason) == ("failed", "RuntimeError: no model today")
        shown = await store.session(session)
        assert (shown.status, shown.error) == ("failed", "RuntimeError: no model today")
        broken[0] = False
        assert (await ended(store, await send(store, session, "again"))).state == "done"
    (failed, fine) = (await store.runs(session_id=session)).items
    assert (failed.status, fine.status) == ("failed", "completed")
    shown = await store.session(session)
    assert (shown.status, shown.error) == ("idle", None)


async def test_only_a_turn_replaces_the_failure_of_the_last_turn(store: Store, session: str):
    """Neither a command that fails or does nothing, nor one that succeeds, is a new outcome."""
    async with working(store, Agent(echo())):
        await ended(store, await store.submit(session, "message", "[]"))
        before = await store.session(session)
        assert before.status == "failed"
        assert "must be an object" in str(before.error)
        await ended(store, await store.submit(session, "rewind", '{"checkpoint_id": "none"}'))
        await ended(store, await store.submit(session, "interrupt", lane="control"))
        assert (await store.session(session)).error == before.error
        await ended(store, await send(store, session, "hello"))
        assert (await store.session(session)).status == "idle"


async def test_a_turn_that_a_person_stopped_is_not_a_failure(store: Store, session: str):
    inside = asyncio.Event()

    async def wait() -> str:
        inside.set()
        await asyncio.sleep(60)
        return "never"

    async with working(store, Agent(scripted([call("wait")]), tools=[wait])):
        message = await send(store, session, "hello")
        await inside.wait()
        await store.submit(session, "interrupt", lane="control")
        assert (await ended(store, message)).reason == "interrupted"
    assert (await store.session(session)).status == "idle"


async def test_what_cannot_be_recorded_fails_at_once_with_its_reason(store: Store, session: str):
    """Others could not record it either: it is not left to them."""
    write, refused = store.write, [BadInput(problem="not this one")]

    async def writing(lease: Lease, batch: Batch) -> int:
        if batch.segments and refused:
            raise refused.pop()
        return await write(lease, batch)

    store.write = writing
    async with working(store, Agent(echo())):
        first = await ended(store, await send(store, session, "hi"))
        assert (first.state, first.attempts) == ("failed", 1)
        assert "not this one" in str(first.reason)
        assert (await ended(store, await send(store, session, "again"))).state == "done"
    assert await store.check() == []


async def test_a_write_that_failed_while_the_run_was_stopped_is_left_to_others(store: Store, session: str):
    """It is cancelled inside of the write and does not hear that nothing was kept; what builds on it is not written."""
    write, full = store.write, [StoreFull(url=store.url)]
    inside = asyncio.Event()

    async def writing(lease: Lease, batch: Batch) -> int:
        if batch.segments and full:
            inside.set()
            try:
                await asyncio.sleep(60)
            finally:  # as an engine does, whoever is still there
                assert batch.chain is not None
                batch.chain.failed = full.pop()
        return await write(lease, batch)

    store.write = writing
    message = await send(store, session, "hi")
    async with working(store, Agent(echo()), grace=0.1) as first:
        await inside.wait()
        first.stop()
    left = await reread(store, message)
    assert (left.state, "is full" in str(left.reason)) == ("queued", True)
    assert await store.check() == []
    async with working(store, Agent(echo())):
        assert (await ended(store, message)).state == "done"
    assert await store.check() == []


async def test_an_interrupt_reaches_a_tool_and_the_next_message_goes_on(store: Store, session: str):
    inside, cancelled = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        inside.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "never"

    agent = Agent(scripted([call("wait")]), tools=[wait])
    async with working(store, agent):
        message = await send(store, session, "wait for it")
        await inside.wait()
        stop = await store.submit(session, "interrupt", lane="control")
        await asyncio.wait_for(cancelled.wait(), 5)
        assert (await ended(store, stop)).state == "done"
        interrupted = await ended(store, message)
        assert (interrupted.state, interrupted.reason) == ("failed", "interrupted")
        assert "run_interrupted" in await kinds(store, session)
        assert (await ended(store, await send(store, session, "and now?"))).state == "done"
    place = await find_resume_point(store, session, None)
    assert is_provider_valid(place.messages)
    assert "it is unknown whether it took effect" in str(place.messages)


async def test_a_message_that_interrupts(store: Store, session: str):
    inside = asyncio.Event()

    async def wait() -> str:
        inside.set()
        await asyncio.sleep(60)
        return "never"

    async with working(store, Agent(scripted([call("wait")]), tools=[wait])):
        first = await send(store, session, "wait")
        await inside.wait()
        second = await send(store, session, "no, stop", when_busy="interrupt")
        assert (await ended(store, second)).state == "done"
    assert (await reread(store, first)).reason == "interrupted"


async def test_a_message_that_steers_enters_the_running_turn(store: Store, session: str):
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        inside.set()
        await go_on.wait()
        return "waited"

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if isinstance(messages[-1], ModelRequest) and len(messages) == 1:
            return ModelResponse(parts=[call("wait")])
        return ModelResponse(parts=[TextPart("heard: " + " | ".join(said(messages)))])

    async with working(store, Agent(FunctionModel(respond), tools=[wait])):
        first = await send(store, session, "begin")
        await inside.wait()
        second = await send(store, session, "also this", when_busy="steer")
        await asyncio.sleep(0.2)  # the worker notices it while the tool runs
        go_on.set()
        assert (await ended(store, first)).state == "done"
        steered = await ended(store, second)
    assert (steered.state, steered.run_id) == ("done", (await reread(store, first)).run_id)
    assert "heard: begin | also this" in await texts(store, session)
    assert len((await store.runs(session_id=session)).items) == 1
    assert is_provider_valid((await find_resume_point(store, session, None)).messages)


async def test_a_message_that_is_rejected_when_busy(store: Store, session: str):
    await send(store, session, "one", when_busy="reject")
    with pytest.raises(TurnInProgress):
        await send(store, session, "two", when_busy="reject")
    async with working(store, Agent(echo())):
        await until(store, session, is_kind("submission_done"))
        assert (await ended(store, await send(store, session, "three", when_busy="reject"))).state == "done"


@pytest.mark.parametrize("threshold", [1024, 10_000_000], ids=["in media", "in messages"])
async def test_a_history_that_is_too_large_fails_the_turn_and_can_be_undone(engine: Engine, threshold: int):
    settings = load_settings(max_history_bytes=200_000, media_threshold_bytes=threshold)
    async with open_store(engine.url, settings=settings) as store:
        session = (await store.create_session(agent="agent", owner="you")).id
        async with working(store, Agent(echo())):
            assert (await ended(store, await send(store, session, "one"))).state == "done"
            assert (await ended(store, await send(store, session, "x" * 150_000))).state == "done"
            failed = await ended(store, await send(store, session, "two"))
            assert failed.state == "failed"
            assert "the limit is 200000. Rewind or undo" in str(failed.reason)
            assert (await ended(store, await store.submit(session, "undo"))).state == "done"
            assert (await ended(store, await send(store, session, "three"))).state == "done"
            assert "one | three" in await texts(store, session)


async def test_undo_rewind_compact_and_fork(store: Store, session: str):
    async def shorten(messages: Any) -> list[ModelMessage]:
        return [ModelRequest(parts=[UserPromptPart(f"{len(messages)} messages")])]

    setup = AgentSetup(agent=Agent(echo()), name="agent", compactor=shorten)
    async with working(store, setup):
        await ended(store, await send(store, session, "one"))
        (checkpoint,) = (await store.checkpoints(session_id=session, limit=1)).items
        await ended(store, await send(store, session, "two"))
        await ended(store, await store.submit(session, "undo"))
        await ended(store, await send(store, session, "three"))
        assert "one | three" in await texts(store, session)
        back = await store.submit(session, "rewind", json.dumps({"checkpoint_id": checkpoint.id}))
        assert (await ended(store, back)).state == "done"
        await ended(store, await send(store, session, "four"))
        assert "one | four" in await texts(store, session)
        copy = new_id()
        forking = await store.submit(session, "fork", json.dumps({"session_id": copy}))
        assert (await ended(store, forking)).state == "done"
        await ended(store, await send(store, copy, "five"))
        assert "one | four | five" in await texts(store, copy)
        assert (await ended(store, await store.submit(session, "compact"))).state == "done"
        await ended(store, await send(store, session, "six"))
        assert "4 messages | six" in await texts(store, session)
        nothing = await store.create_session(agent="agent", owner="you")
        assert (await ended(store, await store.submit(nothing.id, "undo"))).state == "failed"


async def test_deps_model_and_state_per_session(store: Store):
    async def count(ctx: RunContext[str]) -> str:
        here = current_session()
        assert here is not None
        state = await here.state()
        value = (json.loads(state.body) or 0) + 1
        await here.set_state(value, expected_version=state.version)
        return f"{ctx.deps} counted {value}"

    async def deps(session: Session) -> str:
        return f"deps of {session.title}"

    agent: Agent[str, Any] = Agent(scripted([call("count")]), tools=[count], deps_type=str, name="counter")
    setup = AgentSetup(
        agent=agent,
        deps=deps,
        models={"small": FunctionModel(lambda m, i: ModelResponse(parts=[TextPart("small")]))},
    )
    async with working(store, setup):
        plain = await store.create_session(agent="counter", owner="you", title="plain")
        await ended(store, await send(store, plain.id, "count"))
        assert "deps of plain counted 1" in await texts(store, plain.id)
        assert (await store.state(plain.id)).body == "1"
        small = await store.create_session(agent="counter", owner="you", metadata='{"model": "small"}')
        assert (await ended(store, await send(store, small.id, "hi"))).state == "done"
        assert "small" in await texts(store, small.id)
        other = await store.create_session(agent="counter", owner="you", metadata='{"model": "huge"}')
        assert "huge" in str((await ended(store, await send(store, other.id, "hi"))).reason)


async def test_a_run_that_takes_too_long_fails(store: Store, session: str):
    async def wait() -> str:
        await asyncio.sleep(60)
        return "never"

    setup = AgentSetup(agent=Agent(scripted([call("wait")]), tools=[wait]), run_timeout=0.3)
    async with working(store, setup):
        failed = await ended(store, await send(store, session, "wait"))
    assert failed.state == "failed"
    assert failed.reason


async def test_drafts_are_seen_and_gone_when_the_message_is_there(store: Store, session: str):
    shown, go_on = asyncio.Event(), asyncio.Event()

    async def stream(messages: list[ModelMessage], info: AgentInfo):
        yield "Once upon"
        yield " a time"
        await go_on.wait()
        yield " it ended."

    async def watch() -> list[str]:
        seen: list[str] = []
        async for drafts in store.watch_drafts(session):
            seen += [draft.text for draft in drafts]
            if seen and seen[-1] == "Once upon a time":
                shown.set()
            if seen and not drafts:
                return seen
        return seen

    watching = asyncio.create_task(watch())
    async with working(store, Agent(FunctionModel(stream_function=stream))):
        submission = await send(store, session, "tell me")
        await asyncio.wait_for(shown.wait(), 10)
        go_on.set()
        await ended(store, submission)
        assert await store.drafts(session) == []
        seen = await asyncio.wait_for(watching, 10)
    assert "Once upon a time" in seen
    assert "Once upon a time it ended." in await texts(store, session)


def test_a_worker_that_is_torn_down_does_not_call_its_turns_interrupted(tmp_path: Path):
    """Its event loop ends under it, with every task cancelled at once: another worker continues the turn."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    begun, sent = asyncio.Event(), list[Submission]()

    async def wait() -> str:
        begun.set()
        await asyncio.sleep(0 if second else 60)
        return "waited"

    second: list[bool] = []

    async def torn_down() -> None:
        store = await open_store(url).open()
        session = await store.create_session(agent="agent", owner="you")
        sent.append(await send(store, session.id, "hi"))
        torn = Worker(store, Agent(scripted([call("wait")]), tools=[wait], name="agent"))
        serving = asyncio.create_task(torn.run())
        await begun.wait()
        del serving  # asyncio.run cancels what is left

    async def continued() -> None:
        second.append(True)
        async with open_store(url) as store:
            found = await reread(store, sent[0])
            assert (found.state, found.reason) in {("queued", None), ("claimed", None)}
            async with working(store, Agent(scripted([call("wait")]), tools=[wait], name="agent")):
                assert (await ended(store, sent[0])).state == "done"
            assert "run_interrupted" not in await kinds(store, sent[0].session_id)

    asyncio.run(torn_down())
    asyncio.run(continued())


async def test_a_turn_that_its_own_code_cancels_fails_with_that_reason(store: Store, session: str):
    async def cancel() -> str:
        raise asyncio.CancelledError

    async with working(store, Agent(scripted([call("cancel")]), tools=[cancel])):
        failed = await ended(store, await send(store, session, "hi"))
        assert (failed.state, failed.reason) == ("failed", "CancelledError")
    assert "run_interrupted" not in await kinds(store, session)


async def test_a_fork_onto_the_id_of_another_session_fails(store: Store, session: str):
    """Also onto one that is empty, as a fork that was cut off would have left it."""
    taken = (await store.create_session(agent="agent", owner="somebody else")).id
    async with working(store, Agent(echo(), name="agent")):
        await ended(store, await send(store, session, "hi"))
        forking = await store.submit(session, "fork", json.dumps({"session_id": taken}))
        failed = await ended(store, forking)
        assert failed.state == "failed"
        assert "already exists" in str(failed.reason)
        assert "forked" not in await kinds(store, session)
        assert await kinds(store, taken) == []
        again = await store.submit(session, "fork", json.dumps({"session_id": new_id()}))
        assert (await ended(store, again)).state == "done"
    assert await store.check() == []


async def test_a_fork_that_was_cut_off_is_not_made_again_if_its_session_has_continued(
    store: Store, session: str
):
    """Its worker died after the new session was there, and before the end of the fork was written."""
    async with working(store, Agent(echo(), name="agent")):
        await ended(store, await send(store, session, "one"))
        first = (await find_resume_point(store, session, None)).checkpoint
        await ended(store, await send(store, session, "two"))
    assert first is not None
    asked = await store.submit(session, "fork")
    made = await fork(store, first, session_id=asked.id, submission_id=asked.id)
    async with working(store, Agent(echo(), name="agent")):
        assert (await ended(store, asked)).state == "done"
    assert said((await find_resume_point(store, made, None)).messages) == ["one"]
    with pytest.raises(SessionExists):
        await fork(store, first, session_id=asked.id, submission_id="another")


async def test_a_message_interrupts_only_the_turn_that_was_running(store: Store, session: str):
    """Messages that were queued before it are answered first."""
    begun = asyncio.Event()

    async def wait() -> str:
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(60)
        return "waited"

    model = scripted([call("wait")])
    async with working(store, Agent(model, tools=[wait], name="agent")):
        one = await send(store, session, "one")
        await begun.wait()
        two, three = await send(store, session, "two"), await send(store, session, "three")
        four = await send(store, session, "four", when_busy="interrupt")
        states = [(await ended(store, sent)).state for sent in (one, two, three, four)]
    assert states == ["failed", "done", "done", "done"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, SystemExit])
async def test_deps_that_try_to_end_the_worker_fail_their_turn(
    store: Store, session: str, error: type[BaseException]
):
    def deps(session: Session) -> None:
        raise error

    async with working(store, AgentSetup(agent=Agent(echo(), name="agent"), deps=deps)):
        failed = await ended(store, await send(store, session, "hello"))
        assert (failed.state, failed.attempts) == ("failed", 1)
        assert error.__name__ in str(failed.reason)


async def forever(*_: object) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize("slow", ["deps", "compactor"])
async def test_the_time_limit_of_a_run_covers_the_functions_of_its_agent(
    store: Store, session: str, slow: str
):
    async with working(store, Agent(scripted())):
        await ended(store, await send(store, session, "hello"))
    given: dict[str, Any] = {slow: forever}
    setup = AgentSetup(agent=Agent(scripted()), run_timeout=0.3, **given)
    async with working(store, setup):
        kind = "message" if slow == "deps" else "compact"
        failed = await ended(store, await store.submit(session, kind, json.dumps({"text": "wait"})))
    told = "TimeoutError: the run took longer than 0.3 seconds"
    assert (failed.state, failed.reason) == ("failed", told)


@pytest.mark.parametrize("slow", ["deps", "compactor"])
async def test_an_interrupt_reaches_the_functions_of_an_agent(store: Store, session: str, slow: str):
    async with working(store, Agent(scripted())):
        await ended(store, await send(store, session, "hello"))
    inside = asyncio.Event()

    async def wait(_: object) -> Any:
        inside.set()
        await asyncio.Event().wait()

    given: dict[str, Any] = {slow: wait}
    setup = AgentSetup(agent=Agent(scripted()), **given)
    async with working(store, setup):
        kind = "message" if slow == "deps" else "compact"
        asked = await store.submit(session, kind, json.dumps({"text": "wait"}))
        await asyncio.wait_for(inside.wait(), 10)
        await store.submit(session, "interrupt", lane="control")
        failed = await ended(store, asked)
    assert (failed.state, failed.reason) == ("failed", "interrupted")


async def test_a_tool_that_swallows_its_cancellation_does_not_go_on_after_an_interrupt(
    store: Store, session: str
):
    inside, requests = asyncio.Event(), 0

    async def stubborn() -> str:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "I go on"
        return "never"

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal requests
        requests += 1
        return ModelResponse(parts=[call("stubborn") if requests == 1 else TextPart("still here")])

    async with working(store, Agent(FunctionModel(respond), tools=[stubborn])):
        asked = await send(store, session, "go")
        await asyncio.wait_for(inside.wait(), 10)
        await store.submit(session, "interrupt", lane="control")
        failed = await ended(store, asked)
    assert (failed.state, failed.reason, requests) == ("failed", "interrupted", 1)


async def test_an_interrupt_behind_many_steering_messages_is_seen(store: Store, session: str):
    inside = asyncio.Event()

    async def wait() -> str:
        inside.set()
        await asyncio.Event().wait()
        return "never"

    async with working(store, Agent(scripted([call("wait")]), tools=[wait])):
        asked = await send(store, session, "go")
        await asyncio.wait_for(inside.wait(), 10)
        for number in range(25):
            await send(store, session, f"and {number}", when_busy="steer")
        await send(store, session, "stop", when_busy="interrupt")
        assert (await ended(store, asked)).reason == "interrupted"


async def test_an_agent_with_an_output_validator_is_served(store: Store, session: str):
    agent = Agent(scripted())
    seen: list[str] = []

    @agent.output_validator
    def check(output: str) -> str:
        seen.append(output)
        return output

    async with working(store, agent):
        assert (await ended(store, await send(store, session, "hello"))).state == "done"
    assert seen


def storyteller(*, fails: bool = False) -> tuple[Agent[None, str], asyncio.Event]:
    """An agent that streams a part of a story, and waits or fails when the event is set."""
    cut = asyncio.Event()

    async def stream(messages: list[ModelMessage], info: AgentInfo):
        if any(isinstance(message, ModelResponse) for message in messages):
            yield "a new story"
            return
        yield "Once upon"
        yield " a time"
        await cut.wait()
        if fails:
            raise RuntimeError("out of words")
        yield " it ended."

    return Agent(FunctionModel(stream_function=stream)), cut


async def shown(store: Store, session: str, text: str) -> None:
    """Wait until watchers see this text."""
    async with within(store, 20):
        async for drafts in store.watch_drafts(session):
            if text in [draft.text for draft in drafts]:
                return


@pytest.mark.parametrize("end", ["stop", "failure", "timeout"])
async def test_text_that_was_streamed_before_a_turn_ended_is_recorded(store: Store, session: str, end: str):
    agent, cut = storyteller(fails=end == "failure")
    setup = AgentSetup(agent=agent, run_timeout=3.0 if end == "timeout" else None)
    async with working(store, setup):
        message = await send(store, session, "tell me")
        await shown(store, session, "Once upon a time")
        if end == "stop":
            await store.submit(session, "interrupt", lane="control")
        elif end == "failure":
            cut.set()
        assert (await ended(store, message)).state == "failed"
    events = await store.events(session)
    (partial,) = [event for event in events if event.kind == "partial_response"]
    parts = [{"index": 0, "part_kind": "text", "content": "Once upon a time"}]
    assert json.loads(partial.payload) == {"parts": parts}
    (over,) = [event for event in events if event.kind in {"run_failed", "run_interrupted"}]
    assert (partial.run_id, partial.seq) == (over.run_id, over.seq - 1)
    assert await store.drafts(session) == []
    point = await find_resume_point(store, session, None)
    assert not [m for m in point.messages if isinstance(m, ModelResponse)]  # the model does not see it


async def test_a_long_text_that_was_streamed_is_cut(store: Store, session: str):
    async def stream(messages: list[ModelMessage], info: AgentInfo):
        yield "x" * 150_000
        await asyncio.sleep(60)

    async with working(store, Agent(FunctionModel(stream_function=stream))):
        message = await send(store, session, "tell me")
        await shown(store, session, "x" * 150_000)
        await store.submit(session, "interrupt", lane="control")
        await ended(store, message)
    (partial,) = [event for event in await store.events(session) if event.kind == "partial_response"]
    recorded = json.loads(partial.payload)
    assert (len(recorded["parts"][0]["content"]), recorded["truncated"]) == (100_000, True)


async def test_text_of_a_turn_that_continues_elsewhere_is_generated_again(store: Store, session: str):
    agent, cut = storyteller()
    async with working(store, agent, grace=0.1) as first:
        message = await send(store, session, "tell me")
        await shown(store, session, "Once upon a time")
        first.stop()
    cut.set()
    async with working(store, agent):
        assert (await ended(store, message)).state == "done"
    assert "partial_response" not in await kinds(store, session)
    assert "Once upon a time it ended." in await texts(store, session)
    assert await store.drafts(session) == []


async def test_a_turn_is_handed_over_although_its_start_could_not_be_written_in_time(
    store: Store, session: str, monkeypatch: pytest.MonkeyPatch
):
    """As on a starved machine: the worker gives up waiting for the write, and the run is not on record."""
    monkeypatch.setattr(buffer, "_PATIENCE", 0.01)
    monkeypatch.setattr(buffer, "_SETUP", 60)
    write, preparing, stopping = store.write, asyncio.Event(), asyncio.Event()

    async def write_late(lease: Lease, batch: Batch) -> int:
        if batch.runs:
            await asyncio.sleep(60)
        return await write(lease, batch)

    agent = Agent(scripted(), name="agent")

    @agent.instructions
    async def prepare() -> str:
        preparing.set()
        await stopping.wait()
        return ""

    monkeypatch.setattr(store, "write", write_late)
    worker = Worker(store, agent, grace=20)
    serving = asyncio.create_task(worker.run())
    message = await send(store, session, "hello")
    await asyncio.wait_for(preparing.wait(), 20)
    worker.stop()
    await asyncio.sleep(0.1)
    stopping.set()
    await asyncio.wait_for(serving, 30)
    monkeypatch.undo()
    handed_over = await reread(store, message)
    assert (handed_over.state, handed_over.attempts, handed_over.run_id) == ("queued", 0, None)
    async with working(store, agent):
        assert (await ended(store, message)).state == "done"


@pytest.mark.parametrize("patience", [1, 0], ids=["", "and the cancellation arrives late"])
async def test_a_hand_over_records_no_model_request_that_was_not_sent(
    store: Store, session: str, patience: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(turn, "_CANCEL_SECONDS", patience)
    inside, go_on = asyncio.Event(), asyncio.Event()
    requests = 0

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal requests
        requests += 1
        return ModelResponse(parts=[call("wait")] if requests == 1 else [TextPart("done")])

    async def wait() -> str:
        inside.set()
        await go_on.wait()
        return "waited"

    agent = Agent(FunctionModel(respond), tools=[wait])
    async with working(store, agent) as first:
        message = await send(store, session, "hello")
        await asyncio.wait_for(inside.wait(), 20)
        first.stop()
        go_on.set()
    found = await kinds(store, session)
    assert "handover" in found, found
    assert "model_request_failed" not in found
    assert found.count("model_request_started") == found.count("model_request_completed") == requests == 1
    async with working(store, agent):
        assert (await ended(store, message)).state == "done"
    assert requests == 2
    assert "waited" in await texts(store, session)
