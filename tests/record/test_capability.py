import asyncio
import json
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any

import pytest
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    RunContext,
    ToolOutput,
    ToolReturn,
)
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.exceptions import ApprovalRequired, UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolReturnPart, UserPromptPart
from pydantic_ai.usage import UsageLimits
from pydantic_core import PydanticSerializationError

from holdfast import (
    Holdfast,
    Store,
    annotate_effect,
    continue_session,
    fork,
    idempotency_key,
    inspect_run,
    load_history,
    open_store,
    resume,
    rewind,
)
from holdfast.errors import (
    Conflict,
    HoldfastError,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    SessionBusy,
    SessionCleaned,
    SessionNotFound,
)
from holdfast.media import open_media
from holdfast.record import buffer, is_provider_valid
from holdfast.retention import clean, erase
from holdfast.runtime import settle_effect
from tests.record.agents import call, recorded, scripted


@pytest.fixture
async def store() -> AsyncGenerator[Store, None]:
    async with open_store("sqlite://:memory:") as opened:
        yield opened
        assert await opened.check() == []


async def kinds(store: Store, session_id: str) -> list[str]:
    return [event.kind for event in await store.events(session_id) if event.kind != "message"]


async def history(store: Store, session_id: str) -> list[ModelMessage]:
    (latest,) = (await store.checkpoints(session_id=session_id, limit=1)).items
    return await load_history(store, latest)


def double(x: int) -> int:
    return 2 * x


STEP = ["model_request_started", "model_request_completed"]
TOOL = ["tool_call_started", "tool_call_completed"]


async def test_every_step_is_an_event(store: Store):
    agent = recorded(store, [call("double", x=4)], tools=[double], name="doubler")
    result = await agent.run("hi", conversation_id="talk")
    assert await kinds(store, "talk") == ["run_started", *STEP, *TOOL, *STEP, "run_completed"]
    assert await history(store, "talk") == result.all_messages()
    session = await store.session("talk")
    assert (session.agent, session.status, session.holder) == ("doubler", "idle", None)
    report = await inspect_run(store, result.run_id)
    assert report.run.status == "completed"
    (effect,) = report.completed
    assert (effect.tool, effect.call_id, effect.message) == ("double", "call-1", (1, 2))
    events = await store.events("talk")
    (completed, *_) = [json.loads(e.payload) for e in events if e.kind == "model_request_completed"]
    assert completed["usage"]["input_tokens"] > 0


@pytest.mark.parametrize("mode", ["run", "stream", "events", "iter"])
async def test_every_way_to_run(store: Store, mode: str):
    agent = recorded(store, [call("double", x=4), call("double", "call-2", x=5)], tools=[double])
    match mode:
        case "run":
            messages = (await agent.run("hi", conversation_id="talk")).all_messages()
        case "stream":
            async with agent.run_stream("hi", conversation_id="talk") as streamed:
                assert await streamed.get_output() == "done"
            messages = streamed.all_messages()
        case "events":
            messages = []
            async with agent.run_stream_events("hi", conversation_id="talk") as stream:
                async for event in stream:
                    if event.event_kind == "agent_run_result":
                        messages = event.result.all_messages()
        case _:
            async with agent.iter("hi", conversation_id="talk") as run:
                async for _ in run:
                    pass
            assert run.result is not None
            messages = run.result.all_messages()
    assert len(messages) == 4
    assert await history(store, "talk") == messages
    assert sorted(await kinds(store, "talk")) == sorted(
        ["run_started", *STEP, *TOOL, *TOOL, *STEP, "run_completed"]
    )
    assert (await store.session("talk")).holder is None


def test_run_sync():
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        store = loop.run_until_complete(open_store("sqlite://:memory:").open())
        agent = recorded(store, [call("double", x=4)], tools=[double])
        assert agent.run_sync("hi", conversation_id="talk").output == "done"
        assert loop.run_until_complete(kinds(store, "talk"))[-1] == "run_completed"
        loop.run_until_complete(store.close())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def test_a_conversation_goes_on_in_one_segment(store: Store):
    agent = recorded(store)
    await agent.run("turn 0", conversation_id="talk")
    for turn in range(1, 3):
        await continue_session(agent, store, "talk", f"turn {turn}")
    assert len(await store.segments("talk")) == 1
    assert len(await history(store, "talk")) == 6
    assert [run.status for run in (await store.runs(session_id="talk")).items] == ["completed"] * 3


