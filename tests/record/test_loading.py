"""Large histories take turns."""

import asyncio

import pytest

from holdfast.errors import HistoryTooLarge
from holdfast.record.loading import LargeHistories, admit
from holdfast.store import Store
from tests.builders import until

LARGE = 2 * 1024 * 1024


async def test_only_some_turns_have_a_large_history(store: Store):
    """One owner has at most one of the largest size in memory, and all owners together have two. Smaller ones count by their bytes."""
    histories = LargeHistories()
    largest = store.settings.max_history_bytes
    inside: list[int] = []
    go_on = asyncio.Event()

    async def turn(number: int, size: int, owner: str = "ada") -> None:
        with histories.turn(owner):
            await admit(store, size)
            await asyncio.create_task(admit(store, size))  # a delegate of the same turn
            inside.append(number)
            await go_on.wait()

    turns = [asyncio.create_task(turn(n, largest // 2)) for n in range(4)]
    turns.append(asyncio.create_task(turn(4, 1000)))
    turns.append(asyncio.create_task(turn(5, largest, "bob")))
    turns.append(asyncio.create_task(turn(6, LARGE, "eve")))
    await asyncio.sleep(0.01)
    assert sorted(inside) == [0, 1, 4, 5]
    turns[0].cancel()  # makes room for the next one of the same owner, which asked before the other one
    turns[6].cancel()

    async def next_one_is_in() -> bool:
        return sorted(inside) == [0, 1, 2, 4, 5]

    await until(next_one_is_in)
    go_on.set()
    await asyncio.gather(*turns, return_exceptions=True)
    assert sorted(inside) == [0, 1, 2, 3, 4, 5]


async def test_a_task_that_outlives_its_turn_keeps_no_place(store: Store):
    histories = LargeHistories()
    late: list[asyncio.Task[None]] = []
    go_on = asyncio.Event()

    async def left_behind() -> None:
        await go_on.wait()
        await admit(store, LARGE)

    with histories.turn("ada"):
        late.append(asyncio.create_task(left_behind()))
        await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*late)
    with histories.turn("ada"):
        await asyncio.wait_for(admit(store, LARGE), 5)


async def test_outside_of_a_worker_nothing_waits(store: Store):
    await asyncio.gather(*(admit(store, LARGE) for _ in range(100)))
    with pytest.raises(HistoryTooLarge):
        await admit(store, store.settings.max_history_bytes + 1)
