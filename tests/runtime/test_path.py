"""The path of a message in docs/design.md: every file that it lists runs."""

import asyncio
import re
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import httpx2
import uvicorn
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

import holdfast
from holdfast.config import load_settings
from holdfast.runtime import Worker
from holdfast.server import create_app
from holdfast.server.protocol import new_protocol
from holdfast.store import open_store

SOURCE = f"{Path(holdfast.__file__).parent}/"
DESIGN = Path(__file__).parents[2] / "docs" / "design.md"


@contextmanager
def traced() -> Generator[set[str], None, None]:
    """Collect the files of the package whose functions are called, in all new threads too."""
    files = set[str]()

    def note(frame: FrameType, event: str, argument: object) -> None:
        del event, argument
        if frame.f_code.co_filename.startswith(SOURCE):
            files.add(frame.f_code.co_filename.removeprefix(SOURCE))

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType]


async def send_and_read(url: str) -> None:
    async with httpx2.AsyncClient(base_url=url) as http:
        session_id = (await http.post("/api/sessions", json={"agent": "bot"})).json()["id"]
        path = f"/api/sessions/{session_id}"
        async with http.stream("GET", f"{path}/events", headers={"accept": "text/event-stream"}) as stream:
            assert (await http.post(f"{path}/submissions", json={"text": "hello"})).status_code == 202
            async for line in stream.aiter_lines():
                if "submission_done" in line:
                    return


async def hand_on(store_url: str) -> None:
    """Send a message and read its events, with a worker and an API server."""
    async with open_store(store_url) as store:
        agent = Agent(TestModel(custom_output_text="hi"), name="bot")
        working = asyncio.create_task(Worker(store, [agent]).run())
        with socket.create_server(("127.0.0.1", 0)) as listening:
            app = create_app(load_settings(auth="none"), store, ["bot"])
            http = new_protocol(request_seconds=30)
            server = uvicorn.Server(uvicorn.Config(app, http=http, log_level="error"))
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            async with asyncio.timeout(60):
                await send_and_read(f"http://127.0.0.1:{listening.getsockname()[1]}")
            server.should_exit = True
            await serving
        working.cancel()
        await asyncio.wait([working])


async def test_the_documented_path_of_a_message_is_the_one_it_takes(tmp_path: Path):
    text = DESIGN.read_text()
    section = text[text.index("## The path of a message") : text.index("\nAbout 100 files run")]
    documented = set(re.findall(r"`(\w+/[\w/]+\.py)`", section))
    documented -= {"runtime/function_agent.py", "runtime/function_run.py"}  # of plain agents
    assert len(documented) == 22

    await hand_on(f"sqlite:///{tmp_path}/imports.db")  # what runs on import is not part of the path
    with traced() as files:
        await hand_on(f"sqlite:///{tmp_path}/path.db")
    assert documented - files == set()
    assert len(files) < 105, "The page states the number of files."
