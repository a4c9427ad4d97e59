"""Promise 9. Gone is gone: after clean or erase no content is left in any table, blob, draft or file."""

import asyncio
import io
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import asyncpg
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient

from holdfast.errors import (
    Conflict,
    LeaseLost,
    RetentionRefused,
    SessionCleaned,
    SessionErased,
    SessionNotFound,
)
from holdfast.media import collect, open_media
from holdfast.retention import clean, erase, import_archive, rehydrate, write_archive
from holdfast.store import Store, open_store
from holdfast.types import Batch, Message, NewEvent, Run, Segment
from tests.builders import held_session, new_session, until
from tests.conftest import Engine
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export

MARK = "mark-of-content-93b1"


async def everything(engine: Engine, store: Store, folder: Path) -> bytes:
    """Return all that is stored, as bytes: the files of SQLite, every row of PostgreSQL, every document of MongoDB."""
    if engine.name == "mongodb":
        async with AsyncMongoClient[RawBSONDocument](engine.url, document_class=RawBSONDocument) as client:
            database = client.get_default_database()
            names = await database.list_collection_names()
            found = [document.raw for name in names async for document in database[name].find({})]
        files = [file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()]
        return b"".join([*found, *files])
    if engine.name == "postgres":
        connection = await asyncpg.connect(engine.url, server_settings={"search_path": "holdfast"})
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'")
        found = b""
        for table in tables:
            for row in await connection.fetch(f"SELECT * FROM {table['tablename']}"):
                found += b"\n".join(v if isinstance(v, bytes) else str(v).encode() for v in row.values())
        await connection.close()
        return found
    return b"".join(file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file())


@pytest.mark.processes
@pytest.mark.parametrize("how", ["clean", "erase"])
@pytest.mark.parametrize("kept_in", ["database", "disk"])
async def test_no_content_is_left(engine: Engine, tmp_path: Path, how: str, kept_in: str):
    async with open_store(engine.url) as store:
        url = "database" if kept_in == "database" else f"disk://{tmp_path}/media"
        media = open_media(url, store=store)
        other = await fill(store, media, ["another"] * 50)
        session_id = await fill(
            store, media, [f"{MARK} {n} " + "x" * n for n in range(300)], blobs=[MARK.encode() * 20_000]
        )
        holder = await store.join("writer", ttl=60)
        lease = await store.acquire(session_id, holder)
        await store.write(
            lease,
            Batch(
                segments=[Segment(number=3)],
                messages=[Message(segment=3, position=n, body=f'"{MARK * 5000}"') for n in range(20)],
            ),
        )
        await store.leave(holder)
        assert MARK.encode() in await everything(engine, store, tmp_path)
        await store.shrink(limit=1)  # so that all of it is in the file
        size = (tmp_path / "store.db").stat().st_size if engine.name == "sqlite" else 0
        if how == "clean":
            await clean(store, media, session_id, actor="test", force=True)
        else:
            await clean(store, media, session_id, actor="test", force=True, archive="media")
            await erase(store, media, session_id, actor="test")
        await collect(media, grace=0)  # the media is young: somebody else might be about to refer to it
        found = await everything(engine, store, tmp_path)
        assert found.count(MARK.encode()) == 0
        assert b"another" in found
        if engine.name == "sqlite":
            assert (tmp_path / "store.db").stat().st_size < size / 2
        assert (await store.session(other)).status == "idle"
        assert await store.check() == []


async def test_late_writers_are_refused(store: Store):
    media = open_media(store=store)
    lease, holder = await held_session(store)
    session_id = lease.session_id
    await store.write(lease, Batch(events=[NewEvent(kind="tick")]))
    await store.release(lease)
    lease.lost = False
    await clean(store, media, session_id, actor="test", force=True)
    for late in (
        store.write(lease, Batch(events=[NewEvent(kind="tick")])),
        store.submit(session_id, "message"),
        store.acquire(session_id, holder),
        store.set_state(session_id, "{}", expected_version=0),
        store.set_cursor(session_id, "reader", 1),
        store.update_session(session_id, title="again"),
    ):
        with pytest.raises((LeaseLost, SessionCleaned)):
            await late
    assert await store.content_counts(session_id) == {}


