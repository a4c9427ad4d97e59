"""The limits of owners and agents hold across worker processes, and the places of a killed worker are given back."""

import asyncio
import signal
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Store
from holdfast.types import Session, Submission
from tests.builders import until
from tests.conftest import Engine
from tests.promises.workers import lines, worker
from tests.runtime.agents import ended, reread, send

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

APP = "tests.promises.fair_agents:agents"
MOST = 2


async def sessions(store: Store, number: int) -> list[Session]:
    """Create sessions of two owners and two agents."""
    return [
        await store.create_session(agent=("one", "two")[n % 2], owner=("ada", "bob")[n // 2 % 2])
        for n in range(number)
    ]


async def span(store: Store, session: Session) -> tuple[float, float]:
    """Return when the turn of a session started and ended, by the clock of the database."""
    at = {event.kind: event.at.timestamp() for event in await store.events(session.id, limit=1000)}
    return at["submission_started"], at["submission_done"]


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    changes = sorted(change for start, end in spans for change in ((start, 1), (end, -1)))
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


@pytest.mark.parametrize("limit", ["owner", "agent"])
async def test_a_limit_holds_for_all_workers_together(
    engine: Engine, store: Store, tmp_path: Path, limit: str
):
    """Each worker has room for one session less than all may run, so that both take part."""
    limits: dict[str, Any] = {f"max_running_per_{limit}": MOST}
    log, end = tmp_path / "log", tmp_path / "end"
    created = await sessions(store, 24)
    options = ("--concurrency", str(2 * MOST - 1))
    async with (
        worker(engine.url, *options, app=APP, hold=0.05, **limits) as first,
        worker(engine.url, *options, app=APP, hold=0.05, **limits) as second,
    ):
        sent = [await send(store, session.id, f"{log} {end}") for session in created]
        began = await lines(log, 2 * MOST)
        assert len(await running(store, sent)) == 2 * MOST
        end.touch()
        assert {(await ended(store, submission)).state for submission in sent} == {"done"}
    assert set(began) == {str(each.process.pid) for each in (first, second)}
    spans: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for session in created:
        spans[session.owner if limit == "owner" else session.agent].append(await span(store, session))
    assert {name: most_at_once(found) for name, found in spans.items()} == dict.fromkeys(spans, MOST)


@pytest.mark.parametrize("limit", ["owner", "agent"])
async def test_the_places_of_a_killed_worker_are_given_back(
    engine: Engine, store: Store, tmp_path: Path, limit: str
):
    """Until it is found dead, they are taken: its turns may still have effects. Then they are free, also for other sessions."""
    limits: dict[str, Any] = {
        f"max_running_per_{limit}": MOST,
        "lease_ttl_seconds": 5,
        "lease_renew_seconds": 1,
    }
    log, end = tmp_path / "log", tmp_path / "end"
    created = [await store.create_session(agent="one", owner="ada") for _ in range(2 * MOST)]
    async with worker(engine.url, app=APP, **limits) as first:
        sent = [await send(store, session.id, f"{log} {end}") for session in created]
        assert set(await lines(log, MOST)) == {str(first.process.pid)}
        async with worker(engine.url, app=APP, **limits) as second:
            assert len(await running(store, sent)) == MOST
            first.signal(signal.SIGKILL)
            again = await lines(log, 2 * MOST)
            assert set(again[MOST:]) == {str(second.process.pid)}
            assert len(await running(store, sent)) == MOST
            end.touch()
            assert [(await ended(store, submission)).state for submission in sent] == ["done"] * len(sent)
    assert len(await lines(log, 1)) == 3 * MOST


async def running(store: Store, sent: list[Submission]) -> list[Submission]:
    """Return the submissions that have started. A worker that could start more has had the time to."""

    async def is_settled() -> bool:
        before = [each.state for each in [await reread(store, submission) for submission in sent]]
        await asyncio.sleep(0.3)
        return before == [each.state for each in [await reread(store, submission) for submission in sent]]

    await until(is_settled)
    found = [await reread(store, submission) for submission in sent]
    return [each for each in found if each.state == "claimed"]