async def test_a_retry_is_told_again_not_run_again(store: Store):
    tries: list[int] = []

    def picky(x: int) -> str:
        tries.append(x)
        raise ModelRetry("x must be larger")

    agent = recorded(store, [call("picky", x=1)], tools=[picky], retries=3)
    result = await agent.run("hi", conversation_id="talk")
    assert tries == [1]
    assert await history(store, "talk") == result.all_messages()
    assert is_provider_valid(result.all_messages())


async def test_output_tools_and_validation_retries(store: Store):
    agent: Agent[None, Any] = Agent(
        scripted([call("final_result", x="no number")], [call("final_result", "call-2", x=3)]),
        output_type=ToolOutput(double, name="final_result"),
        capabilities=[Holdfast(store)],
    )
    result = await agent.run("hi", conversation_id="talk")
    assert result.output == 6
    assert await history(store, "talk") == result.all_messages()


async def test_a_failing_tool_fails_the_run_and_can_be_resumed(store: Store):
    broken = [True]

    def fetch() -> str:
        if broken:
            broken.clear()
            raise OSError("no route")
        return "fetched"

    agent = recorded(store, [call("fetch")], tools=[fetch], policies={"fetch": "retry"})
    with pytest.raises(OSError, match="no route"):
        await agent.run("hi", conversation_id="talk")
    assert (await kinds(store, "talk"))[-2:] == ["tool_call_failed", "run_failed"]
    (run,) = (await store.runs(session_id="talk")).items
    assert (run.status, run.error) == ("failed", "OSError: no route")
    result = await resume(agent, store, run.id)
    assert result.output == "done"
    assert "fetched" in str(await history(store, "talk"))
    with pytest.raises(Conflict, match="has completed"):
        await resume(agent, store, result.run_id)


class Halt(BaseException):
    """Not an Exception."""


async def test_a_tool_that_raises_base_exception(store: Store):
    def halt() -> str:
        raise Halt

    agent = recorded(store, [call("halt")], tools=[halt])
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - not every way to run hands it on as it is
        await agent.run("hi", conversation_id="talk")
    assert "Halt" in repr(raised.value)
    (run,) = (await store.runs(session_id="talk")).items
    assert run.status == "failed"
    (effect,) = (await inspect_run(store, run.id)).failed
    assert effect.error == "Halt"
    assert (await store.session("talk")).status == "failed"
    resumed = await resume(agent, store, run.id)
    assert "The call failed: Halt" in str(resumed.all_messages())
    kinds = [event.kind for event in await store.events("talk") if event.kind.startswith("tool_call")]
    assert kinds == ["tool_call_started", "tool_call_failed", "tool_call_failed"]
    result = await continue_session(recorded(store), store, "talk", "go on")
    assert is_provider_valid(result.all_messages())


async def test_a_call_whose_step_has_an_unknown_outcome_is_answered_as_interrupted(store: Store):
    async def book() -> str:
        raise OutcomeUnknown(step="pay", call_id="call-1/pay")

    result = await recorded(store, [call("book")], tools=[book]).run("hi", conversation_id="talk")
    (part,) = [p for m in result.all_messages() for p in m.parts if isinstance(p, ToolReturnPart)]
    assert "its step 'pay' was started" in str(part.content)
    assert (part.tool_name, part.tool_call_id, part.outcome) == ("book", "call-1", "interrupted")


