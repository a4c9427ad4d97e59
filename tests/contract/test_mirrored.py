"""How far a mirror follows each session, which sessions have new events, and which files must be deleted."""

import io

import pytest

from holdfast.media import open_media
from holdfast.retention import clean, erase, rehydrate
from holdfast.store import Store
from holdfast.store.mirrored import MirrorPosition, MirrorWork
from holdfast.types import Batch, NewEvent
from tests.builders import held_session, new_session, ticks
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export


async def found(store: Store, mirror: str = "m", **options: object) -> dict[str, tuple[int, int]]:
    """Return the sessions with new events: the last event in the files, and in the journal."""
    work = await store.mirror_work(mirror, **options)  # pyright: ignore[reportArgumentType]
    return {position.session_id: (position.seq, last) for position, last in work.behind}


async def test_a_session_is_found_until_its_files_follow_it(store: Store):
    lease, _ = await held_session(store)
    assert await found(store) == {}
    await store.write(lease, ticks(3))
    assert await found(store, after=None) == {lease.session_id: (0, 3)}
    assert (await store.mirror_work("m")).unknown == {lease.session_id}
    assert await store.begin_mirroring("m", lease.session_id)
    assert await store.begin_mirroring("m", lease.session_id)
    assert (await store.mirror_work("m")).unknown == frozenset()
    position = MirrorPosition(lease.session_id, seq=2, day=20_000, size=77)
    assert await store.record_mirrored("m", [position]) == []
    work = await store.mirror_work("m")
    assert work.behind == [(position, 3)]
    await store.record_mirrored("m", [MirrorPosition(lease.session_id, seq=3, day=20_000, size=99)])
    assert await found(store) == {}
    assert await found(store, "another") == {lease.session_id: (0, 3)}
    await store.write(lease, ticks(1))
    await store.release(lease)
    assert await found(store) == {lease.session_id: (3, 4)}


async def test_every_session_is_compared_page_by_page(store: Store):
    """Also those whose last activity is long ago, as after an import."""
    ids = [await fill(store, open_media(store=store), ["hello"], drafts=False) for _ in range(5)]
    archives = [await export(store, session_id) for session_id in ids]
    for session_id, archive in zip(ids, archives, strict=True):
        await clean(store, open_media(store=store), session_id, actor="test", force=True)
        await rehydrate(store, open_media(store=store), session_id, io.BytesIO(archive), actor="test")
    seen: list[str] = []
    pages = 0
    after = ""
    while pages == 0 or after:
        work = await store.mirror_work("m", after=after, limit=2)
        after = work.after
        pages += 1
        seen += [position.session_id for position, _ in work.behind]
    assert pages == 3
    assert set(seen) == set(ids)
    assert len(await found(store, also=ids[:1], after=None)) >= 1


async def test_those_that_were_left_come_first(store: Store):
    """So that sessions that are always active do not delay the others."""
    ids: list[str] = []
    for _ in range(3):
        lease, _ = await held_session(store)
        await store.write(lease, ticks(1))
        ids.append(lease.session_id)
    for last in ids:
        assert next(iter(await found(store, also=[last]))) == last


@pytest.mark.parametrize("how", ["clean", "erase"])
async def test_files_of_a_session_that_is_gone_must_be_deleted(store: Store, how: str):
    media = open_media(store=store)
    session_id = await fill(store, media, ["hello"])
    other = await fill(store, media, ["hello"])
    for mirror in ("m", "n"):
        for each in (session_id, other):
            assert await store.begin_mirroring(mirror, each)
    assert await store.undeleted_files(session_id) == []
    holder = await store.join("retention", ttl=60)  # a caller with a holder does not wait
    if how == "clean":
        cleaned = await clean(store, media, session_id, actor="test", force=True, holder=holder)
        assert cleaned.files_pending
    else:
        assert (await erase(store, media, session_id, actor="test", holder=holder)).files_pending
    assert sorted(await store.undeleted_files(session_id)) == ["m", "n"]
    assert await store.mirrors() == {"m": 1, "n": 1}
    work: MirrorWork = await store.mirror_work("m")
    assert work.deleting == [session_id]
    assert session_id not in await found(store)
    assert not await store.begin_mirroring("late", session_id)
    # What was being written at that moment is recorded and deleted later.
    assert await store.record_mirrored("m", [MirrorPosition(session_id, seq=9)]) == []
    await store.forget_files("m", [session_id, other])  # that of the other session must not be deleted
    assert await store.undeleted_files(session_id) == ["n"]
    assert await store.mirrors() == {"m": 0, "n": 1}
    assert await store.record_mirrored("m", [MirrorPosition(session_id, seq=9)]) == [session_id]
    assert await store.check() == []


async def test_a_session_that_does_not_exist_has_no_row(store: Store):
    assert not await store.begin_mirroring("m", "missing")
    assert await store.mirrors() == {}


async def test_a_mirror_can_be_forgotten(store: Store):
    ids = [await new_session(store) for _ in range(3)]
    for each in ids:
        await store.begin_mirroring("m", each)
        await store.begin_mirroring("n", each)
    assert await store.drop_mirror("m", limit=2) == 2
    assert await store.drop_mirror("m", limit=2) == 1
    assert await store.drop_mirror("m", limit=2) == 0
    assert await store.mirrors() == {"n": 0}


async def test_a_restored_session_is_mirrored_from_its_start(store: Store):
    media = open_media(store=store)
    session_id = await fill(store, media, ["hello"])
    archive = await export(store, session_id)
    await store.begin_mirroring("m", session_id)
    await store.record_mirrored("m", [MirrorPosition(session_id, seq=2, day=9, size=9)])
    holder = await store.join("retention", ttl=60)
    await clean(store, media, session_id, actor="test", force=True, holder=holder)
    await store.leave(holder)
    await rehydrate(store, media, session_id, io.BytesIO(archive), actor="test")
    assert session_id not in await found(store)  # its old files are deleted first
    await store.forget_files("m", [session_id])
    assert (await found(store))[session_id][0] == 0
    lease = await store.acquire(session_id, await store.join("writer", ttl=60))
    await store.write(lease, Batch(events=[NewEvent(kind="tick")]))
    assert (await found(store))[session_id][0] == 0
