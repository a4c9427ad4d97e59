"""Retention over HTTP: who may do what, and an archive that goes out and comes back."""

from collections.abc import AsyncGenerator

import httpx2
import pytest

from holdfast.config import load_settings
from holdfast.media import open_media
from holdfast.server.app import create_app
from holdfast.server.auth import digest
from holdfast.store import Store
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export

ADMIN, ADA, EVE = "admin-secret", "ada-secret", "eve-secret"


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@pytest.fixture
async def client(store: Store) -> AsyncGenerator[httpx2.AsyncClient, None]:
    await store.add_token(digest(ADMIN), owner="root", role="admin")
    await store.add_token(digest(ADA), owner="ada")
    await store.add_token(digest(EVE), owner="eve")
    app = create_app(load_settings(), store)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://here") as client:
        yield client


async def test_an_archive_goes_out_and_comes_back(client: httpx2.AsyncClient, store: Store):
    session_id = await fill(store, open_media(store=store), ["hello"] * 200, blobs=[b"picture"])
    path = f"/api/sessions/{session_id}"
    archive = (await client.get(f"{path}/export", headers=bearer(ADA))).content
    assert archive == await export(store, session_id)
    refused = await client.post(f"{path}/clean", json={}, headers=bearer(ADA))
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "retention_refused")
    for body in ({"force": True}, {"idle_days": 1}):
        assert (await client.post(f"{path}/clean", json=body, headers=bearer(ADA))).status_code == 403
    for body in ({"force": "yes"}, {"idle_day": 1}, {"archive": "disk"}):
        assert (await client.post(f"{path}/clean", json=body, headers=bearer(ADMIN))).status_code == 422
    force = {"force": True, "archive": "media"}
    cleaned = (await client.post(f"{path}/clean", json=force, headers=bearer(ADMIN))).json()
    assert cleaned["archive"].startswith("media+sha256://")
    assert cleaned["deleted"]["messages"] == 201
    assert (await client.get(f"{path}/export", headers=bearer(ADA))).status_code == 409
    broken = await client.post(f"{path}/rehydrate", content=archive[:-10], headers=bearer(ADA))
    assert (broken.status_code, broken.json()["error"]["code"]) == (422, "bad_archive")
    assert (await client.post(f"{path}/rehydrate", content=archive, headers=bearer(ADA))).status_code == 204
    assert await export(store, session_id) == archive
    await client.post(f"{path}/clean", json=force, headers=bearer(ADMIN))
    assert (await client.post(f"{path}/rehydrate", headers=bearer(ADA))).status_code == 204
    assert await export(store, session_id) == archive


async def test_others_may_not(client: httpx2.AsyncClient, store: Store):
    session_id = await fill(store, open_media(store=store), ["hello"])
    path = f"/api/sessions/{session_id}"
    for headers, status in ((bearer(EVE), 404), ({}, 401)):
        for answer in (
            await client.get(f"{path}/export", headers=headers),
            await client.post(f"{path}/clean", json={"idle_days": 30}, headers=headers),
            await client.post(f"{path}/rehydrate", content=b"x", headers=headers),
            await client.delete(path, headers=headers),
        ):
            assert answer.status_code == status
    erased = await client.delete(path, headers=bearer(ADA))
    assert erased.json()["deleted"]["events"] > 0
    assert (await client.get(path, headers=bearer(ADA))).status_code == 404
    entries = (await client.get("/api/audit", headers=bearer(ADMIN))).json()["items"]
    assert [(entry["actor"], entry["action"]) for entry in entries] == [("ada", "erase")]