async def test_a_cancelled_run_is_interrupted_and_its_call_unknown(store: Store):
    started = asyncio.Event()

    async def slow() -> str:
        started.set()
        await asyncio.sleep(60)
        return "never"

    agent = recorded(store, [call("slow")], tools=[slow])
    running = asyncio.create_task(agent.run("hi", conversation_id="talk"))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (run,) = (await store.runs(session_id="talk")).items
    report = await inspect_run(store, run.id)
    assert (report.run.status, [e.tool for e in report.unresolved]) == ("interrupted", ["slow"])
    result = await resume(agent, store, run.id)
    (part,) = [p for m in result.all_messages() for p in m.parts if isinstance(p, ToolReturnPart)]
    assert "it is unknown whether it took effect" in str(part.content)
    assert (part.tool_name, part.outcome) == ("slow", "interrupted")
    assert [effect.state for effect in (await store.effects("talk")).items] == ["started"]
    (told,) = [event for event in await store.events("talk") if event.kind == "tool_call_completed"]
    assert json.loads(told.payload)["outcome"] == "unknown"


async def test_a_person_settles_an_unknown_call(store: Store):
    started = asyncio.Event()

    async def pay() -> str:
        started.set()
        await asyncio.sleep(60)
        return "never"

    agent = recorded(store, [call("pay")], tools=[pay])
    running = asyncio.create_task(agent.run("hi", conversation_id="talk"))
    await started.wait()
    running.cancel()
    await asyncio.wait([running])
    (run,) = (await store.runs(session_id="talk")).items
    settled = await settle_effect(store, run.id, "call-1", actor="grace", result={"paid": 10})
    assert settled.state == "completed"
    with pytest.raises(Conflict, match="already completed"):
        await settle_effect(store, run.id, "call-1", actor="grace", error="no")
    (event,) = [e for e in await store.events("talk") if e.kind == "tool_call_completed"]
    assert json.loads(event.payload)["actor"] == "grace"
    (entry,) = (await store.audit_log(session_id="talk")).items
    assert (entry.actor, entry.action) == ("grace", "settle effect")
    assert json.loads(entry.detail)["call_id"] == "call-1"
    result = await resume(agent, store, run.id)
    assert "'paid': 10" in str(result.all_messages())


async def test_ask_leaves_the_decision_to_a_person(store: Store):
    ran: list[int] = []
    gate = asyncio.Event()

    async def pay() -> str:
        ran.append(1)
        if len(ran) == 1:
            gate.set()
            await asyncio.sleep(60)
        return "paid"

    agent = recorded(
        store,
        [call("pay")],
        tools=[pay],
        policies={"pay": "ask"},
        output_type=[str, DeferredToolRequests],
    )
    running = asyncio.create_task(agent.run("hi", conversation_id="talk"))
    await gate.wait()
    running.cancel()
    await asyncio.wait([running])
    (run,) = (await store.runs(session_id="talk")).items
    asked = await resume(agent, store, run.id)
    assert isinstance(asked.output, DeferredToolRequests)
    assert [approval.tool_call_id for approval in asked.output.approvals] == ["call-1"]
    assert len(ran) == 1
    answered = await agent.run(
        message_history=await history(store, "talk"),
        conversation_id="talk",
        deferred_tool_results=DeferredToolResults(approvals={"call-1": True}),
    )
    assert (answered.output, len(ran)) == ("done", 2)


async def test_notes_on_a_call_survive_its_end(store: Store):
    keys: list[str] = []

    async def pay(ctx: RunContext[None]) -> str:
        keys.append(idempotency_key(ctx))
        await annotate_effect(ctx, summary="paid 10 to Ada")
        return "ok"

    result = await recorded(store, [call("pay")], tools=[pay]).run("hi", conversation_id="talk")
    (effect,) = (await inspect_run(store, result.run_id)).completed
    assert (effect.summary, effect.idempotency_key) == ("paid 10 to Ada", keys[0])


async def test_a_result_that_cannot_be_serialized(store: Store):
    """No model can be sent it, so Pydantic AI ends the run; it is recorded as such, and the session stays usable."""

    def strange() -> Any:
        return {"value": object()}

    agent = recorded(store, [call("strange")], tools=[strange])
    with pytest.raises(PydanticSerializationError):
        await agent.run("hi", conversation_id="talk")
    assert (await kinds(store, "talk"))[-4:] == [
        "tool_call_completed",
        "model_request_started",
        "model_request_failed",
        "run_failed",
    ]
    assert "<not serializable: builtins.object>" in str(await history(store, "talk"))
    assert (await continue_session(agent, store, "talk", "go on")).output == "done"


