"""Promise 8. Exact return: export → clean → rehydrate → export yields the same bytes."""

import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from holdfast.errors import BadArchive, BadText, NotCleaned, SessionCleaned, SessionExists
from holdfast.media import collect, open_media
from holdfast.retention import clean, import_archive, rehydrate, write_archive
from holdfast.retention.archive import BLOB_BYTES
from holdfast.store import Store, open_store
from holdfast.types import Batch, Message, NewEvent, Segment
from tests.builders import held_session
from tests.conftest import Engine
from tests.promises.sessions import fill

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=0, max_size=60)


async def export(store: Store, session_id: str, *, compress: bool = False) -> bytes:
    pieces = write_archive(store, open_media(store=store), session_id, compress=compress)
    return b"".join([piece async for piece in pieces])


async def there_and_back(store: Store, session_id: str) -> bytes:
    media = open_media(store=store)
    before = await export(store, session_id)
    facts = await store.session(session_id)
    cleaned = await clean(store, media, session_id, actor="test", idle_days=0, force=True)
    assert sum(cleaned.deleted.values()) == sum(
        count
        for kind, count in json.loads(before.splitlines()[-1])["end"]["counts"].items()
        if kind != "session"
    ) + cleaned.deleted.get("drafts", 0)
    assert await store.content_counts(session_id) == {}
    await collect(media, grace=0)
    assert [blob.sha256 for blob in (await store.blobs()).items] == []
    with pytest.raises(SessionCleaned):
        await store.submit(session_id, "message")
    with pytest.raises(SessionCleaned):
        await export(store, session_id)
    await rehydrate(store, media, session_id, io.BytesIO(before), actor="test")
    after = await export(store, session_id)
    assert after == before
    now = await store.session(session_id)
    assert (now.title, now.metadata, now.status, now.error, now.active_at) == (
        facts.title,
        facts.metadata,
        facts.status,
        facts.error,
        facts.active_at,
    )
    assert now.cleaned_at is None
    return after


@given(
    texts=st.lists(TEXTS, max_size=6),
    blobs=st.lists(st.binary(min_size=0, max_size=200), max_size=3, unique=True),
)
@settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
async def test_what_was_cleaned_comes_back_to_the_byte(engine: Engine, texts: list[str], blobs: list[bytes]):
    async with open_store(engine.url) as store:
        session_id = await fill(store, open_media(store=store), texts, blobs=blobs)
        await there_and_back(store, session_id)
        # And the session goes on from where it was.
        holder = await store.join("next", ttl=60)
        await store.submit(session_id, "message")
        lease = await store.acquire(session_id, holder)
        assert await store.take(lease) is not None
        assert await store.write(lease, Batch(events=[NewEvent(kind="tick")])) > 1
        await store.leave(holder)
        assert await store.check() == []
        await clean(store, open_media(store=store), session_id, actor="test", force=True)


async def test_an_empty_session_comes_back(store: Store):
    session = await store.create_session(agent="scribe", owner="ada")
    await there_and_back(store, session.id)


async def test_a_large_session_comes_back(store: Store):
    """10,000 events, a blob of several lines, a message larger than a page."""
    media = open_media(store=store)
    session_id = await fill(store, media, ['é\U0001f600\\"\n'] * 3, blobs=[os.urandom(3 * BLOB_BYTES + 1)])
    holder = await store.join("writer", ttl=60)
    lease = await store.acquire(session_id, holder)
    for _ in range(10):
        await store.write(lease, Batch(events=[NewEvent(kind="tick", payload='{"n": 1}')] * 1000))
    await store.write(
        lease,
        Batch(
            segments=[Segment(number=3)],
            messages=[Message(segment=3, position=n, body=f'"{"x" * 2_000_000}"') for n in range(3)],
        ),
    )
    await store.leave(holder)
    archive = await there_and_back(store, session_id)
    assert json.loads(archive.splitlines()[-1])["end"]["counts"]["events"] > 10_000


async def test_engines_write_the_same_bytes(engine: Engine, store: Store):
    """A session moves to another store, and its archive there is the one it came in."""
    media = open_media(store=store)
    session_id = await fill(store, media, ["hello", "wörld"], blobs=[b"picture"])
    archive = await export(store, session_id)
    async with open_store("sqlite://:memory:") as other:
        moved = open_media(store=other)
        await import_archive(other, moved, io.BytesIO(archive), actor="test")
        assert await export(other, session_id) == archive
        assert await moved.get((await moved.list()).items[0].uri) == b"picture"
        with pytest.raises(SessionExists):
            await import_archive(other, moved, io.BytesIO(archive), actor="test")
        assert await other.check() == []
        # And the other way: what was made elsewhere, brought here.
        made = await fill(other, moved, ["elsewhere"], blobs=[b"another picture"])
        archive = await export(other, made)
        await import_archive(store, media, io.BytesIO(archive), actor="test")
        assert await export(store, made) == archive


