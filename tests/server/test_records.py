"""What other frameworks stored in a session, over HTTP, in handles and in the command line."""

import asyncio
import json
import math
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from holdfast import Store, connect
from holdfast.cli import app
from holdfast.errors import Conflict
from holdfast.frameworks.bodies import to_body
from holdfast.frameworks.framework_store import FrameworkStore
from holdfast.media import open_media
from holdfast.retention import clean
from holdfast.server.routes import RULES
from holdfast.types import Record
from tests.conftest import Engine
from tests.server.examples import example_bodies
from tests.server.test_chat import OTHER, TOKEN, http

__all__ = ["TOKEN", "http"]
pytestmark = pytest.mark.processes
ITEMS: list[Any] = [
    {"role": "user", "content": "Hello, 1.10 \x1b[31mred"},
    {"role": "assistant", "content": "a lone \ud800 surrogate"},
    {"type": "reasoning", "number": 1.10},
    {"role": "user", "content": "not a number", "n": math.nan},
]


@pytest.fixture
async def talk(store: Store) -> str:
    shared = FrameworkStore.on_this_loop(store, framework="openai-agents", owner="ada")
    session = await shared.ensure("a talk")
    async with shared.writing(session.id) as writer:
        await writer.write(
            [
                Record(kind="item", key=f"{number:012}", body=to_body(body))
                for number, body in enumerate(ITEMS)
            ]
        )
    return session.id


async def test_records_are_listed_by_kind_and_prefix(http: httpx2.AsyncClient, talk: str):
    path = f"/api/sessions/{talk}/records"
    first = (await http.get(path, params={"kind": "item", "limit": 2})).json()
    assert [item["key"] for item in first["items"]] == ["000000000000", "000000000001"]
    rest = (await http.get(path, params={"kind": "item", "cursor": first["next_cursor"]})).json()
    assert [item["body"] for item in rest["items"]] == [ITEMS[2], json.dumps(ITEMS[3])]
    assert (await http.get(path, params={"kind": "item", "prefix": "1"})).json() == {
        "items": [],
        "next_cursor": None,
    }
    assert (await http.get(path)).status_code == 422
    assert (await http.get(path, params={"kind": "a\0b"})).status_code == 422


async def test_the_conversation_is_what_people_read(http: httpx2.AsyncClient, talk: str):
    page = (await http.get(f"/api/sessions/{talk}/conversation")).json()
    assert [(item["role"], item["text"]) for item in page["items"]] == [
        ("user", ITEMS[0]["content"]),
        ("assistant", "a lone ? surrogate"),
        ("other", ""),
        ("user", "not a number"),
    ]
    assert page["items"][2]["body"] == ITEMS[2]
    assert page["items"][3]["body"] == json.dumps(ITEMS[3])  # JSON has no such number
    after = await http.get(f"/api/sessions/{talk}/conversation", params={"cursor": page["next_cursor"]})
    assert after.json() == {"items": [], "next_cursor": None}


async def test_others_do_not_see_it(http: httpx2.AsyncClient, talk: str):
    headers = {"authorization": f"Bearer {OTHER}"}
    for path in ("conversation", "records?kind=item"):
        assert (await http.get(f"/api/sessions/{talk}/{path}", headers=headers)).status_code == 404


async def test_no_worker_runs_it_and_its_metadata_stays(
    http: httpx2.AsyncClient, engine: Engine, store: Store, talk: str
):
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
    requests = [
        http.post("/api/chat", json={"id": talk, "messages": [message]}),
        http.post(f"/api/sessions/{talk}/submissions", json={"kind": "message", "text": "hi"}),
        http.patch(f"/api/sessions/{talk}", json={"metadata": {"team": "x"}}),
    ]
    for request in requests:
        answer = await request
        assert (answer.status_code, "is stored by openai-agents" in answer.text) == (409, True)
    sent = await asyncio.to_thread(CliRunner().invoke, app, ["send", talk, "hi", "--store", engine.url])
    assert sent.exit_code != 0
    assert (await store.submissions(talk)).items == []
    assert (await store.session(talk)).status == "idle"
    assert (await http.patch(f"/api/sessions/{talk}", json={"title": "mine"})).status_code == 200


async def test_a_cleaned_conversation_does_not_look_empty(http: httpx2.AsyncClient, store: Store, talk: str):
    await store.reclaim()
    while (await store.session(talk)).holder is not None:
        await asyncio.sleep(0.05)
    await clean(store, open_media(store=store), talk, actor="ada", force=True)
    answer = await http.get(f"/api/sessions/{talk}/conversation")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "session_cleaned")