async def test_after_a_crash_a_result_that_could_not_be_recorded_is_unknown(store: Store):
    gate = asyncio.Event()

    async def strange() -> Any:
        return {"value": object()}

    async def hang() -> str:
        gate.set()
        await asyncio.sleep(60)
        return "never"

    agent = recorded(store, [call("strange", "a"), call("hang", "b")], tools=[strange, hang])
    running = asyncio.create_task(agent.run("hi", conversation_id="talk"))
    await gate.wait()
    while "tool_call_completed" not in await kinds(store, "talk"):
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    (run,) = (await store.runs(session_id="talk")).items
    result = await resume(agent, store, run.id)
    assert "its result could not be recorded" in str(result.all_messages())
    assert await history(store, "talk") == result.all_messages()


async def test_a_large_result(store: Store):
    def large() -> str:
        return "x" * 50_000_000

    result = await recorded(store, [call("large")], tools=[large]).run("hi", conversation_id="talk")
    assert await history(store, "talk") == result.all_messages()


async def test_the_same_call_id_twice_in_one_response(store: Store):
    """Pydantic AI refuses it before any tool runs; the session stays usable."""
    agent = recorded(store, [call("double", x=1), call("double", x=2)], tools=[double])
    with pytest.raises(UnexpectedModelBehavior, match="unique"):
        await agent.run("hi", conversation_id="talk")
    assert (await kinds(store, "talk"))[-1] == "run_failed"
    assert (await store.effects("talk")).items == []
    assert (await continue_session(recorded(store), store, "talk", "go on")).output == "done"


async def test_the_same_call_id_in_two_steps(store: Store):
    agent = recorded(store, [call("double", x=1)], [call("double", x=2)], tools=[double])
    await agent.run("hi", conversation_id="talk")
    effects = (await store.effects("talk")).items
    assert [(e.call_id, e.message) for e in effects] == [("call-1", (1, 2)), ("call-1~2", (1, 4))]
    assert len({e.idempotency_key for e in effects}) == 2


async def test_an_id_that_a_refused_call_had_is_not_taken_for_a_call_that_never_began(store: Store):
    """The first call with the id had wrong arguments, so no tool ran; the second was begun when the run was cut off."""
    started, ran = asyncio.Event(), list[int]()

    async def pay(x: int) -> str:
        ran.append(x)
        started.set()
        await asyncio.sleep(60 if len(ran) == 1 else 0)
        return "paid"

    agent = recorded(store, [call("pay", x="much")], [call("pay", x=1)], tools=[pay], retries=3)
    running = asyncio.create_task(agent.run("hi", conversation_id="talk"))
    await started.wait()
    running.cancel()
    await asyncio.wait([running])
    (run,) = (await store.runs(session_id="talk")).items
    result = await resume(agent, store, run.id)
    assert "it is unknown whether it took effect" in str(result.all_messages())
    assert ran == [1]


async def test_compaction_opens_a_new_segment(store: Store):
    def keep_last(messages: list[ModelMessage]) -> list[ModelMessage]:
        return messages[-1:]

    agent: Agent[None, Any] = Agent(scripted(), capabilities=[Holdfast(store), ProcessHistory(keep_last)])
    await agent.run("turn 0", conversation_id="talk")
    for turn in range(1, 3):
        result = await continue_session(agent, store, "talk", f"turn {turn}")
        assert await history(store, "talk") == result.all_messages()
    # What was compacted away is still on record.
    everything = [e.message or "" for e in await store.events("talk") if e.kind == "message"]
    assert any("turn 0" in body for body in everything)


