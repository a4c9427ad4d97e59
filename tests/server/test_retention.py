"""Retention over HTTP: who may do what, and an archive that goes out and comes back."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import httpx2
import pytest

from holdfast.config import load_settings
from holdfast.media import open_media
from holdfast.server import retention
from holdfast.server.app import create_app
from holdfast.server.auth import digest
from holdfast.store import Store, open_store
from holdfast.types import Batch, Run
from tests.builders import until
from tests.conftest import Engine
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export
from tests.server.serving import serving

ADMIN, ADA, EVE = "admin-secret", "ada-secret", "eve-secret"


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@asynccontextmanager
async def serve(store: Store) -> AsyncGenerator[httpx2.AsyncClient, None]:
    for secret, owner, role in ((ADMIN, "root", "admin"), (ADA, "ada", "user"), (EVE, "eve", "user")):
        await store.add_token(digest(secret), owner=owner, role=role)  # pyright: ignore[reportArgumentType]
    app = create_app(store.settings, store)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://here") as client:
        yield client


@pytest.fixture
async def client(store: Store) -> AsyncGenerator[httpx2.AsyncClient, None]:
    async with serve(store) as client:
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
    back = await client.post(f"{path}/rehydrate", content=archive, headers=bearer(ADA))
    assert (back.status_code, back.json()["restored"]["messages"]) == (200, 201)
    assert await export(store, session_id) == archive
    await client.post(f"{path}/clean", json=force, headers=bearer(ADMIN))
    assert (await client.post(f"{path}/rehydrate", headers=bearer(ADA))).status_code == 200
    assert await export(store, session_id) == archive


async def test_only_an_administrator_may_force_an_older_archive(client: httpx2.AsyncClient, store: Store):
    session_id = await fill(store, open_media(store=store), ["hello"])
    path = f"/api/sessions/{session_id}"
    older = await export(store, session_id)
    await store.update_session(session_id, title="A later title")
    await client.post(f"{path}/clean", json={"force": True}, headers=bearer(ADMIN))
    refused = await client.post(f"{path}/rehydrate", content=older, headers=bearer(ADA))
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "bad_archive")
    assert "title" in refused.json()["error"]["message"]
    force = f"{path}/rehydrate?force=true"
    assert (await client.post(force, content=older, headers=bearer(ADA))).status_code == 403
    assert (await client.post(force, content=older, headers=bearer(ADMIN))).status_code == 200


async def test_an_archive_is_not_read_if_the_session_is_not_cleaned(client: httpx2.AsyncClient, store: Store):
    session_id = await fill(store, open_media(store=store), ["hello"])
    path = f"/api/sessions/{session_id}/rehydrate"
    read: list[int] = []

    async def archive() -> AsyncGenerator[bytes, None]:
        for number in range(100):
            read.append(number)
            yield b"x" * 65536

    answer = await client.post(path, content=archive(), headers=bearer(ADA))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_cleaned")
    assert read == []


async def test_an_archive_may_be_larger_than_other_bodies(engine: Engine):
    settings = load_settings(store=engine.url, max_body_bytes=1000, max_archive_bytes=200_000)
    async with open_store(settings=settings) as store, serve(store) as client:
        session_id = await fill(store, open_media(store=store), ["hello"] * 20)
        path = f"/api/sessions/{session_id}"
        archive = await export(store, session_id)
        assert 1000 < len(archive) < 200_000
        await client.post(f"{path}/clean", json={"force": True}, headers=bearer(ADMIN))
        large = await client.post(f"{path}/rehydrate", content=b"x" * 200_001, headers=bearer(ADA))
        assert large.status_code == 413
        back = await client.post(f"{path}/rehydrate", content=archive, headers=bearer(ADA))
        assert back.status_code == 200


async def test_only_some_archives_are_sent_at_once(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.operations.retention.MAX_EXPORTS", 2)
    media = open_media(store=store)
    session_id = await fill(store, media, ["hello"], blobs=[bytes(range(256)) * 100_000])
    path, headers = f"/api/sessions/{session_id}/export", bearer(ADA)
    await store.add_token(digest(ADA), owner="ada")
    app = create_app(store.settings, store)
    async with serving(app) as url, httpx2.AsyncClient(base_url=url, headers=headers, timeout=30) as client:
        async with client.stream("GET", path) as one, client.stream("GET", path) as two:
            assert (one.status_code, two.status_code) == (200, 200)
            refused = await client.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_exports")
            assert refused.headers["retry-after"] == "1"
            assert (await client.get("/health")).status_code == 200

        async def is_accepted() -> bool:  # once the server has noticed that both clients left
            return (await client.get(path)).status_code == 200

        async def is_free() -> bool:
            return app.state.service.exports == 0

        await until(is_accepted, 10)
        assert (await client.get("/api/sessions/unknown/export")).status_code == 404
        await until(is_free, 10)


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


async def test_a_hold_is_in_the_audit(client: httpx2.AsyncClient, store: Store):
    session_id = await fill(store, open_media(store=store), ["hello"])
    path = f"/api/sessions/{session_id}"
    for hold in (True, False):
        assert (await client.patch(path, json={"hold": hold}, headers=bearer(ADA))).json()["hold"] is hold
    await client.patch(path, json={"title": "new"}, headers=bearer(ADA))
    for ambiguous in ("no", "false", 0):
        answer = await client.patch(path, json={"hold": ambiguous}, headers=bearer(ADA))
        assert answer.status_code == 422
    entries = (await client.get(f"/api/audit?session_id={session_id}", headers=bearer(ADMIN))).json()["items"]
    assert [(entry["actor"], entry["action"]) for entry in entries] == [("ada", "lift hold"), ("ada", "hold")]
    assert (await client.get("/api/audit?session_id=other", headers=bearer(ADMIN))).json()["items"] == []


async def test_children_are_erased_if_they_are_the_same_owners(client: httpx2.AsyncClient, store: Store):
    holder = await store.join("worker")
    for owner, suffix in (("ada", "own"), ("eve", "foreign")):
        for name, parent in (("parent", None), ("child", "parent"), ("grandchild", "child")):
            whose = "ada" if name == "parent" else owner
            session = await store.create_session(agent="a", owner=whose, id=f"{name}-{suffix}")
            lease = await store.acquire(session.id, holder)
            run = Run(id=f"{name}-{suffix}-run", parent_id=parent and f"{parent}-{suffix}-run")
            await store.write(lease, Batch(runs=[run]))
            await store.release(lease)
    await store.leave(holder)
    for suffix, children in (("own", ["child-own", "grandchild-own"]), ("foreign", [])):
        path = f"/api/sessions/parent-{suffix}?children=true"
        assert (await client.delete(path, headers=bearer(ADA))).json()["children"] == children
    left = {session.id for session in (await store.sessions()).items}
    assert left == {"child-foreign", "grandchild-foreign"}


NOW = 1e-9


@pytest.fixture
async def governed(engine: Engine) -> AsyncGenerator[Store, None]:
    policies = [
        {"name": "case", "agent": "held", "hold": True},
        {"name": "later", "agent": "late", "idle_days": 30, "max_age_days": 3, "action": "archive"},
        {"name": "now", "agent": "scribe", "idle_days": NOW, "action": "clean", "keep_last_runs": 1},
        {"name": "gone", "agent": "old", "max_age_days": NOW, "action": "erase"},
    ]
    settings = load_settings(store=engine.url, retention=policies)
    async with open_store(settings=settings) as store:
        yield store


async def test_a_session_shows_what_is_going_to_happen_to_it(governed: Store):
    async with serve(governed) as client:
        made = {
            agent: await fill(governed, open_media(store=governed), ["hello"], agent=agent)
            for agent in ("held", "late", "scribe", "old", "unnamed")
        }

        async def shown(agent: str) -> dict[str, Any]:
            path = f"/api/sessions/{made[agent]}/retention"
            assert (await client.get(path, headers=bearer(EVE))).status_code == 404
            return (await client.get(path, headers=bearer(ADA))).json()

        found = await shown("late")
        session = await governed.session(made["late"])
        assert (found["policy"], found["action"], found["guard"]) == ("later", "archive", None)
        assert datetime.fromisoformat(found["due_at"]) == session.created_at + timedelta(days=3)
        found = await shown("held")
        assert (found["policy"], found["held_by"], found["due_at"]) == ("case", "policy", None)
        found = await shown("unnamed")
        assert (found["policy"], found["due_at"]) == (None, None)
        await governed.submit(made["old"], "message")
        found = await shown("old")
        assert (found["policy"], found["guard"]) == ("gone", "pending")
        await governed.update_session(made["late"], hold=True)
        assert ((await shown("late"))["held_by"], (await shown("late"))["due_at"]) == ("session", None)


async def test_an_administrator_sweeps(governed: Store):
    async with serve(governed) as client:
        media = open_media(store=governed)
        old = await fill(governed, media, ["hello"])
        kept = await fill(governed, media, ["hello"])
        gone = await fill(governed, media, ["hello"], agent="old")
        path = "/api/retention/sweep"
        assert (await client.post(path, json={}, headers=bearer(ADA))).status_code == 403
        for wrong in ({"dry_run": "yes"}, {"dryrun": True}, {"limit": 0}, {"limit": 1.5}):
            assert (await client.post(path, json=wrong, headers=bearer(ADMIN))).status_code == 422
        dry = (await client.post(path, json={"dry_run": True}, headers=bearer(ADMIN))).json()
        assert {item["session_id"]: item["outcome"] for item in dry["items"]} == {
            old: "dry_run",
            gone: "dry_run",
        }
        assert (await governed.session(old)).status == "idle"
        done = (await client.post(path, json={}, headers=bearer(ADMIN))).json()
        assert (done["outcomes"], done["more"]) == ({"cleaned": 1, "erased": 1}, False)
        assert (await governed.session(kept)).status == "idle"
        text = (await client.get("/metrics", headers=bearer(ADMIN))).text
        assert 'holdfast_sweep_sessions{outcome="cleaned"} 1.0' in text
        entries = (await client.get("/api/audit", headers=bearer(ADMIN))).json()["items"]
        assert {(entry["actor"], entry["detail"]["policy"]) for entry in entries} == {
            ("root", "now"),
            ("root", "gone"),
        }
        holder = await governed.join("another worker")
        assert await governed.take_duty("sweep", holder)
        busy = await client.post(path, json={}, headers=bearer(ADMIN))
        assert (busy.status_code, busy.json()["error"]["code"]) == (409, "sweep_running")
        assert "another worker" in busy.json()["error"]["message"]


async def test_archives_of_one_owner_are_read_one_at_a_time():
    imports = retention.Imports()
    inside: list[str] = []
    go_on = asyncio.Event()

    async def read(owner: str) -> None:
        async with imports.turn(owner):
            inside.append(owner)
            await go_on.wait()

    reading = [asyncio.create_task(read(owner)) for owner in ("ada", "ada", "ada", "bob", "eve")]
    await asyncio.sleep(0.01)
    assert inside == ["ada", "bob"]
    go_on.set()
    await asyncio.gather(*reading)
    assert sorted(inside) == ["ada", "ada", "ada", "bob", "eve"]


async def test_an_owner_without_the_scope_delete_erases_only_what_was_idle(
    store: Store, http: httpx2.AsyncClient, tokens: dict[str, str]
):
    await store.create_session(agent="agent", owner="owner", id="fresh")
    for who, status in (("reader", 403), ("writer", 409), ("deleter", 200)):
        answer = await http.delete("/api/sessions/fresh", headers={"authorization": f"Bearer {tokens[who]}"})
        assert answer.status_code == status, who
        if status == 409:
            assert "scope delete" in answer.json()["error"]["message"]
            assert (await store.session("fresh")).status == "idle"


async def test_only_an_administrator_lifts_the_hold_of_an_administrator(
    store: Store, http: httpx2.AsyncClient, tokens: dict[str, str]
):
    await store.create_session(agent="agent", owner="owner", id="kept")
    boss = {"authorization": f"Bearer {tokens['admin']}"}

    async def hold(on: bool, headers: dict[str, str] | None = None) -> int:
        return (await http.patch("/api/sessions/kept", json={"hold": on}, headers=headers)).status_code

    assert (await hold(True), await hold(False)) == (200, 200)  # one's own
    assert (await hold(True, boss), await hold(False), await hold(True), await hold(False)) == (
        200,
        403,
        200,
        403,
    )
    assert (await store.session("kept")).hold
    assert (await hold(False, boss), await hold(True), await hold(False)) == (200, 200, 200)