async def test_a_compressed_archive_is_the_same_each_time(store: Store):
    session_id = await fill(store, open_media(store=store), ["hello"] * 50)
    packed = await export(store, session_id, compress=True)
    assert await export(store, session_id, compress=True) == packed
    assert len(packed) < len(await export(store, session_id)) / 2
    media = open_media(store=store)
    before = await export(store, session_id)
    await clean(store, media, session_id, actor="test", force=True)
    await rehydrate(store, media, session_id, io.BytesIO(packed), actor="test")
    assert await export(store, session_id) == before


@pytest.mark.thorough
async def test_content_that_shrinks_a_thousandfold_comes_back(tmp_path: Path):
    """A blank picture, and a result that is all structure: no limit against hostile archives may refuse our own."""
    async with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        media = open_media(f"disk://{tmp_path}/media", store=store)
        session_id = await fill(store, media, ["hello"], blobs=[bytes(100 * 1024 * 1024)])
        holder = await store.join("next", ttl=60)
        lease = await store.acquire(session_id, holder)
        rows = [[0] * 12] * 100_000
        message = Message(segment=3, position=0, body=json.dumps(rows))
        await store.write(lease, Batch(segments=[Segment(number=3)], messages=[message]))
        await store.leave(holder)
        cleaned = await clean(store, media, session_id, actor="test", force=True, archive="media")
        assert cleaned.archive is not None
        assert (await media.metadata(cleaned.archive)).size < 4_000_000
        await rehydrate(store, media, session_id, actor="test")
        (back,) = await store.history(session_id, segment=3, length=1)
        assert back == message


async def test_a_message_that_no_archive_could_bring_back_is_refused(store: Store):
    lease, _ = await held_session(store)
    message = Message(segment=1, position=0, body=f"[{'0,' * 2_000_001}0]")
    with pytest.raises(BadText, match="has more than 2,000,000 values"):
        await store.write(lease, Batch(segments=[Segment(number=1)], messages=[message]))


async def test_an_archive_in_the_media_store_survives_the_collector(store: Store):
    media = open_media(store=store)
    session_id = await fill(store, media, ["hello"], blobs=[b"picture"])
    before = await export(store, session_id)
    cleaned = await clean(store, media, session_id, actor="test", force=True, archive="media")
    await collect(media, grace=0)
    assert [blob.uri for blob in (await media.list()).items] == [cleaned.archive]
    again = await clean(store, media, session_id, actor="test", force=True, archive="media")
    assert (again.archive, again.cleaned_at, again.deleted) == (cleaned.archive, cleaned.cleaned_at, {})
    await rehydrate(store, media, session_id, actor="test")
    assert await export(store, session_id) == before
    with pytest.raises(NotCleaned):
        await rehydrate(store, media, session_id, io.BytesIO(before), actor="test")
    assert [entry.action for entry in (await store.audit_log()).items] == ["rehydrate", "clean"]


@pytest.mark.parametrize("later", ["title", "metadata", "cursors"])
async def test_an_archive_older_than_the_last_change_is_refused(store: Store, later: str):
    media = open_media(store=store)
    session_id = await fill(store, media, ["hello"])
    older = await export(store, session_id)
    match later:
        case "title":
            await store.update_session(session_id, title="A later title")
        case "metadata":
            await store.update_session(session_id, metadata='{"case": 12}')
        case _:
            await store.set_cursor(session_id, "reader", 2)
    newest = await export(store, session_id)
    await clean(store, media, session_id, actor="test", force=True)
    with pytest.raises(BadArchive, match=f"its {later} differ"):
        await rehydrate(store, media, session_id, io.BytesIO(older), actor="test")
    with pytest.raises(BadArchive, match=f"its {later} differ"):
        await import_archive(store, media, io.BytesIO(older), actor="test")
    assert (await store.session(session_id)).status == "cleaned"
    assert (await rehydrate(store, media, session_id, io.BytesIO(newest), actor="test")).restored["events"]
    assert await export(store, session_id) == newest
    await clean(store, media, session_id, actor="test", force=True)
    await rehydrate(store, media, session_id, io.BytesIO(older), actor="test", force=True)
    assert await export(store, session_id) == older
    assert json.loads((await store.audit_log()).items[0].detail)["force"] is True


async def test_an_export_is_one_cut(store: Store):
    """What is written while an archive is being read is not in it."""
    session_id = await fill(store, open_media(store=store), ["hello"] * 2000)
    before = await export(store, session_id)
    pieces = write_archive(store, open_media(store=store), session_id)
    read = [await anext(pieces) for _ in range(2)]
    holder = await store.join("writer", ttl=60)
    lease = await store.acquire(session_id, holder)
    await store.write(lease, Batch(events=[NewEvent(kind="tick")] * 10))
    await store.set_state(session_id, '"later"', expected_version=1)
    read += [piece async for piece in pieces]
    assert b"".join(read) == before
    await store.leave(holder)


async def test_a_failed_session_comes_back_with_its_reason(engine: Engine):
    async with open_store(engine.url) as store:
        session_id = await fill(store, open_media(store=store), ["hello"])
        lease = await store.acquire(session_id, await store.join("runner", ttl=60))
        await store.write(lease, Batch(status="failed", error="ValueError: no", release=True))
        await there_and_back(store, session_id)
        assert (await store.session(session_id)).error == "ValueError: no"
