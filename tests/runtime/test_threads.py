"""Synchronous steps and tools run in threads, which cannot be cancelled: a turn that is stopped waits for them."""

import asyncio
import threading
from collections.abc import Generator
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

import holdfast
from holdfast import Done, Holdfast, NotDone, Turn, Unsettled, connect
from holdfast.api.models import SessionDetail
from holdfast.client.client import Client
from holdfast.errors import StoreUnavailable, TurnFailed, TurnNotRetriable
from holdfast.runtime import AgentSetup, Worker
from holdfast.store import Store
from holdfast.types import Batch, Effect, Lease
from tests.builders import until
from tests.runtime.agents import ended, send, working

_SECONDS = 20


class Payments:
    """A service that is paid in a thread. The thread waits until the test lets it continue."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.running = 0
        self.most_at_once = 0
        self.goes_on = threading.Event()
        self._lock = threading.Lock()

    def pay(self, to: str = "ada") -> str:
        with self._lock:
            self.running += 1
            self.most_at_once = max(self.most_at_once, self.running)
        assert self.goes_on.wait(_SECONDS)
        with self._lock:
            self.running -= 1
            self.made.append(to)
        return f"paid {to}"

    def find(self, call: Unsettled) -> Any:
        return Done("paid before") if self.made else NotDone()


@pytest.fixture
def payments() -> Generator[Payments, None, None]:
    payments = Payments()
    yield payments
    payments.goes_on.set()


async def _running(payments: Payments, number: int = 1) -> None:
    async def runs() -> bool:
        return payments.running == number

    await until(runs)


def _plain(payments: Payments, **options: Any) -> Any:
    @holdfast.agent("clerk", **options)
    async def clerk(turn: Turn) -> Any:
        return await turn.step("pay", payments.pay, recovery="probe", probe=payments.find)

    return clerk


def _pydantic(payments: Payments, **options: Any) -> Any:
    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        answered = any(part.part_kind == "tool-return" for part in messages[-1].parts)
        return ModelResponse(parts=[TextPart("thanks") if answered else ToolCallPart("pay", {}, "call")])

    agent = Agent(FunctionModel(respond), name="clerk")
    agent.tool_plain(payments.pay, **options)
    return agent


async def _waiting(hf: Client) -> SessionDetail:
    """Return the session once it shows that it waits for a thread."""
    session = await hf.session("s")

    async def shows() -> bool:
        return "thread" in str((await session.info()).waiting_for)

    await until(shows)
    return await session.info()


async def _effect(store: Store, tool: str = "pay") -> Effect:
    (effect,) = [each for each in (await store.effects("s")).items if each.tool == tool]
    return effect


@pytest.mark.parametrize("make", [_plain, _pydantic])
async def test_an_interrupted_turn_waits_for_its_thread_and_a_retry_is_refused_meanwhile(
    store: Store, payments: Payments, make: Any
):
    agent = make(payments)
    async with connect(store, agents=[agent]) as hf:
        session = await hf.session("s", agent=agent)
        turn = await session.send("Pay!")
        await _running(payments)
        stop = await session.interrupt()
        waiting = await _waiting(hf)
        assert (waiting.status, "the thread of pay" in str(waiting.waiting_for)) == ("running", True)
        assert (await _effect(store)).state == "started"
        with pytest.raises(TurnNotRetriable, match="the thread of pay"):
            await turn.retry()
        await (await hf.session("other", agent=agent)).info()  # other sessions are served
        payments.goes_on.set()
        await stop.result(timeout=_SECONDS)
        with pytest.raises(TurnFailed, match="interrupted"):
            await turn.result(timeout=_SECONDS)
        assert (await _effect(store)).state == "completed"
        assert (await session.info()).waiting_for is None
        await (await turn.retry()).result(timeout=_SECONDS)
    assert payments.made == ["ada"]
    assert payments.most_at_once == 1


async def test_a_turn_waits_for_the_thread_of_its_output_function(store: Store, payments: Payments):
    agent = Agent(TestModel(), name="clerk", output_type=payments.pay)
    async with connect(store, agents=[agent]) as hf:
        session = await hf.session("s", agent=agent, output_type=str)
        turn = await session.send("Pay!")
        await _running(payments)
        stop = await session.interrupt()
        assert "the thread of final_result" in str((await _waiting(hf)).waiting_for)
        with pytest.raises(TurnNotRetriable, match="the thread of final_result"):
            await turn.retry()
        payments.goes_on.set()
        await stop.result(timeout=_SECONDS)
        with pytest.raises(TurnFailed, match="interrupted"):
            await turn.result(timeout=_SECONDS)
        assert await (await turn.retry()).result(timeout=_SECONDS) == "paid ada"
    assert payments.most_at_once == 1


async def test_an_output_function_that_gives_up_on_a_thread_has_failed(store: Store, payments: Payments):
    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart(payments.pay())])

    async def ask(to: str) -> str:
        async with asyncio.timeout(0.1):
            return (await Agent(FunctionModel(respond)).run(to)).output

    agent = Agent(TestModel(), name="clerk", output_type=ask)
    async with connect(store, agents=[agent]) as hf:
        session = await hf.session("s", agent=agent, output_type=str)
        turn = await session.send("Pay!")
        await _waiting(hf)
        payments.goes_on.set()
        with pytest.raises(TurnFailed, match="TimeoutError"):
            await turn.result(timeout=_SECONDS)


@pytest.mark.parametrize("make", [_plain, _pydantic])
async def test_a_turn_that_takes_too_long_waits_for_its_thread(store: Store, payments: Payments, make: Any):
    agent = _plain(payments, run_timeout=1.0)
    if make is _pydantic:
        agent = AgentSetup(agent=_pydantic(payments), run_timeout=1.0)
    async with connect(store, agents=[agent]) as hf:
        session = await hf.session("s", agent="clerk")
        turn = await session.send("Pay!")
        await _waiting(hf)
        payments.goes_on.set()
        with pytest.raises(TurnFailed, match=r"longer than 1 second"):
            await turn.result(timeout=_SECONDS)
        assert (await _effect(store)).state == "completed"
        await (await turn.retry()).result(timeout=_SECONDS)
    assert payments.made == ["ada"]


async def test_a_tool_that_exceeds_its_own_time_limit_is_waited_for(store: Store, payments: Payments):
    """The model receives the real result. Otherwise it might call the tool again while the first call still works."""
    agent = _pydantic(payments, timeout=0.1)
    async with connect(store, agents=[agent]) as hf:
        session = await hf.session("s", agent=agent)
        turn = await session.send("Pay!")
        await _waiting(hf)
        payments.goes_on.set()
        assert await turn.result(timeout=_SECONDS) == "thanks"
        assert (await session.info()).waiting_for is None
        texts = [str(message) async for message in session.messages()]
    assert any("paid ada" in text for text in texts)
    assert payments.made == ["ada"]


async def test_a_thread_that_fails_after_the_stop_has_failed(store: Store, payments: Payments):
    def pay() -> str:
        payments.pay()
        message = "no money"
        raise ConnectionError(message)

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> Any:
        return await turn.step("pay", pay)

    async with connect(store, agents=[clerk]) as hf:
        session = await hf.session("s", agent=clerk)
        turn = await session.send("Pay!")
        await _running(payments)
        await session.interrupt()
        await _waiting(hf)
        payments.goes_on.set()
        with pytest.raises(TurnFailed, match="interrupted"):
            await turn.result(timeout=_SECONDS)
    effect = await _effect(store)
    assert (effect.state, effect.error) == ("failed", "ConnectionError: no money")


async def test_threads_that_hang_block_only_their_sessions(store: Store, payments: Payments):
    """More of them than the pools of asyncio and AnyIO have threads."""

    @holdfast.agent("quick")
    async def quick(turn: Turn) -> Any:
        return await turn.step("upper", str.upper, turn.text)

    agent = _plain(payments)
    async with connect(store, agents=[agent, quick]) as hf:
        for number in range(45):
            await (await hf.session(f"hung-{number}", agent=agent)).send("Pay!")
        await _running(payments, 45)
        for number in range(45):
            await (await hf.session(f"hung-{number}")).interrupt()
        session = await hf.session("s", agent=quick)
        assert await (await session.send("fine")).result(timeout=_SECONDS) == "FINE"
        payments.goes_on.set()


async def test_a_cancelled_run_without_a_worker_waits_for_its_thread(store: Store, payments: Payments):
    agent = _pydantic(payments)
    running = asyncio.create_task(agent.run("Pay!", conversation_id="s", capabilities=[Holdfast(store)]))
    await _running(payments)
    running.cancel()
    running.cancel()

    async def shows() -> bool:
        return "thread" in str((await store.session("s")).waiting_for)

    await until(shows)
    assert not running.done()
    payments.goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await _effect(store)).state == "completed"
    (run,) = (await store.runs(session_id="s")).items
    assert run.status == "interrupted"


async def test_code_that_limits_the_time_of_a_step_gets_its_timeout(store: Store, payments: Payments):
    """The timeout is raised when the thread has ended, and the result is on record."""

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> Any:
        try:
            async with asyncio.timeout(0.1):
                return await turn.step("pay", payments.pay)
        except TimeoutError:
            return "too late"

    async with connect(store, agents=[clerk]) as hf:
        session = await hf.session("s", agent=clerk)
        turn = await session.send("Pay!")
        await _waiting(hf)
        payments.goes_on.set()
        assert await turn.result(timeout=_SECONDS) == "too late"
    assert (await _effect(store)).state == "completed"


@pytest.mark.parametrize("failures", [0, 1])
async def test_a_worker_that_loses_a_session_waits_for_its_thread_before_it_continues(
    store: Store, payments: Payments, monkeypatch: pytest.MonkeyPatch, failures: int
):
    """It has lost all its leases, joins again, and claims the session while the thread of the first turn still works."""
    write = store.write

    async def fail_first(lease: Lease, batch: Batch) -> int:
        nonlocal failures
        if batch.waiting_for == "a thread of the turn before" and failures:
            failures -= 1
            raise StoreUnavailable(url=store.url, problem="the test")
        return await write(lease, batch)

    monkeypatch.setattr(store, "write", fail_first)
    await store.create_session(agent="clerk", owner="you", id="s")
    async with working(store, [_plain(payments)], ttl=1.0, renew=0.2) as worker:
        sent = await send(store, "s", "Pay!")
        await _running(payments)
        worker._lost.set()  # pyright: ignore[reportPrivateUsage]
        (holder,) = await store.holders()
        await store.leave(holder)

        async def waits() -> bool:
            return (await store.session("s")).waiting_for == "a thread of the turn before"

        await until(waits)
        assert payments.most_at_once == 1
        payments.goes_on.set()
        assert (await ended(store, sent)).state == "done"
    assert payments.made == ["ada"]


async def test_a_worker_that_stops_keeps_the_lease_while_a_thread_works(store: Store, payments: Payments):
    await store.create_session(agent="clerk", owner="you", id="s")
    worker = Worker(store, [_plain(payments)], grace=0.1, ttl=2, renew=0.3)
    serving = asyncio.create_task(worker.run())
    await send(store, "s", "Pay!")
    await _running(payments)
    worker.stop()
    assert not await serving
    assert worker.threads_are_working
    assert (await store.session("s")).holder == worker.name
    await asyncio.sleep(2.4)  # longer than the lease lasts without being renewed
    assert (await store.session("s")).holder == worker.name
    payments.goes_on.set()

    async def left() -> bool:
        return not await store.holders()

    await until(left)
    assert not worker.threads_are_working
    async with working(store, [_plain(payments)]):

        async def idle() -> bool:
            return (await store.session("s")).status == "idle"

        await until(idle)
    assert payments.made == ["ada"]


async def test_a_tool_with_an_executor_of_the_application_runs_there(store: Store):
    from concurrent.futures import ThreadPoolExecutor

    def where(ctx: RunContext[object]) -> str:
        return threading.current_thread().name

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        returned = [part for part in messages[-1].parts if part.part_kind == "tool-return"]
        return ModelResponse(
            parts=[TextPart(str(returned[0].content)) if returned else ToolCallPart("where", {}, "call")]
        )

    agent = Agent(FunctionModel(respond), name="clerk", tools=[where])
    with ThreadPoolExecutor(thread_name_prefix="theirs") as executor, Agent.using_thread_executor(executor):
        result = await agent.run("Where?", conversation_id="s", capabilities=[Holdfast(store)])
    assert result.output.startswith("theirs")


def _answering(*tools: Any, name: str = "inner") -> Any:
    """Return an agent that calls each of its tools once, and then answers."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if any(part.part_kind == "tool-return" for part in messages[-1].parts):
            return ModelResponse(parts=[TextPart("the answer")])
        return ModelResponse(parts=[ToolCallPart(each.__name__, {}, each.__name__) for each in tools])

    return Agent(FunctionModel(respond), name=name, tools=list(tools))


