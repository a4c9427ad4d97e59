"""The log of shell commands as a WebSocket, as existing clients speak it, over real connections."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from holdfast import Store
from holdfast.server import sockets
from holdfast.server.auth import digest
from holdfast.server.routes import RULES
from holdfast.shell import ShellService
from tests.builders import until
from tests.server.serving import serving

PATH = "/sockets/bash-events"


@pytest.fixture
async def address(app: Any, tokens: dict[str, str]) -> AsyncGenerator[str, None]:
    """The application of the tests on a real port."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
    listening = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    yield f"ws://127.0.0.1:{listening.getsockname()[1]}{PATH}"
    app.state.channels.close()
    server.should_exit = True
    await serving


@asynccontextmanager
async def joined(
    address: str, token: str | None = None, **more: Any
) -> AsyncGenerator[ClientConnection, None]:
    headers = {} if token is None else {"X-Session-API-Key": token}
    async with connect(address, additional_headers=headers, **more) as client:
        yield client


async def read(client: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(20):
        return json.loads(await client.recv())


async def read_to_end(client: ClientConnection, commands: int = 1) -> list[dict[str, Any]]:
    """Return what comes until so many commands have ended."""
    found: list[dict[str, Any]] = []
    while sum(event.get("exit_code") is not None for event in found) < commands:
        found.append(await read(client))
    return found


async def closed(client: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed) as ended:
        await read(client)
    assert ended.value.rcvd is not None
    return ended.value.rcvd.code


async def test_a_command_and_its_output_come_as_they_are_in_the_log(
    address: str, tokens: dict[str, str], app: Any
):
    shell: ShellService = app.state.shell
    async with joined(address, tokens["shell"]) as client:
        await client.send(json.dumps({"command": "echo one; sleep 0.3; echo two >&2; exit 3"}))
        events = await read_to_end(client)
    command, *outputs = events
    assert (command["kind"], command["timeout"]) == ("BashCommand", 300)
    assert {event["command_id"] for event in outputs} == {command["id"]}
    assert [event["order"] for event in outputs] == list(range(len(outputs)))
    assert "".join(event["stdout"] or "" for event in outputs) == "one\n"
    assert "".join(event["stderr"] or "" for event in outputs) == "two\n"
    assert outputs[-1]["exit_code"] == 3
    logged = (await shell.search()).items
    assert [event["id"] for event in events] == [item.id.replace("-", "") for item in logged]


async def test_what_was_is_resent_on_request_and_nothing_comes_twice(
    address: str, tokens: dict[str, str], app: Any
):
    shell: ShellService = app.state.shell
    count = 2  # of what runs
    for number in range(60):
        count += 1 + (await shell.execute(f"echo {number}", owner="sheller")).command.outputs
    running = await shell.start("echo up; sleep 100", owner="sheller")
    await anext(shell.follow(running.id))
    for query in ("?resend_mode=all", "?resend_all=true"):
        async with joined(address + query, tokens["shell"]) as client:
            events = [await read(client) for _ in range(count)]
            await client.send(json.dumps({"command": "echo more"}))
            more = await read_to_end(client)
        events += more
        count += len(more)
        ids = [event["id"] for event in events]
        assert len(set(ids)) == len(ids)
        assert [event["command"] for event in events if event["kind"] == "BashCommand"][-1] == "echo more"
    # Without the request only what is new comes, of what runs already, too.
    async with joined(address, tokens["shell"]) as client:
        await shell.stop(running.id)
        (end,) = await read_to_end(client)
        assert (end["command_id"], end["order"], end["exit_code"]) == (running.id.replace("-", ""), 1, -1)


async def test_more_output_than_a_page_comes_whole_and_in_order(address: str, tokens: dict[str, str]):
    async with joined(address, tokens["shell"], max_size=None) as client:
        await client.send(json.dumps({"command": "head -c 9000000 /dev/zero | tr '\\0' 'é'"}))
        _, *outputs = await read_to_end(client)
    assert len(outputs) > 100
    assert [event["order"] for event in outputs] == list(range(len(outputs)))
    assert sum(len(event["stdout"] or "") for event in outputs) == 9_000_000


async def test_what_other_services_run_is_seen(address: str, tokens: dict[str, str], store: Store):
    async with joined(address, tokens["shell"]) as client, ShellService(store) as elsewhere:
        await elsewhere.execute("echo there", owner="sheller")
        events = await read_to_end(client)
        assert "".join(event.get("stdout") or "" for event in events) == "there\n"


async def test_everyone_sees_their_own_and_an_administrator_all(
    address: str, tokens: dict[str, str], store: Store, app: Any
):
    await store.add_token(digest("hf_second"), owner="second", scopes=["shell"])
    await store.add_token(digest("hf_chief"), owner="chief", role="admin", scopes=["shell"])
    shell: ShellService = app.state.shell
    async with (
        joined(address + "?resend_mode=all", tokens["shell"]) as first,
        joined(address, "hf_second") as second,
        joined(address, "hf_chief") as chief,
    ):
        await shell.execute("echo theirs", owner="second")
        await shell.execute("echo mine", owner="sheller")
        assert [e.get("command") for e in await read_to_end(first) if e["kind"] == "BashCommand"] == [
            "echo mine"
        ]
        seen = await read_to_end(second)
        assert [e.get("command") for e in seen if e["kind"] == "BashCommand"] == ["echo theirs"]
        both = await read_to_end(chief, 2)
        assert [e["command"] for e in both if e["kind"] == "BashCommand"] == ["echo theirs", "echo mine"]


@pytest.mark.parametrize("way", ["header", "bearer", "query", "cookie", "message"])
async def test_every_way_in(address: str, tokens: dict[str, str], way: str):
    """The matrix of this socket: nobody, an ended token, who has not the scope, who has it."""
    assert RULES["WEBSOCKET", PATH] == "shell"
    origin = address.replace("ws://", "http://").removesuffix(PATH)

    def knock(token: str) -> Any:
        headers: dict[str, str] = {}
        where = address
        match way:
            case "header":
                headers = {"X-Session-API-Key": token}
            case "bearer":
                headers = {"Authorization": f"Bearer {token}"}
            case "query":
                where += f"?session_api_key={token}"
            case "cookie":
                headers = {"Cookie": f"holdfast_token={token}", "Origin": origin}
            case _:
                pass
        return connect(where, additional_headers=headers)

    for who, status in (("expired", 401), ("owner", 403), ("admin", 403)):
        if way == "message":
            async with knock("") as client:
                await client.send(json.dumps({"type": "auth", "session_api_key": tokens[who]}))
                assert await closed(client) == 4001
        else:
            with pytest.raises(InvalidStatus) as refused:
                await knock(tokens[who])
            assert refused.value.response.status_code == status
    async with knock(tokens["shell"]) as client:
        greeting = json.dumps({"type": "auth", "session_api_key": tokens["shell"]})
        await client.send(greeting)
        await client.send(greeting)  # once too often does no harm
        await client.send(json.dumps({"command": "echo in"}))
        assert (await read(client))["command"] == "echo in"


async def test_a_cookie_from_a_foreign_page_is_refused(address: str, tokens: dict[str, str]):
    for origin in ({}, {"Origin": "http://evil.example"}):
        with pytest.raises(InvalidStatus) as refused:
            await connect(
                address, additional_headers={"Cookie": f"holdfast_token={tokens['shell']}", **origin}
            )
        assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    "first",
    ["hello", "[]", "{}", '{"type": "auth"}', '{"type": "auth", "session_api_key": 7}', '{"command": "id"}'],
)
async def test_nobody_gets_anything(address: str, first: str, app: Any):
    async with joined(address) as client:
        await client.send(first)
        assert await closed(client) == 4001
    assert (await app.state.shell.search()).items == []


