"""Retry: a turn that failed, was interrupted or was given up continues, and nothing on record is done again."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

import holdfast
from holdfast import NotDone, Turn, Unsettled, connect, idempotency_key, step
from holdfast.cli.history import last_turn
from holdfast.errors import ApprovalNeeded, Conflict, NotFound, StepError, TurnFailed, TurnNotRetriable
from holdfast.record.open_calls import is_provider_valid
from holdfast.store import Store
from holdfast.testing.agents import ManualClock, ledger, memory_store
from tests.builders import until
from tests.runtime.agents import kill_worker

done: list[str] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def _nothing_done():
    done.clear()
    broken.clear()


@pytest.fixture
async def memory() -> AsyncGenerator[Store, None]:
    async with memory_store() as store:
        yield store
        assert await store.check() == []


async def do(what: str) -> str:
    done.append(what)
    if what in broken:
        message = f"{what} is broken"
        raise ConnectionError(message)
    return f"{what} done"


@holdfast.agent("worker")
async def worker(turn: Turn) -> Any:
    first = await turn.step("first", do, "first")
    return [first, await turn.step("second", do, "second")]


async def fail(turn: Any) -> TurnFailed:
    with pytest.raises(TurnFailed) as failed:
        await turn.result(timeout=20)
    return failed.value


async def test_a_step_whose_failure_ended_the_turn_runs_again(memory: Store):
    broken.add("second")
    async with connect(memory, agents=[worker]) as hf:
        session = await hf.session("s", agent=worker)
        turn = await session.send("Hello")
        await fail(turn)
        again = await turn.retry()
        assert "second is broken" in str(await fail(again))
        broken.clear()
        assert await (await again.retry()).result(timeout=20) == ["first done", "second done"]
        assert await (await session.send("Next")).result(timeout=20) == ["first done", "second done"]
        prompts = [
            part.content
            async for message in session.messages()
            for part in message.parts
            if isinstance(part, UserPromptPart)
        ]
    assert done == ["first", "second", "second", "second", "first", "second"]
    assert prompts == ["Hello", "Next"]


@pytest.mark.parametrize(("kind", "number"), [("run_started", 1), ("step_started", 1), ("run_completed", 1)])
async def test_a_retried_turn_that_is_killed_continues(kind: str, number: int):
    clock = ManualClock()
    async with memory_store(clock) as store:
        broken.add("second")
        async with connect(store, agents=[worker]) as hf:
            turn = await (await hf.session("s", agent=worker)).send("Hello")
            await fail(turn)
        broken.clear()
        async with connect(store) as hf:
            again = await (await (await hf.session("s", agent=worker)).turn(turn.id)).retry()
        await kill_worker(store, worker, kind, number)
        clock.advance(60)
        async with connect(store, agents=[worker]) as hf:
            session = await hf.session("s", agent=worker)
            if kind == "step_started":
                assert "unknown whether it took effect" in str(await fail(await session.turn(again.id)))
                return
            assert await (await session.turn(again.id)).result(timeout=20) == ["first done", "second done"]
        assert done == ["first", "second", "second"]
        assert await store.check() == []


async def test_a_failure_that_the_code_caught_stays(memory: Store):
    broken.update(("first", "second"))

    @holdfast.agent("careful")
    async def careful(turn: Turn) -> Any:
        try:
            return await turn.step("first", do, "first")
        except StepError:
            return await turn.step("second", do, "second")

    async with connect(memory, agents=[careful]) as hf:
        session = await hf.session("s", agent=careful)
        turn = await session.send("Hello")
        await fail(turn)
        broken.clear()
        assert await (await turn.retry()).result(timeout=20) == "second done"
    assert done == ["first", "second", "second"]


async def test_failed_concurrent_and_nested_steps_run_again_and_completed_ones_do_not(memory: Store):
    broken.update(("left", "inner"))

    async def outer() -> list[str]:
        return [await step("before", do, "before"), await step("inner", do, "inner")]

    @holdfast.agent("wide")
    async def wide(turn: Turn) -> Any:
        found = await asyncio.gather(
            turn.step("left", do, "left"),
            turn.step("right", do, "right"),
            turn.step("outer", outer),
            return_exceptions=True,
        )
        if errors := [error for error in found if isinstance(error, Exception)]:
            message = "some parts failed"
            raise ExceptionGroup(message, errors)
        return found

    async with connect(memory, agents=[wide]) as hf:
        session = await hf.session("s", agent=wide)
        turn = await session.send("Hello")
        await fail(turn)
        broken.clear()
        again = await turn.retry()
        assert await again.result(timeout=20) == ["left done", "right done", ["before done", "inner done"]]
    assert sorted(done) == ["before", "inner", "inner", "left", "left", "right"]
    keys = {entry.call_id: entry.idempotency_key for entry in await ledger(memory, "s")}
    assert keys["turn/left"] == keys["turn/left~again1"]


@pytest.mark.parametrize("how", ["gather", "group"])
async def test_one_retry_repeats_all_failures_of_concurrent_steps(memory: Store, how: str):
    """`gather` raises the first failure only. A `TaskGroup` cancels the task in which it waits, which looks like a worker that is torn down."""
    broken.update(("left", "right"))

    @holdfast.agent("wide")
    async def wide(turn: Turn) -> Any:
        if how == "gather":
            return await asyncio.gather(*(turn.step(name, do, name) for name in ("left", "right")))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(turn.step(name, do, name)) for name in ("left", "right")]
        return [task.result() for task in tasks]

    async with connect(memory, agents=[wide]) as hf:
        session = await hf.session("s", agent=wide)
        turn = await session.send("Hello")
        await fail(turn)
        assert [run.status async for run in session.runs()] == ["failed"]
        broken.clear()
        assert await (await turn.retry()).result(timeout=20) == ["left done", "right done"]
    assert sorted(done) == ["left", "left", "right", "right"]


async def test_a_settled_step_and_a_retry_finish_a_turn_with_an_unknown_outcome():
    clock = ManualClock()
    async with memory_store(clock) as store:
        async with connect(store) as hf:
            turn = await (await hf.session("s", agent=worker)).send("Hello")
        await kill_worker(store, worker, "step_started", 2)
        clock.advance(60)
        async with connect(store, agents=[worker]) as hf:
            session = await hf.session("s", agent=worker)
            assert "'second'" in str(await fail(await session.turn(turn.id)))
            runs = [run async for run in session.runs()]
            await hf.run(runs[0].id).settle("turn/second", result="settled")
            again = await (await session.turn(turn.id)).retry()
            assert await again.result(timeout=20) == ["first done", "settled"]
    assert done == ["first"]


def calling(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del info
    results = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    if not results:
        return ModelResponse(parts=[ToolCallPart("act", {}, "call-1")])
    if "model" in broken:
        message = "the model is broken"
        raise ConnectionError(message)
    return ModelResponse(parts=[TextPart(f"{results[-1].content}")])


async def act() -> str:
    return await do("act")


clerk = Agent(FunctionModel(calling), name="clerk", tools=[act])


async def test_a_failed_turn_of_a_model_continues_after_its_last_tool_result(memory: Store):
    broken.add("model")
    async with connect(memory, agents=[clerk]) as hf:
        session = await hf.session("s", agent=clerk)
        turn = await session.send("Hello")
        await fail(turn)
        broken.clear()
        assert await (await turn.retry()).result(timeout=20) == "act done"
        prompts = [
            part
            async for message in session.messages()
            for part in message.parts
            if isinstance(part, UserPromptPart)
        ]
    assert done == ["act"]
    assert len(prompts) == 1


async def test_an_interrupted_turn_continues(memory: Store):
    waiting = asyncio.Event()

    @holdfast.agent("patient")
    async def patient(turn: Turn) -> Any:
        first = await turn.step("first", do, "first")
        waiting.set()
        if "second" not in broken:
            broken.add("second")
            await asyncio.sleep(60)
        return first

    async with connect(memory, agents=[patient]) as hf:
        session = await hf.session("s", agent=patient)
        turn = await session.send("Hello")
        await waiting.wait()
        await turn.cancel()
        await fail(turn)
        assert await (await turn.retry()).result(timeout=20) == "first done"
    assert done == ["first"]


async def test_only_the_last_turn_can_be_retried_and_only_if_it_failed(memory: Store):
    async with connect(memory, agents=[worker]) as hf:
        session = await hf.session("s", agent=worker)
        turn = await session.send("Hello")
        await turn.result(timeout=20)
        with pytest.raises(
            TurnNotRetriable, match=f"^Turn {turn.id} cannot be retried: it is done, and only"
        ):
            await turn.retry()
        undone = await session.undo()
        with pytest.raises(Conflict, match="is not a turn, but 'undo'"):
            await undone.retry()
        broken.add("second")
        failed = await session.send("Hello")
        await fail(failed)
        broken.clear()
        await (await session.send("Next")).result(timeout=20)
        assert "the session has continued" in str(await fail(await failed.retry()))
        other = await hf.session("t", agent=worker)
        with pytest.raises(NotFound):
            await (await other.turn(failed.id)).retry()


async def test_a_message_that_never_began_is_run(memory: Store):
    """Its agent was not served when its turn was taken."""
    async with connect(memory, agents=[worker, clerk]) as hf:
        session = await hf.session("s", agent=clerk, metadata={"model": "unknown"})
        turn = await session.send("Hello")
        assert "not allowed" in str(await fail(turn))
        await session.update(metadata={})
        assert await (await turn.retry()).result(timeout=20) == "act done"


@holdfast.agent("asking")
async def asking(turn: Turn) -> Any:
    first = await turn.step("first", do, "first")
    await turn.add("between")
    second = await turn.step("second", do, "second")
    decision = await turn.ask("Go on?", second)
    await turn.add(f"decided {decision.approved}")
    return [first, second, await turn.step("third", do, "third")]


async def approved(session: Any, turn: Any) -> Any:
    with pytest.raises(ApprovalNeeded) as needed:
        await turn.result(timeout=20)
    await session.approve(needed.value.calls[0])
    return await turn.result(timeout=20)


async def history(session: Any) -> list[str]:
    texts = [part for message in [m async for m in session.messages()] for part in message.parts]
    return [str(part.content) for part in texts if isinstance(part, TextPart | UserPromptPart)]


async def test_a_question_that_was_interrupted_is_in_the_history_once_after_a_retry(memory: Store):
    async with connect(memory, agents=[asking]) as hf:
        session = await hf.session("s", agent=asking)
        turn = await session.send("Hello")
        for _ in range(2):
            with pytest.raises(ApprovalNeeded):
                await turn.result(timeout=20)
            await session.interrupt()
            await fail(turn)
            turn = await turn.retry()
        await approved(session, turn)
        messages = [message async for message in session.messages()]
        assert is_provider_valid(messages)
        questions = [part for message in messages for part in message.parts if part.part_kind == "tool-call"]
        assert len(questions) == 1
    assert done == ["first", "second", "third"]


async def test_an_answer_before_an_interruption_counts_for_the_retry(memory: Store):
    """The turn was approved, and stopped before it continued."""
    resuming = asyncio.Event()

    @holdfast.agent("asking")
    async def slow(turn: Turn) -> Any:
        if resuming.is_set() and "slow" not in broken:
            broken.add("slow")
            await asyncio.sleep(60)
        return (await turn.ask("Go on?")).approved

    async with connect(memory, agents=[slow]) as hf:
        session = await hf.session("s", agent=slow)
        turn = await session.send("Hello")
        with pytest.raises(ApprovalNeeded) as needed:
            await turn.result(timeout=20)
        resuming.set()
        await session.approve(needed.value.calls[0])
        await until(lambda: _is_done("slow" in broken))
        await session.interrupt()
        await fail(turn)
        assert await (await turn.retry()).result(timeout=20) is True
        assert is_provider_valid([message async for message in session.messages()])


async def _is_done(done: bool) -> bool:
    return done


async def test_a_turn_is_done_again_from_a_step(memory: Store):
    """What was recorded before the step stays. Later entries, questions and steps are made again, also if the turn was done."""
    async with connect(memory, agents=[asking]) as hf:
        session = await hf.session("s", agent=asking)
        turn = await session.send("Hello")
        answer = await approved(session, turn)
        texts = await history(session)
        for times in (1, 2):
            again = await turn.retry(from_step="turn/second" if times == 1 else "turn/second~again1")
            assert await approved(session, again) == answer
            assert await history(session) == texts
            turn = again
        assert done == ["first", *(["second", "third"] * 3)]
        last = await turn.retry(from_step="turn/third~again2")
        assert await last.result(timeout=20) == answer
        assert await history(session) == texts
        assert done[-2:] == ["third", "third"]
        assert await (await session.send("Next")).info()


async def test_a_restart_from_a_step_that_is_killed_continues():
    clock = ManualClock()
    async with memory_store(clock) as store:
        async with connect(store, agents=[worker]) as hf:
            turn = await (await hf.session("s", agent=worker)).send("Hello")
            await turn.result(timeout=20)
        clock.advance(1)
        async with connect(store) as hf:
            handle = await (await hf.session("s", agent=worker)).turn(turn.id)
            again = await handle.retry(from_step="turn/second")
        await kill_worker(store, worker, "run_started")
        clock.advance(60)
        async with connect(store, agents=[worker]) as hf:
            session = await hf.session("s", agent=worker)
            assert await (await session.turn(again.id)).result(timeout=20) == ["first done", "second done"]
            assert len([message async for message in session.messages()]) == 2
        assert done == ["first", "second", "second"]
        assert await store.check() == []


async def test_from_a_step_that_does_not_exist_or_of_another_agent_nothing_runs(memory: Store):
    async with connect(memory, agents=[worker, clerk]) as hf:
        session = await hf.session("s", agent=worker)
        turn = await session.send("Hello")
        await turn.result(timeout=20)
        assert "no step of this turn" in str(await fail(await turn.retry(from_step="turn/third")))
        other = await (await hf.session("t", agent=clerk)).send("Hello")
        await other.result(timeout=20)
        assert "only a turn of a plain agent" in str(await fail(await other.retry(from_step="call-1")))
    assert done == ["first", "second", "act"]


async def _retry_twice_at_once(store: Store, turn_id: str) -> list[Any]:
    """Queue two retries of a turn without the check at the door, as two people do who press the button at the same moment."""
    payload = json.dumps({"submission_id": turn_id})
    return [await store.submit("s", "retry", payload) for _ in range(2)]


async def _submission_state(store: Store, submission_id: str) -> str:
    return (await store.submission(submission_id)).state


async def test_a_second_retry_of_the_same_turn_is_refused_at_once(memory: Store):
    broken.add("second")
    async with connect(memory, agents=[worker]) as hf:
        turn = await (await hf.session("s", agent=worker)).send("Hello")
        await fail(turn)
    async with connect(memory) as hf:  # nothing works on it
        named = await (await hf.session("s")).turn(turn.id)
        first = await named.retry()
        with pytest.raises(TurnNotRetriable, match=f"already being retried, by submission {first.id}"):
            await named.retry()


@pytest.mark.parametrize("fails_again", [False, True])
async def test_two_retries_at_once_do_not_block_the_turn(memory: Store, fails_again: bool):
    broken.add("second")
    async with connect(memory, agents=[worker]) as hf:
        turn = await (await hf.session("s", agent=worker)).send("Hello")
        await fail(turn)
    if not fails_again:
        broken.clear()
    retries = await _retry_twice_at_once(memory, turn.id)
    async with connect(memory, agents=[worker]) as hf:
        session = await hf.session("s", agent=worker)
        refused = str(await fail(await session.turn(retries[1].id)))
        assert "another retry has continued it" in refused
        assert await _submission_state(memory, retries[0].id) == ("failed" if fails_again else "done")
        with pytest.raises(TurnNotRetriable, match="it is a retry that was refused"):
            await (await session.turn(retries[1].id)).retry()
        if fails_again:
            broken.clear()
            last = await last_turn(session)
            assert last == retries[0].id
            again = await (await session.turn(retries[0].id)).retry()
            assert await again.result(timeout=20) == ["first done", "second done"]
    assert done.count("first") == 1


async def test_a_completed_step_that_is_repeated_has_a_new_key(memory: Store):
    """A service that deduplicates must not ignore the repeat, and a probe must not find the first request."""
    keys: list[tuple[str, str]] = []

    async def request(what: str) -> str:
        keys.append((what, idempotency_key()))
        return await do(what)

    @holdfast.agent("shop")
    async def shop(turn: Turn) -> Any:
        return [await turn.step(what, request, what) for what in ("order", "pay", "send")]

    broken.add("send")
    async with connect(memory, agents=[shop]) as hf:
        session = await hf.session("s", agent=shop)
        turn = await session.send("Hello")
        await fail(turn)
        broken.add("pay")
        again = await turn.retry(from_step="turn/pay")
        await fail(again)
        broken.remove("pay")
        once_more = await again.retry()  # of a step that failed: the same request
        await fail(once_more)
        broken.clear()
        last = await once_more.retry()
        assert await last.result(timeout=20) == ["order done", "pay done", "send done"]
        await (await last.retry(from_step="turn/pay~again2")).result(timeout=20)
    made = {what: [key for each, key in keys if each == what] for what in ("order", "pay", "send")}
    assert len(made["order"]) == 1
    first, second, third, fourth = made["pay"]
    assert second == third  # it failed, and was tried again
    assert len({first, second, fourth}) == 3
    assert len(set(made["send"])) == 2  # it failed until it completed, and was then repeated
    recorded = {effect.idempotency_key for effect in (await memory.effects("s")).items}
    assert recorded == {key for _, key in keys}


@pytest.mark.parametrize("kind", ["run_started", "step_started"])
async def test_the_new_key_of_a_repeated_step_survives_a_crash(kind: str):
    clock = ManualClock()
    keys: list[str] = []

    async def pay() -> str:
        keys.append(idempotency_key())
        return "paid"

    asked: list[str] = []

    def find(call: Unsettled) -> Any:
        asked.append(call.key)
        return NotDone()

    @holdfast.agent("shop")
    async def shop(turn: Turn) -> Any:
        return await turn.step("pay", pay, recovery="probe", probe=find)

    async with memory_store(clock) as store:
        async with connect(store, agents=[shop]) as hf:
            turn = await (await hf.session("s", agent=shop)).send("Hello")
            await turn.result(timeout=20)
        async with connect(store) as hf:
            again = await (await (await hf.session("s", agent=shop)).turn(turn.id)).retry(
                from_step="turn/pay"
            )
        await kill_worker(store, shop, kind, 1)
        clock.advance(60)
        async with connect(store, agents=[shop]) as hf:
            assert (
                await (await (await hf.session("s", agent=shop)).turn(again.id)).result(timeout=20) == "paid"
            )
    assert keys[0] != keys[-1]
    if kind == "step_started":
        assert asked == [keys[-1]]


async def test_a_second_restart_repeats_only_the_steps_from_there(memory: Store):
    async with connect(memory, agents=[worker]) as hf:
        turn = await (await hf.session("s", agent=worker)).send("Hello")
        await turn.result(timeout=20)
        again = await turn.retry(from_step="turn/first")
        await again.result(timeout=20)
        last = await again.retry(from_step="turn/second")
        assert await last.result(timeout=20) == ["first done", "second done"]
    assert done == ["first", "second", "first", "second", "second"]


async def test_a_restart_of_a_done_turn_that_failed_can_be_retried(memory: Store):
    async with connect(memory, agents=[worker]) as hf:
        turn = await (await hf.session("s", agent=worker)).send("Hello")
        await turn.result(timeout=20)
        broken.add("second")
        again = await turn.retry(from_step="turn/second")
        await fail(again)
        broken.clear()
        assert await (await again.retry()).result(timeout=20) == ["first done", "second done"]
    assert done == ["first", "second", "second", "second"]


async def test_a_refused_retry_leaves_the_status_of_the_session(memory: Store):
    broken.add("second")
    async with connect(memory, agents=[worker]) as hf:
        turn = await (await hf.session("s", agent=worker)).send("Hello")
        await fail(turn)
    retries = await _retry_twice_at_once(memory, turn.id)
    async with connect(memory, agents=[worker]) as hf:
        session = await hf.session("s", agent=worker)
        await fail(await session.turn(retries[1].id))
        info = await session.info()
    assert (info.status, "second is broken" in str(info.error)) == ("failed", True)
