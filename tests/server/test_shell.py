"""Shell commands over HTTP, as existing clients speak it."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import httpx2
import pytest

from holdfast import Store
from holdfast.config import load_settings
from holdfast.server.auth import digest
from holdfast.shell import ShellService


@pytest.fixture
async def shell(http: httpx2.AsyncClient, tokens: dict[str, str]) -> httpx2.AsyncClient:
    http.headers["authorization"] = f"Bearer {tokens['shell']}"
    return http


async def search(shell: httpx2.AsyncClient, **filters: Any) -> dict[str, Any]:
    answer = await shell.get("/api/bash/bash_events/search", params=filters)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_execute_returns_the_whole_output(shell: httpx2.AsyncClient):
    body = {"command": "printf 'a%.0s' $(seq 200000); echo oops >&2; exit 3"}
    found = (await shell.post("/api/bash/execute_bash_command", json=body, timeout=30)).json()
    assert (found["kind"], found["exit_code"], found["stderr"]) == ("BashOutput", 3, "oops\n")
    assert found["stdout"] == "a" * 200_000
    assert "-" not in found["id"]


async def test_start_poll_and_stop(shell: httpx2.AsyncClient):
    body = {"command": "echo one; sleep 60", "timeout": 100}
    started = (await shell.post("/api/bash/start_bash_command", json=body)).json()
    assert (started["kind"], started["command"], started["timeout"]) == ("BashCommand", body["command"], 100)
    async with asyncio.timeout(10):
        while not (
            seen := (await search(shell, command_id__eq=started["id"], kind__eq="BashOutput"))["items"]
        ):
            await asyncio.sleep(0.02)
    assert (seen[0]["stdout"], seen[0]["order"], seen[0]["exit_code"]) == ("one\n", 0, None)
    stopped = (await shell.post(f"/api/bash/{started['id']}/stop")).json()
    assert (stopped["state"], stopped["exit_code"]) == ("stopped", -1)
    later = (await search(shell, command_id__eq=started["id"], order__gt=0))["items"]
    assert [item["exit_code"] for item in later] == [-1]
    assert (await shell.get(f"/api/bash/{started['id']}")).json()["state"] == "stopped"


async def test_search_pages_and_batches(shell: httpx2.AsyncClient):
    before = datetime.now(UTC) - timedelta(seconds=1)
    ids = [
        (await shell.post("/api/bash/execute_bash_command", json={"command": f"echo {n}"})).json()[
            "command_id"
        ]
        for n in range(3)
    ]
    everything = (await search(shell))["items"]
    assert len({item["id"] for item in everything}) == len(everything) >= 6
    paged: list[Any] = []
    page: dict[str, Any] = {"next_page_id": None}
    while True:
        more = {} if page["next_page_id"] is None else {"page_id": page["next_page_id"]}
        page = await search(shell, limit=1, **more)
        paged += page["items"]
        if page["next_page_id"] is None:
            break
    assert paged == everything
    assert (await search(shell, sort_order="TIMESTAMP_DESC"))["items"] == everything[::-1]
    elsewhere = before.astimezone(timezone(timedelta(hours=9))).isoformat()
    assert (await search(shell, timestamp__gte=elsewhere))["items"] == everything
    assert (await search(shell, timestamp__lt=elsewhere))["items"] == []
    commands = (await search(shell, kind__eq="BashCommand"))["items"]
    assert [item["id"] for item in commands] == ids
    wanted = [everything[1]["id"], "0" * 32]
    batch = (await shell.get("/api/bash/bash_events/", params={"event_ids": wanted})).json()
    assert batch == [everything[1], None]
    assert (await shell.get(f"/api/bash/bash_events/{everything[0]['id']}")).json() == everything[0]
    cleared = (await shell.delete("/api/bash/bash_events")).json()["cleared_count"]
    assert cleared == len(everything)
    assert (await search(shell))["items"] == []
    assert (await shell.get(f"/api/bash/{ids[0]}")).json()["exit_code"] == 0


async def test_output_as_a_stream_with_resume(shell: httpx2.AsyncClient):
    body = {"command": "echo one; sleep 0.3; echo two"}
    command = (await shell.post("/api/bash/execute_bash_command", json=body)).json()["command_id"]
    whole = (await shell.get(f"/api/bash/{command}/output")).text
    assert whole.count("event: output") >= 2
    rest = (await shell.get(f"/api/bash/{command}/output", headers={"last-event-id": "0"})).text
    assert "one" not in rest
    assert "two" in rest


async def test_bad_input(shell: httpx2.AsyncClient):
    for body in ({}, {"command": ""}, {"command": "a\0b"}, {"command": "true", "timeout": 0}, {"command": 5}):
        assert (await shell.post("/api/bash/start_bash_command", json=body)).status_code == 422, body
    missing = await shell.post(
        "/api/bash/start_bash_command", json={"command": "true", "cwd": "/no/such/folder"}
    )
    assert (missing.status_code, missing.json()["error"]["code"]) == (422, "folder_not_found")
    foreign = await shell.post(
        "/api/bash/start_bash_command", json={"command": "true", "session_id": "nothing"}
    )
    assert foreign.status_code == 404
    for query in (
        {"limit": 101},
        {"limit": 0},
        {"command_id__eq": "x"},
        {"page_id": "yesterday"},
        {"kind__eq": "x"},
    ):
        assert (await shell.get("/api/bash/bash_events/search", params=query)).status_code == 422, query
    for path in ("bash_events/x", f"bash_events/{'0' * 32}", "0" * 32):
        assert (await shell.get(f"/api/bash/{path}")).status_code in {404, 422}, path


async def test_everyone_has_their_own_log(shell: httpx2.AsyncClient, store: Store):
    """What belongs to somebody else is answered like what is not there, on every route."""
    await store.add_token(digest("hf_second"), owner="second", scopes=["shell"])
    await store.add_token(digest("hf_chief"), owner="chief", role="admin", scopes=["shell"])
    second = {"authorization": "Bearer hf_second"}
    chief = {"authorization": "Bearer hf_chief"}
    mine = (await shell.post("/api/bash/execute_bash_command", json={"command": "echo mine"})).json()
    running = (
        await shell.post("/api/bash/start_bash_command", json={"command": "echo up; sleep 100"})
    ).json()
    command, output = mine["command_id"], mine["id"]
    absent = "0" * 32
    for method, path in (
        ("GET", "/api/bash/{}"),
        ("POST", "/api/bash/{}/stop"),
        ("GET", "/api/bash/{}/output"),
        ("GET", "/api/bash/bash_events/{}"),
    ):
        foreign = await shell.request(method, path.format(running["id"]), headers=second)
        nothing = await shell.request(method, path.format(absent), headers=second)
        assert (foreign.status_code, nothing.status_code) == (404, 404), path
        assert foreign.text.replace("-", "").replace(running["id"], absent) == nothing.text.replace(
            "-", ""
        ), path
    assert (await shell.get(f"/api/bash/bash_events/{output}", headers=second)).status_code == 404
    search_ = "/api/bash/bash_events/search"
    for query in ({}, {"command_id__eq": command}, {"sort_order": "TIMESTAMP_DESC"}, {"order__gt": -1}):
        assert (await shell.get(search_, params=query, headers=second)).json()["items"] == []
        assert (await shell.get(search_, params=query, headers=chief)).json()["items"]
    ids = {"event_ids": [command, output]}
    assert (await shell.get("/api/bash/bash_events/", params=ids, headers=second)).json() == [None, None]
    both = (await shell.get("/api/bash/bash_events/", params=ids, headers=chief)).json()
    assert [event["id"] for event in both] == [command, output]
    theirs = (
        await shell.post("/api/bash/execute_bash_command", json={"command": "echo theirs"}, headers=second)
    ).json()
    # Deleting takes one's own; an administrator's takes all that has ended.
    cleared = (await shell.delete("/api/bash/bash_events", headers=second)).json()["cleared_count"]
    assert cleared == 1 + theirs["order"] + 1
    assert (await shell.get(f"/api/bash/bash_events/{output}")).status_code == 200
    assert (await shell.delete("/api/bash/bash_events", headers=chief)).json()["cleared_count"] > 0
    assert (await shell.get(f"/api/bash/bash_events/{output}")).status_code == 404
    stopped = await shell.post(f"/api/bash/{running['id']}/stop", headers=chief)
    assert stopped.json()["state"] == "stopped"


async def test_a_sessions_commands_belong_to_its_owner(shell: httpx2.AsyncClient, store: Store):
    await store.create_session(agent="agent", owner="second", id="theirs")
    await store.add_token(digest("hf_second"), owner="second", scopes=["shell"])
    await store.add_token(digest("hf_chief"), owner="chief", role="admin", scopes=["shell"])
    body = {"command": "echo for them", "session_id": "theirs"}
    refused = await shell.post("/api/bash/execute_bash_command", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "session_not_found")
    chief = {"authorization": "Bearer hf_chief"}
    made = (await shell.post("/api/bash/execute_bash_command", json=body, headers=chief)).json()
    assert (await store.command(made["command_id"])).owner == "second"
    second = {"authorization": "Bearer hf_second"}
    assert (await shell.get(f"/api/bash/{made['command_id']}", headers=second)).json()[
        "session_id"
    ] == "theirs"
    assert (await shell.get(f"/api/bash/{made['command_id']}")).status_code == 404


async def test_what_other_clients_send_is_understood(shell: httpx2.AsyncClient):
    """Unknown fields and parameters are ignored, ids may be in the body, and `command_id__eq` finds output only."""
    body = {"command": "echo hi", "agent_profile_id": None, "novel": [1]}
    ran = (await shell.post("/api/bash/execute_bash_command", json=body, params={"trace": "1"})).json()
    assert ran["stdout"] == "hi\n"
    found = await search(shell, command_id__eq=ran["command_id"], novel="1")
    assert {item["kind"] for item in found["items"]} == {"BashOutput"}
    both = await search(shell, command_id__eq=ran["command_id"], kind__eq="BashCommand")
    assert both == {"items": [], "next_page_id": None}
    ids = [ran["command_id"], "not-a-uuid", ran["id"], "0" * 32]
    batch = await shell.request("GET", "/api/bash/bash_events/", json=ids)
    assert [event and event["id"] for event in batch.json()] == [ids[0], None, ids[2], None]
    bodies: tuple[Any, ...] = ({}, [], [1], ["0" * 32] * 101)
    for bad in bodies:
        assert (await shell.request("GET", "/api/bash/bash_events/", json=bad)).status_code == 422
    assert (await shell.get("/api/bash/bash_events/")).status_code == 422


async def test_the_server_describes_itself(
    shell: httpx2.AsyncClient, store: Store, caplog: pytest.LogCaptureFixture
):
    shell.headers.pop("authorization")
    assert (await shell.get("/alive")).json()["status"] == "ok"
    info = (await shell.get("/server_info")).json()
    assert (info["title"], info["docs"], info["uptime"] >= info["idle_time"] >= 0) == (
        "Holdfast",
        "/docs",
        True,
    )
    caplog.set_level("INFO")
    settings = load_settings(shell_retention_seconds=3600)
    async with ShellService(store, settings=settings):
        pass
    (line,) = [record.getMessage() for record in caplog.records if record.name == "holdfast.shell.service"]
    assert (
        line
        == "the output of shell commands is kept for 3600 seconds after the command ended; their results are always kept"
    )
