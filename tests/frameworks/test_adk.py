"""Sessions of Google ADK: compared with its own services, real runs, kills, and retention."""

import asyncio
import importlib
import itertools
import math
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents._streaming_mode import StreamingMode
from google.adk.agents.run_config import RunConfig
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.adk.sessions import InMemorySessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from holdfast.errors import BadInput, RetentionRefused, SessionCleaned
from holdfast.frameworks import adk, framework_store
from holdfast.frameworks.adk import HoldfastSessionService
from holdfast.media import open_media
from holdfast.retention import clean, erase
from holdfast.store import open_store
from tests import forking
from tests.conftest import Engine
from tests.frameworks.adk_children import (
    APP,
    ID,
    USER,
    WHERE,
    add,
    brief,
    event,
    expected,
    loaded,
    released,
    runner,
    texts,
    turn,
)
from tests.promises.test_exact_return import there_and_back
from tests.promises.test_gone_is_gone import everything

ROOT = Path(__file__).parents[2]
MARK = "mark-of-content-3d94"
pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL")]


async def test_a_session_needs_no_id(service: HoldfastSessionService):
    first, second = [await service.create_session(app_name=APP, user_id=USER) for _ in range(2)]
    assert first.id != second.id
    await service.flush()
    listed = (await service.list_sessions(app_name=APP, user_id=USER)).sessions
    assert {session.id for session in listed} == {first.id, second.id}


async def test_names_may_have_any_characters_and_are_kept_apart(service: HoldfastSessionService):
    parts = ["", " a ", "a", "a/b", "ä\n漢", '","', "\ud800", "x" * 300]
    names: list[dict[str, Any]] = [
        {"app_name": app, "user_id": user, "session_id": id_}
        for app, user, id_ in itertools.permutations(parts, 3)
    ]
    names = [*names[::17], {"app_name": "a", "user_id": "user", "session_id": "app"}]
    for number, name in enumerate(names):
        session = await service.create_session(**name, state={"n": number, "user:n": number})
        await add(service, session, str(number))
    for number, name in enumerate(names):
        session = await loaded(service, **name)
        assert {"app_name": session.app_name, "user_id": session.user_id, "session_id": session.id} == name
        assert (texts(session), session.state) == ([str(number)], {"n": number, "user:n": number})
        where: dict[str, Any] = {"app_name": name["app_name"], "user_id": name["user_id"]}
        listed = (await service.list_sessions(**where)).sessions
        assert name["session_id"] in {session.id for session in listed}
        await service.delete_session(**name)
        assert await service.get_session(**name) is None
        assert await service.get_user_state(**where) == {"n": number}


async def test_the_same_id_begins_anew_after_a_delete(service: HoldfastSessionService):
    session = Session(id=ID, app_name=APP, user_id=USER)
    for number in range(3):
        session = await service.create_session(**WHERE, state={"n": number})
        with pytest.raises(AlreadyExistsError):
            await service.create_session(**WHERE)
        await add(service, session, f"{number}")
        assert texts(await loaded(service)) == [f"{number}"]
        await service.delete_session(**WHERE)
        assert await service.get_session(**WHERE) is None
        with pytest.raises(SessionNotFoundError):
            await add(service, session)
    await service.create_session(**WHERE)
    with pytest.raises(StaleSessionError):
        await add(service, session)


async def test_an_event_that_is_appended_again_is_stored_once(service: HoldfastSessionService):
    session = await service.create_session(**WHERE)
    first = await add(service, session, "1", user_a=1)
    await add(service, session, "2", user_a=2)
    await service.append_event(session, first.model_copy(deep=True))
    same_id = first.model_copy(update={"content": types.UserContent("3")})
    await service.append_event(session, same_id)
    assert texts(session) == texts(await loaded(service)) == ["1", "2", "3"]


VALUES_OF_STATE = [[[None]], {"a": {"b": None}}, "\0ä漢", 1e300, 10**30, "x" * 5_000_000]