async def test_a_history_that_was_edited_in_place(store: Store):
    agent = recorded(store)
    first = await agent.run("hello", conversation_id="talk")
    edited = first.all_messages()
    prompt = edited[0].parts[0]
    assert isinstance(prompt, UserPromptPart)
    prompt.content = "something else"
    result = await agent.run("more", message_history=edited, conversation_id="talk")
    assert await history(store, "talk") == result.all_messages()
    assert len(await store.segments("talk")) == 2


async def test_first_messages_edited_in_place_during_a_run(store: Store):
    """Found when the run ends, however far up it was."""

    def edit(ctx: RunContext[None]) -> str:
        prompt = ctx.messages[0].parts[0]
        assert isinstance(prompt, UserPromptPart)
        prompt.content = "something else"
        return "edited"

    turns = [[call("edit", f"call-{n}")] for n in range(8)]
    result = await recorded(store, *turns, tools=[edit]).run("hello", conversation_id="talk")
    assert "something else" in str(result.all_messages()[0])
    assert await history(store, "talk") == result.all_messages()


async def test_a_processor_that_replaces_early_messages_is_on_record_at_the_next_step(store: Store):
    """Also where their number stays the same and the last ones are left alone."""

    def shorten(messages: list[ModelMessage]) -> list[ModelMessage]:
        if len(messages) < 20:
            return messages
        return [ModelRequest(parts=[UserPromptPart("in short")]), *messages[1:]]

    seen: list[str] = []

    async def look() -> str:
        seen.append(str((await history(store, "talk"))[0]))
        return "ok"

    turns = [[call("look", f"call-{n}")] for n in range(14)]
    agent: Agent[None, Any] = Agent(
        scripted(*turns), tools=[look], capabilities=[Holdfast(store), ProcessHistory(shorten)]
    )
    result = await agent.run("a long story", conversation_id="talk")
    assert "a long story" in seen[0]
    assert "in short" in seen[-1]
    assert await history(store, "talk") == result.all_messages()


async def test_a_run_id_is_used_once(store: Store):
    await recorded(store, run_id="mine").run("hi", conversation_id="talk")
    before = await store.events("talk")
    with pytest.raises(Conflict, match="used only once"):
        await recorded(store, run_id="mine").run("hi", conversation_id="talk")
    assert await store.events("talk") == before


async def test_two_at_once_on_one_conversation(store: Store):
    gate, inside = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        inside.set()
        await gate.wait()
        return "ok"

    agent = recorded(store, [call("wait")], tools=[wait])
    running = asyncio.create_task(agent.run("hi", conversation_id="talk"))
    await inside.wait()
    with pytest.raises(SessionBusy, match="is in use by"):
        await recorded(store).run("me too", conversation_id="talk")
    gate.set()
    await running


async def test_a_lost_lease_stops_the_run_before_it_writes(store: Store):
    async def lose() -> str:
        (holder,) = await store.holders()
        await store.leave(holder)
        return "ok"

    with pytest.raises(LeaseLost):
        await recorded(store, [call("lose")], tools=[lose]).run("hi", conversation_id="talk")
    assert (await kinds(store, "talk"))[-1] == "tool_call_started"


async def test_a_store_that_goes_away_stops_the_run(tmp_path: Any):
    url = f"sqlite:///{tmp_path}/store.db"
    store = await open_store(url).open()

    async def cut() -> str:
        await store.close()
        return "ok"

    with pytest.raises(HoldfastError):
        await recorded(store, [call("cut")], tools=[cut]).run("hi", conversation_id="talk")
    async with open_store(url) as again:
        assert await again.check() == []
        assert (await history(again, "talk"))[-1].kind == "response"


async def test_delegates_know_their_parent(store: Store):
    helper = recorded(store, name="helper")

    async def delegate() -> str:
        return (await helper.run("help", conversation_id="errand")).output

    result = await recorded(store, [call("delegate")], tools=[delegate]).run("hi", conversation_id="talk")
    (child,) = (await store.runs(parent_id=result.run_id)).items
    assert (child.session_id, child.agent, child.parent_id) == ("errand", "helper", result.run_id)
    later = await helper.run("alone", conversation_id="errand-2")
    assert (await store.run(later.run_id)).parent_id is None


