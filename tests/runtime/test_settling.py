"""Settling: a person records the outcome of a call."""

import asyncio

from holdfast.leases import hold_lease
from holdfast.runtime import settle_effect
from holdfast.store import Store
from holdfast.types import Batch, Effect, Run


async def test_it_waits_a_moment_for_the_worker_that_frees_the_session(store: Store):
    """The failure of a turn can be seen before the worker has released the session."""
    session_id = (await store.create_session(agent="agent", owner="you")).id
    async with hold_lease(store, session_id) as lease:
        run = Run(id="r1", agent="agent")
        await store.write(lease, Batch(runs=[run], effects=[Effect(run_id="r1", call_id="c1", tool="pay")]))
        settling = asyncio.create_task(settle_effect(store, "r1", "c1", actor="ada", result="paid"))
        await asyncio.sleep(0.3)
        assert not settling.done()
    assert (await settling).state == "completed"