@pytest.mark.parametrize("value", VALUES_OF_STATE, ids=lambda value: repr(value)[:20])
async def test_a_value_comes_back_as_it_was(service: HoldfastSessionService, value: Any):
    session = await service.create_session(**WHERE, state={"at_first": value, "app:at_first": value})
    part = types.Part(inline_data=types.Blob(data=b"\xff\x00\xfe", mime_type="image/png"))
    new = event(a=value, user_b=value, app_c=value)
    new.content = types.Content(role="model", parts=[types.Part(text="text"), part])
    await service.append_event(session, new)
    back = await loaded(service)
    assert back.events == session.events == [new]
    assert back.state == session.state
    assert set(back.state) == {"at_first", "app:at_first", "a", "user:b", "app:c"}
    assert all(each == value for each in back.state.values())


async def test_what_json_cannot_express_is_stored_as_adk_stores_it(
    service: HoldfastSessionService, tmp_path: Path
):
    theirs = SqliteSessionService(str(tmp_path / "theirs.db"))
    states: list[Any] = []
    for each in (service, theirs):
        session = await each.create_session(**WHERE, state={"function": len, "user:set": {1}})
        await add(each, session, function=len, set={1}, app_set={2})
        back = await loaded(each)
        states.append([back.state, back.events[0].actions.state_delta])
    assert states[0] == states[1]
    assert states[0][0]["set"] == [1]
    session = await loaded(service)
    await add(service, session, big=math.inf, user_big=math.inf)  # the service for SQLite fails
    back = await loaded(service)
    assert [back.state[key] for key in ("big", "user:big")] == [math.inf, math.inf]


async def test_a_caller_cannot_change_the_stored_state_by_accident(service: HoldfastSessionService):
    given: dict[str, Any] = {"list": [1], "user:list": [1]}
    session = await service.create_session(**WHERE, state=given)
    given["list"].append(2)
    session.state["list"].append(3)
    session.state["user:list"].append(3)
    await add(service, session, other=1, user_other=1)
    assert (await loaded(service)).state == {"list": [1], "user:list": [1], "other": 1, "user:other": 1}


async def test_all_sessions_of_a_user_and_of_an_app_share_their_state(
    service: HoldfastSessionService, other: HoldfastSessionService
):
    where: list[dict[str, Any]] = [
        {"app_name": app, "user_id": user, "session_id": ID}
        for app, user in (("1", "a"), ("1", "b"), ("2", "a"))
    ]
    for name in where:
        session = await service.create_session(**name)
        await add(service, session, user_x=name["user_id"], app_y=name["app_name"], temp_z=MARK, own=1)
        assert session.state["temp:z"] == MARK
    for each in (service, other):
        for name in where:
            shared = {"user:x": name["user_id"], "app:y": name["app_name"]}
            assert (await loaded(each, **name)).state == {"own": 1, **shared}
            fresh = await each.create_session(app_name=name["app_name"], user_id=name["user_id"])
            assert fresh.state == shared
        assert {
            (session.user_id, session.state["user:x"])
            for session in (await each.list_sessions(app_name="1")).sessions
        } == {("a", "a"), ("b", "b")}


async def test_temporary_state_is_never_stored(
    engine: Engine, service: HoldfastSessionService, tmp_path: Path
):
    session = await service.create_session(**WHERE, state={"temp:a": MARK})
    await add(service, session, "text", temp_b=MARK, c=1)
    async with open_store(engine.url) as store:
        assert MARK.encode() not in await everything(engine, store, tmp_path)


async def test_many_events_are_returned_in_order_and_as_configured(service: HoldfastSessionService):
    session = await service.create_session(**WHERE)
    for number in range(40):
        await service.append_event(session, event(str(number)).model_copy(update={"timestamp": 100 + number}))
    assert texts(await loaded(service)) == [str(number) for number in range(40)]
    assert (await loaded(service)).last_update_time == 139
    for recent, after, first in (
        (3, None, 37), (0, None, 40), (100, None, 0), (None, 130, 30), (2, 130, 38), (20, 130, 30), (0, 130, 40),
    ):  # fmt: skip
        config = GetSessionConfig(num_recent_events=recent, after_timestamp=after)
        part = await loaded(service, config=config)
        assert texts(part) == [str(number) for number in range(first, 40)]
    await add(service, await loaded(service, config=GetSessionConfig(num_recent_events=0)), "last")
    assert texts(await loaded(service))[38:] == ["38", "39", "last"]


# Several writers


