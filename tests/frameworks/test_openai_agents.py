"""Sessions of the OpenAI Agents SDK: its protocol, real runs, runs that wait for an approval, kills and retention."""

import asyncio
import json
import math
import re
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from agents import RunConfig, Runner, SessionSettings, SQLiteSession, function_tool
from agents.memory import OpenAIResponsesCompactionSession, Session
from agents.testing import ScriptedModel, assistant_message, function_call

from holdfast.errors import BadInput, RetentionRefused, SessionCleaned
from holdfast.frameworks import framework_store
from holdfast.frameworks.framework_store import RecordWriter
from holdfast.frameworks.openai_agents import HoldfastSession, open_sessions
from holdfast.media import open_media
from holdfast.retention import clean, erase
from holdfast.store import open_store
from tests import forking
from tests.conftest import Engine
from tests.frameworks.openai_children import KILLS, brief, expected, scripted, turn
from tests.promises.test_exact_return import there_and_back
from tests.promises.test_gone_is_gone import everything

ROOT = Path(__file__).parents[2]
MARK = "mark-of-content-51c7"
pytestmark = pytest.mark.processes


@pytest.fixture
def session(engine: Engine) -> Generator[HoldfastSession, None, None]:
    session = HoldfastSession("talk", engine.url)
    yield session
    session.close()


def said(*numbers: int) -> list[Any]:
    return [{"role": "user", "content": f"{number}"} for number in numbers]


async def released(session: HoldfastSession) -> str:
    """Return the id of the stored session once nobody holds it."""
    found = await session._store.call(session._store.find(session.session_id))
    assert found is not None
    await asyncio.sleep(2 * framework_store._IDLE_SECONDS)
    return found.id


async def test_it_is_a_session_with_the_items_in_order(session: HoldfastSession):
    assert isinstance(session, Session)
    assert await session.get_items() == []
    assert await session.pop_item() is None
    await session.clear_session()
    await session.add_items([])
    await session.add_items(said(1, 2))
    await session.add_items(said(3))
    assert await session.get_items() == said(1, 2, 3)
    assert [await session.pop_item(), await session.pop_item()] == said(3, 2)
    await session.add_items(said(4))
    assert await session.get_items() == said(1, 4)
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.pop_item() is None
    await session.add_items(said(5))
    assert await session.get_items() == said(5)


async def test_a_negative_limit_returns_all_items_as_in_the_session_of_the_sdk(session: HoldfastSession):
    theirs = SQLiteSession("talk")
    for each in (session, theirs):
        await each.add_items(said(1, 2, 3))
        assert await each.get_items(-1) == await each.get_items(limit=-5) == said(1, 2, 3)
        each.session_settings = SessionSettings(limit=-1)
        assert await each.get_items() == said(1, 2, 3)
    theirs.close()


@pytest.mark.parametrize("session_id", [5, None, b"talk", uuid4(), ["talk"]])
def test_a_session_id_that_is_not_text_is_refused_at_once(tmp_path: Path, session_id: Any):
    with pytest.raises(BadInput, match=r"session_id must be a string, not \w+"):
        HoldfastSession(session_id, tmp_path / "s.db")
    assert list(tmp_path.iterdir()) == []


async def test_a_limit_returns_the_latest_items_and_wins_over_the_settings(
    engine: Engine, session: HoldfastSession
):
    await session.add_items(said(*range(1200)))  # more than a page
    assert await session.get_items() == said(*range(1200))
    assert await session.get_items(1100) == said(*range(100, 1200))
    theirs = SQLiteSession("talk")
    await theirs.add_items(said(*range(1200)))
    for limit, result in (
        (0, []),
        (-1, said(*range(1200))),
        (2, said(1198, 1199)),
        (5000, said(*range(1200))),
    ):
        assert await session.get_items(limit) == await theirs.get_items(limit) == result
    theirs.close()
    session.session_settings = SessionSettings(limit=3)
    assert await session.get_items() == said(1197, 1198, 1199)
    assert await session.get_items(limit=1) == said(1199)
    assert await session.get_items(limit=0) == []
    limited = HoldfastSession("talk", session._store, session_settings={"limit": 0})
    assert await limited.get_items() == []
    assert await limited.get_items(limit=1) == said(1199)


@pytest.mark.parametrize("value", [math.inf, "\0\ud800", [[None]], {"a": None}, 1e300, "x" * 2_000_000])
async def test_an_item_comes_back_as_it_was(session: HoldfastSession, value: Any):
    items: list[Any] = [{"type": "not known", "value": value}] * 3
    await session.add_items(items)
    assert await session.get_items() == items
    assert await session.pop_item() == items[0]