async def test_a_step_that_runs_another_agent_has_its_own_result(store: Store, payments: Payments):
    """The other agent runs its own tool in a thread, which is not that of the step."""

    def lookup() -> str:
        return "a row"

    def pay() -> str:
        found = asyncio.run(_answering(lookup).run("Find!")).output
        payments.pay()
        return found

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> Any:
        return await turn.step("pay", pay, recovery="retry")

    async with connect(store, agents=[clerk]) as hf:
        session = await hf.session("s", agent=clerk)
        turn = await session.send("Pay!")
        await _running(payments)
        await session.interrupt()
        await _waiting(hf)
        payments.goes_on.set()
        with pytest.raises(TurnFailed, match="interrupted"):
            await turn.result(timeout=_SECONDS)
        assert await (await turn.retry()).result(timeout=_SECONDS) == "the answer"
    assert payments.made == ["ada"]


async def test_a_tool_that_fails_beside_a_thread_of_its_delegate_has_failed(store: Store, payments: Payments):
    def lookup() -> str:
        payments.goes_on.wait(_SECONDS)
        return "a row"

    async def refuse() -> str:
        message = "the service refused"
        raise RuntimeError(message)

    async def research() -> str:
        return (await _answering(lookup, refuse).run("Find!")).output

    agent = _answering(research, name="clerk")
    async with connect(store, agents=[agent]) as hf:
        turn = await (await hf.session("s", agent=agent)).send("Go!")
        threading.Timer(0.5, payments.goes_on.set).start()
        with pytest.raises(TurnFailed, match="the service refused"):
            await turn.result(timeout=_SECONDS)
    assert (await _effect(store, "research")).state == "failed"


async def test_a_step_that_returns_a_coroutine_can_be_interrupted(store: Store):
    awaited = asyncio.Event()

    def call(function: Any) -> Any:
        return function()

    async def never() -> None:
        awaited.set()
        await asyncio.Event().wait()

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> Any:
        await turn.step("wait", lambda: call(never))

    async with connect(store, agents=[clerk]) as hf:
        session = await hf.session("s", agent=clerk)
        turn = await session.send("Wait!")
        await asyncio.wait_for(awaited.wait(), _SECONDS)
        await session.interrupt()
        with pytest.raises(TurnFailed, match="interrupted"):
            await turn.result(timeout=_SECONDS)


@pytest.mark.parametrize("how", ["step", "tool"])
async def test_a_function_that_raises_stop_iteration_fails(store: Store, how: str):
    def first() -> str:
        return next(iter(()))

    @holdfast.agent("clerk")
    async def clerk(turn: Turn) -> Any:
        return await turn.step("first", first)

    agent = clerk if how == "step" else _answering(first, name="clerk")
    async with connect(store, agents=[agent]) as hf:
        turn = await (await hf.session("s", agent="clerk")).send("Go!")
        with pytest.raises(TurnFailed, match="StopIteration"):
            await turn.result(timeout=_SECONDS)