async def test_a_tool_that_is_gone_is_named(store: Store):
    started = asyncio.Event()

    async def slow() -> str:
        started.set()
        await asyncio.sleep(60)
        return "never"

    running = asyncio.create_task(
        recorded(store, [call("slow")], tools=[slow]).run("hi", conversation_id="talk")
    )
    await started.wait()
    running.cancel()
    await asyncio.wait([running])
    (run,) = (await store.runs(session_id="talk")).items
    with pytest.raises(Conflict, match="no longer has the tool slow"):
        await resume(recorded(store, [call("slow")], tools=[double]), store, run.id)


async def test_continue_fork_and_rewind_from_any_checkpoint(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        buffer, "_SETUP", 60
    )  # on a busy machine the prompt would be kept in a segment of its own
    agent = recorded(store)
    await agent.run("turn 0", conversation_id="talk")
    for turn in range(1, 3):
        await continue_session(agent, store, "talk", f"turn {turn}")
    middle = next(c for c in (await store.checkpoints(session_id="talk")).items if c.length == 2)
    forked = await fork(store, middle)
    result = await continue_session(agent, store, forked, "elsewhere")
    assert len(result.all_messages()) == 4
    assert len(await history(store, "talk")) == 6
    result = await continue_session(agent, store, "talk", "branch", checkpoint=middle)
    assert [str(m.parts[0].content) for m in result.all_messages() if isinstance(m, ModelRequest)] == [  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
        "turn 0",
        "branch",
    ]
    assert len(await store.segments("talk")) == 2
    await rewind(store, middle)
    assert len(await history(store, "talk")) == 2
    await continue_session(agent, store, "talk", "again")
    assert len(await history(store, "talk")) == 4


async def test_closing_an_interrupted_run_keeps_what_is_known(store: Store):
    """The next message after a crash: the recorded result of a parallel call is in the history, the other is a note."""
    gate = asyncio.Event()

    async def quick() -> str:
        return "quick result"

    async def slow() -> str:
        gate.set()
        await asyncio.sleep(60)
        return "never"

    agent = recorded(store, [call("quick", "a"), call("slow", "b")], tools=[quick, slow])
    running = asyncio.create_task(agent.run("hi", conversation_id="talk"))
    await gate.wait()
    while "tool_call_completed" not in await kinds(store, "talk"):
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    result = await continue_session(recorded(store), store, "talk", "what happened?")
    text = str(result.all_messages())
    assert "quick result" in text
    assert "it is unknown whether it took effect" in text
    assert is_provider_valid(result.all_messages())
    assert isinstance(result.all_messages()[-1], ModelResponse)
    assert result.output == "done"


async def test_a_fork_of_an_interrupted_run_knows_what_was_done(store: Store):
    gate, paid = asyncio.Event(), list[int]()

    async def pay() -> str:
        paid.append(1)
        return "paid"

    async def hang() -> str:
        gate.set()
        await asyncio.sleep(60)
        return "never"

    agent = recorded(store, [call("pay", "a"), call("hang", "b")], tools=[pay, hang])
    running = asyncio.create_task(agent.run("hi", conversation_id="talk"))
    await gate.wait()
    while "tool_call_completed" not in await kinds(store, "talk"):
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    (latest,) = (await store.checkpoints(session_id="talk", limit=1)).items
    result = await continue_session(agent, store, await fork(store, latest), "what happened?")
    assert "content='paid'" in str(result.all_messages())
    again = await fork(store, latest)
    resumed = await agent.run(message_history=await history(store, again), conversation_id=again)
    assert "content='paid'" in str(resumed.all_messages())
    assert paid == [1]