async def test_a_bad_cursor_is_refused(http: httpx2.AsyncClient, store: Store):
    shared = FrameworkStore.on_this_loop(store, framework="langgraph", owner="ada")
    thread = (await shared.ensure("thread")).id
    for cursor in ("abc", "-3", "²"):
        answer = await http.get(f"/api/sessions/{thread}/conversation", params={"cursor": cursor})
        assert answer.status_code == 422


def printed(*words: str) -> str:
    """Return what a command prints. It runs in a thread of its own, since it starts an event loop."""
    done = CliRunner().invoke(app, ["sessions", "conversation", *words])
    assert done.exit_code == 0, done.output
    return done.stdout


async def test_handles_and_the_command_line_read_it(
    http: httpx2.AsyncClient, engine: Engine, talk: str, monkeypatch: pytest.MonkeyPatch
):
    url = str(http.base_url)
    async with connect(url, token=TOKEN) as client:
        session = await client.session(talk)
        roles = [entry.role async for entry in session.conversation()]
        bodies = [record.body async for record in session.records("item")]
    assert roles == ["user", "assistant", "other", "user"]
    assert bodies[2] == ITEMS[2]
    monkeypatch.setenv("HOLDFAST_TOKEN", TOKEN)
    for place in (["--url", url], ["--store", engine.url]):
        text = await asyncio.to_thread(printed, talk, *place)
        assert text.splitlines()[0] == "user: Hello, 1.10 \\x1b[31mred"
        assert text.splitlines()[2] == f"other: {json.dumps(ITEMS[2])}"
        entries = json.loads(await asyncio.to_thread(printed, talk, "--json", *place))["entries"]
        assert [entry["role"] for entry in entries] == roles


AS_EVERY_SESSION = {
    ("PATCH", "/api/sessions/{session_id}"),
    ("PUT", "/api/sessions/{session_id}/state"),
    ("PUT", "/api/sessions/{session_id}/cursors/{consumer}"),
    ("PUT", "/api/sessions/{session_id}/credentials/{name}"),
    ("DELETE", "/api/sessions/{session_id}/credentials/{name}"),
    ("POST", "/api/sessions/{session_id}/dismiss"),
    ("POST", "/api/sessions/{session_id}/clean"),
    ("POST", "/api/sessions/{session_id}/rehydrate"),
    ("DELETE", "/api/sessions/{session_id}"),
}
"""The routes that change a session of another framework as they change every other one."""


async def test_every_route_that_needs_a_worker_refuses_a_session_of_another_framework(
    app: Any, http: httpx2.AsyncClient, store: Store, talk: str
):
    refused = {
        (method, path)
        for (method, path), rule in RULES.items()
        if method in {"POST", "PUT", "PATCH", "DELETE"} and rule != "public" and "{session_id}" in path
    } - AS_EVERY_SESSION
    assert len(refused) > 8
    bodies = example_bodies(app) | {("POST", "/api/sessions/{session_id}/interrupt"): None}
    before = await store.session(talk)
    for method, path in sorted(refused):
        answer = await http.request(
            method, path.format(session_id=talk, name="paid"), json=bodies.get((method, path))
        )
        if path.endswith(("/retry", "/undo-effects")):  # it has no turn
            assert answer.status_code == 404
            continue
        assert (answer.status_code, "is stored by openai-agents" in answer.text) == (409, True), (
            f"Refuse a session of another framework in {method} {path}, or list it in AS_EVERY_SESSION."
        )
    for body in (
        {"kind": "undo"},
        {"kind": "rewind", "checkpoint_id": "c"},
        {"kind": "fork"},
        {"content": ["hi"]},
    ):
        answer = await http.post(f"/api/sessions/{talk}/submissions", json=body)
        assert (answer.status_code, "is stored by openai-agents" in answer.text) == (409, True), body
    assert (await store.submissions(talk)).items == []
    assert (await store.session(talk)).seq == before.seq


@pytest.mark.parametrize("kind", ["message", "undo", "retry", "interrupt", "approval", "background"])
async def test_the_store_queues_nothing_for_a_session_of_another_framework(
    store: Store, talk: str, kind: str
):
    with pytest.raises(Conflict, match="is stored by openai-agents"):
        await store.submit(talk, kind)
    mine = await store.create_session(
        agent="agent", owner="ada", metadata='{"framework": "a word of the user"}'
    )
    assert (await store.submit(mine.id, kind)).state == "queued"
