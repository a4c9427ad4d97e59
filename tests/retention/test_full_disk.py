"""The disk is full while a session is archived or brought back: a clear error, nothing lost, nothing half-restored.

Real limits: the number of pages of the SQLite database, and the largest file that a process, or the server, may write.
"""

import base64
import io
import os
import resource
import sqlite3
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ArchiveFailed, HoldfastError, MediaError, StoreError
from holdfast.media import collect, open_media
from holdfast.retention import clean, import_archive, rehydrate
from holdfast.store import Store, open_store
from holdfast.types import Batch, Message, Segment
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export
from tests.servers import Postgres, postgres

MEGABYTE = 1024 * 1024
LARGEST_FILE = 20 * MEGABYTE
"""More than a segment of PostgreSQL's log, and less than what is written."""


async def large_session(store: Store, megabytes: int) -> str:
    """Make a session that does not get much smaller when it is compressed."""
    session_id = await fill(store, open_media(store=store), ["hello"])
    holder = await store.join("writer", ttl=60)
    lease = await store.acquire(session_id, holder)
    await store.write(lease, Batch(segments=[Segment(number=3)]))
    for position in range(megabytes):
        body = f'"{base64.b64encode(os.urandom(MEGABYTE * 3 // 4)).decode()}"'
        await store.write(lease, Batch(messages=[Message(segment=3, position=position, body=body)]))
    await store.leave(holder)
    return session_id


@dataclass
class Disk:
    """A store, and whether there is space for it."""

    url: str
    server: Postgres | None

    @asynccontextmanager
    async def full(self) -> AsyncGenerator[Store, None]:
        """Open the store where there is no space for more, until the end of the block."""
        if self.server is None:
            async with open_store(self.url) as store:
                pages = await pragma(store, "page_count")
                await pragma(store, f"max_page_count = {pages + 20}")
                yield store
            return
        self.server.stop()
        with smaller_files():  # which the server inherits
            self.server.start()
        async with open_store(self.url) as store:
            yield store
        self.server.stop()
        self.server.start()


@pytest.fixture(params=["sqlite", "postgres"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Disk, None, None]:
    if request.param == "sqlite":
        yield Disk(f"sqlite:///{tmp_path}/store.db", None)
        return
    with postgres() as server:
        yield Disk(server.url(), server)


@contextmanager
def smaller_files() -> Generator[None, None, None]:
    """Let this process write no large files until the end of the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def pragma(store: Any, text: str) -> int:
    def ask(connection: sqlite3.Connection) -> list[Any]:
        return connection.execute(f"PRAGMA {text}").fetchall()

    rows = await store._writer.submit(ask)
    return rows[0][0] if rows else 0


@pytest.mark.thorough("postgres")
async def test_while_it_is_archived(disk: Disk):
    size = 4 if disk.server is None else 32
    async with open_store(disk.url) as store:
        session_id = await large_session(store, size)
        before = await export(store, session_id)
    async with disk.full() as store:
        with pytest.raises((StoreError, MediaError)):
            await clean(store, open_media(store=store), session_id, actor="test", force=True, archive="media")
    async with open_store(disk.url) as store:
        found = await store.session(session_id)
        assert (found.status, found.cleaned_at, found.archive) == ("idle", None, None)
        assert await export(store, session_id) == before
        media = open_media(store=store)
        await collect(media, grace=0, dead_after=0)
        assert (await media.list()).items == [], "nothing half-written is kept"
        await clean(store, media, session_id, actor="test", force=True, archive="media")
        await rehydrate(store, media, session_id, actor="test")
        assert await export(store, session_id) == before
        assert await store.check() == []


async def test_while_it_is_brought_back(disk: Disk):
    size = 4 if disk.server is None else 32
    async with open_store(disk.url) as store:
        session_id = await large_session(store, size)
        before = await export(store, session_id)
        await clean(store, open_media(store=store), session_id, actor="test", force=True)
    async with disk.full() as store:
        with pytest.raises(HoldfastError) as caught:
            await rehydrate(store, open_media(store=store), session_id, io.BytesIO(before), actor="test")
        assert isinstance(caught.value, StoreError)
        assert (await store.session(session_id)).status == "cleaned"
        assert await store.content_counts(session_id) == {}
    async with open_store(disk.url) as store:
        media = open_media(store=store)
        await rehydrate(store, media, session_id, io.BytesIO(before), actor="test")
        assert await export(store, session_id) == before
        assert await store.check() == []


async def test_an_import_does_not_half_happen(tmp_path: Path):
    async with open_store("sqlite://:memory:") as source:
        session_id = await large_session(source, 4)
        archive = await export(source, session_id)
    async with open_store(f"sqlite:///{tmp_path}/other.db") as store:
        pages = await pragma(store, "page_count")
        await pragma(store, f"max_page_count = {pages + 100}")
        media = open_media(store=store)
        with pytest.raises(StoreError):
            await import_archive(store, media, io.BytesIO(archive), actor="test")
        assert (await store.sessions()).items == []
        assert await store.check() == []
        await pragma(store, "max_page_count = 1000000")
        await import_archive(store, media, io.BytesIO(archive), actor="test")
        assert await export(store, session_id) == archive


@pytest.mark.thorough
async def test_where_archives_and_temporary_files_are(tmp_path: Path):
    """The database has space; the folder of media, and that of temporary files, has not."""
    async with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        media = open_media(f"disk://{tmp_path}/media", store=store)
        session_id = await fill(store, media, ["hello"], blobs=[os.urandom(5 * MEGABYTE) for _ in range(5)])
        pieces = [piece async for piece in _archive(store, media, session_id)]
        with smaller_files(), pytest.raises(MediaError):
            await clean(store, media, session_id, actor="test", force=True, archive="media")
        assert (await store.session(session_id)).status == "idle"
        assert [piece async for piece in _archive(store, media, session_id)] == pieces
        await clean(store, media, session_id, actor="test", force=True, archive="media")
        with smaller_files(), pytest.raises(ArchiveFailed, match="File too large"):
            await rehydrate(store, media, session_id, actor="test")
        assert await store.content_counts(session_id) == {}
        await rehydrate(store, media, session_id, actor="test")
        assert [piece async for piece in _archive(store, media, session_id)] == pieces
        assert await store.check() == []


async def _archive(store: Store, media: Any, session_id: str) -> AsyncGenerator[bytes, None]:
    from holdfast.retention import write_archive

    async for piece in write_archive(store, media, session_id):
        yield piece
