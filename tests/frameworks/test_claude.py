"""Transcripts of the Claude Agent SDK: its conformance suite, its own readers and mutations, kills and retention."""

import asyncio
import json
import math
import re
import sys
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    SessionKey,
    delete_session_via_store,
    fork_session_via_store,
    get_session_messages_from_store,
    list_sessions_from_store,
    list_subagents_from_store,
    project_key_for_directory,
    rename_session_via_store,
)
from claude_agent_sdk.testing import run_session_store_conformance

from holdfast.errors import RetentionRefused, SessionCleaned
from holdfast.frameworks import framework_store
from holdfast.frameworks.claude import HoldfastSessionStore
from holdfast.media import open_media
from holdfast.retention import clean, erase
from holdfast.store import open_store
from tests import forking
from tests.conftest import Engine
from tests.frameworks.claude_children import KILLS, MAIN, SUBAGENT, main_entries, subagent_entries
from tests.promises.test_exact_return import there_and_back
from tests.promises.test_gone_is_gone import everything

ROOT = Path(__file__).parents[2]
MARK = "mark-of-content-7e20"
CONTRACTS = 14
pytestmark = pytest.mark.processes


@pytest.fixture
def claude(engine: Engine) -> Generator[HoldfastSessionStore, None, None]:
    store = HoldfastSessionStore(engine.url)
    yield store
    store.close()


def entries(*numbers: int, **more: Any) -> list[Any]:
    return [{"type": "x", "uuid": f"{number}", **more} for number in numbers]


async def released(claude: HoldfastSessionStore) -> str:
    """Return the id of the only session once nobody holds it."""

    async def only() -> str:
        (session,) = [session async for session in claude._store.all_sessions()]
        return session.id

    found = await claude._store.call(only())
    await asyncio.sleep(2 * framework_store._IDLE_SECONDS)
    return found


async def test_the_conformance_suite_of_the_sdk_passes_with_nothing_skipped(engine: Engine):
    stores: list[HoldfastSessionStore] = []

    def new_store() -> HoldfastSessionStore:
        stores.append(HoldfastSessionStore(engine.url, owner=f"owner-{len(stores)}"))  # sees only its own
        return stores[-1]

    try:
        await run_session_store_conformance(new_store)
    finally:
        for store in stores:
            store.close()
    assert len(stores) == CONTRACTS + 1  # the first one only shows which methods there are


async def test_an_entry_that_is_sent_again_is_stored_once(claude: HoldfastSessionStore):
    await claude.append(MAIN, entries(1, 2, 1))
    before = await claude.list_session_summaries("project")
    await claude.append(MAIN, entries(2, 1, customTitle="again"))
    assert await claude.list_session_summaries("project") == before
    await claude.append(MAIN, [*entries(2, 3), {"type": "title"}, {"type": "title"}])
    await claude.append(SUBAGENT, entries(1))  # the same uuid in another transcript
    assert await claude.load(MAIN) == [*entries(1, 2, 3), {"type": "title"}, {"type": "title"}]
    assert await claude.load(SUBAGENT) == entries(1)


async def test_a_large_transcript_is_stored_in_order_and_once(claude: HoldfastSessionStore):
    everything_ = entries(*range(1500))
    for _ in range(2):
        for start in range(0, 1500, 500):
            await claude.append(MAIN, everything_[start : start + 500])
    assert await claude.load(MAIN) == everything_


@pytest.mark.parametrize("value", [math.inf, "\0\ud800", [[None]], {"a": None}, 1e300, "x" * 2_000_000])
async def test_an_entry_comes_back_as_it_was(claude: HoldfastSessionStore, value: Any):
    sent: list[Any] = [{"type": "not known", "value": value, "uuid": None}] * 2
    await claude.append(MAIN, sent)
    assert await claude.load(MAIN) == sent


async def test_keys_may_have_any_characters(claude: HoldfastSessionStore):
    keys: list[SessionKey] = [
        {"project_key": project, "session_id": session, "subpath": subpath}
        for project in ("", "a/b", "ä\n")
        for session in ("b/c", "x" * 300)
        for subpath in ("main", "c" * 5000, "\ud800", "a/b/../c", "")
    ]
    for number, key in enumerate(keys):
        await claude.append(key, entries(number))
    for number, key in enumerate(keys):
        assert await claude.load(key) == entries(number)
        subkeys = await claude.list_subkeys(
            {"project_key": key["project_key"], "session_id": key["session_id"]}
        )
        assert sorted(subkeys) == sorted({key.get("subpath", "") for key in keys})
    assert await claude.list_sessions("a/b") == []  # they have no main transcript


async def test_a_transcript_that_was_deleted_begins_anew(claude: HoldfastSessionStore):
    for key in (MAIN, SUBAGENT):
        await claude.append(key, entries(1, 2))
        await claude.delete(key)
        assert await claude.load(key) is None
        await claude.append(key, entries(2, 1))
        assert await claude.load(key) == entries(2, 1)


async def test_two_stores_append_to_one_session_at_once(engine: Engine, claude: HoldfastSessionStore):
    other = HoldfastSessionStore(engine.url)
    try:
        async with asyncio.timeout(60):
            for number in range(0, 40, 4):
                await asyncio.gather(
                    claude.append(MAIN, entries(number, number + 1)),
                    other.append(MAIN, entries(number + 2, number + 3, number)),
                    other.append(SUBAGENT, entries(number)),
                )
        stored = await claude.load(MAIN)
        assert stored is not None
        assert sorted(stored, key=lambda entry: int(entry.get("uuid", ""))) == entries(*range(40))
        assert await claude.load(SUBAGENT) == entries(*range(0, 40, 4))
        assert len(await other.list_sessions("project")) == 1
        await other.delete(MAIN)
        assert await claude.load(MAIN) is None
    finally:
        other.close()