async def test_nobody_may_wait_for_ever(address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sockets, "_AUTH_SECONDS", 0.2)
    async with joined(address) as client:
        assert await closed(client) == 4001


async def test_a_token_that_is_revoked_ends_the_connection(
    address: str, store: Store, monkeypatch: pytest.MonkeyPatch, app: Any
):
    monkeypatch.setattr(sockets, "_CHECK_SECONDS", 0.05)
    made = await store.add_token(digest("hf_brief"), owner="brief", scopes=["shell"])
    async with joined(address, "hf_brief") as client:
        await store.revoke_token(made.id)
        app.state.authenticator._seen.clear()  # what it remembers for five seconds
        assert await closed(client) == 4001


async def test_bad_input_is_answered_and_the_connection_goes_on(address: str, tokens: dict[str, str]):
    async with joined(address, tokens["shell"]) as client:
        for message, code in (
            ("{", "bad_input"),
            ("7", "bad_input"),
            ("[" * 100_000, "bad_input"),
            (b"\xff\xfe", "bad_input"),
            ('{"command": ""}', "bad_input"),
            ('{"command": "true", "timeout": -1}', "bad_input"),
            ('{"command": "true", "cwd": "/no/such/folder"}', "folder_not_found"),
            ('{"command": "true", "session_id": "nothing"}', "session_not_found"),
        ):
            await client.send(message)
            refused = await read(client)
            assert (refused["kind"], refused["code"]) == ("BashError", code), message[:50]
        await client.send(json.dumps({"command": "echo fine"}))
        assert (await read_to_end(client))[0]["command"] == "echo fine"
    with pytest.raises(InvalidStatus) as refused_status:
        await connect(
            f"{address}?resend_mode=some", additional_headers={"X-Session-API-Key": tokens["shell"]}
        )
    assert refused_status.value.response.status_code == 422


