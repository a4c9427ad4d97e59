"""Schedules over HTTP: an owner sees and changes only its own."""

from typing import Any

import httpx2
import pytest

from holdfast import Store
from holdfast.schedules import ScheduleTerms
from tests.server.conftest import TOKENS

NEW = {"cron": "0 9 * * *", "timezone": "Europe/Berlin", "text": "Write the report."}
TERMS = ScheduleTerms(cron="0 9 * * *", text="report")


def as_(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[name]}"}


async def test_a_schedule_from_its_creation_to_its_deletion(store: Store, http: httpx2.AsyncClient):
    created = await http.post("/api/schedules", json=NEW | {"agent": "agent"})
    assert created.status_code == 201
    schedule = created.json()
    assert (schedule["owner"], schedule["text"], schedule["paused"]) == ("owner", "Write the report.", False)
    path = f"/api/schedules/{schedule['id']}"
    assert (await http.get(path)).json() == schedule
    times = (await http.get(f"{path}/times", params={"count": 3})).json()["items"]
    assert times[0] == schedule["next_at"]
    assert len(times) == 3
    sent = await http.post(f"{path}/run")
    assert sent.status_code == 202
    assert sent.json()["session_id"] == f"{schedule['id']}-{sent.json()['submission_id']}"
    assert (await http.post(f"{path}/run")).status_code == 409
    paused = (await http.patch(path, json={"paused": True, "title": "Report"})).json()
    assert (paused["paused"], paused["next_at"], paused["title"]) == (True, None, "Report")
    assert (paused["last_state"], paused["last_submission_id"]) == ("queued", sent.json()["submission_id"])
    assert (await http.delete(path)).status_code == 204
    assert (await http.get(path)).status_code == 404
    actions = [(entry.actor, entry.action) for entry in (await store.audit_log()).items]
    assert actions == [("owner", f"{action} schedule") for action in ("delete", "change", "run", "create")]


async def test_an_owner_sees_only_its_own(store: Store, http: httpx2.AsyncClient):
    own = await store.create_schedule(TERMS, owner="owner", agent="agent", actor="owner")
    other = await store.create_schedule(TERMS, owner="other", agent="agent", actor="other")

    async def listed(name: str, **params: Any) -> list[str]:
        found = await http.get("/api/schedules", params=params, headers=as_(name))
        return [each["id"] for each in found.json()["items"]]

    assert await listed("owner") == await listed("owner", owner="other") == [own.id]
    assert await listed("admin") == [own.id, other.id]
    assert await listed("admin", owner="other") == [other.id]
    for method, end, body in (
        ("GET", "", None),
        ("PATCH", "", {"paused": True}),
        ("DELETE", "", None),
        ("POST", "/run", None),
        ("GET", "/times", None),
    ):
        answers = [
            (await http.request(method, f"/api/schedules/{each}{end}", json=body))
            for each in (other.id, "none")
        ]
        assert {each.status_code for each in answers} == {404}
        assert answers[0].text.replace(other.id, "none") == answers[1].text
    assert (await store.schedule(other.id)) == other
    changed = await http.patch(f"/api/schedules/{other.id}", json={"paused": True}, headers=as_("admin"))
    assert changed.json()["paused"]


async def test_a_schedule_for_others(store: Store, http: httpx2.AsyncClient):
    theirs = (await store.create_session(agent="agent", owner="other")).id
    for session_id in (theirs, "nowhere"):
        refused = await http.post("/api/schedules", json=NEW | {"session_id": session_id})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "session_not_found")
    body = NEW | {"agent": "agent", "owner": "other"}
    assert (await http.post("/api/schedules", json=body)).status_code == 403
    assert (await http.post("/api/schedules", json=body, headers=as_("admin"))).json()["owner"] == "other"
    of_session = await http.post("/api/schedules", json=NEW | {"session_id": theirs}, headers=as_("admin"))
    assert (of_session.json()["owner"], of_session.json()["agent"]) == ("other", "agent")


@pytest.mark.parametrize("name", ["reader", "auditor"])
async def test_a_token_that_only_reads_changes_nothing(store: Store, http: httpx2.AsyncClient, name: str):
    schedule = await store.create_schedule(TERMS, owner="owner", agent="agent", actor="owner")
    path = f"/api/schedules/{schedule.id}"
    assert (await http.get(path, headers=as_(name))).status_code == 200
    for method, where in (
        ("POST", f"{path}/run"),
        ("DELETE", path),
        ("PATCH", path),
        ("POST", "/api/schedules"),
    ):
        body = NEW | {"agent": "agent"} if where == "/api/schedules" else {"paused": True}
        sent = None if method == "DELETE" else body
        assert (await http.request(method, where, json=sent, headers=as_(name))).status_code == 403


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (NEW, "needs either an agent or a session"),
        (NEW | {"agent": "agent", "cron": "* * * * * *"}, "has 6 fields"),
        (NEW | {"agent": "agent", "cron": "0 0 30 2 *"}, "no such date"),
        (NEW | {"agent": "agent", "timezone": "Europe/Berlim"}, "Did you mean 'Europe/Berlin'"),
        (NEW | {"agent": "agent", "text": "x" * 65_537}, "body.text"),
        (NEW | {"agent": "agent", "text": ""}, "body.text"),
        (NEW | {"agent": "agent", "catch_up_limit": -1}, "body.catch_up_limit"),
        (NEW | {"agent": "agent", "catch_up_limit": 101}, "body.catch_up_limit"),
        (NEW | {"agent": "agent", "overlap": "steer"}, "body.overlap"),
        (NEW | {"agent": "agent", "id": "x" * 81}, "body.id"),
    ],
)
async def test_bodies_that_are_refused(http: httpx2.AsyncClient, body: dict[str, Any], problem: str):
    refused = await http.post("/api/schedules", json=body)
    assert refused.status_code == 422
    assert problem in refused.json()["error"]["message"]
