"""Budgets hold across workers, whatever is killed: no model request starts after the limit is recorded, and nothing is lost or repeated."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from holdfast.budgets import Limits
from holdfast.store import Store, open_store
from tests.builders import until
from tests.promises.budget_agents import NOTES, ROUNDS
from tests.promises.fleet import fleet
from tests.servers import postgres

pytestmark = [pytest.mark.processes, pytest.mark.thorough, pytest.mark.timeout(600)]
_WORKERS = 4
_SESSIONS = 12
_REQUESTS = _SESSIONS * (ROUNDS + 1)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_no_request_starts_after_the_limit_is_recorded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    notes = tmp_path / "requests"
    notes.touch()
    monkeypatch.setenv(NOTES, str(notes))
    async with AsyncExitStack() as stack:
        url = f"sqlite:///{tmp_path}/store.db"
        if kind == "postgres":
            url = stack.enter_context(postgres()).url()
        store = await stack.enter_async_context(open_store(url))
        await store.set_budget("owner", "ada", Limits(requests=_REQUESTS // 2), actor="root")
        for number in range(_SESSIONS):
            await store.create_session(agent="spender", owner="ada", id=f"s{number}")
            await store.submit(f"s{number}", "message", '{"text": "go"}')
        calm = asyncio.Event()
        app = "tests.promises.budget_agents:spender"
        async with fleet(url, app, calm, count=_WORKERS) as kills:
            await until(lambda: _all_wait_or_ended(store), seconds=240)
            assert kills["workers"] >= 2
            await _limit_held(store)
            before = notes.read_text()
            await store.wake_for_budgets("owner", "ada")
            await asyncio.sleep(2)  # workers look at them, and some are killed meanwhile
            await until(lambda: _all_wait_or_ended(store), seconds=240)
            assert notes.read_text() == before, "a model was asked although the budget was used up"
            await store.set_budget("owner", "ada", Limits(requests=100 * _REQUESTS), actor="root")
            await store.wake_for_budgets("owner", "ada")
            calm.set()
            await until(lambda: _all_ended(store), seconds=240)
            await _retry_given_up(store)
        for number in range(_SESSIONS):
            await _is_whole(store, f"s{number}")
        assert await store.check() == []


async def _all_wait_or_ended(store: Store) -> bool:
    sessions = (await store.sessions()).items
    waits = [each for each in sessions if each.status == "sleeping" and "budget" in (each.waiting_for or "")]
    return bool(waits) and all(each in waits or not each.pending for each in sessions)


async def _all_ended(store: Store) -> bool:
    return all(not each.pending for each in (await store.sessions()).items)


async def _limit_held(store: Store) -> None:
    """Check that no request was recorded as started after the first run was recorded as waiting for the budget."""
    names = [f"s{number}" for number in range(_SESSIONS)]
    events = [event for name in names for event in await store.events(name, limit=1000)]
    started = [event.at for event in events if event.kind == "model_request_started"]
    reached = [event.at for event in events if event.kind == "run_waiting"]
    assert max(started) < min(reached)
    (sums,) = (await store.budgets()).items
    completed = sum(event.kind == "model_request_completed" for event in events)
    assert sums.spent[0] == completed, "the sums are those of the record"
    assert _REQUESTS // 2 <= completed < _REQUESTS // 2 + _SESSIONS, "one request in each session overshoots"


async def _retry_given_up(store: Store) -> None:
    """Retry the turns that were given up: on a busy machine, a turn may be killed five times before it makes progress."""
    for number in range(_SESSIONS):
        while (last := (await store.submissions(f"s{number}")).items[-1]).state == "dead":
            await store.submit(f"s{number}", "retry", json.dumps({"submission_id": last.id}))
            await until(lambda: _all_ended(store), seconds=240)


async def _is_whole(store: Store, name: str) -> None:
    """Check that a turn ended with each of its calls in order, each once in its history."""
    *given_up, turn = (await store.submissions(name)).items
    assert {each.state for each in given_up} <= {"dead"}
    assert (turn.state, turn.reason) == ("done", None)
    messages = [json.loads(event.message) for event in await store.events(name, limit=1000) if event.message]
    calls = [
        part["args"]["number"]
        for message in messages
        for part in message["parts"]
        if part["part_kind"] == "tool-call"
    ]
    assert calls == list(range(ROUNDS)), name