async def test_what_was_erased_does_not_come_back(store: Store):
    media = open_media(store=store)
    session_id = await fill(store, media, ["hello"], blobs=[b"shared", b"own"])
    other = await fill(store, media, ["hello"], blobs=[b"shared"])
    archive = await export(store, session_id)
    first = await erase(store, media, session_id, actor="ada")
    assert first.deleted["events"] > 0
    again = await erase(store, media, session_id, actor="ada")
    assert (again.erased_at, again.deleted) == (first.erased_at, {})
    assert [blob.size for blob in (await media.list()).items] == [6]
    with pytest.raises(SessionNotFound):
        await store.session(session_id)
    with pytest.raises(SessionNotFound):
        await store.submit(session_id, "message")
    for exist_ok in (True, False):
        with pytest.raises(SessionErased):
            await store.create_session(agent="a", owner="o", id=session_id, exist_ok=exist_ok)
    for back in (
        rehydrate(store, media, session_id, io.BytesIO(archive), actor="ada"),
        import_archive(store, media, io.BytesIO(archive), actor="ada"),
        clean(store, media, session_id, actor="ada"),
    ):
        with pytest.raises((SessionErased, SessionNotFound)):
            await back
    (entry,) = (await store.audit_log(session_id=session_id)).items
    assert (entry.actor, entry.action) == ("ada", "erase")
    assert await export(store, other)


async def test_children_go_when_asked(store: Store):
    media = open_media(store=store)
    lease, holder = await held_session(store)
    await store.write(lease, Batch(runs=[Run(id="parent", status="completed")]))
    child = await store.acquire(await new_session(store, id="child"), holder)
    await store.write(child, Batch(runs=[Run(id="delegate", parent_id="parent", status="completed")]))
    await store.leave(holder)
    erased = await erase(store, media, lease.session_id, actor="test", children=True)
    assert [gone.session_id for gone in erased.children] == ["child"]
    assert (await store.sessions()).items == []


async def test_each_guard_says_what_would_lift_it(store: Store):
    media = open_media(store=store)
    lease, holder = await held_session(store)
    session_id = lease.session_id

    async def refused(**how: bool | float) -> str:
        with pytest.raises(RetentionRefused) as caught:
            await clean(store, media, session_id, actor="test", **how)  # pyright: ignore[reportArgumentType]
        with pytest.raises(RetentionRefused) as dry:
            await clean(store, media, session_id, actor="test", dry_run=True, **how)  # pyright: ignore[reportArgumentType]
        assert dry.value.facts["guard"] == caught.value.facts["guard"]
        return str(caught.value.facts["guard"])

    assert await refused(force=True) == "running"
    with pytest.raises(RetentionRefused, match="running"):
        await erase(store, media, session_id, actor="test")
    await store.release(lease)
    assert await refused() == "idle"
    await store.set_cursor(session_id, "reader", 0)
    await store.submit(session_id, "message", id="s")
    assert await refused(idle_days=0) == "pending"
    lease = await store.acquire(session_id, holder)
    await store.take(lease)
    from holdfast.types import SubmissionChange

    await store.write(lease, Batch(submissions=[SubmissionChange(id="s", state="done")]))
    await store.release(lease)
    assert await refused(idle_days=0) == "cursor"
    await store.set_cursor(session_id, "reader", (await store.session(session_id)).seq)
    await store.update_session(session_id, hold=True)
    assert await refused(idle_days=0, force=True) == "hold"
    with pytest.raises(RetentionRefused, match="hold"):
        await erase(store, media, session_id, actor="test")
    await store.update_session(session_id, hold=False)
    would = await clean(store, media, session_id, actor="test", idle_days=0, dry_run=True)
    assert (await clean(store, media, session_id, actor="test", idle_days=0)).deleted == would.deleted


async def test_an_archive_that_cannot_be_stored_deletes_nothing(store: Store, tmp_path: Path):
    session_id = await fill(store, open_media(store=store), ["hello"])
    before = await export(store, session_id)
    (tmp_path / "file").write_text("in the way")
    media = open_media(f"disk://{tmp_path}/file/media", store=store)
    with pytest.raises(Exception, match=r".") as caught:
        await clean(store, media, session_id, actor="test", force=True, archive="media")
    assert not isinstance(caught.value, Conflict)
    assert await export(store, session_id) == before
    assert (await store.session(session_id)).status == "idle"


