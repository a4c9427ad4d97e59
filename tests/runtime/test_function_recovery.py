"""Steering messages of plain agents: a call of `turn.incoming` returns the same when the function runs again."""

import asyncio
from typing import Any

from holdfast import Store, Turn, agent
from holdfast.runtime.questions import pending_approvals
from tests.runtime.agents import ended, is_kind, send, texts, until, working
from tests.runtime.test_approvals import answer


async def test_a_message_sent_while_the_turn_waits_is_returned_after_the_answer(store: Store):
    """The function receives nothing new until it has repeated its question."""

    async def listen(turn: Turn, times: int) -> list[Any]:
        for _ in range(times):
            if heard := await turn.incoming():
                return heard
            await asyncio.sleep(0.02)
        return []

    @agent("clerk")
    async def clerk(turn: Turn) -> str:
        before = await listen(turn, 15)
        await turn.add(f"before {before}")
        await turn.ask(f"Continue after {before}?")
        return f"after {await listen(turn, 500)}"

    session = (await store.create_session(agent="clerk", owner="you")).id
    async with working(store, clerk):
        message = await send(store, session, "go")
        await until(store, session, is_kind("approval_requested"))
        steering = await send(store, session, "hurry", when_busy="steer")
        (question,) = await pending_approvals(store, session)
        await answer(store, session, call_id=question["call_id"], digest=question["digest"], approved=True)
        done = await ended(store, message)
        assert (done.state, done.reason) == ("done", None)
        assert (await ended(store, steering)).state == "done"
    assert "after ['hurry']" in await texts(store, session)
