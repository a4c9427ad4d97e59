"""Shell commands over HTTP against real servers: what goes wrong there, and what is left of it."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.store import Store, open_store
from tests.builders import until
from tests.conftest import Engine
from tests.server.fronts import Front, front
from tests.servers import postgres
from tests.shell.conftest import leftovers

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
SEARCH = "/api/bash/bash_events/search"


@asynccontextmanager
async def serving(url: str) -> AsyncGenerator[tuple[Front, httpx2.AsyncClient], None]:
    """A server with a shell, and a client that may use it."""
    async with front(url, "--role", "api", "--enable-shell") as server:
        headers = {"X-Session-API-Key": server.token}
        async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
            yield server, client


async def start(client: httpx2.AsyncClient, command: str, **more: Any) -> str:
    answer = await client.post("/api/bash/start_bash_command", json={"command": command, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


async def execute(client: httpx2.AsyncClient, command: str, **more: Any) -> dict[str, Any]:
    answer = await client.post("/api/bash/execute_bash_command", json={"command": command, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def outputs(client: httpx2.AsyncClient, command: str) -> list[dict[str, Any]]:
    """Poll as existing clients do: with the highest number that they have."""
    found: list[dict[str, Any]] = []
    while True:
        after = found[-1]["order"] if found else -1
        query = {"command_id__eq": command, "kind__eq": "BashOutput", "order__gt": after}
        page = (await client.get(SEARCH, params=query)).json()
        found += page["items"]
        if page["next_page_id"] is None:
            return found


async def nothing_left() -> bool:
    return not leftovers()


async def test_a_server_that_is_killed_during_commands(store: Store, engine: Engine):
    """No child outlives it, what was written is there, and the next server records how they ended."""
    commands = [
        "echo up; sleep 100",
        "trap '' TERM INT HUP; (setsid sleep 100 &); echo up; while :; do sleep 0.05; echo on; done",
        "exec >&- 2>&-; sleep 100",
    ]
    async with serving(engine.url) as (server, client):
        ids = [await start(client, command) for command in commands]

        async def all_up() -> bool:
            return bool(await outputs(client, ids[0])) and len(await outputs(client, ids[1])) > 3

        await until(all_up)
        waiting = asyncio.create_task(execute(client, "sleep 100"))
        await until(lambda: _count(store, 4))
        before = await outputs(client, ids[1])
        server.process.send_signal(signal.SIGKILL)
        await server.process.wait()
        with pytest.raises(httpx2.HTTPError):
            await waiting
    await until(nothing_left, seconds=10)
    async with serving(engine.url) as (_, client):
        commands_now = (await store.commands()).items
        assert {command.state for command in commands_now} <= {"lost", "killed"}
        for command in ids:
            result = (await client.get(f"/api/bash/{command}")).json()
            assert result["state"] in {"lost", "killed"}
            assert (result["exit_code"], result["ended_at"] is not None) == (-1, True)
            found = await outputs(client, command)
            assert [output["order"] for output in found] == list(range(len(found)))
            assert [output["exit_code"] for output in found] == [None] * (len(found) - 1) + [-1]
            assert "the service that ran this command died" in found[-1]["stderr"]
        after = await outputs(client, ids[1])
        assert after[: len(before)] == before
        assert (await execute(client, "echo works"))["stdout"] == "works\n"


async def _count(store: Store, number: int) -> bool:
    return len((await store.commands(state="running")).items) == number


async def test_a_server_that_is_told_to_stop_ends_its_commands(store: Store, engine: Engine):
    async with serving(engine.url) as (server, client):
        command = await start(client, "echo up; sleep 100")
        async with client.stream("GET", f"/api/bash/{command}/output") as stream:
            text = ""
            async for chunk in stream.aiter_text():
                text += chunk
                if "up" in text and server.process.returncode is None:
                    server.process.send_signal(signal.SIGTERM)
        assert "event: end" in text
        assert await asyncio.wait_for(server.process.wait(), 20) == 0
    assert (await store.command(command)).state == "killed"
    assert leftovers() == []


@pytest.mark.thorough
async def test_a_database_that_goes_away_under_a_running_command(tmp_path: Path):
    """The command goes on meanwhile, and all it wrote is there afterwards, once."""
    gate = tmp_path / "gate"
    with postgres() as database:
        async with serving(database.url()) as (_, client):
            slow = (
                f"seq 1 1000; while [ ! -e {gate} ]; do echo waiting; sleep 0.05; done; seq 1001 2000; exit 7"
            )
            command = await start(client, slow)

            async def has_begun() -> bool:
                return bool(await outputs(client, command))

            await until(has_begun)
            quiet = await start(client, f"while [ ! -e {gate} ]; do sleep 0.05; done; echo quiet")
            database.kill()
            refused = await client.post("/api/bash/start_bash_command", json={"command": "echo no"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
            assert (await client.get(SEARCH)).status_code == 503
            gate.touch()
            database.start()

            async def have_ended() -> bool:
                answers = [await client.get(f"/api/bash/{each}") for each in (command, quiet)]
                return all(
                    answer.status_code == 200 and answer.json()["ended_at"] is not None for answer in answers
                )

            await until(have_ended, seconds=60)
            result = (await client.get(f"/api/bash/{command}")).json()
            assert (result["state"], result["exit_code"]) == ("done", 7)
            found = await outputs(client, command)
            assert [output["order"] for output in found] == list(range(len(found)))
            lines = "".join(output["stdout"] or "" for output in found).split()
            assert [line for line in lines if line != "waiting"] == [str(n) for n in range(1, 2001)]
            assert "".join(output["stdout"] or "" for output in await outputs(client, quiet)) == "quiet\n"
        async with open_store(database.url()) as store:
            assert await store.check() == []


async def test_bad_input_ends_cleanly(engine: Engine, store: Store, tmp_path: Path):
    """Each with a clear error or a clean end; never a 500, never a child that is left."""
    async with serving(engine.url) as (_, client):
        forks = await execute(client, "for i in 1 2 3; do (setsid sleep 100 &); done; sleep 100 & echo x")
        assert (forks["exit_code"], forks["stdout"]) == (0, "x\n")
        stubborn = await execute(client, "trap '' TERM; while :; do sleep 0.05; done", timeout=1)
        assert stubborn["exit_code"] == -1
        closes = await execute(client, "echo x; exec >&- 2>&-; sleep 0.2; exit 6")
        assert (closes["exit_code"], closes["stdout"]) == (6, "x\n")
        plain = await execute(client, "printf %300000d 7")
        assert plain["stdout"] == "7".rjust(300_000)
        broken = await execute(client, r"printf 'a\xff\0b\xf0\x9f\xa6'; sleep 0.3; printf '\x80!'")
        assert broken["stdout"] == "a\ufffd\ufffdb\U0001f980!"
        stdin = await execute(client, "cat; read line || echo end")
        assert stdin["stdout"] == "end\n"
        nowhere = {"command": "true", "cwd": f"{tmp_path}/none"}
        missing = await client.post("/api/bash/execute_bash_command", json=nowhere)
        assert (missing.status_code, missing.json()["error"]["code"]) == (422, "folder_not_found")
        for query in ({"limit": 101}, {"limit": 0}, {"page_id": "yesterday"}, {"command_id__eq": "7"}):
            refused = await client.get(SEARCH, params=query)
            assert refused.status_code == 422, query
            assert refused.json()["error"]["code"] in {"bad_input", "bad_cursor"}, query
        for path in ("bash_events/7", "7", "7/output", "bash_events/?event_ids=7"):
            assert (await client.get(f"/api/bash/{path}")).status_code == 422, path
        page = (await client.get(SEARCH, params={"limit": 2})).json()
        assert (await client.delete("/api/bash/bash_events")).json()["cleared_count"] > 10
        later = await execute(client, "echo later")
        old = {"page_id": page["next_page_id"], "timestamp__lt": datetime.now(UTC).isoformat()}
        events = (await client.get(SEARCH, params=old)).json()["items"]
        assert later["id"] in [event["id"] for event in events]
    assert leftovers() == []


@pytest.mark.thorough("postgres")
async def test_a_gigabyte_of_output_is_bounded(engine: Engine, store: Store):
    async with serving(engine.url) as (_, client):
        found = await execute(client, "head -c 1000000000 /dev/zero | tr '\\0' x; echo the end", timeout=170)
        assert found["exit_code"] == 0
        assert len(found["stdout"]) < 17 * 1024 * 1024
        assert "bytes omitted here" in found["stdout"]
        assert found["stdout"].endswith("xthe end\n")
        result = (await client.get(f"/api/bash/{found['command_id']}")).json()
        assert result["stdout_bytes"] == 1_000_000_008
        assert result["left_out_bytes"] > 980_000_000