async def test_resume_records_in_the_store_it_was_given(store: Store):
    async with open_store("sqlite://:memory:") as other:
        agent = recorded(other, [call("double", x=1)], tools=[double], policies={"double": "retry"})
        first = recorded(store, [call("double", x=1)], tools=[])
        with pytest.raises(Exception):  # noqa: B017, PT011 - the agent lacks the tool
            await first.run("hi", conversation_id="talk", usage_limits=UsageLimits(request_limit=1))
        (run,) = (await store.runs(session_id="talk")).items
        await resume(agent, store, run.id)
        assert (await other.sessions()).items == []
        (_, resumed) = (await store.runs(session_id="talk")).items
        assert json.loads(resumed.metadata) == {"resumes": run.id}


async def test_text_that_looks_like_our_note_is_text(store: Store):
    def quote() -> str:
        return "<not serializable: really>"

    result = await recorded(store, [call("quote")], tools=[quote]).run("hi", conversation_id="talk")
    (effect,) = (await inspect_run(store, result.run_id)).completed
    assert effect.message == (1, 2)
    assert "<not serializable: really>" in str(await history(store, "talk"))


async def test_a_tool_that_asks_for_approval_runs_once_it_has_it(store: Store):
    paid: list[bool] = []

    async def pay(ctx: RunContext[None]) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        paid.append(True)
        return "paid"

    agent = recorded(store, [call("pay")], tools=[pay], output_type=[str, DeferredToolRequests])
    asked = await agent.run("hi", conversation_id="talk")
    assert isinstance(asked.output, DeferredToolRequests)
    assert (await kinds(store, "talk"))[-1] == "approval_requested"
    answered = await agent.run(
        message_history=await history(store, "talk"),
        conversation_id="talk",
        deferred_tool_results=DeferredToolResults(approvals={"call-1": True}),
    )
    assert (answered.output, paid) == ("done", [True])
    (effect,) = (await store.effects("talk")).items
    assert effect.state == "completed"


async def test_the_key_of_a_call_is_its_own_also_after_a_delegate(store: Store):
    keys: list[str] = []
    helper = recorded(store, [call("double", x=1)], tools=[double])

    async def delegate(ctx: RunContext[None]) -> str:
        keys.append(idempotency_key(ctx))
        await helper.run("help", conversation_id="errand")
        keys.append(idempotency_key(ctx))
        return "ok"

    await recorded(store, [call("delegate")], tools=[delegate]).run("hi", conversation_id="talk")
    assert keys[0] == keys[1]


async def test_a_session_of_another_owner_is_not_found(store: Store):
    """An application that passes `conversation_id` through does not cross from one tenant to another."""
    alice, bob = (
        Agent(scripted(), capabilities=[Holdfast(store, owner=owner)], name="clerk")
        for owner in ("alice", "bob")
    )
    await alice.run("my secret", conversation_id="talk")
    (run,) = (await store.runs(session_id="talk")).items
    before = await store.events("talk")
    with pytest.raises(SessionNotFound):
        await bob.run("what did they say?", conversation_id="talk")
    with pytest.raises(SessionNotFound):
        await continue_session(bob, store, "talk", "what did they say?")
    assert await store.events("talk") == before
    assert (await store.session("talk")).owner == "alice"
    assert (await continue_session(alice, store, "talk", "hello")).output == "done"
    unowned = Agent(scripted(), name="clerk")
    assert (await continue_session(unowned, store, "talk", "from the operator")).output == "done"
    with pytest.raises(SessionNotFound):
        await store.create_session(agent="clerk", owner="bob", id="talk", exist_ok=True)
    assert (
        await store.create_session(agent="clerk", owner="alice", id="talk", exist_ok=True)
    ).id == run.session_id


async def test_a_run_is_not_recorded_in_a_session_of_another_framework(store: Store):
    await store.create_session(agent="adk", owner="local", id="talk", metadata='{"framework": "adk"}')
    clerk = Agent(scripted(), capabilities=[Holdfast(store)], name="clerk")
    with pytest.raises(Conflict, match="is stored by adk"):
        await clerk.run("hello", conversation_id="talk")
    assert await store.events("talk") == []


