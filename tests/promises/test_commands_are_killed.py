"""A worker is killed at every step of fork, rewind, undo and compact: another one finishes it, once and whole."""

import asyncio
import json
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage

from holdfast import Holdfast, continue_session, load_history
from holdfast.ids import new_id
from holdfast.store import Store, open_store
from holdfast.types import Checkpoint
from tests.conftest import Boundaries, Engine
from tests.promises.driver import Cutters
from tests.runtime.agents import ended, kinds, working
from tests.upgrade.app import agent

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
LARGE = "large " * 20_000
"""It goes to the media store."""
TOLD = {"fork": "forked", "rewind": "rewound", "undo": "rewound", "compact": "compacted"}


async def talked(store: Store) -> tuple[str, Checkpoint]:
    """Make a session of two turns and return the checkpoint between them."""
    session_id = new_id()
    recorded = Agent(agent.model, name="agent", capabilities=[Holdfast(store, owner="you")])
    await recorded.run(f"first {LARGE}", conversation_id=session_id)
    (between,) = (await store.checkpoints(session_id=session_id, limit=1)).items
    await continue_session(recorded, store, session_id, f"second {LARGE}")
    return session_id, between


async def history(store: Store, session_id: str) -> list[ModelMessage]:
    (latest,) = (await store.checkpoints(session_id=session_id, limit=1)).items
    return await load_history(store, latest)


@pytest.mark.parametrize("kind", TOLD)
async def test_a_killed_command_is_finished_once(
    engine: Engine, cutters: Cutters, tmp_path: Path, kind: str, boundaries: Boundaries
):
    steps = boundaries.steps(engine)
    async with open_store(engine.url) as store:
        killed, code = 0, -9
        for at in steps:
            session_id, between = await talked(store)
            before = await history(store, session_id)
            payload = {"checkpoint_id": between.id} if kind == "rewind" else {}
            sent = await store.submit(session_id, kind, json.dumps(payload))
            code = await asyncio.to_thread(cutters.run, session_id, "serve", at, tmp_path)
            assert code in {0, -9}
            killed += code == -9
            async with working(store, agent):
                assert (await ended(store, sent)).state == "done", at
            told = await kinds(store, session_id)
            assert told.count(TOLD[kind]) == 1, at
            after = await history(store, session_id)
            if kind == "fork":
                events = await store.events(session_id, limit=1000)
                forked = next(json.loads(e.payload)["session_id"] for e in events if e.kind == "forked")
                assert await history(store, forked) == before, at
                assert len((await store.checkpoints(session_id=forked)).items) == 1, at
                assert (await store.session(forked)).owner == "you"
            elif kind == "compact":
                assert len(after) == 2, at
                assert "Summary" in str(after[0]), at
            else:
                assert after == before[: between.length], at
            if code == 0:
                break
        assert code == 0
        assert killed >= 4 // steps.step
        assert await store.check() == []
