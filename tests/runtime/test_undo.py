"""The effects of a turn are undone: on request or after a failure, in reverse order, each once, whatever happens in between."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import holdfast
from holdfast import (
    AgentSetup,
    CompletedStep,
    Done,
    FunctionAgent,
    NotDone,
    Retry,
    SessionHandle,
    Store,
    Turn,
    Undo,
    Unsettled,
    connect,
    current_session,
    idempotency_key,
    resume,
    step,
)
from holdfast.errors import ApprovalNeeded, BadInput, Conflict, TurnFailed
from holdfast.events import EffectUndone, UndoFailed
from holdfast.record.undo import AnyUndo
from holdfast.runtime.settling import settle_effect
from holdfast.testing.agents import ledger
from tests.runtime.agents import is_kind, kill_worker, until, working

pytestmark = pytest.mark.timeout(60)


@dataclass
class World:
    """What steps and undos have done outside, in order."""

    log: list[str] = field(default_factory=list[str])
    keys: dict[str, str] = field(default_factory=dict[str, str])
    used: set[str] = field(default_factory=set[str])
    broken: set[str] = field(default_factory=set[str])
    """What cannot be undone."""
    hanging: set[str] = field(default_factory=set[str])
    """What takes until it is cancelled."""
    entered: asyncio.Event = field(default_factory=asyncio.Event)

    async def do(self, what: str) -> str:
        self.log.append(what)
        self.keys[what] = idempotency_key()
        self.used.add(self.keys[what])
        return f"{what} done"

    async def cancel(self, step: CompletedStep[str]) -> None:
        (what,) = step.arguments
        assert step.result == f"{what} done"
        assert step.key in self.used
        self.entered.set()
        if what in self.hanging:
            await asyncio.sleep(60)
        if what in self.broken:
            message = f"{what} is broken"
            raise ValueError(message)
        self.log.append(f"-{what}")

    async def hang(self, what: str) -> str:
        self.log.append(what)
        self.keys[what] = idempotency_key()
        self.used.add(self.keys[what])
        self.entered.set()
        await asyncio.sleep(60)
        return f"{what} done"


@pytest.fixture
def world() -> World:
    return World()


def shop(world: World, *undo: AnyUndo, fails: bool = True, on_failure: Any = "undo") -> FunctionAgent:
    """Return an agent that does three things and fails."""

    @holdfast.agent("shop", undo=undo or [world.cancel], on_failure=on_failure)
    async def run(turn: Turn) -> str:
        name = undo[0].name if undo and isinstance(undo[0], Undo) and undo[0].name else world.cancel
        await turn.step("book", world.do, "book", undo=name)
        await turn.step("note", world.do, "note")
        await turn.step("pay", world.do, "pay", undo=name)
        await turn.step("mail", world.do, "mail", undo=name)
        if fails:
            message = "no more seats"
            raise RuntimeError(message)
        return "booked"

    return run


@asynccontextmanager
async def session_of(store: Store, agent: Any) -> AsyncGenerator[SessionHandle[Any], None]:
    async with connect(store, agents=[agent]) as hf:
        yield await hf.session("s", agent=agent)


async def failed(turn: Any) -> str:
    with pytest.raises(TurnFailed) as error:
        await turn.result(timeout=20)
    return str(error.value.facts["reason"])


async def undone(store: Store, session_id: str = "s") -> list[str]:
    entries = await ledger(store, session_id)
    return [f"{e.call_id}: {e.state}" for e in entries if e.undoes is not None]


async def test_a_turn_whose_question_nobody_answers_is_undone(store: Store, world: World):
    @holdfast.agent("shop", undo=[world.cancel], on_failure="undo")
    async def run(turn: Turn) -> str:
        await turn.step("book", world.do, "book", undo=world.cancel)
        return str(await turn.ask("Pay?", deadline=timedelta(seconds=1), default="fail"))

    async with session_of(store, run) as session:
        turn = await session.send("go")
        with pytest.raises(ApprovalNeeded):
            await turn.result(timeout=20)
        await until(store, "s", is_kind("submission_failed"))
        assert "was not answered before its deadline" in await failed(turn)
        assert world.log == ["book", "-book"]
        assert (await session.info()).status == "failed"
        assert await store.check() == []


async def test_a_turn_that_fails_is_undone_before_it_ends(store: Store, world: World):
    async with session_of(store, shop(world)) as session:
        turn = await session.send("go")
        assert await failed(turn) == "RuntimeError: no more seats"
        assert world.log == ["book", "note", "pay", "mail", "-mail", "-pay", "-book"]
        info = await session.info()
        assert (info.status, info.error) == ("failed", "RuntimeError: no more seats")
        events = [event async for event in session.events(follow=False)]
        assert [e.undoes for e in events if isinstance(e, EffectUndone)] == [
            "turn/mail",
            "turn/pay",
            "turn/book",
        ]
        runs = [run async for run in session.runs()]
        assert [run.status for run in runs] == ["failed", "completed"]
        assert (await turn.info()).run_id == runs[0].id
    assert await undone(store) == [f"turn/{name}~undo: completed" for name in ("mail", "pay", "book")]


async def test_without_on_failure_a_person_undoes_the_effects_once(store: Store, world: World):
    async with session_of(store, shop(world, on_failure=None)) as session:
        turn = await session.send("go")
        await failed(turn)
        assert "-mail" not in world.log
        await (await turn.undo_effects()).result(timeout=20)
        await (await turn.undo_effects()).result(timeout=20)
        assert world.log[4:] == ["-mail", "-pay", "-book"]
        info = await session.info()
        assert (info.status, info.error) == ("failed", "RuntimeError: no more seats")
        assert [run.status async for run in session.runs()] == ["failed", "completed"]


async def test_the_effects_of_a_turn_that_is_done_can_be_undone_later(store: Store, world: World):
    async with session_of(store, shop(world, fails=False)) as session:
        first = await session.send("go")
        assert await first.result(timeout=20) == "booked"
        second = await session.send("go")
        await second.result(timeout=20)
        world.log.clear()
        await (await first.undo_effects()).result(timeout=20)
        assert world.log == ["-mail", "-pay", "-book"]
        assert (await session.info()).status == "idle"


async def test_a_failing_turn_without_effects_ends_at_once(store: Store, world: World):
    @holdfast.agent("shop", undo=[world.cancel], on_failure="undo")
    async def agent(turn: Turn) -> None:
        await turn.step("note", world.do, "note")
        raise RuntimeError

    async with session_of(store, agent) as session:
        turn = await session.send("go")
        await failed(turn)
        assert [run.status async for run in session.runs()] == ["failed"]


async def test_an_undo_that_fails_stops_and_continues_there(store: Store, world: World):
    world.broken = {"pay"}
    async with session_of(store, shop(world)) as session:
        turn = await session.send("go")
        reason = await failed(turn)
        assert reason.startswith(
            "RuntimeError: no more seats; Conflict: The undo stopped at step 'pay' (turn/pay)"
        )
        assert "ValueError: pay is broken" in reason
        assert world.log[4:] == ["-mail"]
        assert (await session.info()).error == reason
        again = await turn.undo_effects()
        assert "pay is broken" in await failed(again)
        with pytest.raises(TurnFailed, match="has stopped at step turn/pay"):
            await (await turn.retry()).result(timeout=20)
        world.broken.clear()
        await (await turn.undo_effects()).result(timeout=20)
        assert world.log[4:] == ["-mail", "-pay", "-book"]
        events = [event async for event in session.events(follow=False)]
        assert [e.call_id for e in events if isinstance(e, UndoFailed)] == [
            "turn/pay~undo",
            "turn/pay~undo~again1",
        ]
        assert (await session.info()).error == "RuntimeError: no more seats"


async def test_an_undo_is_retried_as_its_rule_says(store: Store, world: World):
    attempts: list[str] = []

    async def cancel(step: CompletedStep[str]) -> None:
        attempts.append(idempotency_key())
        if len(attempts) < 3:
            raise ConnectionError

    undo = Undo(cancel, name="cancel", retry=Retry(on=ConnectionError, backoff=0))
    async with session_of(store, shop(world, undo)) as session:
        await failed(await session.send("go"))
    assert len(attempts) == 5
    assert len(set(attempts)) == 3


@pytest.mark.parametrize("number", range(1, 4))
@pytest.mark.parametrize("recovery", ["retry", "probe"])
async def test_another_worker_continues_an_undo(store: Store, world: World, number: int, recovery: Any):
    def find(call: Unsettled) -> Done[None] | NotDone:
        return Done(None) if f"-{call.arguments[0].name}" in world.log else NotDone()

    undo = Undo(world.cancel, name="cancel", recovery=recovery, probe=find if recovery == "probe" else None)
    agent = shop(world, undo)
    await store.create_session(agent="shop", owner="local", id="s")
    await store.submit("s", "message", '{"text": "go"}')
    await kill_worker(store, agent, "undo_started", number)
    async with session_of(store, agent) as session:
        (turn,) = [each async for each in session.submissions()]
        assert "no more seats" in await failed(await session.turn(turn.submission_id))
    assert world.log[4:] == ["-mail", "-pay", "-book"]
    assert [line.rpartition(": ")[2] for line in await undone(store)] == ["completed"] * 3


async def cut_off(store: Store, world: World, agent: FunctionAgent) -> None:
    """Kill a worker while it undoes the payment."""
    await store.create_session(agent="shop", owner="local", id="s")
    await store.submit("s", "message", '{"text": "go"}')
    await kill_worker(store, agent, "undo_started", 2)


async def first_turn(session: SessionHandle[Any]) -> Any:
    first = [each async for each in session.submissions()]
    return await session.turn(first[0].submission_id)


@pytest.mark.parametrize("took_effect", [True, False])
async def test_an_unknown_undo_is_settled_by_a_person(store: Store, world: World, took_effect: bool):
    agent = shop(world)
    await cut_off(store, world, agent)
    async with session_of(store, agent) as session:
        turn = await first_turn(session)
        reason = await failed(turn)
        assert "it is unknown whether its undo took effect. Settle turn/pay~undo of run " in reason
        with pytest.raises(TurnFailed, match="unknown"):
            await (await turn.undo_effects()).result(timeout=20)
        run_id = next(e.run_id for e in await ledger(store, "s"))
        known: dict[str, Any] = {"result": None} if took_effect else {"error": "it did not"}
        await settle_effect(store, run_id, "turn/pay~undo", actor="you", **known)
        await (await turn.undo_effects()).result(timeout=20)
        events = [event async for event in session.events(follow=False)]
        assert [e.undoes for e in events if isinstance(e, EffectUndone)][1] == "turn/pay"
    assert world.log[4:] == ["-mail", *([] if took_effect else ["-pay"]), "-book"]


@pytest.mark.parametrize("approved", [True, False])
async def test_a_person_decides_whether_an_unknown_undo_runs_again(
    store: Store, world: World, approved: bool
):
    agent = shop(world, Undo(world.cancel, name="cancel", recovery="ask"))
    await cut_off(store, world, agent)
    async with session_of(store, agent) as session:
        turn = await first_turn(session)
        with pytest.raises(ApprovalNeeded):
            await turn.result(timeout=20)
        (call,) = (await session.info()).approvals
        assert call.unsettled is not None
        assert call.unsettled.call_id == "turn/pay~undo"
        await (await (session.approve(call) if approved else session.deny(call))).result(timeout=20)
        reason = await failed(turn)
        if approved:
            assert reason == "RuntimeError: no more seats"
            assert world.log[4:] == ["-mail", "-pay", "-book"]
        else:
            assert "it is unknown whether its undo took effect" in reason
            assert world.log[4:] == ["-mail"]


async def test_settling_an_undo_answers_its_question(store: Store, world: World):
    agent = shop(world, Undo(world.cancel, name="cancel", recovery="ask"))
    await cut_off(store, world, agent)
    async with session_of(store, agent) as session:
        turn = await first_turn(session)
        with pytest.raises(ApprovalNeeded):
            await turn.result(timeout=20)
        (call,) = (await session.info()).approvals
        assert call.unsettled is not None
        await settle_effect(store, call.unsettled.run_id, call.unsettled.call_id, actor="you", result=None)
        assert await failed(turn) == "RuntimeError: no more seats"
    assert world.log[4:] == ["-mail", "-book"]


async def test_an_undo_that_waits_for_a_person_can_be_interrupted(store: Store, world: World):
    agent = shop(world, Undo(world.cancel, name="cancel", recovery="ask"))
    await cut_off(store, world, agent)
    async with session_of(store, agent) as session:
        turn = await first_turn(session)
        with pytest.raises(ApprovalNeeded):
            await turn.result(timeout=20)
        await (await session.interrupt()).result(timeout=20)
        assert await failed(turn) == "RuntimeError: no more seats; the undo of its effects was interrupted"
        assert (await session.info()).status == "failed"


async def test_an_interrupted_turn_is_undone(store: Store, world: World):
    @holdfast.agent("shop", undo=[world.cancel], on_failure="undo")
    async def agent(turn: Turn) -> None:
        await turn.step("book", world.do, "book", undo="cancel")
        world.entered.set()
        await asyncio.sleep(60)

    async with session_of(store, agent) as session:
        turn = await session.send("go")
        await world.entered.wait()
        await session.interrupt()
        assert await failed(turn) == "interrupted"
        assert (await session.info()).status == "idle"
    assert world.log == ["book", "-book"]


async def test_a_message_that_interrupts_a_turn_does_not_interrupt_its_undo(store: Store, world: World):
    @holdfast.agent("shop", undo=[world.cancel], on_failure="undo")
    async def agent(turn: Turn) -> str:
        if turn.text == "stop":
            return "stopped"
        await turn.step("book", world.do, "book", undo="cancel")
        await turn.step("pay", world.do, "pay", undo="cancel")
        world.entered.set()
        await asyncio.sleep(60)
        return "done"

    async with session_of(store, agent) as session:
        turn = await session.send("go")
        await world.entered.wait()
        stopping = await session.send("stop", when_busy="interrupt")
        assert await stopping.result(timeout=20) == "stopped"
        assert await failed(turn) == "interrupted"
    assert world.log == ["book", "pay", "-pay", "-book"]


async def test_a_turn_that_is_interrupted_while_it_waits_is_undone(store: Store, world: World):
    @holdfast.agent("shop", undo=[world.cancel], on_failure="undo")
    async def agent(turn: Turn) -> None:
        await turn.step("book", world.do, "book", undo="cancel")
        await turn.ask("Pay?")

    async with session_of(store, agent) as session:
        turn = await session.send("go")
        with pytest.raises(ApprovalNeeded):
            await turn.result(timeout=20)
        with pytest.raises(Conflict, match="is waiting"):
            await turn.undo_effects()
        await session.interrupt()
        assert await failed(turn) == "interrupted"
    assert world.log == ["book", "-book"]


async def test_an_interrupt_stops_an_undo_before_the_next_one(store: Store, world: World):
    hold, goes_on = asyncio.Event(), asyncio.Event()

    async def cancel(step: CompletedStep[str]) -> None:
        hold.set()
        await goes_on.wait()
        await world.cancel(step)

    async with session_of(store, shop(world, Undo(cancel, name="cancel"))) as session:
        turn = await session.send("go")
        await hold.wait()
        await (await session.interrupt()).result(timeout=20)
        goes_on.set()
        reason = "RuntimeError: no more seats; the undo of its effects was interrupted"
        assert await failed(turn) == reason
        assert world.log[4:] == ["-mail"]
        assert (await session.info()).error == reason
        await (await turn.undo_effects()).result(timeout=20)
    assert world.log[4:] == ["-mail", "-pay", "-book"]


async def test_a_second_interrupt_cancels_an_undo_that_hangs(store: Store, world: World):
    world.hanging = {"mail"}
    async with session_of(store, shop(world)) as session:
        turn = await session.send("go")
        await until(store, "s", is_kind("undo_started"))
        await world.entered.wait()
        await (await session.interrupt()).result(timeout=20)
        await (await session.interrupt()).result(timeout=20)
        assert "interrupted" in await failed(turn)
        assert "unknown" in await failed(await turn.undo_effects())


async def test_a_worker_that_stops_hands_the_undo_over(store: Store, world: World):
    hold, goes_on = asyncio.Event(), asyncio.Event()

    async def cancel(step: CompletedStep[str]) -> None:
        hold.set()
        await goes_on.wait()
        await world.cancel(step)

    agent = shop(world, Undo(cancel, name="cancel"))
    await store.create_session(agent="shop", owner="local", id="s")
    await store.submit("s", "message", '{"text": "go"}')
    async with working(store, agent) as worker:
        await hold.wait()
        worker.stop()
        goes_on.set()
    assert world.log[4:] == ["-mail"]
    async with session_of(store, agent) as session:
        assert await failed(await first_turn(session)) == "RuntimeError: no more seats"
    assert world.log[4:] == ["-mail", "-pay", "-book"]


async def test_the_run_timeout_limits_an_undo(store: Store, world: World):
    world.hanging = {"mail"}

    @holdfast.agent("shop", undo=[world.cancel], on_failure="undo", run_timeout=0.5)
    async def agent(turn: Turn) -> None:
        await turn.step("mail", world.do, "mail", undo="cancel")
        raise RuntimeError

    async with session_of(store, agent) as session:
        assert "the run took longer than 0.5 seconds" in await failed(await session.send("go"))


async def test_a_step_with_an_unknown_outcome_stops_the_undo(store: Store, world: World):
    @holdfast.agent("shop", undo=[world.cancel], on_failure="undo")
    async def agent(turn: Turn) -> None:
        await turn.step("book", world.do, "book", undo="cancel")
        await turn.step("pay", world.hang, "pay", undo="cancel")

    async with session_of(store, agent) as session:
        turn = await session.send("go")
        await world.entered.wait()
        await session.interrupt()
        assert "it is unknown whether it took effect. Settle turn/pay of run " in await failed(turn)
        assert world.log == ["book", "pay"]
        run_id = (await ledger(store, "s"))[0].run_id
        await settle_effect(store, run_id, "turn/pay", actor="you", result="pay done")
        await (await turn.undo_effects()).result(timeout=20)
    assert world.log == ["book", "pay", "-pay", "-book"]


@pytest.mark.parametrize("took_effect", [True, False])
async def test_a_probe_determines_whether_a_step_took_effect(store: Store, world: World, took_effect: bool):
    def find(call: Unsettled) -> Done[str] | NotDone:
        assert (call.name, call.key, call.arguments) == ("pay", world.keys["pay"], ("pay",))
        return Done("pay done") if took_effect else NotDone()

    @holdfast.agent("shop", undo=[Undo(world.cancel, step_probe=find)], on_failure="undo")
    async def agent(turn: Turn) -> None:
        await turn.step("book", world.do, "book", undo="cancel")
        await turn.step("pay", world.hang, "pay", undo=world.cancel)

    async with session_of(store, agent) as session:
        turn = await session.send("go")
        await world.entered.wait()
        await session.interrupt()
        assert await failed(turn) == "interrupted"
    assert world.log == ["book", "pay", *(["-pay"] if took_effect else []), "-book"]


async def test_a_step_that_failed_is_not_undone_and_an_outer_step_covers_its_inner_ones(
    store: Store, world: World
):
    @holdfast.agent("shop", undo=[world.cancel], on_failure="undo")
    async def agent(turn: Turn) -> None:
        async def outer(what: str) -> str:
            await turn.step("inner", world.do, f"inner of {what}", undo="cancel")
            if what == "bad":
                raise ValueError
            return await world.do(what)

        await turn.step("covered", outer, "good", undo="cancel")
        await asyncio.gather(*(turn.step("left", world.do, what, undo="cancel") for what in ("l1", "l2")))
        await turn.step("plain", outer, "plain")
        await turn.step("failing", outer, "bad", undo="cancel")

    async with session_of(store, agent) as session:
        await failed(await session.send("go"))
    done = [what for what in world.log if not what.startswith("-")]
    assert done == ["inner of good", "good", "l1", "l2", "inner of plain", "plain", "inner of bad"]
    assert world.log[7:9] == ["-inner of bad", "-inner of plain"]
    assert sorted(world.log[9:11]) == ["-l1", "-l2"]
    assert world.log[11:] == ["-good"]


async def test_a_retry_after_an_undo_repeats_what_was_undone_and_all_later_steps(store: Store, world: World):
    fails = True
    results: list[str] = []

    @holdfast.agent("shop", undo=[world.cancel], on_failure="undo")
    async def agent(turn: Turn) -> str:
        results.append(await turn.step("prepare", world.do, "prepare"))
        seat = await turn.step("book", world.do, "book", undo="cancel")
        await turn.step("note", world.do, "note " + seat)
        if fails:
            raise RuntimeError
        return "booked"

    async with session_of(store, agent) as session:
        turn = await session.send("go")
        await failed(turn)
        first_key = world.keys["book"]
        assert world.log == ["prepare", "book", "note book done", "-book"]
        again = await turn.retry()
        assert await failed(again) == "RuntimeError"
        assert world.keys["book"] != first_key
        assert world.log[4:] == ["book", "note book done", "-book"]
        fails = False
        last = await again.retry()
        assert await last.result(timeout=20) == "booked"
        assert world.log[7:] == ["book", "note book done"]
        await (await turn.undo_effects()).result(timeout=20)  # of all its attempts
        assert world.log[9:] == ["-book"]
        await (await last.undo_effects()).result(timeout=20)
        assert world.log[10:] == []


async def test_steps_that_were_repeated_are_undone_as_often_as_they_took_effect(store: Store, world: World):
    async with session_of(store, shop(world, fails=False)) as session:
        turn = await session.send("go")
        await turn.result(timeout=20)
        await (await turn.retry(from_step="turn/pay")).result(timeout=20)
        world.log.clear()
        await (await turn.undo_effects()).result(timeout=20)
        assert world.log == ["-mail", "-pay", "-mail", "-pay", "-book"]
        entries = [event async for event in session.events(follow=False) if isinstance(event, EffectUndone)]
        assert [event.undoes for event in entries] == [
            "turn/mail~again1",
            "turn/pay~again1",
            "turn/mail",
            "turn/pay",
            "turn/book",
        ]


async def test_an_undo_that_the_agent_no_longer_has_stops_visibly(store: Store, world: World):
    async with session_of(store, shop(world, on_failure=None)) as session:
        turn = await session.send("go")
        await failed(turn)
    other = shop(world, Undo(world.cancel, name="other"))
    async with session_of(store, other) as session:
        reason = await failed(await (await first_turn(session)).undo_effects())
        assert "the agent no longer has its undo 'cancel'" in reason
    async with session_of(store, shop(world, on_failure=None)) as session:
        await (await (await first_turn(session)).undo_effects()).result(timeout=20)
    assert world.log[4:] == ["-mail", "-pay", "-book"]


async def test_an_undo_can_have_steps_of_its_own(store: Store, world: World):
    broken = True

    async def cancel(undone: CompletedStep[str]) -> None:
        assert current_session() is not None
        await step("refund", world.do, "refund")
        await step("tell", tell)

    async def tell() -> None:
        if broken:
            raise ValueError
        world.log.append("told")

    @holdfast.agent("shop", undo=[cancel], on_failure="undo")
    async def agent(turn: Turn) -> None:
        await turn.step("pay", world.do, "pay", undo=cancel)
        raise RuntimeError

    async with session_of(store, agent) as session:
        turn = await session.send("go")
        assert "Step 'tell' failed" in await failed(turn)
        broken = False
        await (await turn.undo_effects()).result(timeout=20)
    assert world.log == ["pay", "refund", "told"]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (lambda: holdfast.sleep(seconds=1), "cannot sleep or wait"),
        (lambda: step("x", print, undo="cancel"), "part of an undo"),
    ],
)
async def test_an_undo_cannot_wait_or_be_undone(
    store: Store, world: World, bad: Callable[[], Any], problem: str
):
    async def cancel(undone: CompletedStep[str]) -> None:
        await bad()

    async with session_of(store, shop(world, Undo(cancel, name="cancel"))) as session:
        assert problem in await failed(await session.send("go"))


async def test_a_synchronous_undo_runs_in_a_thread(store: Store, world: World):
    def cancel(undone: CompletedStep[str]) -> object:
        world.log.append(f"-{undone.name} {undone.arguments} {undone.result}")
        return object()

    async with session_of(store, shop(world, Undo(cancel, name="cancel"))) as session:
        assert await failed(await session.send("go")) == "RuntimeError: no more seats"
    assert world.log[4:] == [f"-{name} ['{name}'] {name} done" for name in ("mail", "pay", "book")]


async def test_an_unregistered_undo_is_refused_at_the_step(store: Store, world: World):
    @holdfast.agent("shop", undo=[world.cancel])
    async def agent(turn: Turn) -> str:
        for undo in ("other", print):
            with pytest.raises(
                BadInput, match=r"has no undo '(other|print)', which step 'book' names \(it has cancel\)"
            ):
                await turn.step("book", world.do, "book", undo=undo)
        return "refused"

    async with session_of(store, agent) as session:
        assert await (await session.send("go")).result(timeout=20) == "refused"
    assert world.log == []


def test_bad_options_of_agents_are_refused():
    async def cancel(step: CompletedStep[Any]) -> None: ...

    for options, problem in [
        ({"undo": [cancel, Undo(cancel)]}, "two functions"),
        ({"undo": ["cancel"]}, "must be a function"),
        ({"undo": [Undo(cancel, recovery="probe")]}, "needs a function as its probe"),
        ({"undo": [Undo(cancel, name="\n")]}, "name of an undo"),
        ({"on_failure": "forget"}, "on_failure"),
    ]:
        bad: dict[str, Any] = options
        with pytest.raises(BadInput, match=problem):
            AgentSetup(agent=Agent(), **bad)
        with pytest.raises(BadInput, match=problem):
            holdfast.agent("shop", **bad)(_nothing)


async def _nothing(turn: Turn) -> None:
    del turn


async def test_only_a_turn_that_has_ended_can_be_undone(store: Store, world: World):
    async with session_of(store, shop(world, fails=False)) as session:
        turn = await session.send("go")
        await turn.result(timeout=20)
        undo = await turn.undo_effects()
        await undo.result(timeout=20)
        with pytest.raises(Conflict, match="is not a turn, but 'undo_effects'"):
            await undo.undo_effects()


def tool_agent(world: World, *, fails: bool) -> AgentSetup:
    """Return an agent of Pydantic AI whose tool has steps."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if messages[-1].parts[-1].part_kind == "user-prompt":
            return ModelResponse(parts=[ToolCallPart("book", {}, "call-1")])
        if fails:
            message = "the model is gone"
            raise RuntimeError(message)
        return ModelResponse(parts=[TextPart("booked")])

    async def book() -> str:
        await step("seat", world.do, "seat", undo="cancel")
        return await step("pay", world.do, "pay", undo=world.cancel)

    agent = Agent(FunctionModel(model), name="shop")
    agent.tool_plain(name="book", metadata={"recovery": "steps"})(book)
    return AgentSetup(agent=agent, name="shop", undo=[world.cancel], on_failure="undo")