async def test_a_stale_session_is_refused_until_it_is_loaded_again(
    service: HoldfastSessionService, other: HoldfastSessionService
):
    mine = await service.create_session(**WHERE)
    theirs = await loaded(other)
    await add(service, mine, "mine")
    with pytest.raises(StaleSessionError):
        await add(other, theirs, "theirs", user_a=1)
    theirs = await loaded(other)
    await add(other, theirs, "theirs")
    with pytest.raises(StaleSessionError):
        await add(service, mine, "mine again")
    back = await loaded(service)
    assert texts(back) == ["mine", "theirs"]
    assert back.state == {}


async def test_a_session_without_a_revision_is_compared_by_time_and_last_event(
    service: HoldfastSessionService,
):
    session = await service.create_session(**WHERE)
    await add(service, session, "1")
    whole = await loaded(service)

    def made(*events: Event, time: float = 0.0) -> Session:
        return Session(id=ID, app_name=APP, user_id=USER, events=list(events), last_update_time=time)

    for stale in (made(), made(event("x"))):
        with pytest.raises(StaleSessionError):
            await add(service, stale)
    await add(service, made(time=whole.last_update_time), "2")
    whole = await loaded(service)
    await add(service, made(whole.events[-1]), "3")
    assert texts(await loaded(service)) == ["1", "2", "3"]


