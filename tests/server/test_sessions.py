"""The routes of sessions and runs, and what they answer to nonsense."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest

from holdfast import Store
from holdfast.config import load_settings
from holdfast.media import open_media
from holdfast.retention import erase
from holdfast.runtime.attachment import Attachment
from holdfast.server import create_app
from holdfast.server.auth import digest
from holdfast.types import Batch, Effect, NewEvent, Run
from tests.runtime.agents import working
from tests.runtime.test_approvals import paying


@pytest.fixture
async def session(store: Store) -> str:
    return (await store.create_session(agent="agent", owner="owner", id="s1")).id


async def test_the_life_of_a_session(http: httpx2.AsyncClient):
    made = await http.post("/api/sessions", json={"agent": "agent", "title": "One", "metadata": {"a": 1}})
    assert made.status_code == 201
    session = made.json()
    assert (session["status"], session["owner"], session["metadata"]) == ("idle", "owner", {"a": 1})
    path = f"/api/sessions/{session['id']}"
    assert (await http.patch(path, json={"title": "Two", "hold": True})).json()["title"] == "Two"
    sent = await http.post(f"{path}/submissions", json={"text": "hi", "idempotency_key": "k"})
    assert sent.status_code == 202
    assert (
        await http.post(f"{path}/submissions", json={"text": "hi", "idempotency_key": "k"})
    ).json() == sent.json()
    reused = await http.post(f"{path}/submissions", json={"text": "other", "idempotency_key": "k"})
    assert (reused.status_code, reused.json()["error"]["code"]) == (409, "key_reused")
    busy = await http.post(f"{path}/submissions", json={"text": "now", "when_busy": "reject"})
    assert (busy.status_code, busy.json()["error"]["code"]) == (409, "turn_in_progress")
    shown = (await http.get(path)).json()
    assert (shown["status"], shown["pending"], shown["hold"], shown["approvals"]) == ("queued", 1, True, [])
    listed = (await http.get(f"{path}/submissions")).json()["items"]
    assert [item["submission_id"] for item in listed] == [sent.json()["submission_id"]]
    assert listed[0]["payload"] is None
    with_payloads = await http.get(f"{path}/submissions", params={"payloads": True})
    assert with_payloads.json()["items"][0]["payload"] == {"text": "hi"}
    found = (await http.get("/api/sessions", params={"search": "TWO", "limit": 1})).json()
    assert [item["id"] for item in found["items"]] == [session["id"]]
    rest = await http.get("/api/sessions", params={"cursor": found["next_cursor"]})
    assert rest.json() == {"items": [], "next_cursor": None}


async def test_a_session_without_a_worker_for_its_agent_has_a_reason(store: Store, http: httpx2.AsyncClient):
    await store.create_session(agent="bott", owner="owner", id="typo")
    await store.submit("typo", "message", "{}")
    await store.join("worker", agents=["bot"])
    detail = (await http.get("/api/sessions/typo")).json()
    assert (detail["status"], detail["waiting_for"]) == ("queued", "worker")
    assert "Did you mean 'bot'?" in detail["problem"]
    assert (await http.get("/api/sessions")).json()["items"][0]["waiting_for"] == "worker"
    assert [worker["agents"] for worker in (await http.get("/api/workers")).json()["items"]] == [[], ["bot"]]


async def test_an_id_of_somebody_else_is_answered_like_an_erased_one(
    app: Any, store: Store, http: httpx2.AsyncClient, tokens: dict[str, str]
):
    await store.create_session(agent="secret", owner="other", id="taken")
    gone = await store.create_session(agent="secret", owner="other", id="erased")
    await erase(store, open_media(store=store), gone.id, actor="test")
    answers: list[str] = []
    for name in ("taken", "erased"):
        refused = await http.post("/api/sessions", json={"agent": "agent", "id": name})
        assert refused.status_code == 409
        answers.append(refused.text.replace(name, "X"))
    assert answers[0] == answers[1]
    assert "exist" not in answers[0]
    await http.post("/api/sessions", json={"agent": "agent", "id": "mine"})
    own = (await http.post("/api/sessions", json={"agent": "agent", "id": "mine"})).json()["error"]
    assert (own["code"], "exist_ok" in own["message"]) == ("session_exists", False)


async def test_a_fork_needs_no_body(http: httpx2.AsyncClient, session: str):
    forked = await http.post(f"/api/sessions/{session}/fork")
    assert (forked.status_code, forked.json()["kind"]) == (202, "fork")


async def test_sessions_are_attached_as_their_agent_is(store: Store, tokens: dict[str, str]):
    attached = {"one": Attachment(grace=5, on_unwatched="interrupt"), "two": True, "three": False}
    app = create_app(load_settings(attached_grace_seconds=7), store, attached=attached)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {tokens['owner']}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:

        async def metadata(agent: str, **given: Any) -> dict[str, Any]:
            made = await client.post("/api/sessions", json={"agent": agent, "metadata": given})
            return made.json()["metadata"]

        assert await metadata("one", colour="red") == {
            "attached": {"grace": 5, "on_unwatched": "interrupt"},
            "colour": "red",
        }
        assert await metadata("one", attached=False) == {"attached": False}
        assert (await metadata("two"), await metadata("three")) == ({"attached": True}, {})


async def test_state_and_cursors(http: httpx2.AsyncClient, session: str):
    path = f"/api/sessions/{session}"
    assert (await http.get(f"{path}/state")).json() == {"version": 0, "body": None}
    assert (await http.put(f"{path}/state", json={"body": [1], "expected_version": 0})).json()["version"] == 1
    named = {"name": "planner"}
    put = await http.put(f"{path}/state", params=named, json={"body": [7], "expected_version": 0})
    assert put.json() == (await http.get(f"{path}/state", params=named)).json() == {"version": 1, "body": [7]}
    listed = (await http.get(f"{path}/states")).json()["items"]
    assert listed == [{"name": None, "version": 1}, {"name": "planner", "version": 1}]
    late = await http.put(f"{path}/state", json={"body": [2], "expected_version": 0})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "version_conflict")
    assert (await http.put(f"{path}/cursors/me", json={"seq": 1})).json()["seq"] == 1
    assert (await http.put(f"{path}/cursors/me", json={"seq": 0})).json()["seq"] == 1
    assert (await http.put(f"{path}/cursors/me", json={"seq": 5})).status_code == 409
    await http.put(f"{path}/cursors/you", json={"seq": 0})
    first = (await http.get(f"{path}/cursors", params={"limit": 1})).json()
    rest = (await http.get(f"{path}/cursors", params={"cursor": first["next_cursor"]})).json()
    assert [[item["consumer"] for item in page["items"]] for page in (first, rest)] == [["me"], ["you"]]
    assert rest["next_cursor"] is None


async def test_an_approval_over_http(store: Store, http: httpx2.AsyncClient, session: str):
    agent, paid = paying()
    path = f"/api/sessions/{session}"
    async with working(store, agent):
        await http.post(f"{path}/submissions", json={"text": "pay"})
        async with asyncio.timeout(20):
            while not (asked := (await http.get(path)).json()["approvals"]):
                await asyncio.sleep(0.02)
        assert (asked[0]["tool"], asked[0]["arguments"]) == ("pay", {"amount": 5})
        answer = {"call_id": asked[0]["call_id"], "digest": asked[0]["digest"], "approved": True}
        assert (await http.post(f"{path}/approvals", json=answer)).status_code == 202
        async with asyncio.timeout(20):
            while (await http.get(path)).json()["status"] != "idle":
                await asyncio.sleep(0.02)
    assert paid == [5]
    events = (await http.get(f"{path}/events")).json()["items"]
    (answered,) = [event["payload"] for event in events if event["kind"] == "approval_answered"]
    assert answered == answer | {"by": "owner"}  # who decided is on record
    runs = (await http.get(f"{path}/runs")).json()["items"]
    assert [run["status"] for run in runs] == ["completed", "completed"]
    run = f"/api/runs/{runs[0]['id']}"
    assert (await http.get(run)).json()["agent"] == "agent"
    assert (await http.get(f"{run}/events")).json()["items"][0]["kind"] == "run_started"
    assert (await http.get(f"{run}/checkpoints")).json()["items"]
    assert [item["state"] for item in (await http.get(f"{run}/effects")).json()["items"]] == ["completed"]


async def test_settling_an_effect_by_hand(store: Store, http: httpx2.AsyncClient, session: str):
    lease = await store.acquire(session, await store.join("test"))
    calls = [Effect(run_id="r1", call_id=call_id, tool="pay") for call_id in ("c/1", "c2")]
    await store.write(lease, Batch(runs=[Run(id="r1")], effects=calls))
    await store.release(lease)
    path = "/api/runs/r1/effects"
    assert (await http.get(path, params={"unresolved": True})).json()["items"][0]["state"] == "started"
    assert (await http.post(f"{path}/nothing", json={"result": 1})).status_code == 404
    failed = (await http.post(f"{path}/c%2F1", json={"error": "no money"})).json()
    assert (failed["call_id"], failed["state"], failed["error"]) == ("c/1", "failed", "no money")
    assert (await http.post(f"{path}/c2", json={"result": "paid"})).json()["state"] == "completed"
    payload = json.loads((await store.events(session))[-1].payload)
    assert payload == {"tool": "pay", "call_id": "c2", "manual": True, "actor": "owner"}


async def test_events_as_pages_and_as_a_stream(store: Store, http: httpx2.AsyncClient, session: str):
    lease = await store.acquire(session, await store.join("test"))
    payload = '{\n "exactly": "as it was",\r\n "n": 12345678901234567890}'
    await store.write(lease, Batch(events=[NewEvent(kind=f"k{n}", payload=payload) for n in range(1200)]))
    path = f"/api/sessions/{session}/events"
    first = (await http.get(path, params={"limit": 700})).json()
    second = (await http.get(path, params={"after": first["next_cursor"], "limit": 700})).json()
    seqs = [event["seq"] for page in (first, second) for event in page["items"]]
    assert (seqs, second["next_cursor"]) == (list(range(1, 1201)), None)
    assert first["items"][0]["payload"] == json.loads(payload)
    for bad in (
        {"after": -1},
        {"after": "x"},
        {"after": 10**30},
        {"limit": 0},
        {"limit": 1001},
    ):
        assert (await http.get(path, params=bad)).status_code == 422, bad
    for headers in ({}, {"accept": "text/event-stream"}):
        assert (await http.get(path, params={"after": 1201}, headers=headers)).json()["error"][
            "code"
        ] == "event_not_found"
    for bad in ("-1", "x", "9" * 40, "1.5", "٣"):
        headers = {"last-event-id": bad.encode(), "accept": "text/event-stream"}
        assert (await http.get(path, headers=headers)).status_code == 422, bad  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/sessions", b"{"),
        ("/api/sessions", b"\xff\xfe"),
        ("/api/sessions", b"[]"),
        ("/api/sessions", b'{"agent": "agent", "unknown": 1}'),
        ("/api/sessions", b'{"agent": 5}'),
        ("/api/sessions", b'{"agent": ""}'),
        ("/api/sessions", b'{"agent": "agent", "id": "../etc"}'),
        ("/api/sessions", b'{"agent": "agent", "title": "\\ud800"}'),
        ("/api/sessions", b'{"agent": "agent\\u0000"}'),
        ("/api/sessions/s1/submissions", b"{}"),
        ("/api/sessions/s1/submissions", b'{"text": "a", "content": []}'),
        ("/api/sessions/s1/submissions", b'{"kind": "dance"}'),
        ("/api/sessions/s1/submissions", b'{"kind": {}}'),
        ("/api/sessions/s1/submissions", b"[1]"),
        ("/api/sessions/s1/submissions", b'"text"'),
        ("/api/sessions/s1/submissions", b'{"kind": "rewind"}'),
        ("/api/sessions/s1/submissions", b'{"kind": "undo", "text": "a"}'),
        ("/api/sessions/s1/submissions", b'{"text": "a", "when_busy": "panic"}'),
        ("/api/sessions/s1/approvals", b'{"call_id": "a", "digest": "b", "approved": true}'),
        ("/api/sessions/s1/rewind", b"{}"),
    ],
)
async def test_nonsense_is_refused_in_the_documented_shape(
    http: httpx2.AsyncClient, session: str, path: str, body: bytes
):
    answer = await http.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert set(answer.json()["error"]) >= {"code", "message"}


UNUSABLE: list[tuple[list[Any], str]] = [
    ([1], "body.content.0"),
    ([None], "body.content.0"),
    ([{}], "body.content.0"),
    (["a", {"kind": "binary", "media_type": "image/png"}], "body.content.1.data"),
    ([{"kind": "binary", "data": "?", "media_type": "image/png"}], "body.content.0.data"),
    ([{"kind": "document-url", "url": "s3://bucket/key"}], "body.content.0.url"),
    (
        [{"kind": "image-url", "url": "http://10.0.0.1/", "force_download": "allow-local"}],
        "body.content.0.force_download",
    ),
    ([{"kind": "uploaded-file", "file_id": "x", "provider_name": "openai"}], "body.content.0"),
    ([1] * 20_000, "body.content.0"),
    (["a"] * 1001, "body.content"),
]


@pytest.mark.parametrize(("content", "place"), UNUSABLE)
async def test_content_that_no_agent_can_read_is_refused_with_its_place(
    http: httpx2.AsyncClient, session: str, store: Store, content: list[Any], place: str
):
    answer = await http.post(f"/api/sessions/{session}/submissions", json={"content": content})
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith(f"{place}: ")
    assert len(answer.content) < 10_000
    assert (await store.session(session)).pending == 0


UNREADABLE = {
    "NaN": b"NaN",
    "infinite": b"-Infinity",
    "too large": b"1e999",
    "too deep": b'{"a": ' * 260 + b"1" + b"}" * 260,
    "a lone surrogate": b'"\\ud800"',
}


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
async def test_one_owners_metadata_cannot_break_the_list_of_all(
    http: httpx2.AsyncClient, session: str, tokens: dict[str, str], value: bytes
):
    json_type = {"content-type": "application/json"}
    body = b'{"agent": "agent", "metadata": {"a": ' + value + b"}}"
    assert (await http.post("/api/sessions", content=body, headers=json_type)).status_code == 422
    body = b'{"metadata": {"a": ' + value + b"}}"
    path = f"/api/sessions/{session}"
    assert (await http.patch(path, content=body, headers=json_type)).status_code == 422
    body = b'{"expected_version": 0, "body": ' + value + b"}"
    assert (await http.put(f"{path}/state", content=body, headers=json_type)).status_code == 422
    admin = {"authorization": f"Bearer {tokens['admin']}"}
    assert (await http.get("/api/sessions", headers=admin)).status_code == 200


async def test_lists_bear_what_a_library_has_stored(store: Store, http: httpx2.AsyncClient):
    await store.create_session(agent="agent", owner="owner", metadata=r'{"a": "\ud800"}')
    (item,) = (await http.get("/api/sessions")).json()["items"]
    assert item["metadata"] == {"a": "?"}


async def test_every_route_with_a_body_refuses_nan_and_deep_nesting(
    app: Any, http: httpx2.AsyncClient, session: str
):
    await app.state.service.store.add_token(digest("hf_all"), owner="owner", role="admin", scopes=["shell"])
    headers = {"authorization": "Bearer hf_all", "content-type": "application/json"}
    seen = 0
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            if "application/json" not in operation.get("requestBody", {}).get("content", {}):
                continue
            seen += 1
            known = path.replace("{session_id}", session).replace("{run_id}", "none")
            for body, problem in (
                (b'{"a": NaN}', "not a JSON number"),
                (b"[" * 300 + b"]" * 300, "more than 100 levels"),
            ):
                answer = await http.request(method.upper(), known, content=body, headers=headers)
                if answer.status_code != 404:
                    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_input"), path
                    assert problem in answer.json()["error"]["message"], path
    assert seen > 10


async def test_an_answer_with_nan_arguments_is_refused(http: httpx2.AsyncClient, session: str):
    body = f'{{"call_id": "c", "digest": "{"a" * 64}", "approved": true, "arguments": {{"x": NaN}}}}'
    answer = await http.post(
        f"/api/sessions/{session}/approvals", content=body, headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_input")


async def test_a_parameter_that_nobody_knows_is_a_mistake(http: httpx2.AsyncClient, session: str):
    answer = await http.get(f"/api/sessions/{session}/events", params={"afer": 5})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_input")
    assert "'afer'" in answer.json()["error"]["message"]
    assert "after" in answer.json()["error"]["message"]
    answer = await http.get("/api/sessions?owner=ada&owner=bob")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_input")
    assert "more than once" in answer.json()["error"]["message"]


async def test_ids_that_are_paths(http: httpx2.AsyncClient, session: str):
    for bad in ("%2e%2e", "..%2f..%2fetc", "a%00b", "x" * 200, "%ff"):
        answer = await http.get(f"/api/sessions/{bad}")
        assert answer.status_code in {404, 422}, bad
        assert answer.json()["error"]["code"]


async def test_a_body_that_is_too_large(http: httpx2.AsyncClient, session: str):
    path = f"/api/sessions/{session}/submissions"
    large = json.dumps({"text": "x" * 100_000}).encode()
    assert (await http.post(path, content=large)).status_code == 413

    async def chunks() -> AsyncGenerator[bytes, None]:
        for _ in range(20):
            yield b"x" * 10_000

    assert (await http.post(path, content=chunks())).status_code == 413


async def test_unknown_paths_and_methods_have_the_same_shape(http: httpx2.AsyncClient):
    for method, path, status in (("GET", "/api/nothing", 404), ("DELETE", "/health", 405)):
        answer = await http.request(method, path)
        assert answer.status_code == status
        assert set(answer.json()["error"]) >= {"code", "message"}
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_operation(http: httpx2.AsyncClient, store: Store, tokens: dict[str, str]):
    assert (await http.get("/health")).json()["status"] == "ok"
    assert (await http.get("/ready")).json()["status"] == "ok"
    await store.join("somebody")
    assert "somebody" in [item["name"] for item in (await http.get("/api/workers")).json()["items"]]
    assert "holdfast_http_requests_total" in (await http.get("/metrics")).text
    await store.audit(actor="boss", action="test", session_id=None, detail="{}")
    admin = {"authorization": f"Bearer {tokens['admin']}"}
    assert (await http.get("/api/audit", headers=admin)).json()["items"][0]["action"] == "test"


async def test_a_request_that_a_stopping_server_gives_up_is_told_so(
    app: Any, store: Store, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    """As when the store does not answer while the server stops: the request is cancelled."""
    asked = asyncio.Event()

    async def never(session_id: str) -> None:
        del session_id
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(store, "session", never)
    told: list[Any] = []

    async def send(message: Any) -> None:
        told.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [(b"authorization", f"Bearer {tokens['owner']}".encode()), (b"host", b"test")]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/sessions/s",
        "raw_path": b"/api/sessions/s",
        "query_string": b"",
        "headers": headers,
        "http_version": "1.1",
        "scheme": "http",
        "server": ("test", 80),
        "client": ("test", 1),
    }
    request = asyncio.create_task(app(scope, receive, send))
    await asked.wait()
    request.cancel()
    await request
    assert told[0]["status"] == 503
    assert json.loads(told[1]["body"])["error"]["code"] == "stopping"