async def test_a_delegate_belongs_to_the_owner_of_the_run_that_starts_it(store: Store):
    delegate = Agent(scripted(), capabilities=[Holdfast(store)], name="delegate")

    async def delegate_it() -> str:
        return str((await delegate.run("help", conversation_id="delegated")).output)

    caller = Agent(
        scripted([call("delegate_it")]),
        tools=[delegate_it],
        capabilities=[Holdfast(store, owner="alice")],
        name="caller",
    )
    await caller.run("go", conversation_id="talk")
    assert (await store.session("delegated")).owner == "alice"
    await delegate.run("by itself", conversation_id="alone")
    assert (await store.session("alone")).owner == "local"


@pytest.mark.parametrize("depth", [200, 300, 100_000])
async def test_a_result_nested_too_deeply_does_not_fail_the_run(store: Store, depth: int):
    def nest() -> Any:
        value: list[Any] = []
        for _ in range(depth):
            value = [value]
        return value

    def nest_structured() -> Any:
        return ToolReturn(nest(), content="beside it")

    agent = recorded(store, [call("nest"), call("nest_structured", "call-2")], tools=[nest, nest_structured])
    assert (await agent.run("hi", conversation_id="talk")).output == "done"
    told = str(await history(store, "talk"))
    assert "beside it" in told
    assert ("nested too deeply" in told) == (depth > 200)
    assert {effect.state for effect in (await store.effects("talk")).items} == {"completed"}
    assert (await continue_session(agent, store, "talk", "hello")).output == "done"


@pytest.mark.parametrize("fate", ["erased", "cleaned"])
async def test_a_fork_of_a_session_that_is_deleted_meanwhile_copies_nothing(store: Store, fate: str):
    agent = recorded(store)
    await agent.run("a secret", conversation_id="talk")
    (latest,) = (await store.checkpoints(session_id="talk", limit=1)).items
    now, media = store.now, open_media(store=store)

    async def deleted() -> datetime:  # the history is read, and the fork not written yet
        if fate == "erased":
            await erase(store, media, "talk", actor="test")
        else:
            await clean(store, media, "talk", actor="test", force=True)
        return await now()

    store.now = deleted
    with pytest.raises(SessionNotFound if fate == "erased" else SessionCleaned):
        await fork(store, latest, session_id="copy")
    with pytest.raises(SessionNotFound):
        await store.session("copy")


async def test_a_fork_under_a_lost_lease_copies_nothing(store: Store):
    agent = recorded(store)
    await agent.run("hello", conversation_id="talk")
    (latest,) = (await store.checkpoints(session_id="talk", limit=1)).items
    holder = await store.join("paused", ttl=60)
    stale = await store.acquire("talk", holder)
    await store.release(stale)
    stale.lost = stale.released = False  # as one that was paused believes
    with pytest.raises(LeaseLost):
        await fork(store, latest, session_id="copy", lease=stale)
    with pytest.raises(SessionNotFound):
        await store.session("copy")


async def test_a_checkpoint_of_another_session_is_not_continued(store: Store):
    agent = recorded(store)
    await agent.run("a secret", conversation_id="theirs")
    await agent.run("hello", conversation_id="ours")
    (foreign,) = (await store.checkpoints(session_id="theirs", limit=1)).items
    with pytest.raises(NotFound):
        await continue_session(agent, store, "ours", "what did they say?", checkpoint=foreign)


async def test_what_a_run_leaves_behind_does_not_inherit_its_owner(store: Store):
    """A background task that a tool has started runs in the context of the tool, also after the run."""
    later, left = asyncio.Event(), list[asyncio.Task[Any]]()
    agent = Agent(scripted(), capabilities=[Holdfast(store)], name="clerk")

    async def in_background() -> None:
        await later.wait()
        await agent.run("hello", conversation_id="later")

    async def start() -> str:
        left.append(asyncio.create_task(in_background()))
        return "started"

    caller = Agent(scripted([call("start")]), tools=[start], capabilities=[Holdfast(store, owner="alice")])
    await caller.run("go", conversation_id="talk")
    later.set()
    await left[0]
    (run,) = (await store.runs(session_id="later")).items
    assert ((await store.session("later")).owner, run.parent_id) == ("local", None)
