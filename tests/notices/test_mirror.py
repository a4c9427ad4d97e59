"""The mirror: files that contain exactly the journals, and nothing of sessions that were cleaned or erased."""

import asyncio
import errno
import io
import json
import os
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.models import event_json
from holdfast.config import load_settings
from holdfast.errors import BadSettings
from holdfast.media import open_media
from holdfast.notices import mirror
from holdfast.notices.mirror import keep_mirroring
from holdfast.notices.mirror_folder import MARK, MirrorFolder
from holdfast.retention import clean, erase, rehydrate
from holdfast.store import Store, open_store
from holdfast.store.mirrored import MirrorPosition
from holdfast.types import Batch, Event, NewEvent, Run
from tests.builders import held_session, new_session, ticks, until
from tests.conftest import Engine
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export

DAY = datetime(2026, 11, 19, 12, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mirror, "POLL_SECONDS", 0.2)
    return tmp_path / "journals"


@pytest.fixture
async def store(engine: Engine, folder: Path) -> AsyncGenerator[Store, None]:
    async with open_store(engine.url, settings=load_settings(mirror=folder)) as store:
        yield store
        assert await store.check() == []


@asynccontextmanager
async def mirroring(store: Store) -> AsyncGenerator[None, None]:
    task = asyncio.create_task(keep_mirroring(store))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def files(folder: Path, session_id: str) -> list[Path]:
    return sorted(folder.glob(f"*/{session_id}.jsonl"))


def content(folder: Path, session_id: str) -> bytes:
    return b"".join(file.read_bytes() for file in files(folder, session_id))


async def journal(store: Store, session_id: str) -> bytes:
    """Return the events of a session as the HTTP API sends them, each with the session, one in a line."""
    lines: list[str] = []
    while events := await store.events(session_id, after=len(lines)):
        lines += [f'{{"session_id":"{session_id}",{event_json(event)[1:]}\n' for event in events]
    return "".join(lines).encode()


async def followed(store: Store, folder: Path, *session_ids: str) -> None:
    async def is_same() -> bool:
        for each in session_ids:
            if content(folder, each) != await journal(store, each):
                return False
        return True

    await until(is_same)


def event(seq: int, at: datetime = DAY, payload: str = "{}", session_id: str = "s1") -> Event:
    return Event(
        session_id=session_id,
        seq=seq,
        kind="tick",
        run_id=None,
        step=None,
        at=at,
        payload=payload,
        message=None,
    )


@pytest.fixture
def locked(folder: Path) -> Any:
    locked = MirrorFolder(folder)
    assert locked.lock()
    yield locked
    locked.close()


async def test_the_files_contain_the_journals(store: Store, folder: Path):
    media = open_media(store=store)
    old = await fill(store, media, ["hello", "ä\u2028ö \\u0000", "x" * 200_000] * 5)
    async with mirroring(store):
        await followed(store, folder, old)
        lease, _ = await held_session(store)
        for _ in range(5):
            await store.write(lease, ticks(3))
            await followed(store, folder, old, lease.session_id)
        await store.write(lease, ticks(1500))  # several pages
        await followed(store, folder, lease.session_id)
    lines = content(folder, lease.session_id).splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(1, 1516))
    assert json.loads(lines[0]).keys() >= {"session_id", "seq", "kind", "run_id", "step", "at", "payload"}
    assert b"hello" in content(folder, old)
    # After a pause, also in another process, it continues where it was.
    await store.write(lease, ticks(2))
    async with mirroring(store):
        await followed(store, folder, lease.session_id)


async def test_only_the_owner_can_read_the_files(store: Store, folder: Path):
    session_id = await fill(store, open_media(store=store), ["hello"])
    async with mirroring(store):
        await followed(store, folder, session_id)
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0


async def test_a_payload_with_line_breaks_is_one_line(store: Store, folder: Path):
    lease, _ = await held_session(store)
    await store.write(lease, Batch(events=[NewEvent(kind="tick", payload='{\r\n "a": "b\\n"\n}')] * 2))
    async with mirroring(store):
        await wait_for(lambda: len(content(folder, lease.session_id).splitlines()) == 2)
    assert [json.loads(line)["payload"] for line in content(folder, lease.session_id).splitlines()] == [
        {"a": "b\n"}
    ] * 2