async def test_a_client_that_does_not_read_is_dropped_and_delays_nobody(
    address: str, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch, app: Any
):
    monkeypatch.setattr(sockets, "_PATIENCE_SECONDS", 0.5)
    async with joined(address, tokens["shell"], max_queue=1, ping_interval=None, close_timeout=0.1) as slow:
        await slow.send(json.dumps({"command": "head -c 14000000 /dev/urandom | base64"}))
        async with joined(address, tokens["shell"], max_size=None) as quick:
            events = await read_to_end(quick)
            assert sum(len(event.get("stdout") or "") for event in events) > 15_000_000
            await until(lambda: _only(app, 1))  # the slow one is gone


async def _only(app: Any, number: int) -> bool:
    return app.state.sockets == number


async def test_there_is_room_for_a_bounded_number(
    address: str, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sockets, "_MAX_SOCKETS", 1)
    async with joined(address, tokens["shell"]) as first:
        async with joined(address, tokens["shell"]) as second:
            assert await closed(second) == 1013
        await first.send(json.dumps({"command": "true"}))
        assert (await read(first))["command"] == "true"


async def test_a_server_that_stops_says_so(address: str, tokens: dict[str, str], app: Any):
    async with joined(address, tokens["shell"]) as client:
        app.state.channels.close()
        assert await closed(client) == 1012


async def test_a_bad_token_is_refused_without_an_error_in_the_log(
    app: Any, tokens: dict[str, str], caplog: pytest.LogCaptureFixture
):
    caplog.set_level("WARNING")
    async with serving(app) as url:
        address = f"{url.replace('http', 'ws')}{PATH}"
        for query, headers in (
            ("", {"X-Session-API-Key": "hf_unknown"}),
            ("?session_api_key=hf_unknown", {}),
            ("", {"X-Session-API-Key": tokens["expired"]}),
            ("", {"X-Session-API-Key": tokens["reader"]}),
            ("?resend_mode=odd", {"X-Session-API-Key": tokens["shell"]}),
        ):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(f"{address}{query}", additional_headers=headers):
                    pass
            assert refused.value.response.status_code in {401, 403, 422}
            assert b'"error"' in refused.value.response.body
    assert [record.getMessage() for record in caplog.records] == []