async def test_the_functions_of_the_sdk_work_on_it(claude: HoldfastSessionStore, tmp_path: Path):
    folder, session_id = str(tmp_path), str(uuid.uuid4())
    key: SessionKey = {"project_key": project_key_for_directory(folder), "session_id": session_id}
    ids = [str(uuid.uuid4()) for _ in range(2)]
    shared = {"sessionId": session_id, "timestamp": "2026-01-01T00:00:00.000Z", "cwd": folder}
    sent: list[Any] = [
        {"type": "user", "uuid": ids[0], "parentUuid": None, **shared}
        | {"message": {"role": "user", "content": "What is it?"}},
        {"type": "assistant", "uuid": ids[1], "parentUuid": ids[0], **shared}
        | {"message": {"role": "assistant", "content": [{"type": "text", "text": "A test."}]}},
    ]
    await claude.append(key, sent)
    await claude.append({**key, "subpath": "subagents/agent-1"}, sent)
    messages = await get_session_messages_from_store(claude, session_id, folder)
    assert [message.uuid for message in messages] == ids
    (info,) = await list_sessions_from_store(claude, folder)
    assert (info.session_id, info.summary, info.cwd) == (session_id, "What is it?", folder)
    await rename_session_via_store(claude, session_id, "Better", folder)
    (info,) = await list_sessions_from_store(claude, folder)
    assert info.summary == "Better"
    assert await list_subagents_from_store(claude, session_id, folder) == ["1"]
    forked = await fork_session_via_store(claude, session_id, folder)
    assert len(await get_session_messages_from_store(claude, forked.session_id, folder)) == 2
    await delete_session_via_store(claude, session_id, folder)
    assert [info.session_id for info in await list_sessions_from_store(claude, folder)] == [forked.session_id]
    assert await claude.load({**key, "subpath": "subagents/agent-1"}) is None


async def test_content_returns_exactly_and_is_gone_after_an_erase(
    engine: Engine, claude: HoldfastSessionStore, tmp_path: Path
):
    for key in (MAIN, SUBAGENT):
        await claude.append(key, entries(*range(50), text=MARK, customTitle=MARK))
    before = [
        await claude.load(MAIN),
        await claude.load(SUBAGENT),
        await claude.list_session_summaries("project"),
    ]
    session_id = await released(claude)
    async with open_store(engine.url) as store:
        media = open_media(store=store)
        await there_and_back(store, session_id)
        after = [
            await claude.load(MAIN),
            await claude.load(SUBAGENT),
            await claude.list_session_summaries("project"),
        ]
        assert after == before
        assert MARK.encode() in await everything(engine, store, tmp_path)
        await clean(store, media, session_id, actor="you", idle_days=0, force=True)
        for work in (claude.load(MAIN), claude.append(MAIN, entries(1)), claude.list_subkeys(MAIN)):
            with pytest.raises(SessionCleaned):
                await work
        assert await claude.list_sessions("project") == []
        await erase(store, media, session_id, actor="you")
        assert MARK.encode() not in await everything(engine, store, tmp_path)
        assert await store.check() == []
    await claude.append(MAIN, entries(1))
    assert await claude.load(MAIN) == entries(1)


async def test_a_session_on_hold_is_not_deleted(engine: Engine, claude: HoldfastSessionStore):
    for key in (MAIN, SUBAGENT):
        await claude.append(key, entries(1))
    session_id = await released(claude)
    async with open_store(engine.url) as store:
        await store.update_session(session_id, hold=True, actor="you")
        for key in (MAIN, SUBAGENT):
            with pytest.raises(RetentionRefused):
                await claude.delete(key)
            assert await claude.load(key) == entries(1)
        await store.update_session(session_id, hold=False, actor="you")
    await claude.delete(MAIN)
    assert await claude.load(MAIN) is None


def test_a_mirror_that_is_killed_loses_and_repeats_nothing(tmp_path: Path):
    path = tmp_path / "store.db"
    command = [sys.executable, "-m", "tests.frameworks.claude_children", str(path), "1"]
    ran = forking.run(command, cwd=ROOT, timeout=110)
    assert ran.returncode == 0, ran.stderr
    processes: list[list[str]] = json.loads(ran.stdout)
    assert len(processes) == KILLS + 1
    done = 0
    for first, *others in processes:
        found = int(first.removeprefix("found "))
        assert found in {done, done + 1}  # the last turn may be stored, but not acknowledged
        assert others == [f"did {found + number}" for number in range(1, len(others) + 1)]
        done = found + len(others)
    assert done >= 5
    store = HoldfastSessionStore(path)
    numbers = range(1, done + 1)
    assert asyncio.run(store.load(MAIN)) == [entry for number in numbers for entry in main_entries(number)]
    assert asyncio.run(store.load(SUBAGENT)) == [
        entry for number in numbers for entry in subagent_entries(number)
    ]
    (summary,) = asyncio.run(store.list_session_summaries("project"))
    assert summary["data"]["ai_title"] == f"title {done}"
    store.close()


def test_the_example_of_the_page_runs(tmp_path: Path):
    (example,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "claude-agent-sdk.md").read_text(), re.DOTALL
    )
    done = forking.run([sys.executable, "-c", example], cwd=tmp_path)
    assert done.stdout == "1f4b3f6e-8f0e-4a53-9f6c-1d1c9d2f7a10 Tides\n", done.stderr
