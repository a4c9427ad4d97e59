"""Limits and priorities as workers apply them: places that become free are taken at once, and waiting sessions take none."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from holdfast import FunctionAgent, Store, Turn, agent
from holdfast.config import load_settings
from holdfast.questions import pending_approvals
from holdfast.store import open_store
from holdfast.types import Submission
from tests.builders import until
from tests.conftest import Engine
from tests.runtime.agents import ended, send, working

pytestmark = pytest.mark.timeout(120)


class Turns:
    """Agents whose turns are logged, and end when the test permits it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._permitted: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def permit(self, name: str) -> None:
        self._permitted[name].set()

    async def logged(self, *entries: str) -> None:
        async def all_there() -> bool:
            return set(entries) <= set(self.log)

        await until(all_there)

    def agent(self, name: str = "bot") -> FunctionAgent:
        """Return an agent that takes messages such as `hold one` and `ask one`: how to wait, and the name for the log."""

        @agent(name)
        async def bot(turn: Turn) -> str:
            how, what = turn.text.split()
            await turn.step("begin", self._note, f"{what} begins", recovery="retry")
            match how:
                case "ask":
                    await turn.ask("Continue?")
                case "sleep":
                    await turn.sleep(seconds=0.5)
                case "signal":
                    await turn.signal("continue")
                case _:
                    await self._permitted[what].wait()
            await turn.step("end", self._note, f"{what} ends", recovery="retry")
            return what

        return bot

    async def _note(self, entry: str) -> None:
        self.log.append(entry)


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only notifications wake workers."""
    for module in ("runtime.worker", "store.postgres.notifier", "store.mongo.hints"):
        monkeypatch.setattr(f"holdfast.{module}._POLL_SECONDS", 600.0)


@asynccontextmanager
async def limited(engine: Engine, stores: int = 1, **limits: Any) -> AsyncGenerator[list[Store], None]:
    settings = load_settings(store=engine.url, **limits)
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(open_store(settings=settings)) for _ in range(stores)]
        yield opened
        assert await opened[0].check() == []


async def message(store: Store, text: str, *, agent: str = "bot", **options: Any) -> Submission:
    session = await store.create_session(agent=agent, owner="you")
    return await send(store, session.id, text, **options)


async def is_limited(store: Store, submission: Submission) -> None:
    async def waits() -> bool:
        return (await store.session(submission.session_id)).waiting_for == "limit"

    await until(waits)


@pytest.mark.processes
@pytest.mark.usefixtures("no_poll")
async def test_a_worker_takes_the_place_that_another_one_gives_back(engine: Engine):
    """The turn that ends leaves nothing that its own worker could run."""
    turns = Turns()
    async with (
        limited(engine, 2, max_running_per_owner=1) as (one, two),
        working(one, turns.agent("one")),
        working(two, turns.agent("two")),
    ):
        for number in range(4):
            mine, other = ("one", "two") if number % 2 else ("two", "one")
            first = await message(one, f"hold first-{number}", agent=mine)
            await turns.logged(f"first-{number} begins")
            second = await message(one, f"hold second-{number}", agent=other)
            await is_limited(one, second)
            turns.permit(f"first-{number}")
            await turns.logged(f"second-{number} begins")
            turns.permit(f"second-{number}")
            assert [(await ended(one, sent)).state for sent in (first, second)] == ["done"] * 2


@pytest.mark.usefixtures("no_poll")
@pytest.mark.parametrize("limit", ["max_running_per_owner", "max_running_per_agent"])
async def test_the_next_session_starts_when_a_turn_ends(engine: Engine, limit: str):
    turns = Turns()
    async with limited(engine, **{limit: 2}) as (store,), working(store, turns.agent()):
        sent = [await message(store, f"hold {number}") for number in range(5)]
        for number in range(5):
            await turns.logged(f"{number} begins")
            begun = sum(entry.endswith("begins") for entry in turns.log)
            assert begun - sum(entry.endswith("ends") for entry in turns.log) <= 2
            turns.permit(str(number))
            assert (await ended(store, sent[number])).state == "done"
    assert [entry for entry in turns.log if entry.endswith("begins")] == [f"{n} begins" for n in range(5)]


async def let_continue(store: Store, session_id: str, how: str) -> None:
    match how:
        case "ask":
            (call,) = await pending_approvals(store, session_id)
            answer = f'{{"call_id": "{call["call_id"]}", "digest": "{call["digest"]}", "approved": true}}'
            await store.submit(session_id, "approval", answer, lane="control")
        case "signal":
            await store.submit(session_id, "signal", '{"name": "continue", "data": null}', lane="control")
        case _:
            await asyncio.sleep(0.6)  # the time for which it sleeps, and a little more


@pytest.mark.processes
@pytest.mark.parametrize("how", ["ask", "sleep", "signal"])
async def test_a_session_that_waits_takes_no_place_until_it_continues(engine: Engine, how: str):
    turns = Turns()
    async with limited(engine, max_running_per_owner=1) as (store,), working(store, turns.agent()):
        waits = await message(store, f"{how} first")
        await turns.logged("first begins")
        second = await message(store, "hold second")
        third = await message(store, "hold third")
        await turns.logged("second begins")
        assert (await store.session(waits.session_id)).status in {"waiting", "sleeping"}
        await let_continue(store, waits.session_id, how)
        await is_limited(store, third)
        await is_limited(store, waits)
        assert turns.log == ["first begins", "second begins"]
        turns.permit("second")
        turns.permit("third")
        assert [(await ended(store, sent)).state for sent in (waits, second, third)] == ["done"] * 3
        order = [entry for entry in turns.log if not entry.startswith("third")]
        assert order == ["first begins", "second begins", "second ends", "first ends"]


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_worker_runs_the_sessions_of_an_owner_by_priority(store: Store, concurrency: int):
    turns = Turns()
    sent = [
        await message(store, f"hold {number}-{priority}", priority=priority)
        for number, priority in enumerate(["low", "normal", "high", "normal", "high", "high"])
    ]
    for submission in sent:
        turns.permit((await store.submission(submission.id)).payload.split()[-1].strip('"}'))
    async with working(store, turns.agent(), concurrency=concurrency):
        assert [(await ended(store, each)).state for each in sent] == ["done"] * 6
    begun = [entry.split()[0] for entry in turns.log if entry.endswith("begins")]
    assert {name.split("-")[1] for name in begun[:3]} == {"high"}
    if concurrency == 1:  # else the last ones begin together
        assert begun[-1] == "0-low"
