"""A worker begins few turns at once until it has seen that they begin quickly."""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast import Turn
from holdfast.runtime.pace import Pace
from holdfast.store import Store
from tests.builders import until
from tests.runtime.agents import ended, send, working


async def test_turns_that_begin_quickly_raise_the_limit():
    pace = Pace()
    assert pace.free == 2
    begun = [pace.begin(), pace.begin()]
    assert pace.free == 0
    waiting = asyncio.ensure_future(pace.wait())
    await asyncio.sleep(0)
    begun[0]()
    begun[0]()  # the end of the turn as well
    await waiting
    assert pace.free == 3
    begun[1]()
    assert pace.free == 8


async def test_a_turn_that_begins_before_the_wait_is_not_missed():
    pace = Pace()
    begun = [pace.begin(), pace.begin()]
    waiting = asyncio.ensure_future(pace.wait())  # it has not taken its first step
    for each in begun:
        each()
    await asyncio.wait_for(waiting, 5)


async def test_turns_that_begin_slowly_lower_it(monkeypatch: pytest.MonkeyPatch):
    pace = Pace()
    for _ in range(3):
        pace.begin()()
    assert pace.free == 16
    monkeypatch.setattr("holdfast.runtime.pace._QUICK_SECONDS", 0)
    for _ in range(9):
        pace.begin()()
    assert pace.free == 2


async def test_a_turn_that_does_not_begin_in_time_leaves_its_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.runtime.pace._LONGEST_SECONDS", 0.01)
    pace = Pace()
    pace.begin()
    pace.begin()
    await pace.wait()

    async def all_free() -> bool:
        return pace.free >= 2

    await until(all_free)


async def test_a_worker_claims_only_what_may_begin(store: Store, monkeypatch: pytest.MonkeyPatch):
    """An attempt counts from the claim on, so a turn must not wait for others between its claim and its beginning."""
    claimed: list[int] = []
    next_work = store.next_work

    async def counted(*arguments: Any, **options: Any) -> Any:
        claimed.append(options["limit"])
        return await next_work(*arguments, **options)

    monkeypatch.setattr(store, "next_work", counted)

    @holdfast.agent("agent")
    async def echo(turn: Turn) -> str:
        return turn.text

    sessions = [(await store.create_session(agent="agent", owner="you")).id for _ in range(20)]
    sent = [await send(store, session, "hello") for session in sessions]
    async with working(store, [echo]):
        for submission in sent:
            assert (await ended(store, submission)).state == "done"
    assert claimed[0] == 2
    assert max(claimed) == 8
