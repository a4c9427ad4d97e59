"""Processes that end while they write an event of ADK: the event and its changes of all states are stored together, or not at all."""

import asyncio
import itertools
import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions import Session

from holdfast.frameworks.adk import HoldfastSessionService
from holdfast.frameworks.framework_store import RecordWriter
from holdfast.media import open_media
from holdfast.retention import clean
from holdfast.store import open_store
from holdfast.types import Record
from tests import forking
from tests.conftest import Engine
from tests.frameworks.adk_children import APP, ID, KILLS, USER, WHERE, add, expected, loaded, released, texts

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL")]


class Killed(Exception):
    """Stands for the end of a process at this point."""


def kill_at(monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """Let this many writes succeed, and no more."""
    written = itertools.count()
    write = RecordWriter.write

    async def some(self: RecordWriter, *given: Any, **more: Any) -> int:
        if next(written) >= last:
            raise Killed
        return await write(self, *given, **more)

    monkeypatch.setattr(RecordWriter, "write", some)


WRITES = 3
"""An event that changes all states is announced for the app and for the user, and then written."""


@pytest.mark.parametrize("writes", range(WRITES + 1))
@pytest.mark.parametrize("then", ["append", "create", "delete", "clean", "read"])
async def test_an_event_and_its_changes_are_stored_together(
    engine: Engine,
    other: HoldfastSessionService,
    monkeypatch: pytest.MonkeyPatch,
    writes: int,
    then: str,
):
    is_stored = writes == WRITES
    async with HoldfastSessionService(engine.url) as service:
        session = await service.create_session(**WHERE, state={"a": 0, "user:a": 0, "app:a": 0})
        with monkeypatch.context() as patched:
            kill_at(patched, writes)
            if is_stored:
                await add(service, session, "1", a=1, user_a=1, app_a=1)
            else:
                with pytest.raises(Killed):
                    await add(service, session, "1", a=1, user_a=1, app_a=1)
    value = int(is_stored)
    shared = {"user:a": value, "app:a": value}
    session = await loaded(other)
    assert (texts(session), session.state) == (["1"] * is_stored, {"a": value, **shared})
    match then:
        case "append":
            await add(other, session, "2", user_b=2, app_b=2)
        case "create":
            await other.create_session(app_name=APP, user_id=USER, state={"user:b": 2, "app:b": 2})
        case "delete":
            await other.delete_session(**WHERE)
        case "clean" if is_stored:
            async with open_store(engine.url) as store:
                ids = await released(store)
                media = open_media(store=store)
                await clean(store, media, ids["session"], actor="you", idle_days=0, force=True)
        case _:
            pass
    fresh = await other.create_session(app_name=APP, user_id=USER)
    more = {"user:b": 2, "app:b": 2} if then in {"append", "create"} else {}
    assert fresh.state == {**shared, **more}


@pytest.mark.parametrize("writes", range(WRITES))
async def test_a_session_is_created_completely_or_not_at_all(
    engine: Engine, other: HoldfastSessionService, monkeypatch: pytest.MonkeyPatch, writes: int
):
    async with HoldfastSessionService(engine.url) as service:
        with monkeypatch.context() as patched:
            kill_at(patched, writes)
            with pytest.raises(Killed):
                await service.create_session(**WHERE, state={"a": 1, "user:a": 1, "app:a": 1})
    assert await other.get_session(**WHERE) is None
    assert (await other.list_sessions(app_name=APP)).sessions == []
    with pytest.raises(SessionNotFoundError):
        await add(other, Session(id=ID, app_name=APP, user_id=USER))
    assert await other.get_user_state(app_name=APP, user_id=USER) == {}
    assert (await other.create_session(**WHERE, state={"user:b": 2})).state == {"user:b": 2}


async def test_a_delete_drops_the_changes_of_an_event_that_failed(
    service: HoldfastSessionService, monkeypatch: pytest.MonkeyPatch
):
    session = await service.create_session(**WHERE, state={"user:a": 0})
    with monkeypatch.context() as patched:
        kill_at(patched, WRITES - 1)
        with pytest.raises(Killed):
            await add(service, session, user_a=1, app_a=1)
    await service.delete_session(**WHERE)  # still under the lease of the event
    assert (await service.create_session(**WHERE)).state == {"user:a": 0}


async def test_a_change_that_was_announced_first_does_not_replace_a_later_one(
    service: HoldfastSessionService, other: HoldfastSessionService, monkeypatch: pytest.MonkeyPatch
):
    slow = await service.create_session(**WHERE)
    fast = await other.create_session(app_name=APP, user_id=USER)
    announced, may_write = threading.Event(), threading.Event()
    write = RecordWriter.write

    async def waiting(self: RecordWriter, records: Sequence[Record] = (), **more: Any) -> int:
        if records[0].kind == "event" and b"slow" in records[0].body.encode():
            announced.set()
            assert await asyncio.to_thread(may_write.wait, 30)
        return await write(self, records, **more)

    monkeypatch.setattr(RecordWriter, "write", waiting)
    appending = asyncio.create_task(add(service, slow, "slow", user_a="slow", user_b="slow"))
    assert await asyncio.to_thread(announced.wait, 30)
    for number in range(3):
        await add(other, fast, "fast", user_a=number)
    await add(other, fast, "fast", user_d=1)  # now all earlier changes of `a` are applied
    assert await other.get_user_state(app_name=APP, user_id=USER) == {"a": 2, "d": 1}
    may_write.set()
    await appending
    for each in (service, other):
        assert await each.get_user_state(app_name=APP, user_id=USER) == {"a": 2, "b": "slow", "d": 1}
    await add(other, fast, user_c=1)
    assert await service.get_user_state(app_name=APP, user_id=USER) == {"a": 2, "b": "slow", "c": 1, "d": 1}


def test_runs_that_are_killed_lose_and_repeat_nothing(tmp_path: Path):
    path = tmp_path / "store.db"
    command = [sys.executable, "-m", "tests.frameworks.adk_children", "drill", str(path), "1"]
    ran = forking.run(command, cwd=ROOT, timeout=110)
    assert ran.returncode == 0, ran.stderr
    processes: list[list[str]] = json.loads(ran.stdout)
    assert len(processes) == KILLS + 1
    done = 0
    for first, *others in processes:
        found = int(first.removeprefix("found "))
        assert found in {done, done + 1}  # the last turn may have begun, or ended without being acknowledged
        wanted = [f"continued {found}", *(f"did {found + n}" for n in range(1, len(others)))]
        assert others == wanted[: len(others)]
        done = found + len(others[1:])
    assert done >= 5

    async def check() -> None:
        async with HoldfastSessionService(path) as service:
            session = await loaded(service)
            assert texts(session) == [text for number in range(1, done + 1) for text in expected(number)]
            for key in ("notes", "user:notes", "app:notes"):  # each event has counted on from the one before
                deltas = [event.actions.state_delta for event in session.events]
                assert [delta[key] for delta in deltas if key in delta] == list(range(1, done + 1))
                assert session.state[key] == done
            assert await service.get_user_state(app_name=APP, user_id=USER) == {"notes": done}

    asyncio.run(check())
