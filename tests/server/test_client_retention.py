"""The client's methods of retention, against a real server, with `await` and without."""

import json
from pathlib import Path

import pytest

from holdfast.client import AsyncClient, Client, ServerError
from holdfast.errors import ArchiveFailed
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
    async with front(url, "--role", "front", retention=POLICIES) as server:
        async with server.client() as client:
            await round_trip(client, session_id, tmp_path, before)
        await in_a_thread(server.url, server.token, session_id, tmp_path, before)


async def round_trip(client: AsyncClient, session_id: str, folder: Path, before: bytes) -> None:
    file = folder / "talk"
    assert await client.export(session_id, file) == len(before)
    assert file.read_bytes() == before
    await client.export(session_id, folder / "talk.gz", gzip=True)
    assert b"".join([piece async for piece in client.archive(session_id)]) == before
    with pytest.raises(ArchiveFailed):
        await client.export(session_id, folder / "nowhere" / "talk")
    with pytest.raises(ServerError, match="There is no session"):
        await client.export("other", folder / "other")
    assert not (folder / "other").exists()
    for archive in (file, folder / "talk.gz"):
        dry = await client.clean(session_id, force=True, dry_run=True)
        assert (dry["dry_run"], dry["deleted"]["messages"]) == (True, 501)
        assert (await client.clean(session_id, force=True))["deleted"]["messages"] == 501
        with pytest.raises(ServerError, match="not_found"):
            await client.rehydrate(session_id)
        with pytest.raises(ArchiveFailed):
            await client.rehydrate(session_id, folder / "missing")
        assert (await client.rehydrate(session_id, archive))["restored"]["messages"] == 501
    assert b"".join([piece async for piece in client.archive(session_id)]) == before


async def in_a_thread(url: str, token: str, session_id: str, folder: Path, before: bytes) -> None:
    import asyncio

    def work() -> None:
        with Client(url, token) as client:
            assert client.retention(session_id)["policy"] == "all"
            assert client.hold(session_id)["hold"] is True
            assert client.sweep()["outcomes"] == {}
            client.hold(session_id, False)
            assert client.sweep(dry_run=True)["outcomes"] == {"dry_run": 1}
            assert client.sweep()["outcomes"] == {"cleaned": 1}
            client.rehydrate(session_id)
            assert b"".join(client.archive(session_id)) == before
            assert client.export(session_id, folder / "again") == len(before)
            assert client.clean(session_id, force=True)["archive"] is None
            assert client.erase(session_id, children=True)["children"] == []
            actions = [entry["action"] for entry in client.audit(session_id=session_id)["items"]]
            assert actions[:5] == ["erase", "clean", "rehydrate", "clean", "lift hold"]

    await asyncio.to_thread(work)