def test_any_thread_and_any_event_loop_can_use_a_session(session: HoldfastSession):
    def add(number: int) -> None:
        asyncio.run(session.add_items(said(number)))

    threads = [threading.Thread(target=add, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    items = asyncio.run(session.get_items())
    assert sorted(items, key=str) == said(*range(8))


async def test_two_stores_add_to_one_session_at_once(engine: Engine, session: HoldfastSession):
    other = HoldfastSession("talk", engine.url)
    try:
        async with asyncio.timeout(60):
            for number in range(3):
                added = [each.add_items(said(number, number)) for each in (session, other) for _ in range(2)]
                await asyncio.gather(*added)
        items = await session.get_items()
        assert items == await other.get_items()
        assert sorted(items, key=str) == said(*[0] * 8, *[1] * 8, *[2] * 8)
        assert await other.pop_item() == said(2)[0]
        await session.add_items(said(9))
        assert (await other.get_items())[-2:] == said(2, 9)
    finally:
        other.close()


async def test_sessions_are_separate_and_share_a_store(engine: Engine):
    store = open_sessions(engine.url, owner="ada")
    one, two = HoldfastSession("1", store), HoldfastSession("2", store)
    await one.add_items(said(1))
    await two.add_items(said(2))
    await one.clear_session()
    one.close()
    assert await two.get_items() == said(2)
    store.close()
    with pytest.raises(BadInput, match="closed"):
        await two.get_items()
    async with open_store(engine.url) as opened:
        stored = (await opened.sessions(owner="ada")).items
    assert sorted(found.title for found in stored) == ["1", "2"]


async def test_a_run_continues_the_conversation(session: HoldfastSession):
    for number in (1, 2):
        await turn(session, number)
    assert [brief(item) for item in await session.get_items()] == expected(1) + expected(2)
    agent = scripted(assistant_message("hello"))
    streamed = Runner.run_streamed(agent, "question 3", session=session)
    async for _ in streamed.stream_events():
        pass
    assert isinstance(agent.model, ScriptedModel)
    seen = agent.model.calls[0].input
    assert [brief(item) for item in seen] == expected(1) + expected(2) + [("user", "question 3")]
    assert brief((await session.get_items())[-1]) == ("assistant", "hello")


async def test_the_settings_of_a_run_limit_its_history(session: HoldfastSession):
    await session.add_items(said(1, 2, 3))
    agent = scripted(assistant_message("hello"))
    settings = RunConfig(session_settings=SessionSettings(limit=1))
    await Runner.run(agent, "4", session=session, run_config=settings)
    assert isinstance(agent.model, ScriptedModel)
    assert agent.model.calls[0].input == said(3, 4)
    assert len(await session.get_items()) == 5


async def wait_for_approval(session: HoldfastSession, tools: list[Any]) -> None:
    agent = scripted(function_call("deploy", {"place": MARK}, call_id="call"), tools=tools)
    result = await Runner.run(agent, "Deploy it.", session=session)
    assert len(result.interruptions) == 1
    await session.save_state(result.to_state())


async def test_a_run_that_waits_is_continued_or_rejected(session: HoldfastSession):
    places: list[str] = []

    @function_tool(needs_approval=True)
    def deploy(place: str) -> str:
        places.append(place)
        return "deployed"

    assert await session.load_state(scripted()) is None
    assert not await session.delete_state()
    for approve in (False, True):
        await wait_for_approval(session, [deploy])
        agent = scripted(assistant_message("Done."), tools=[deploy])
        state = await session.load_state(agent)
        assert state is not None
        (interruption,) = state.get_interruptions()
        if approve:
            state.approve(interruption)
        else:
            state.reject(interruption, rejection_message="not now")
        await session.save_state(state)  # the decision can be saved too
        decided = await session.load_state(agent)
        assert decided is not None
        assert [await session.delete_state(), await session.delete_state()] == [True, False]
        assert (await Runner.run(agent, decided, session=session)).final_output == "Done."
        assert places == [MARK] * approve
        output = [item for item in await session.get_items() if item.get("type") == "function_call_output"][
            -1
        ]
        assert output.get("output") == ("deployed" if approve else "not now")
        await session.clear_session()


async def test_clearing_a_session_deletes_items_and_state(
    engine: Engine, session: HoldfastSession, tmp_path: Path
):
    @function_tool(needs_approval=True)
    def deploy(place: str) -> str:
        return place

    await wait_for_approval(session, [deploy])
    session_id = await released(session)
    async with open_store(engine.url) as store:
        assert {kind for kind in ("item", "run_state") if await store.records(session_id, kind)} == {
            "item",
            "run_state",
        }
        await session.clear_session()
        assert await session.load_state(scripted(tools=[deploy])) is None
        assert [await store.records(session_id, kind) for kind in ("item", "run_state")] == [[], []]
        await session.add_items([{"role": "user", "content": MARK}])
        await session.pop_item()
        await store.shrink()
        assert MARK.encode() not in await everything(engine, store, tmp_path)


async def test_only_one_of_two_processes_may_continue_a_run(engine: Engine, session: HoldfastSession):
    @function_tool(needs_approval=True)
    def deploy(place: str) -> str:
        return place

    await wait_for_approval(session, [deploy])
    other = HoldfastSession("talk", engine.url)
    try:
        assert sorted(await asyncio.gather(session.delete_state(), other.delete_state())) == [False, True]
    finally:
        other.close()


async def test_content_returns_exactly_and_is_gone_after_an_erase(
    engine: Engine, session: HoldfastSession, tmp_path: Path
):
    await session.add_items([{"role": "user", "content": f"{MARK} {number}"} for number in range(50)])
    before = await session.get_items()
    session_id = await released(session)
    async with open_store(engine.url) as store:
        media = open_media(store=store)
        await there_and_back(store, session_id)
        assert await session.get_items() == before
        assert MARK.encode() in await everything(engine, store, tmp_path)
        await clean(store, media, session_id, actor="you", idle_days=0, force=True)
        for work in (
            session.get_items(),
            session.add_items(said(1)),
            session.pop_item(),
            session.clear_session(),
        ):
            with pytest.raises(SessionCleaned):
                await work
        await erase(store, media, session_id, actor="you")
        assert MARK.encode() not in await everything(engine, store, tmp_path)
        assert await store.check() == []
    await session.add_items(said(1))
    assert await session.get_items() == said(1)


async def test_nothing_is_deleted_from_a_session_on_hold(engine: Engine, session: HoldfastSession):
    await session.add_items(said(1, 2))
    session_id = await released(session)
    async with open_store(engine.url) as store:
        await store.update_session(session_id, hold=True, actor="you")
        for work in (session.pop_item(), session.clear_session(), session._atomic_replace_items(said(3))):
            with pytest.raises(RetentionRefused):
                await work
        await session.add_items(said(3))
        assert await session.get_items() == said(1, 2, 3)
        await store.update_session(session_id, hold=False, actor="you")
    assert await session.pop_item() == said(3)[0]


async def test_a_compaction_replaces_the_items_in_one_write(
    session: HoldfastSession, monkeypatch: pytest.MonkeyPatch
):
    output = [{"type": "compaction", "id": "cmp_1", "encrypted_content": "short"}]

    class Responses:
        async def compact(self, **_: Any) -> Any:
            return SimpleNamespace(output=output, usage=None)

    client: Any = SimpleNamespace(responses=Responses())
    compacting = OpenAIResponsesCompactionSession("talk", session, client=client)
    writes: list[int] = []
    write = RecordWriter.write

    async def counted(self: RecordWriter, *given: Any, **more: Any) -> int:
        writes.append(1)
        return await write(self, *given, **more)

    await compacting.add_items(said(*range(20)))
    monkeypatch.setattr(RecordWriter, "write", counted)
    await compacting.run_compaction({"force": True, "compaction_mode": "input"})
    assert await session.get_items() == output
    assert len(writes) == 1
    await compacting.add_items(said(21))
    assert await session.get_items() == [*output, *said(21)]


def children(how: str, path: Path, seed: int = 1) -> list[list[str]]:
    command = [sys.executable, "-m", "tests.frameworks.openai_children", how, str(path), str(seed)]
    done = forking.run(command, cwd=ROOT, timeout=110)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_approval_survives_a_kill(tmp_path: Path):
    assert children("approve", tmp_path / "store.db") == [
        ["waits for 1"],
        ["deploys to moon", "It is done."],
    ]


@pytest.mark.parametrize("seed", [1])
def test_runs_that_are_killed_lose_and_repeat_nothing(tmp_path: Path, seed: int):
    path = tmp_path / "store.db"
    processes = children("drill", path, seed)
    assert len(processes) == KILLS + 1
    done = 0
    for first, *others in processes:
        found = int(first.removeprefix("found "))
        assert found in {done, done + 1}  # the last turn may be stored, but not acknowledged
        assert others == [f"did {found + number}" for number in range(1, len(others) + 1)]
        done = found + len(others)
    session = HoldfastSession("drill", path)
    items = [brief(item) for item in asyncio.run(session.get_items())]
    session.close()
    assert items == [item for number in range(1, done + 1) for item in expected(number)]
    assert done >= 5


def test_the_example_of_the_page_runs(tmp_path: Path):
    (example,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "openai-agents.md").read_text(), re.DOTALL
    )
    done = forking.run([sys.executable, "-c", example], cwd=tmp_path)
    assert done.stdout == "Done. 4\n", done.stderr
