"""Retention through the client, against a real server: asynchronous and blocking."""

import asyncio
import json
import stat
from pathlib import Path

import pytest

from holdfast import Client, connect, connect_sync
from holdfast.errors import ArchiveFailed, NotFound, SessionNotFound
from holdfast.media import open_media
from holdfast.store import open_store
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export
from tests.server.fronts import front

POLICIES = json.dumps(
    [{"name": "all", "agent": "*", "idle_days": 1e-9, "action": "archive", "rehydrated_days": 0}]
)


async def test_there_and_back(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with open_store(url) as store:
        session_id = await fill(store, open_media(store=store), ["hello"] * 500, blobs=[b"picture"])
        before = await export(store, session_id)
    async with front(url, "--role", "api", retention=POLICIES) as server:
        async with connect(server.url, token=server.token) as client:
            await round_trip(client, session_id, tmp_path, before)
        await in_a_thread(server.url, server.token, session_id, tmp_path, before)


async def round_trip(client: Client, session_id: str, folder: Path, before: bytes) -> None:
    session = await client.session(session_id)
    file = folder / "talk"
    for leftover in (file, folder / "talk.partial"):
        leftover.touch(0o644)
    assert await session.export(file) == len(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_bytes() == before
    await session.export(folder / "talk.gz", gzip=True)
    assert b"".join([piece async for piece in session.archive()]) == before
    with pytest.raises(ArchiveFailed):
        await session.export(folder / "nowhere" / "talk")
    for archive in (file, folder / "talk.gz"):
        dry = await session.clean(force=True, dry_run=True)
        assert (dry.dry_run, dry.deleted["messages"]) == (True, 501)
        assert (await session.clean(force=True)).deleted["messages"] == 501
        with pytest.raises(NotFound):
            await session.rehydrate()
        with pytest.raises(ArchiveFailed):
            await session.rehydrate(folder / "missing")
        assert (await session.rehydrate(archive)).restored["messages"] == 501
    assert b"".join([piece async for piece in session.archive()]) == before


async def in_a_thread(url: str, token: str, session_id: str, folder: Path, before: bytes) -> None:
    def work() -> None:
        with connect_sync(url, token=token) as client:
            session = client.session(session_id)
            assert session.retention().policy == "all"
            assert session.update(hold=True).hold
            assert client.sweep().outcomes == {}
            session.update(hold=False)
            assert client.sweep(dry_run=True).outcomes == {"dry_run": 1}
            assert client.sweep().outcomes == {"cleaned": 1}
            session.rehydrate()
            assert b"".join(session.archive()) == before
            assert session.export(folder / "again") == len(before)
            assert session.clean(force=True).archive is None
            assert session.erase(children=True).children == []
            with pytest.raises(SessionNotFound):
                session.export(folder / "other")
            assert not (folder / "other").exists()
            actions = [entry.action for entry in client.audit(session_id=session_id)]
            assert actions[:5] == ["erase", "clean", "rehydrate", "clean", "lift hold"]

    await asyncio.to_thread(work)
