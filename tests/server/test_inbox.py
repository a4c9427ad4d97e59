"""The inbox: everything that waits for a person, in one request."""

import httpx2

from holdfast import Store
from holdfast.types import Batch, Effect, Run
from tests.server.conftest import TOKENS


async def test_it_lists_what_waits_for_a_person_and_nothing_else(store: Store, http: httpx2.AsyncClient):
    idle, unserved, unknown, foreign = [
        (await store.create_session(agent="agent", owner=owner)).id
        for owner in ("owner", "owner", "owner", "other")
    ]
    for session_id in (unserved, foreign):
        await store.submit(session_id, "message", '{"text": "Hello"}')
    holder = await store.join("worker", ttl=60)
    lease = await store.acquire(unknown, holder)
    runs = [Run(id="run-1", status="failed")]
    calls = [
        Effect(run_id="run-1", call_id="call-1", tool="pay"),
        Effect(run_id="run-1", call_id="call-2", tool="look", state="completed", result="1"),
    ]
    await store.write(lease, Batch(runs=runs, effects=calls))
    await store.release(lease)
    await store.leave(holder)
    items = {item["id"]: item for item in (await http.get("/api/inbox")).json()["items"]}
    assert set(items) == {unserved, unknown}
    assert idle not in items
    assert "No live worker serves agent 'agent'" in items[unserved]["problem"]
    assert [effect["call_id"] for effect in items[unknown]["effects"]] == ["call-1"]
    await http.post("/api/runs/run-1/effects/call-1", json={"result": "paid"})
    assert [item["id"] for item in (await http.get("/api/inbox")).json()["items"]] == [unserved]
    admin = {"authorization": f"Bearer {TOKENS['admin']}"}
    listed = (await http.get("/api/inbox", headers=admin)).json()["items"]
    assert {item["id"] for item in listed} == {unserved, foreign}


async def test_it_lists_a_failed_session_until_it_is_dismissed(store: Store, http: httpx2.AsyncClient):
    failed, delegate = [(await store.create_session(agent="agent", owner="owner")).id for _ in range(2)]
    holder = await store.join("worker", ttl=60)
    for session_id, run in (
        (failed, Run(id="run-1", status="failed")),
        (delegate, Run(id="run-2", status="failed", parent_id="run-1")),
    ):
        lease = await store.acquire(session_id, holder)
        await store.write(lease, Batch(runs=[run], status="failed", error="ValueError: no", release=True))
    (item,) = (await http.get("/api/inbox")).json()["items"]  # the parent of a delegate handles its failure
    assert (item["id"], item["status"], item["error"]) == (failed, "failed", "ValueError: no")
    listed = (await http.get("/api/sessions", params={"status": "failed"})).json()["items"]
    assert {each["id"] for each in listed} == {failed, delegate}
    answer = await http.post(f"/api/sessions/{failed}/dismiss")
    assert (answer.status_code, answer.json()["status"], answer.json()["error"]) == (200, "idle", None)
    assert (await http.get("/api/inbox")).json()["items"] == []