async def test_tasks_and_threads_share_one_session(service: HoldfastSessionService):
    session = await service.create_session(**WHERE)
    await asyncio.gather(*(add(service, session, str(number), user_n=number) for number in range(10)))

    def add_elsewhere(number: int) -> None:
        asyncio.run(add(service, session, str(number)))

    threads = [threading.Thread(target=add_elsewhere, args=[number]) for number in range(10, 14)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    back = await loaded(service)
    assert sorted(texts(back), key=int) == [str(number) for number in range(14)]
    assert texts(back)[:10] == texts(session)[:10]
    assert back.state["user:n"] == int(texts(back)[9])


def test_of_two_processes_one_writes_and_the_other_is_stale(engine: Engine):
    async def write() -> None:
        async with HoldfastSessionService(engine.url) as service:
            session = await service.get_session(**WHERE) or await service.create_session(**WHERE)
            await add(service, session, "parent")

    asyncio.run(write())
    command = [sys.executable, "-m", "tests.frameworks.adk_children", "stale", engine.url]
    for is_stale in (True, False):
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            assert child.stdout.readline() == "loaded\n"
            if is_stale:
                asyncio.run(write())
            child.stdin.write("\n")
            child.stdin.close()
            assert child.stdout.readline() == ("StaleSessionError\n" if is_stale else "appended\n")


# Real runs


async def test_runs_leave_the_same_session_as_in_memory(service: HoldfastSessionService):
    seen: list[Any] = []
    for each in (service, InMemorySessionService()):
        streaming = RunConfig(streaming_mode=StreamingMode.SSE)
        events = [event for number in (1, 2) for event in await turn(each, number, run_config=streaming)]
        assert sum(bool(event.partial) for event in events) == 2
        await turn(each, 3, session_id="another")
        session = await loaded(each)
        assert texts(session) == expected(1) + expected(2)
        assert session.state == {"notes": 2, "user:notes": 3, "app:notes": 3}
        first = session.events[0].invocation_id
        await runner(each).rewind_async(user_id=USER, session_id=ID, rewind_before_invocation_id=first)
        await turn(each, 4)
        changing = {"id", "timestamp", "invocation_id"}
        session = await loaded(each)
        dumped = session.model_dump(exclude={"last_update_time": True, "events": {"__all__": changing}})
        seen.append(re.sub(r"e-[0-9a-f-]{36}", "e-", repr(dumped)))
    assert seen[0] == seen[1]
    assert "'user:notes': 4" in seen[0]


async def test_an_invocation_that_was_cut_off_is_resumed(
    service: HoldfastSessionService, other: HoldfastSessionService
):
    async for new in runner(service).run_async(
        user_id=USER, session_id=ID, new_message=types.UserContent("question 1")
    ):
        if brief(new).startswith("call"):
            break
    cut = await loaded(other)
    assert texts(cut)[:2] == expected(1)[:2]
    await turn(other, 1, invocation_id=cut.events[-1].invocation_id)
    back = await loaded(other)
    assert back.state == {"notes": 1, "user:notes": 1, "app:notes": 1}


# Retention


async def test_content_returns_exactly_and_is_gone_after_an_erase(
    engine: Engine, service: HoldfastSessionService, tmp_path: Path
):
    session = await service.create_session(**WHERE, state={"a": MARK, "user:a": MARK, "app:a": MARK})
    for number in range(30):
        await add(service, session, f"{MARK} {number}", user_b=f"{MARK} {number}", app_b=number, b=number)
    before = await loaded(service)
    async with open_store(engine.url) as store:
        media = open_media(store=store)
        ids = await released(store)
        assert set(ids) == {"session", "user", "app"}
        for id_ in ids.values():
            await there_and_back(store, id_)
        assert await loaded(service) == before
        await add(service, before, "more")
        await released(store)
        assert MARK.encode() in await everything(engine, store, tmp_path)
        await clean(store, media, ids["session"], actor="you", idle_days=0, force=True)
        for work in (
            service.get_session(**WHERE),
            service.create_session(**WHERE),
            service.append_event(before, event("1")),
        ):
            with pytest.raises(SessionCleaned):
                await work
        assert (await service.list_sessions(app_name=APP)).sessions == []
        assert await service.get_user_state(app_name=APP, user_id=USER) == {"a": MARK, "b": f"{MARK} 29"}
        await service.delete_session(**WHERE)
        fresh = await service.create_session(**WHERE)
        assert fresh.state["user:b"] == f"{MARK} 29"
        await released(store)
        await clean(store, media, ids["user"], actor="you", idle_days=0, force=True)
        for work in (service.get_session(**WHERE), service.get_user_state(app_name=APP, user_id=USER)):
            with pytest.raises(SessionCleaned):
                await work
        for id_ in (ids["user"], ids["app"]):
            await erase(store, media, id_, actor="you")
        assert MARK.encode() not in await everything(engine, store, tmp_path)
        assert await store.check() == []
    assert (await loaded(service)).state == {}
    await add(service, fresh, user_a=1)
    assert (await loaded(service)).state == {"user:a": 1}


async def test_a_session_on_hold_is_not_deleted(engine: Engine, service: HoldfastSessionService):
    session = await service.create_session(**WHERE)
    await add(service, session, "1", user_a=1)
    async with open_store(engine.url) as store:
        ids = await released(store)
        await store.update_session(ids["session"], hold=True, actor="you")
        with pytest.raises(RetentionRefused):
            await service.delete_session(**WHERE)
        assert texts(await loaded(service)) == ["1"]
        await store.update_session(ids["session"], hold=False, actor="you")
    await service.delete_session(**WHERE)
    assert await service.get_session(**WHERE) is None
    assert await service.get_user_state(app_name=APP, user_id=USER) == {"a": 1}


async def test_a_path_is_enough_and_owners_are_kept_apart(tmp_path: Path):
    path = tmp_path / "store.db"
    for store, owner in ((path, "ada"), (str(path), "bob"), (f"sqlite:///{path}", "eve")):
        async with HoldfastSessionService(store, owner=owner) as service:
            await service.create_session(**WHERE, state={"user:a": owner})
            assert [each.state for each in (await service.list_sessions(app_name=APP)).sessions] == [
                {"user:a": owner}
            ]
    with pytest.raises(BadInput, match="closed"):
        await loaded(service)


def test_a_version_that_is_not_supported_is_named(monkeypatch: pytest.MonkeyPatch):
    for installed in ("2.12.3", "2.14.0"):
        monkeypatch.setattr(framework_store, "version", {"google-adk": installed}.__getitem__)
        with pytest.raises(BadInput, match=rf"google-adk {installed} is installed.*holdfast\[adk\]"):
            importlib.reload(adk)


def test_the_example_of_the_page_runs(tmp_path: Path):
    (example,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "adk.md").read_text(), re.DOTALL
    )
    done = forking.run([sys.executable, "-c", example], cwd=tmp_path)
    assert done.stdout == "Noted: tides. 4\n{'notes': 1}\nNoted: tides. 8\n{'notes': 2}\n", done.stderr
