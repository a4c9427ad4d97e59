"""Clean at the same time as something else: a running turn, an export, another clean."""

import asyncio
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from holdfast.config import load_settings
from holdfast.errors import HoldfastError, RetentionRefused, SessionCleaned
from holdfast.media import open_media
from holdfast.retention import clean, erase, rehydrate, sweep, write_archive
from holdfast.retention.archive import longest_line, verify_archive
from holdfast.store import Store, open_store
from tests.conftest import Engine
from tests.forking import start_forked
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export
from tests.record.agents import call, scripted
from tests.runtime.agents import ended, send, working


async def test_a_running_turn_is_left_alone(engine: Engine):
    """It waits inside of a tool: no force, no erasure and no sweep gets at it, and it comes to its end."""
    policy = {"agent": "agent", "max_age_days": 1e-9, "action": "clean"}
    settings = load_settings(store=engine.url, retention=[policy])
    inside, go_on = asyncio.Event(), asyncio.Event()
    agent = Agent(scripted([call("wait")]), name="agent")

    @agent.tool_plain
    async def wait() -> str:
        inside.set()
        await go_on.wait()
        return "waited"

    async with open_store(settings=settings) as store:
        media = open_media(store=store)
        session_id = (await store.create_session(agent="agent", owner="ada")).id
        submission = await send(store, session_id, "hello")
        async with working(store, agent):
            await asyncio.wait_for(inside.wait(), 20)
            for attempt in (
                clean(store, media, session_id, actor="root", force=True, idle_days=0),
                erase(store, media, session_id, actor="root"),
            ):
                with pytest.raises(RetentionRefused, match="running"):
                    await attempt
            swept = await sweep(store, media, actor="root", dry_run=True)
            assert swept is not None
            assert swept.outcomes == {"refused": 1}
            go_on.set()
            assert (await ended(store, submission)).state == "done"
        assert await store.check() == []


async def test_a_distant_store_deletes_many_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every transaction takes long there, whatever it deletes: smaller ones would only be more of them."""
    calls = 0

    def distant(name: str) -> None:
        method = getattr(Store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            await asyncio.sleep(0.15)
            return await method(*args, **kwargs)

        monkeypatch.setattr(Store, name, call)

    async with open_store(f"sqlite:///{tmp_path}/holdfast.db") as store:
        media = open_media(store=store)
        session_id = await fill(store, media, ["hello"] * 200)
        distant("drop_references")
        distant("delete_content")
        cleaned = await clean(store, media, session_id, actor="root", idle_days=0)
    assert sum(cleaned.deleted.values()) > 400
    assert calls <= 6


async def test_of_two_cleans_one_does_it(store: Store):
    media = open_media(store=store)
    session_id = await fill(store, media, ["hello"] * 300, blobs=[b"picture"])
    before = await export(store, session_id)
    rows = sum((await store.content_counts(session_id)).values())
    attempts = [clean(store, media, session_id, actor=f"c{n}", force=True, archive="media") for n in range(4)]
    done = await asyncio.gather(*attempts, return_exceptions=True)
    refused = [found for found in done if isinstance(found, BaseException)]
    assert all(isinstance(error, RetentionRefused) and error.facts["guard"] == "running" for error in refused)
    cleaned = [found for found in done if not isinstance(found, BaseException)]
    assert [sum(found.deleted.values()) for found in cleaned if found.deleted] == [rows]
    assert [entry.action for entry in (await store.audit_log(session_id=session_id)).items] == ["clean"]
    await rehydrate(store, media, session_id, actor="test")
    assert await export(store, session_id) == before


@pytest.mark.processes
async def test_of_two_processes_one_does_it(engine: Engine, tmp_path: Path):
    async with open_store(engine.url) as store:
        session_id = await fill(store, open_media(store=store), ["hello"] * 300)
        rows = sum((await store.content_counts(session_id)).values())
        command = [
            *(sys.executable, "-m", "holdfast", "sessions", "clean", session_id),
            "--force",
            "--yes",
            "--json",
        ]
        processes = [
            await start_forked(*command, "--store", engine.url, cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
            for _ in range(3)
        ]
        answers = [json.loads((await process.communicate())[0]) for process in processes]
        counts = [sum(answer["deleted"].values()) for answer in answers if "deleted" in answer]
        assert max(counts) == sum(counts) == rows
        assert {answer["error"]["code"] for answer in answers if "error" in answer} <= {"retention_refused"}
        assert (await store.session(session_id)).status == "cleaned"
        assert len((await store.audit_log(session_id=session_id)).items) == 1


@pytest.mark.parametrize("blobs", [[], [b"picture" * 1000, b"sound" * 1000]])
async def test_an_export_is_whole_or_has_no_end(store: Store, blobs: list[bytes]):
    """A clean comes in the middle of it: rows are read from one cut; media that is gone by then breaks it off."""
    media = open_media(store=store)
    session_id = await fill(store, media, ["hello" * 200] * 3000, blobs=blobs)
    before = await export(store, session_id)
    pieces = write_archive(store, media, session_id)
    read = [await anext(pieces) for _ in range(3)]
    await clean(store, media, session_id, actor="test", force=True)
    try:
        read += [piece async for piece in pieces]
    except HoldfastError:
        assert blobs, "there was nothing to miss"
    whole = b"".join(read)
    if not blobs:
        assert whole == before
    if whole != before:
        longest = longest_line(store.settings.max_payload_bytes)
        with pytest.raises(HoldfastError, match=r"cut short|truncated"):
            verify_archive(io.BytesIO(whole), longest=longest)
    with pytest.raises(SessionCleaned):
        await export(store, session_id)
    await rehydrate(store, media, session_id, io.BytesIO(before), actor="test")
    assert await export(store, session_id) == before