async def test_steps_of_tools_are_undone_and_their_turn_is_not_retried(store: Store, world: World):
    async with session_of(store, tool_agent(world, fails=True)) as session:
        turn = await session.send("go")
        assert "the model is gone" in await failed(turn)
        assert world.log == ["seat", "pay", "-pay", "-seat"]
        reason = await failed(await turn.retry())
        assert "its effects were undone, but its history has their results. Send the message again" in reason
        assert "the model is gone" in str((await session.info()).error)
        (run_id,) = {entry.run_id for entry in await ledger(store, "s")}
        with pytest.raises(Conflict, match="were undone"):
            await resume(tool_agent(world, fails=False).agent, store, run_id)
    async with session_of(store, tool_agent(world, fails=False)) as session:
        assert await (await session.send("again")).result(timeout=20) == "booked"


async def test_steps_are_undone_in_order_although_a_later_run_uses_a_call_id_again(
    store: Store, world: World
):
    """Some models number the calls of each response from one."""
    responses = [
        [ToolCallPart("book", {"what": "seat"}, "1")],
        [ToolCallPart("book", {"what": "meal"}, "2")],
        [ToolCallPart("ask", {}, "3")],
        [ToolCallPart("book", {"what": "taxi"}, "1")],
    ]

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse(parts=[*responses[number]])

    async def book(what: str) -> str:
        return await step("book", world.do, what, undo=world.cancel)

    agent = Agent(FunctionModel(model), name="shop")
    agent.tool_plain(name="book", metadata={"recovery": "steps"})(book)
    agent.tool_plain(name="ask", requires_approval=True)(lambda: "yes")
    setup = AgentSetup(agent=agent, name="shop", undo=[world.cancel], on_failure="undo")
    async with session_of(store, setup) as session:
        turn = await session.send("go")
        with pytest.raises(ApprovalNeeded):
            await turn.result(timeout=20)
        await session.approve("3")
        assert "IndexError" in await failed(turn)
    assert world.log == ["seat", "meal", "taxi", "-taxi", "-meal", "-seat"]


async def test_large_arguments_are_kept_in_the_media_store(store: Store, world: World):
    large = "x" * 300_000
    seen: list[Any] = []

    async def cancel(step: CompletedStep[int]) -> None:
        seen.append(step.arguments)

    @holdfast.agent("shop", undo=[cancel], on_failure="undo")
    async def agent(turn: Turn) -> None:
        await turn.step("book", len, large, undo=cancel)
        raise RuntimeError

    async with session_of(store, agent) as session:
        assert await failed(await session.send("go")) == "RuntimeError"
    assert seen == [[large]]
    (entry,) = [e for e in await ledger(store, "s") if e.undo is not None]
    assert len(entry.undo or "") < 1000
    assert json.loads(entry.undo or "")["undo"] == "cancel"
