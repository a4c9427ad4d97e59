"""A reader of events does not notice that its server was killed and started again."""

import asyncio
import shutil
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast import connect, events
from holdfast.client import transport
from holdfast.errors import ServerUnavailable, StoreReplaced
from tests.server.fronts import Front, front

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

BOT = """
import asyncio
from pathlib import Path
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

agent = Agent(TestModel(), name="bot")

@agent.tool_plain(metadata={"recovery": "retry"})
async def wait() -> str:
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    return "waited"
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@asynccontextmanager
async def bot_server(folder: Path, port: int) -> AsyncGenerator[Front, None]:
    (folder / "bot.py").write_text(BOT.replace('Path("go")', f'Path("{folder}/go")'))
    store = f"sqlite:///{folder}/holdfast.db"
    async with front(store, "bot:agent", "--port", str(port), token="hf_fixed") as server:
        yield server


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)])
async def test_a_restarted_server_is_not_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    port = free_port()
    seen: list[events.SessionEvent] = []
    async with connect(f"http://127.0.0.1:{port}", token="hf_fixed") as hf:
        async with bot_server(tmp_path, port) as server:
            session = await hf.session("s", agent="bot")
            turn = await session.send("hello")

            async def follow() -> None:
                async for event in turn.events():
                    seen.append(event)

            following = asyncio.create_task(follow())
            waiting = asyncio.create_task(turn.result(timeout=60))
            while not any(event.kind == "tool_call_started" for event in seen):
                await asyncio.sleep(0.02)
            server.process.send_signal(how)
            (tmp_path / "go").touch()
            await server.process.wait()
        if how == signal.SIGKILL:
            await asyncio.sleep(0.3)  # many times the first pause
            assert not following.done()
            assert not waiting.done()
        async with bot_server(tmp_path, port):
            assert await waiting == '{"wait":"waited"}'
            await following
    assert [event.seq for event in seen] == list(range(seen[0].seq, seen[-1].seq + 1))


async def test_a_server_that_stays_away_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(transport, "_PATIENCE_SECONDS", 0.5)
    port = free_port()
    async with connect(f"http://127.0.0.1:{port}", token="hf_fixed") as hf:
        async with bot_server(tmp_path, port):
            session = await hf.session("s", agent="bot")
            (tmp_path / "go").touch()
            turn = await session.send("hello")
        with pytest.raises(ServerUnavailable):
            await turn.result(timeout=30)
        with pytest.raises(ServerUnavailable):
            await hf.session("other", agent="bot")


@pytest.mark.parametrize("waiting", ["events", "result"])
async def test_an_embedded_client_learns_that_its_file_was_replaced(tmp_path: Path, waiting: str):
    file = tmp_path / "store.db"
    async with connect(f"sqlite:///{file}") as hf:
        session = await hf.session("talk", agent="nobody serves it")
        turn = await session.send("hello")
        queued = asyncio.Event()

        async def read() -> None:
            async for event in session.events():
                if isinstance(event, events.SubmissionQueued):
                    queued.set()

        reading = asyncio.create_task(read() if waiting == "events" else turn.result())
        if waiting == "events":
            await asyncio.wait_for(queued.wait(), 20)
        for name in ("store.db", "store.db-wal", "store.db-shm"):
            (tmp_path / name).rename(tmp_path / f"old-{name}")
        shutil.copy(tmp_path / "old-store.db", file)
        with pytest.raises(StoreReplaced, match="Restart the process"):
            await asyncio.wait_for(reading, 60)
        with pytest.raises(StoreReplaced, match="Restart the process"):
            await session.send("again")