def pause_before_append(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Pause the writer after it has read events. Return events: it has read them, and it may continue."""
    reading, going = threading.Event(), threading.Event()
    append: Callable[..., MirrorPosition] = MirrorFolder.append

    def paused(self: MirrorFolder, position: MirrorPosition, events: list[Event]) -> MirrorPosition:
        reading.set()
        assert going.wait(30)
        return append(self, position, events)

    monkeypatch.setattr(MirrorFolder, "append", paused)
    return reading, going


async def wait_for(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await until(holds)


def test_each_day_has_a_file_and_the_order_stays(locked: MirrorFolder, folder: Path):
    events = [
        event(1),
        event(2, DAY + timedelta(hours=11, minutes=59)),
        event(3, DAY + timedelta(hours=12)),
        event(4, DAY),  # the clock of the database went back
        event(5, DAY + timedelta(days=300)),
    ]
    position = locked.append(MirrorPosition("s1"), events[:2])
    for each in events[2:]:
        position = locked.append(position, [each])
    assert [file.parent.name for file in files(folder, "s1")] == ["2026-11-19", "2026-11-20", "2027-09-15"]
    assert [json.loads(line)["seq"] for line in content(folder, "s1").splitlines()] == [1, 2, 3, 4, 5]
    at_once = locked.append(MirrorPosition("s2"), [replace(each, session_id="s2") for each in events])
    assert replace(at_once, session_id="s1") == position
    assert content(folder, "s2") == content(folder, "s1").replace(b'"s1"', b'"s2"')


def test_what_was_not_recorded_is_written_again(locked: MirrorFolder, folder: Path):
    """As after a crash between the append and its record, or in the middle of a line."""
    first = locked.append(MirrorPosition("s1"), [event(1), event(2)])
    locked.append(first, [event(3), event(4, DAY + timedelta(days=1))])
    (file, _) = files(folder, "s1")
    with file.open("ab") as stream:
        stream.write(b'{"torn')
    again = locked.append(first, [event(3), event(4, DAY + timedelta(days=1)), event(5, DAY)])
    assert [json.loads(line)["seq"] for line in content(folder, "s1").splitlines()] == [1, 2, 3, 4, 5]
    assert again.seq == 5


@pytest.mark.parametrize("how", ["shortened", "deleted"])
async def test_a_damaged_file_is_written_again_from_the_start(
    store: Store, folder: Path, how: str, caplog: pytest.LogCaptureFixture
):
    lease, _ = await held_session(store)
    await store.write(lease, ticks(5))
    async with mirroring(store):
        await followed(store, folder, lease.session_id)
        (file,) = files(folder, lease.session_id)
        if how == "deleted":
            file.unlink()
        else:
            os.truncate(file, 10)
        await store.write(lease, ticks(1))
        await followed(store, folder, lease.session_id)
    assert "is written again" in caplog.text


def test_one_process_at_a_time_writes(locked: MirrorFolder, folder: Path):
    second = MirrorFolder(folder)
    assert not second.lock()
    locked.close()
    assert second.lock()
    assert second.name == locked.name
    assert second.is_locked()
    assert not locked.is_locked()
    second.close()


def test_a_folder_that_was_replaced_is_not_locked(locked: MirrorFolder, folder: Path):
    folder.rename(folder.with_name("old"))
    assert not locked.is_locked()
    new = MirrorFolder(folder)
    assert new.lock()
    assert new.name != locked.name
    assert not locked.is_locked()
    new.close()


def test_journals_of_an_unknown_mirror_are_refused(locked: MirrorFolder, folder: Path):
    locked.append(MirrorPosition("s1"), [event(1)])
    locked.close()
    (folder / MARK).unlink()
    with pytest.raises(BadSettings, match="Delete the journals"):
        MirrorFolder(folder).lock()


def test_a_file_system_that_ignores_case_is_refused(folder: Path):
    folder.mkdir()
    (folder / MARK.upper()).touch()
    with pytest.raises(BadSettings, match="ignores case"):
        MirrorFolder(folder).lock()


def test_links_are_not_followed(locked: MirrorFolder, folder: Path, tmp_path: Path):
    (tmp_path / "other").write_text("precious")
    (folder / "2026-11-19").mkdir()
    (folder / "2026-11-19" / "s1.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=r"symbolic links"):
        locked.append(MirrorPosition("s1"), [event(1)])
    assert (tmp_path / "other").read_text() == "precious"


def test_the_setting_is_an_absolute_path():
    with pytest.raises(BadSettings, match="absolute path"):
        load_settings(mirror="journals")


@pytest.mark.parametrize("how", ["clean", "erase"])
@pytest.mark.parametrize("who", ["worker", "command"])
async def test_a_clean_deletes_the_files(store: Store, folder: Path, how: str, who: str):
    media = open_media(store=store)
    session_id, other = [await fill(store, media, ["hello"]) for _ in range(2)]
    async with mirroring(store):
        await followed(store, folder, session_id, other)
        if who == "worker":
            await _delete(store, how, session_id)
    if who == "command":
        await _delete(store, how, session_id)
    assert files(folder, session_id) == []
    assert await store.undeleted_files(session_id) == []
    assert content(folder, other) == await journal(store, other)


async def _delete(store: Store, how: str, session_id: str) -> None:
    media = open_media(store=store)
    if how == "clean":
        assert not (await clean(store, media, session_id, actor="test", force=True)).files_pending
    else:
        assert not (await erase(store, media, session_id, actor="test")).files_pending


async def test_an_erasure_deletes_the_files_of_children(store: Store, folder: Path):
    lease, holder = await held_session(store)
    await store.write(lease, Batch(runs=[Run(id="parent", status="completed")], events=[NewEvent(kind="a")]))
    child = await new_session(store, id="child")
    held = await store.acquire(child, holder)
    await store.write(held, Batch(runs=[Run(id="run", parent_id="parent")], events=[NewEvent(kind="a")]))
    async with mirroring(store):
        await followed(store, folder, lease.session_id, child)
        await store.leave(holder)
        media = open_media(store=store)
        erased = await erase(store, media, lease.session_id, actor="test", children=True)
        assert len(erased.children) == 1
        assert not erased.files_pending
        assert list(folder.rglob("*.jsonl")) == []


async def test_a_clean_without_the_folder_waits_for_the_worker(
    store: Store, engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """The process that cleans may be on another host."""
    if not engine.shared:
        pytest.skip("two stores")
    session_id = await fill(store, open_media(store=store), ["hello"])
    async with mirroring(store):
        await followed(store, folder, session_id)
    async with open_store(engine.url, settings=load_settings()) as elsewhere:
        media = open_media(store=elsewhere)
        monkeypatch.setattr(mirror, "PATIENCE_SECONDS", 0.3)
        cleaned = await clean(elsewhere, media, session_id, actor="test", force=True)
        assert cleaned.files_pending
        assert files(folder, session_id) != []
        monkeypatch.setattr(mirror, "PATIENCE_SECONDS", 30)
        async with mirroring(store):
            again = await clean(elsewhere, media, session_id, actor="test")
        assert not again.files_pending
        assert files(folder, session_id) == []


@pytest.mark.parametrize("how", ["clean", "erase"])
async def test_events_that_were_read_before_a_clean_are_deleted(
    store: Store, folder: Path, how: str, monkeypatch: pytest.MonkeyPatch
):
    """The writer is paused between its read and its append, for longer than a clean waits."""
    session_id = await fill(store, open_media(store=store), ["hello"])
    reading, going = pause_before_append(monkeypatch)
    monkeypatch.setattr(mirror, "PATIENCE_SECONDS", 0.3)
    media = open_media(store=store)
    async with mirroring(store):
        await wait_for(reading.is_set)
        if how == "clean":
            gone = await clean(store, media, session_id, actor="test", force=True)
        else:
            gone = await erase(store, media, session_id, actor="test")
        assert gone.files_pending  # the folder is locked, so nobody can delete them yet
        going.set()

        async def is_deleted() -> bool:
            return await store.undeleted_files(session_id) == []

        await until(is_deleted)
        assert files(folder, session_id) == []
    assert (await store.mirrors()).keys() == set()


async def test_a_cancelled_writer_keeps_the_lock_until_its_append_has_ended(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    session_id = await fill(store, open_media(store=store), ["hello"])
    reading, going = pause_before_append(monkeypatch)
    async with mirroring(store):
        await wait_for(reading.is_set)
    monkeypatch.setattr(mirror, "PATIENCE_SECONDS", 0.3)
    media = open_media(store=store)
    assert (await clean(store, media, session_id, actor="test", force=True)).files_pending
    going.set()
    assert not (
        await mirror.delete_files(store, [session_id])
    )  # nobody else has the lock, so this process deletes them
    assert files(folder, session_id) == []


async def test_a_second_writer_without_working_locks_leaves_no_content(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """As on a network file system that lost the lock of a paused host: the first writer continues after the second has deleted the files."""
    session_id = await fill(store, open_media(store=store), ["hello"])
    reading, going = pause_before_append(monkeypatch)
    written: list[bool] = []
    append: Callable[..., MirrorPosition] = MirrorFolder.append

    def observed(self: MirrorFolder, position: MirrorPosition, events: list[Event]) -> MirrorPosition:
        reached = append(self, position, events)
        written.append(files(folder, session_id) != [])
        return reached

    monkeypatch.setattr(MirrorFolder, "append", observed)
    async with mirroring(store):
        await wait_for(reading.is_set)
        (name,) = await store.mirrors()
        holder = await store.join("retention", ttl=60)
        media = open_media(store=store)
        await clean(store, media, session_id, actor="test", force=True, holder=holder)
        await store.leave(holder)
        await store.forget_files(name, [session_id])
        going.set()
        await wait_for(lambda: bool(written))
        assert written == [True], "the late writer has written"
        await wait_for(lambda: files(folder, session_id) == [])


async def test_a_restored_session_has_its_files_again(store: Store, folder: Path):
    media = open_media(store=store)
    session_id = await fill(store, media, ["hello"])
    archive = await export(store, session_id)
    async with mirroring(store):
        await followed(store, folder, session_id)
        before = content(folder, session_id)
        await clean(store, media, session_id, actor="test", force=True)
        assert content(folder, session_id) == b""
        await rehydrate(store, media, session_id, io.BytesIO(archive), actor="test")
        await followed(store, folder, session_id)
    assert content(folder, session_id) == before


async def test_a_full_disk_loses_nothing(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    session_id, gone = [await fill(store, open_media(store=store), ["hello"]) for _ in range(2)]
    async with mirroring(store):
        await followed(store, folder, session_id, gone)
        pwrite = os.pwrite
        writes = 0

        def full(descriptor: int, data: bytes, offset: int) -> int:
            nonlocal writes
            writes += 1
            if writes % 2:
                return pwrite(descriptor, data[:10], offset)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "pwrite", full)
        lease = await store.acquire(session_id, await store.join("writer", ttl=60))
        await store.write(lease, ticks(3))
        await wait_for(lambda: writes >= 6)
        # Files are deleted although the disk is full.
        await clean(store, open_media(store=store), gone, actor="test", force=True)
        assert files(folder, gone) == []
        monkeypatch.setattr(os, "pwrite", pwrite)
        await followed(store, folder, session_id)
    assert caplog.text.count("No space left on device") == 1


async def test_a_folder_that_cannot_be_used_is_tried_again(
    store: Store, folder: Path, caplog: pytest.LogCaptureFixture
):
    session_id = await fill(store, open_media(store=store), ["hello"])
    folder.write_text("a file")
    async with mirroring(store):
        await wait_for(lambda: "the mirror is behind" in caplog.text)
        await asyncio.sleep(0.5)
        folder.unlink()
        await followed(store, folder, session_id)
    assert caplog.text.count("the mirror is behind") == 1


async def test_one_session_that_fails_does_not_stop_the_others(store: Store, folder: Path):
    ids = [await fill(store, open_media(store=store), ["hello"]) for _ in range(3)]
    today = (await store.now()).strftime("%Y-%m-%d")
    (folder / today / f"{ids[1]}.jsonl").mkdir(parents=True)
    (folder / MARK).write_text("m")
    async with mirroring(store):
        await followed(store, folder, ids[0], ids[2])


async def test_many_sessions_are_followed(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """More than are compared at once, more than are followed before the next look, and all at the same time."""
    monkeypatch.setattr(mirror, "_SESSIONS", 4)
    monkeypatch.setattr(store, "mirror_work", partial(store.mirror_work, limit=5))
    holder = await store.join("writer", ttl=60)
    ids: list[str] = []
    async with mirroring(store):
        for _ in range(23):
            ids.append((await store.create_session(agent="a", owner="o")).id)
            lease = await store.acquire(ids[-1], holder)
            await store.write(lease, ticks(2))
            await store.release(lease)
        await followed(store, folder, *ids)


async def test_two_folders_are_two_mirrors(store: Store, engine: Engine, folder: Path, tmp_path: Path):
    if not engine.shared:
        pytest.skip("two stores")
    media = open_media(store=store)
    session_id = await fill(store, media, ["hello"])
    second = tmp_path / "second"
    async with (
        open_store(engine.url, settings=load_settings(mirror=second)) as other,
        mirroring(store),
        mirroring(other),
    ):
        await followed(store, folder, session_id)
        await followed(store, second, session_id)
        assert len(await store.mirrors()) == 2
        await erase(store, media, session_id, actor="test")
        assert list(folder.rglob("*.jsonl")) == list(second.rglob("*.jsonl")) == []
