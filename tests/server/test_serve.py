"""The server as real processes: any front serves any session, whoever runs it."""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from holdfast import Store, connect, open_store
from tests.conftest import Engine
from tests.forking import start_forked
from tests.promises.workers import lines, worker
from tests.raw_client import AsyncClient, ServerError
from tests.server.fronts import front

pytestmark = pytest.mark.processes
APP = "tests.promises.app:agent"


async def until(client: AsyncClient, session_id: str, kind: str, *, after: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(30):
        async for event in client.stream(session_id, after=after):
            found.append(event)
            if event["kind"] == kind:
                break
    return found


async def test_one_command_serves_and_runs(engine: Engine, store: Store):
    async with front(engine.url, APP) as server, server.client() as client:
        session = await client.create_session("agent", title="First")
        sent = await client.submit(session["id"], "hello", idempotency_key="once")
        again = await client.submit(session["id"], "hello", idempotency_key="once")
        assert again["submission_id"] == sent["submission_id"]
        events = await until(client, session["id"], "submission_done")
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert events[-3]["message"]["parts"][0]["content"] == "done after 0"
        pages = await client.request("GET", f"/api/sessions/{session['id']}/events")
        assert pages["items"] == events
        history = await client.request("GET", f"/api/sessions/{session['id']}/messages")
        assert [item["message"]["kind"] for item in history["items"]] == ["request", "response"]
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(server.process.wait(), 20) == 0


async def test_workers_do_not_get_the_administrators_token(engine: Engine, store: Store):
    async with (
        front(engine.url, "tests.server.environment_agent:agent", token="t" * 40) as server,
        connect(server.url, token=server.token) as client,
    ):
        turn = await (await client.session("s", agent="agent", output_type=list[str])).send("hello")
        names = await turn.result(timeout=30)
    assert "HOLDFAST_STORE" in names
    assert "HOLDFAST_TOKEN" not in names


async def test_a_stream_keeps_what_looks_like_the_end_of_a_line(engine: Engine, store: Store):
    said = "one\u2028two\u2029three\x85four\x0bfive\x1csix\rseven\r\neight"
    async with front(engine.url, APP) as server, server.client() as client:
        session = await client.create_session("agent")
        await client.submit(session["id"], said)
        events = await until(client, session["id"], "submission_done")
        (asked,) = [
            e["message"] for e in events if e["kind"] == "message" and e["message"]["kind"] == "request"
        ]
        assert asked["parts"][0]["content"] == said


async def test_two_fronts_and_a_worker(engine: Engine, store: Store, tmp_path: Any):
    """Submit on one, stream from the other; kill the one in mid-stream and go on with the next number on the other."""
    token = "an administrator's token"
    one = front(engine.url, "--role", "api", token=token)
    two = front(engine.url, "--role", "api", token=token)
    async with AsyncExitStack() as stack:
        first, second = await stack.enter_async_context(one), await stack.enter_async_context(two)
        await stack.enter_async_context(worker(engine.url, hold=0.3))
        here, there = first.client(), second.client()
        stack.push_async_exit(here)
        stack.push_async_exit(there)
        session = (await here.create_session("agent"))["id"]
        await here.submit(session, f"work 6 {tmp_path / 'log'}")
        seen: list[int] = []
        async with asyncio.timeout(30):
            async for event in here.stream(session):
                seen.append(event["seq"])
                if event["kind"] == "tool_call_started":
                    break
        held = await there.session(session)
        assert held["status"] == "running"
        assert held["holder"]
        first.process.kill()
        async with asyncio.timeout(30):
            async for event in there.stream(session, after=seen[-1]):
                seen.append(event["seq"])
                if event["kind"] == "submission_done":
                    break
        assert seen == list(range(1, len(seen) + 1))
        # A session that another process holds can be interrupted and written to.
        mark = tmp_path / "mark"
        slow = await there.submit(session, f"work 50 {mark}")
        await lines(mark, 1)
        await there.interrupt(session)
        events = await until(there, session, "run_interrupted", after=slow["position"])
        assert events[-1]["kind"] == "run_interrupted"
        await there.submit(session, "still there?")
        await until(there, session, "submission_done", after=events[-1]["seq"])


async def test_a_stream_ends_with_a_hint_when_the_server_stops(engine: Engine, store: Store):
    session = (await store.create_session(agent="agent", owner="local")).id
    async with front(engine.url, "--role", "api") as server, server.client() as client:
        await store.submit(session, "message", '{"text": "hi"}')
        http: Any = client._http  # pyright: ignore[reportPrivateUsage]
        async with http.stream(
            "GET", f"/api/sessions/{session}/events", headers={"accept": "text/event-stream"}
        ) as response:
            text = ""
            async for chunk in response.aiter_text():
                text += chunk
                if "submission_queued" in text and server.process.returncode is None:
                    server.process.send_signal(signal.SIGTERM)
        assert "event: end" in text
        assert '"closing"' in text
        assert await asyncio.wait_for(server.process.wait(), 20) == 0


async def test_workers_end_with_the_one_who_started_them(
    engine: Engine, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whoever kills `serve` kills no worker. They notice, hand over what runs, and end; another goes on with it."""
    monkeypatch.setenv("HOLD", "0.1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    mark = tmp_path / "mark"
    async with front(engine.url, APP) as server, server.client() as client:
        session = (await client.create_session("agent"))["id"]
        await client.submit(session, f"work 40 {mark}")
        await lines(mark, 1)
        (holder,) = [found for found in await store.holders() if found.sessions]
        pid = int(holder.name.rpartition(":")[2])
        server.process.kill()
        await server.process.wait()
        handed_over = 0
        async with asyncio.timeout(30):
            async for event in store.watch(session):
                if event.kind == "handover" and json.loads(event.payload)["reason"] == "shutdown":
                    handed_over = event.seq
                    break
            while holder.id in {found.id for found in await store.holders()} or _lives(pid):
                await asyncio.sleep(0.02)
        assert handed_over
    assert not [*tmp_path.glob("holdfast-metrics-*")]
    async with worker(engine.url), asyncio.timeout(60):
        async for event in store.watch(session, after=handed_over):
            if event.kind == "submission_done":
                break
    numbers = [line.split()[0] for line in mark.read_text().splitlines()]
    assert numbers == [str(number) for number in range(40)]  # nothing was done twice


async def test_ctrl_c_hands_over(
    engine: Engine, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A terminal sends it to all processes. The call under way ends, and what comes next is for who goes on."""
    monkeypatch.setenv("HOLD", "1")
    mark = tmp_path / "mark"
    async with front(engine.url, APP) as server, server.client() as client:
        session = (await client.create_session("agent"))["id"]
        await client.submit(session, f"work 9 {mark}")
        await lines(mark, 1)
        os.killpg(server.process.pid, signal.SIGINT)
        assert await asyncio.wait_for(server.process.wait(), 30) == 0
    events = await store.events(session)
    kinds = [event.kind for event in events]
    assert kinds[-1] == "handover"
    assert kinds.count("tool_call_started") == kinds.count("tool_call_completed") == 1
    (submission,) = (await store.submissions(session)).items
    assert (submission.state, submission.attempts) == ("queued", 0)


async def test_a_second_ctrl_c_does_not_wait(
    engine: Engine, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOLD", "60")
    mark = tmp_path / "mark"
    async with front(engine.url, APP) as server, server.client() as client:
        session = (await client.create_session("agent"))["id"]
        await client.submit(session, f"work 9 {mark}")
        await lines(mark, 1)
        os.killpg(server.process.pid, signal.SIGINT)
        await asyncio.sleep(0.5)
        os.killpg(server.process.pid, signal.SIGINT)
        assert await asyncio.wait_for(server.process.wait(), 10) == 0
    assert (await store.session(session)).holder is None


async def test_a_port_that_is_taken(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for command in (["serve", "--role", "api"], ["demo"]):
            process = await start_forked(
                *(sys.executable, "-m", "holdfast", *command, "--port", str(port)),
                cwd=tmp_path,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, err = await asyncio.wait_for(process.communicate(), 30)
            assert (process.returncode, out) == (2, b"")
            assert (err.count(b"\n"), f"port {port}".encode() in err) == (1, True)
    assert not [*tmp_path.iterdir()]


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_an_address_of_version_6(tmp_path: Path):
    async with front(f"sqlite:///{tmp_path}/store.db", "--role", "api", "--host", "::1") as served:
        assert served.url.startswith("http://[::1]:")
        async with served.client() as client:
            assert (await client.sessions())["items"] == []


async def test_an_answer_does_not_wait_for_an_acknowledgement(engine: Engine, store: Store):
    async with front(engine.url, "--role", "api") as server, server.client() as client:
        took: list[float] = []
        for _ in range(30):
            began = time.monotonic()
            await client.sessions()
            took.append(time.monotonic() - began)
        # A system may wait with it for 40 ms, once a connection is no longer new.
        assert min(took[10:]) < 0.03


async def test_doors_stay_closed(engine: Engine, store: Store):
    session = (await store.create_session(agent="agent", owner="somebody")).id
    async with front(engine.url, "--role", "api") as server:
        async with AsyncClient(server.url) as nobody:
            with pytest.raises(ServerError) as refused:
                await nobody.session(session)
            assert refused.value.facts["status"] == 401
        async with server.client("hf_wrong") as stranger:
            with pytest.raises(ServerError) as refused:
                await stranger.sessions()
            assert refused.value.facts["status"] == 401


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_a_stream_ends_when_the_store_was_restored_to_an_earlier_state(engine: Engine):
    """It would stay silent until the old number is reached, and skip the events that have the numbers before it."""
    async with front(engine.url, "--role", "api") as server, server.client() as client:
        session_id = (await client.create_session("agent"))["id"]
        for text in ("one", "two", "three"):
            await client.submit(session_id, text)
        stream = client.stream(session_id)
        assert [(await anext(stream))["seq"] for _ in range(3)] == [1, 2, 3]
        following = asyncio.ensure_future(anext(stream))
        connection = await asyncpg.connect(engine.url)
        try:
            await connection.execute(
                "BEGIN; DELETE FROM holdfast.events WHERE seq > 1; UPDATE holdfast.heads SET seq = 1; COMMIT"
            )
        finally:
            await connection.close()
        with pytest.raises(ServerError, match="its last event is 1"):
            await asyncio.wait_for(following, 20)


async def test_a_server_without_file_descriptors_waits_for_some(tmp_path: Path):
    """It keeps serving the connections that it has, and does not fill the log meanwhile."""
    log = tmp_path / "log"
    refused = b"out of system resource"
    with log.open("wb") as stderr:
        async with (
            front(f"sqlite:///{tmp_path}/store.db", "--role", "api", stderr=stderr) as server,
            server.client() as client,
        ):
            session_id = (await client.create_session("agent"))["id"]
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (40, 40))
            address = urlsplit(server.url)
            others = [socket.create_connection((address.hostname, address.port)) for _ in range(60)]
            while refused not in log.read_bytes():
                await asyncio.sleep(0.01)
            await client.submit(session_id, "while there are none")
            assert log.read_bytes().count(refused) < 10
            for other in others:
                other.close()
            async with server.client() as another:
                await another.submit(session_id, "when there are some again")
            assert (await client.session(session_id))["seq"] == 2


@pytest.mark.thorough
async def test_a_worker_that_cannot_be_started_is_started_later(tmp_path: Path):
    """Without file descriptors there is no new process either; sessions would wait for a worker without end."""
    url, log = f"sqlite:///{tmp_path}/store.db", tmp_path / "log"
    with log.open("wb") as stderr:
        async with (
            open_store(url) as store,
            front(url, APP, stderr=stderr) as server,
            server.client() as client,
            asyncio.timeout(50),
        ):
            while not (holders := await store.holders()):
                await asyncio.sleep(0.02)
            session_id = (await client.create_session("agent"))["id"]
            pid = server.process.pid
            soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
            os.kill(int(holders[0].name.rpartition(":")[2]), signal.SIGKILL)
            while b"Too many open files" not in log.read_bytes():
                await asyncio.sleep(0.02)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
            await client.submit(session_id, "hello")
            async for event in store.watch(session_id):
                if event.kind == "submission_done":
                    break
