"""The content of runs of pydantic-ai-harness: exact messages, media, retention."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.messages import (
    ModelRequest,
    ToolReturnPart,
)
from pydantic_ai.models.test import TestModel
from pydantic_ai_harness.media import (
    MediaContext,
    PublicUrlResolver,
    SqliteMediaStore,
    media_uri_for,
)
from pydantic_ai_harness.step_persistence import (
    ContinuableSnapshot,
    RunRecord,
    StepEvent,
    StepPersistence,
    ToolEffectRecord,
)

from holdfast.errors import BadInput, MediaCollected, MediaNotFound, RetentionRefused, SessionCleaned
from holdfast.frameworks import harness
from holdfast.frameworks.harness import HoldfastMediaStore, HoldfastStepStore
from holdfast.media import collect, open_media
from holdfast.retention import clean, erase
from holdfast.store import open_store
from tests.conftest import Engine
from tests.frameworks.harness_snapshots import NOON, released, said, snapshot
from tests.promises.test_exact_return import there_and_back
from tests.promises.test_gone_is_gone import everything

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "mark-of-content-93ad"
LARGE = (MARK * 10_000)[:150_000]
pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    "content",
    [
        LARGE,
        "\0\ud800",
        "media+sha256://" + "0" * 64 + "#text",
        [BinaryContent(LARGE.encode(), media_type="application/pdf"), "beside it"],
        ["media+sha256:", LARGE, LARGE],
    ],
)
async def test_messages_come_back_as_they_were(steps: HoldfastStepStore, content: Any):
    value: Any = {"none": None, "large": 1e300, "deep": [[content]], "many": list(range(1000))}
    answered = ModelRequest(
        parts=[ToolReturnPart("tool", value if isinstance(content, str) else "x", "call", timestamp=NOON)]
    )
    for number in (1, 2):
        await steps.save_snapshot(
            ContinuableSnapshot(
                run_id="r", step_index=number, messages=[*said(content), answered] * number, timestamp=NOON
            )
        )
    one, two = await steps.list_snapshots(run_id="r")
    assert one.messages == [*said(content), answered]
    assert two.messages == one.messages * 2
    assert one.timestamp == NOON
    session_id = await released(steps._store, "r")
    stored = await steps._store.call(steps._store.records(session_id, "message"))
    assert len(stored) == 2  # each is stored once
    assert sum(len(record.body) for record in stored) < 10_000  # large content is not in them


async def test_a_value_that_cannot_be_serialized_is_refused(steps: HoldfastStepStore):
    with pytest.raises(BadInput, match="cannot be serialized"):
        await steps.save_snapshot(
            ContinuableSnapshot(
                run_id="r",
                step_index=1,
                messages=[ModelRequest(parts=[ToolReturnPart("tool", object(), "call")])],
            )
        )
    assert await steps.latest_snapshot(run_id="r") is None


@pytest.mark.parametrize("run_id", ["a/b", "ä\n漢", "x" * 5000, "", "media"])
async def test_a_run_id_may_have_any_characters(steps: HoldfastStepStore, run_id: str):
    effect = ToolEffectRecord(tool_call_id=run_id, tool_name="tool", run_id=run_id, status="started")
    await steps.record_tool_effect(effect)
    assert await steps.get_run(run_id=run_id) is None
    assert await steps.list_runs() == []
    run = RunRecord(run_id=run_id, conversation_id="talk")
    await steps.register_run(run)  # its session exists, and gets its conversation
    assert await steps.list_runs(conversation_id="talk") == [run]
    assert await steps.list_runs(conversation_id="other") == []
    assert await steps.list_unresolved_tool_effects(run_id=run_id) == [effect]


async def test_media_is_stored_as_in_a_store_of_the_harness(media: HoldfastMediaStore, tmp_path: Path):
    found: list[list[Any]] = []
    for store in (media, SqliteMediaStore(database=tmp_path / "theirs.db")):
        results: list[Any] = []
        for data in (b"", b"\0\xff", b"x" * 3_000_000):
            results.append(await store.exists(media_uri_for(data)))
            with pytest.raises(FileNotFoundError):
                await store.get(media_uri_for(data))
            with pytest.raises(FileNotFoundError):
                await store.get_metadata(media_uri_for(data))
            for text in ("first", "second"):
                odd = MediaContext(
                    media_type="not a\ntype", filename="ä" * 2000, metadata={text: text * 9000}
                )
                results.append(await store.put(data, context=odd))
            uri = results[-1]
            results += [await store.get(uri), await store.exists(uri), await store.get_metadata(uri)]
            results.append(await store.public_url(uri))
        for work in (store.get("media"), store.exists("media+sha256://0"), store.get_metadata("")):
            with pytest.raises(ValueError, match=r"not a media URI|invalid sha256"):
                await work
        found.append(results)
    assert found[0] == found[1]


async def test_media_has_the_urls_of_its_resolver(engine: Engine):
    def at_once(uri: str, context: MediaContext) -> str | None:
        return f"{context.media_type} {uri[-2:]}"

    async def later(uri: str, context: MediaContext) -> str | None:
        return at_once(uri, context)

    resolvers: list[PublicUrlResolver] = [at_once, later]
    for resolver in resolvers:
        store = HoldfastMediaStore(engine.url, public_url=resolver)
        assert await store.public_url("media+sha256://00", context=MediaContext(media_type="a/b")) == "a/b 00"
        store.close()


async def test_media_of_another_owner_is_not_found(engine: Engine, media: HoldfastMediaStore):
    uri = await media.put(LARGE.encode())
    other = HoldfastMediaStore(engine.url, owner="other")
    steps = HoldfastStepStore(engine.url, owner="other")
    try:
        assert not await other.exists(uri)
        with pytest.raises(FileNotFoundError):
            await other.get(uri)
        await steps.save_snapshot(snapshot(LARGE))
        session_id = await released(steps._store, "r")
        async with open_store(engine.url) as store:  # as an archive from elsewhere might
            (message,) = await store.records(session_id, "message")
            await clean(store, open_media(store=store), session_id, actor="you", idle_days=0, force=True)
        forged = HoldfastStepStore(engine.url, owner="forger")

        async def forge() -> None:
            session = await forged._store.ensure("r")
            async with forged._store.writing(session.id) as writer:
                body = json.dumps({"run_id": "r", "step_index": 1, "messages": [message.key]})
                named = [harness.Record(kind="snapshot", key="0", body=body), message]
                await writer.write(named)

        await forged._store.call(forge())
        with pytest.raises(MediaNotFound):
            await forged.latest_snapshot(run_id="r")
        forged.close()
    finally:
        other.close()
        steps.close()


async def test_media_that_is_collected_before_its_session_refers_to_it_is_uploaded_again(
    engine: Engine, steps: HoldfastStepStore, media: HoldfastMediaStore, monkeypatch: pytest.MonkeyPatch
):
    write, failed = harness.RecordWriter.write, [0]

    async def late(self: harness.RecordWriter, *given: Any, **more: Any) -> int:
        if more.get("blobs") and not failed[-1]:
            await collect(open_media(store=self.store), grace=0)
            failed[-1] = 1
            with pytest.raises(MediaCollected):
                await write(self, *given, **more)
            raise MediaCollected(uris="some")
        return await write(self, *given, **more)

    monkeypatch.setattr(harness.RecordWriter, "write", late)
    await steps.save_snapshot(snapshot(LARGE))
    failed.append(0)
    uri = await media.put(b"x" * 100)
    assert failed == [1, 1]
    found = await steps.latest_snapshot(run_id="r")
    assert found is not None
    assert found.messages == said(LARGE)
    assert await media.get(uri) == b"x" * 100


# Retention


async def test_a_run_returns_exactly_and_is_gone_after_an_erase(
    engine: Engine, steps: HoldfastStepStore, tmp_path: Path
):
    agent = Agent(
        TestModel(custom_output_text=LARGE), capabilities=[StepPersistence(store=steps, run_id="r")]
    )
    await agent.run(f"{MARK} {LARGE}", conversation_id="talk")
    reads: list[Callable[[], Any]] = [
        lambda: steps.get_run(run_id="r"),
        lambda: steps.list_events(run_id="r"),
        lambda: steps.list_snapshots(run_id="r"),
        lambda: steps.latest_snapshot(run_id="r"),
        lambda: steps.get_tool_effect(run_id="r", tool_call_id="1"),
        lambda: steps.list_unresolved_tool_effects(run_id="r"),
    ]
    before = [await read() for read in reads]
    session_id = await released(steps._store, "r")
    async with open_store(engine.url) as store:
        media = open_media(store=store)
        await there_and_back(store, session_id)
        assert [await read() for read in reads] == before
        assert MARK.encode() in await everything(engine, store, tmp_path)
        await clean(store, media, session_id, actor="you", idle_days=0, force=True)
        for work in (
            *(read() for read in reads),
            steps.register_run(RunRecord(run_id="r")),
            steps.append_event(StepEvent(run_id="r", kind="run_started", step_index=1)),
            steps.save_snapshot(snapshot("1")),
            steps.record_tool_effect(
                ToolEffectRecord(tool_call_id="1", tool_name="tool", run_id="r", status="started")
            ),
        ):
            with pytest.raises(SessionCleaned):
                await work
        assert await steps.list_runs() == []
        await erase(store, media, session_id, actor="you")
        await collect(media, grace=0)
        await store.shrink()
        assert MARK.encode() not in await everything(engine, store, tmp_path)
        assert await store.check() == []
    await agent.run("again", conversation_id="talk")
    assert len(await steps.list_events(run_id="r")) == 4


async def test_media_returns_exactly_and_is_gone_after_an_erase(
    engine: Engine, media: HoldfastMediaStore, tmp_path: Path
):
    uri = await media.put(LARGE.encode(), context=MediaContext(metadata={"a": MARK}))
    session_id = await released(media._store, "media")
    async with open_store(engine.url) as store:
        kept = open_media(store=store)
        assert (await collect(kept, grace=0)).blobs == 0
        await there_and_back(store, session_id)
        assert await media.get(uri) == LARGE.encode()
        assert await media.get_metadata(uri) == {"a": MARK}
        await clean(store, kept, session_id, actor="you", idle_days=0, force=True)
        for work in (media.get(uri), media.exists(uri), media.get_metadata(uri), media.put(b"1")):
            with pytest.raises(SessionCleaned):
                await work
        await erase(store, kept, session_id, actor="you")
        await collect(kept, grace=0)
        await store.shrink()
        assert MARK.encode() not in await everything(engine, store, tmp_path)
        assert await store.check() == []
    assert not await media.exists(uri)
    await media.put(b"1")


async def test_nothing_is_deleted_from_a_run_on_hold(engine: Engine):
    steps = HoldfastStepStore(engine.url, max_snapshots_per_run=1)
    try:
        await steps.save_snapshot(snapshot("1"))
        session_id = await released(steps._store, "r")
        async with open_store(engine.url) as store:
            await store.update_session(session_id, hold=True, actor="you")
            await steps.save_snapshot(snapshot("2"))
            with pytest.raises(RetentionRefused):
                await steps.delete_run("r")
            assert len(await steps.list_snapshots(run_id="r")) == 2
            await store.update_session(session_id, hold=False, actor="you")
            await steps.save_snapshot(snapshot("3"))
            assert [found.messages for found in await steps.list_snapshots(run_id="r")] == [said("3")]
            await steps.delete_run("r")
            await steps.delete_run("r")
            assert await steps.latest_snapshot(run_id="r") is None
    finally:
        steps.close()