async def test_all_children_go_also_those_beyond_a_page(store: Store, monkeypatch: pytest.MonkeyPatch):
    lease, holder = await held_session(store)
    await store.write(lease, Batch(runs=[Run(id="parent")], events=[NewEvent(kind="tick")]))
    for number in range(5):
        child = await new_session(store, id=f"child-{number}")
        held = await store.acquire(child, holder)
        await store.write(held, Batch(runs=[Run(id=f"run-{number}", parent_id="parent")]))
        await store.release(held)
    await store.release(lease)
    monkeypatch.setattr(store, "child_sessions", partial(store.child_sessions, limit=2))
    erased = await erase(store, open_media(store=store), lease.session_id, actor="test", children=True)
    assert [gone.session_id for gone in erased.children] == [f"child-{number}" for number in range(5)]
    assert (await store.sessions()).items == []


async def test_what_is_erased_while_another_session_is_exported_goes_when_that_ends(tmp_path: Path):
    """The write-ahead log of SQLite has it for as long as a reader may need it, and no longer."""
    url = f"sqlite:///{tmp_path}/s.db"
    files = [tmp_path / "s.db", tmp_path / "s.db-wal"]
    async with open_store(url) as store:
        media = open_media(store=store)
        marked = await fill(store, media, [MARK * 20])
        other = await fill(store, media, ["hello"] * 100)
        pieces = write_archive(store, media, other)
        await anext(pieces)
        await erase(store, media, marked, actor="test")
        assert any(MARK.encode() in file.read_bytes() for file in files)
        task = asyncio.ensure_future(anext(pieces))
        await asyncio.sleep(0)
        task.cancel()  # as when a client leaves
        await asyncio.gather(task, return_exceptions=True)
        await pieces.aclose()

        async def is_gone() -> bool:
            return not any(MARK.encode() in file.read_bytes() for file in files)

        await until(is_gone, 10)


async def test_what_a_process_erased_goes_when_the_reader_of_another_process_ends(tmp_path: Path):
    """As with a command that erases while an export runs. Another process, such as a worker, has the store open all the time."""
    files = [tmp_path / "s.db", tmp_path / "s.db-wal"]
    url = f"sqlite:///{files[0]}"
    async with open_store(url) as worker:
        marked = await fill(worker, open_media(store=worker), [MARK * 20])
        with closing(sqlite3.connect(files[0], isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sessions").fetchall()
            async with open_store(url) as command:
                await erase(command, open_media(store=command), marked, actor="test")
            assert any(MARK.encode() in file.read_bytes() for file in files)

        async def is_gone() -> bool:
            return not any(MARK.encode() in file.read_bytes() for file in files)

        await until(is_gone, 20)


async def test_an_archive_is_deleted_when_its_session_is_restored(store: Store):
    """Then the session is its only copy, and erasing it leaves nothing."""
    media = open_media(store=store)
    session_id = await fill(store, media, ["hello"])
    await clean(store, media, session_id, actor="test", force=True, archive="media")
    assert len((await store.blobs(location=media.location)).items) == 1
    await rehydrate(store, media, session_id, actor="test")
    assert (await store.blobs(location=media.location)).items == []


@pytest.mark.parametrize("kept_in", ["database", "disk"])
async def test_large_content_is_gone_right_after_a_clean(engine: Engine, tmp_path: Path, kept_in: str):
    """With the default grace period, which is for media that nobody refers to yet."""
    async with open_store(engine.url) as store:
        assert store.settings.media_grace_seconds > 0
        url = "database" if kept_in == "database" else f"disk://{tmp_path}/media"
        media = open_media(url, store=store)
        session_id = await fill(store, media, ["hello"], blobs=[MARK.encode() * 20_000])
        await clean(store, media, session_id, actor="test", force=True)
        assert (await store.blobs(location=media.location)).items == []
        if kept_in == "disk":
            left = [file for file in (tmp_path / "media").rglob("*") if file.is_file()]
            assert not any(MARK.encode() in file.read_bytes() for file in left)


async def test_a_restore_uploads_media_again_that_a_clean_deleted_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    media = open_media(store=store)
    blob = MARK.encode() * 20_000
    session_id = await fill(store, media, ["hello"], blobs=[blob])
    other = await fill(store, media, ["hello"], blobs=[blob])
    before = await export(store, session_id)
    await clean(store, media, session_id, actor="test", force=True)
    import_rows = store.import_rows

    async def after_a_clean(*arguments: object, **options: object) -> object:
        monkeypatch.undo()
        await clean(store, media, other, actor="test", force=True)
        return await import_rows(*arguments, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(store, "import_rows", after_a_clean)
    await rehydrate(store, media, session_id, io.BytesIO(before), actor="test")
    assert await export(store, session_id) == before
