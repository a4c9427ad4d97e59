"""Plain agents: a function runs on workers like any other agent, and runs again from the top."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from pydantic_ai import BinaryContent

import holdfast
from holdfast import SessionHandle, Turn, TurnHandle, connect
from holdfast.client.client import Client
from holdfast.errors import ApprovalNeeded, BadInput, OutcomeUnknown, TurnFailed
from holdfast.events import DraftText
from holdfast.runtime.function_agent import FunctionAgent
from holdfast.store import Store
from holdfast.testing.agents import ManualClock, ledger, memory_store
from tests.runtime.agents import kill_worker

done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done():
    done.clear()


async def do(what: str) -> str:
    done.append(what)
    return f"{what} done"


@pytest.fixture
async def memory() -> AsyncGenerator[Store, None]:
    async with memory_store() as store:
        yield store
        assert await store.check() == []


async def answer(hf: Client, agent: FunctionAgent, text: Any = "Hello", **options: Any) -> Any:
    session = await hf.session("s", agent=agent)
    return await (await session.send(text, **options)).result(timeout=20)


async def test_a_function_answers_with_text_or_json(memory: Store):
    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> None:
        done.append(turn.text)
        await turn.answer("text" if turn.text == "Hello" else {"n": [1, None]})

    async with connect(memory, agents=[clerk]) as hf:
        assert await answer(hf, clerk) == "text"
        assert await answer(hf, clerk, "json") == {"n": [1, None]}
        named = await hf.session("s")
        assert json.loads(await (await named.send("json")).result(timeout=20)) == {"n": [1, None]}


async def test_a_return_value_is_the_answer_and_none_is_no_answer(memory: Store):
    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> Any:
        return turn.text or None

    async with connect(memory, agents=clerk) as hf:
        assert await answer(hf, clerk, "back") == "back"
        assert await answer(hf, clerk, [BinaryContent(b"x", media_type="text/plain")]) is None


async def test_messages_are_the_history_up_to_this_message(memory: Store):
    seen: list[Any] = []

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> Any:
        seen.append(turn.messages)
        if turn.text == "one":
            await turn.add({"role": "tool", "content": "7", "tool_call_id": "x"})
            await turn.add([1, 2])
            return {"answer": 1}
        return "two!"

    async with connect(memory, agents=clerk) as hf:
        await answer(hf, clerk, "one")
        await answer(hf, clerk, "two")
    assert seen[0] == [{"role": "user", "content": "one"}]
    assert seen[1] == [
        {"role": "user", "content": "one"},
        {"role": "tool", "content": "7", "tool_call_id": "x"},
        {"role": "assistant", "content": [1, 2]},
        {"role": "assistant", "content": {"answer": 1}},
        {"role": "user", "content": "two"},
    ]


@holdfast.agent("publisher")
async def publisher(turn: Turn) -> str:
    text = await turn.step("write", do, turn.text)
    await turn.add(f"draft of {turn.text}")
    decision = await turn.ask("Publish?", {"text": text})
    if not decision:
        return f"not published: {decision.feedback}"
    return await turn.step("publish", do, "publish")


@pytest.mark.parametrize("approved", [True, False])
async def test_a_question_needs_no_process(memory: Store, approved: bool):
    async with connect(memory, agents=publisher) as hf:
        session = await hf.session("s", agent=publisher)
        turn = await session.send("news")
        with pytest.raises(ApprovalNeeded) as needed:
            await turn.result(timeout=20)
    (call,) = needed.value.calls
    assert (call.tool, call.arguments) == ("ask", {"question": "Publish?", "detail": {"text": "news done"}})
    assert (await memory.session("s")).status == "waiting"
    assert [holder for holder in await memory.holders() if holder.agents] == []

    async with connect(memory) as hf:  # answered while no worker runs
        session = await hf.session("s")
        await (session.approve(call) if approved else session.deny(call, feedback="too early"))
    async with connect(memory, agents=publisher) as hf:
        session = await hf.session("s", agent=publisher)
        turn = await session.turn(turn.id)
        answered = await turn.result(timeout=20)
    assert answered == ("publish done" if approved else "not published: too early")
    assert done == (["news", "publish"] if approved else ["news"])
    entries = {entry.call_id: entry.state for entry in await ledger(memory, "s")}
    assert entries == {"turn/write": "completed", **({"turn/publish": "completed"} if approved else {})}


async def test_an_interrupt_ends_a_waiting_turn_and_the_next_message_works(memory: Store):
    async with connect(memory, agents=publisher) as hf:
        session = await hf.session("s", agent=publisher)
        turn = await session.send("news")
        with pytest.raises(ApprovalNeeded):
            await turn.result(timeout=20)
        await session.interrupt()
        with pytest.raises(TurnFailed, match="interrupted"):
            await turn.result(timeout=20)
        turn = await session.send("more")
        with pytest.raises(ApprovalNeeded) as needed:
            await turn.result(timeout=20)
        await session.approve(needed.value.calls[0])
        assert await turn.result(timeout=20) == "publish done"
    assert done == ["news", "more", "publish"]


async def only_turn(store: Store, session: SessionHandle[Any]) -> TurnHandle[Any]:
    """Return the turn of the message in the session."""
    messages = [one for one in (await store.submissions("s")).items if one.kind == "message"]
    return await session.turn(messages[0].id)


async def killed_in(store: Store, agent: FunctionAgent, kind: str, number: int = 1) -> None:
    """Send a message and kill the worker in this process after an event."""
    async with connect(store) as hf:
        session = await hf.session("s", agent=agent)
        await session.send("Hello")
    await kill_worker(store, agent, kind, number)


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_killed_turn_continues_and_repeats_no_recorded_step(number: int):
    clock = ManualClock()

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> str:
        first = await turn.step("one", do, turn.text, recovery="retry")
        await turn.add("between")
        second, third = await asyncio.gather(
            turn.step("two", do, "two", recovery="retry"), turn.step("three", do, "three", recovery="retry")
        )
        return f"{first}, {second}, {third}"

    async with memory_store(clock) as store:
        await killed_in(store, clerk, "step_completed", number)
        completed = {entry.tool for entry in await ledger(store, "s") if entry.state == "completed"}
        before = list(done)
        clock.advance(60)
        async with connect(store, agents=clerk) as hf:
            session = await hf.session("s", agent=clerk)
            await (await only_turn(store, session)).result(timeout=20)
            messages = [message async for message in session.messages()]
        texts = [getattr(message.parts[0], "content", None) for message in messages]
        assert texts == ["Hello", "between", "Hello done, two done, three done"]
        repeated = set(done[len(before) :])
        assert not repeated & {{"one": "Hello"}.get(name, name) for name in completed}
        assert await store.check() == []


async def test_other_code_than_on_record_fails_the_turn_with_the_first_difference():
    clock = ManualClock()

    def clerk(*names: str) -> FunctionAgent:
        @holdfast.agent("clerk")
        async def run(turn: Turn) -> str:
            for name in names:
                await turn.step(name, do, name, recovery="retry")
            return "done"

        return run

    async with memory_store(clock) as store:
        await killed_in(store, clerk("a", "b"), "step_started", 2)
        clock.advance(60)
        async with connect(store, agents=clerk("x", "b")) as hf:
            session = await hf.session("s")
            with pytest.raises(
                TurnFailed, match="it calls step 'x', but the next recorded entry is step 'a'"
            ):
                await (await only_turn(store, session)).result(timeout=20)
            assert done == ["a"]
            assert await (await session.send("again")).result(timeout=20) == "done"


async def test_a_turn_fails_only_when_its_other_steps_have_ended(memory: Store):
    async def slow() -> str:
        await asyncio.sleep(0.1)
        return await do("slow")

    async def broken() -> None:
        raise ConnectionError

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> None:
        await asyncio.gather(turn.step("slow", slow), turn.step("broken", broken))

    async with connect(memory, agents=clerk) as hf:
        session = await hf.session("s", agent=clerk)
        with pytest.raises(TurnFailed, match="ConnectionError"):
            await (await session.send("Hello")).result(timeout=20)
        states = {entry.tool: entry.state for entry in await ledger(memory, "s")}
    assert states == {"slow": "completed", "broken": "failed"}


async def test_a_step_of_a_turn_that_may_have_happened_is_asked_about():
    clock = ManualClock()

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> str:
        try:
            return await turn.step("pay", do, "pay", recovery="ask")
        except OutcomeUnknown:
            return "not repeated"

    for approved in (True, False):
        done.clear()
        async with memory_store(clock) as store:
            await killed_in(store, clerk, "step_started")
            clock.advance(60)
            async with connect(store, agents=clerk) as hf:
                session = await hf.session("s", agent=clerk)
                while not (calls := (await session.info()).approvals):
                    await asyncio.sleep(0.02)
                assert "Run it again?" in calls[0].arguments["question"]
                await (session.approve(calls[0]) if approved else session.deny(calls[0]))
                answered = await (await only_turn(store, session)).result(timeout=20)
            assert answered == ("pay done" if approved else "not repeated")
            assert done == (["pay"] if approved else [])


async def test_steering_messages_reach_the_turn(memory: Store):
    began = asyncio.Event()

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> str:
        began.set()
        await turn.step("wait", asyncio.sleep, 0)
        incoming: list[Any] = []
        while not incoming:
            await asyncio.sleep(0.02)
            incoming = await turn.incoming()
        return f"{turn.text} and {incoming[0]}"

    async with connect(memory, agents=clerk) as hf:
        session = await hf.session("s", agent=clerk)
        first = await session.send("Hello")
        await began.wait()
        second = await session.send("hurry", when_busy="steer")
        assert await first.result(timeout=20) == "Hello and hurry"
        assert (await second.info()).state == "done"


async def test_drafts_are_shown_while_the_answer_is_made(memory: Store):
    go = asyncio.Event()

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> str:
        await turn.draft("Once upon")
        await turn.draft(" a time")
        await go.wait()
        return "Once upon a time, the end."

    async with connect(memory, agents=clerk) as hf:
        session = await hf.session("s", agent=clerk)
        turn = await session.send("Tell.")
        seen = ""
        async for event in turn.events(drafts=True):
            if isinstance(event, DraftText):
                seen = seen[: event.offset] + event.text
            if seen == "Once upon a time":
                go.set()
        assert await turn.result(timeout=20) == "Once upon a time, the end."
        assert await memory.drafts("s") == []


async def test_state_and_credentials_of_the_session_can_be_used(memory: Store):
    @holdfast.agent("counter")
    async def counter(turn: Turn) -> int:
        state = await turn.session.state()
        number = json.loads(state.body)["n"] + 1 if state.version else 1
        await turn.session.set_state({"n": number}, expected_version=state.version)
        return number

    async with connect(memory, agents=counter) as hf:
        assert [await answer(hf, counter), await answer(hf, counter)] == [1, 2]


async def test_errors_of_the_function_fail_the_turn(memory: Store):
    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> str:
        if turn.text == "exit":
            raise SystemExit(3)
        return str(1 // len(turn.text[5:]))

    async with connect(memory, agents=clerk) as hf:
        with pytest.raises(TurnFailed, match="ZeroDivisionError"):
            await answer(hf, clerk, "Hello")
        with pytest.raises(TurnFailed, match="AgentExited"):
            await answer(hf, clerk, "exit")
        assert await answer(hf, clerk, "Hello.") == "1"


async def test_a_turn_cannot_be_used_wrongly(memory: Store):
    kept: list[Turn] = []

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> None:
        kept.append(turn)

        async def asks() -> str:
            with pytest.raises(BadInput, match="within a step"):
                await turn.ask("Really?")
            return "asked"

        await turn.step("asks", asks)
        with pytest.raises(BadInput, match="cannot be written as JSON"):
            await turn.answer(float("nan"))
        await turn.answer("one")
        with pytest.raises(BadInput, match="already has an answer"):
            await turn.answer("two")

    async with connect(memory, agents=clerk) as hf:
        assert await answer(hf, clerk) == "one"
        (turn,) = kept
        with pytest.raises(BadInput, match="outside a recorded turn"):
            await turn.step("x", do, "x")
        for late in (
            turn.ask("?"),
            turn.answer("x"),
            turn.draft("x"),
            turn.add("x"),
        ):
            with pytest.raises(BadInput, match="the turn has ended"):
                await late
        session = await hf.session("s", agent=clerk)
        with pytest.raises(BadInput, match="async function"):
            holdfast.agent("sync")(lambda turn: None)  # pyright: ignore[reportArgumentType]
        compaction = await session.compact()
        with pytest.raises(TurnFailed, match="cannot compact"):
            await compaction.result(timeout=20)
    assert done == []


async def test_thousands_of_steps_of_one_turn_are_recorded(memory: Store):
    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> int:
        total = 0
        for number in range(2_000):
            total += await turn.step("add", int, str(number % 2))
        return total

    async with connect(memory, agents=clerk) as hf:
        session = await hf.session("s", agent=clerk)
        assert await (await session.send("count")).result(timeout=120) == 1_000
    assert len(await ledger(memory, "s")) == 2_000


@pytest.mark.parametrize("beside", ["sleep", "failure", "task"])
async def test_an_interrupt_also_stops_steps_of_other_tasks(memory: Store, beside: str):
    """Nothing of the turn runs, or is recorded, after its end."""
    inside = asyncio.Event()

    async def slow() -> str:
        done.append("begun")
        inside.set()
        try:
            await asyncio.sleep(20)
        finally:
            done.append("cancelled")
            await asyncio.sleep(0.2)
            done.append("ended")
        return "late"

    async def fail() -> None:
        raise ValueError("no")

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> None:
        if beside == "task":
            running = asyncio.create_task(turn.step("slow", slow))
            await inside.wait()
            await turn.answer(f"without {running}")
            return
        other = turn.sleep(days=1) if beside == "sleep" else turn.step("fail", fail)
        await asyncio.gather(turn.step("slow", slow), other)

    async with connect(memory, agents=[clerk]) as hf:
        session = await hf.session("s", agent=clerk)
        turn = await session.send("hello")
        await asyncio.wait_for(inside.wait(), 20)
        await asyncio.sleep(0.1)
        await session.interrupt()
        with pytest.raises(TurnFailed, match="interrupted"):
            await turn.result(timeout=20)
        assert done == ["begun", "cancelled", "ended"]
        ended = (await memory.session("s")).seq
        await asyncio.sleep(0.1)
        assert (await memory.session("s")).seq == ended
    assert [effect.state for effect in (await ledger(memory, "s")) if effect.tool == "slow"] == ["started"]


async def test_a_step_that_cannot_be_cancelled_is_recorded_before_the_turn_ends(memory: Store):
    inside = asyncio.Event()

    async def stubborn() -> str:
        inside.set()
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
        return "done"

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> None:
        await asyncio.gather(turn.step("stubborn", stubborn), turn.sleep(days=1))

    async with connect(memory, agents=[clerk]) as hf:
        session = await hf.session("s", agent=clerk)
        turn = await session.send("hello")
        await asyncio.wait_for(inside.wait(), 20)
        await asyncio.sleep(0.1)
        await session.interrupt()
        with pytest.raises(TurnFailed, match="interrupted"):
            await turn.result(timeout=20)
    kinds = [event.kind for event in await memory.events("s")]
    assert kinds[-3:] == ["step_completed", "run_interrupted", "submission_failed"]


async def test_a_step_that_pauses_before_it_is_tried_again_does_not_run_after_the_turn(memory: Store):
    async def fail() -> None:
        done.append("tried")
        raise OSError("busy")

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> None:
        retry = holdfast.Retry(on=OSError, backoff=0.2, attempts=5)
        await asyncio.gather(turn.step("fail", fail, retry=retry), turn.ask("Go on?"))

    async with connect(memory) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("hello")
        await session.send("another: the worker keeps the session")
        async with connect(memory, agents=[clerk]):
            with pytest.raises(ApprovalNeeded):
                await turn.result(timeout=20)
            await asyncio.sleep(0.5)
    assert done == ["tried"]


async def test_a_function_counts_its_requests_once(memory: Store):
    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> None:
        async def request() -> str:
            turn.count_request("m", input_tokens=10, output_tokens=2, tool_calls=1, cost=0.25)
            return "answer"

        await turn.step("request", request)
        await turn.ask("Go on?")
        for bad in (-1, 1.5, True, 10**13):
            with pytest.raises(BadInput, match="must be integers"):
                turn.count_request("m", input_tokens=bad)  # pyright: ignore[reportArgumentType]
        for bad in (-1, float("nan"), float("inf"), 1e300):
            with pytest.raises(BadInput, match="cost of a request"):
                turn.count_request("m", cost=bad)
        await turn.answer("done")

    async with connect(memory, agents=[clerk]) as hf:
        session = await hf.session("s", agent=clerk)
        turn = await session.send("hello")
        with pytest.raises(ApprovalNeeded) as asked:
            await turn.result(timeout=20)
        await session.approve(asked.value.calls[0].call_id)
        assert await turn.result(timeout=20) == "done"
        usage = [each async for each in hf.usage(["agent", "model"], session_id="s")]
    counted = [
        (each.model, each.requests, each.input_tokens, each.tool_calls, each.cost_usd) for each in usage
    ]
    assert counted == [("", 0, 0, 0, 0), ("m", 1, 10, 1, 0.25)]
    assert usage[0].seconds > 0
