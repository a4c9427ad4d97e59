"""The stock chat of the Vercel AI SDK, the HttpAgent of AG-UI and the clients of Durable Streams, without a browser, against a real server."""

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Store
from holdfast.config import load_settings
from holdfast.server import create_app
from holdfast.server.auth import digest
from tests.browser.app import agent
from tests.server.serving import serving, working
from tests.stock.conftest import PACKAGES

pytestmark = pytest.mark.processes
TOKEN = "hf_a_front_ends_own"


@pytest.fixture
async def url(store: Store) -> AsyncGenerator[str, None]:
    await store.add_token(digest(TOKEN), owner="ada", scopes=["read", "write"])
    async with serving(create_app(load_settings(), store, ["agent"])) as served, working(store, agent):
        yield served


async def run(script: str, url: str) -> Any:
    """Run a script where its packages are, and return what it prints."""
    own = Path(shutil.copy(Path(__file__).with_name(script), PACKAGES))
    process = await asyncio.create_subprocess_exec(
        str(PACKAGES / "python" / "bin" / "python") if own.suffix == ".py" else "node",
        own.name,
        url,
        TOKEN,
        cwd=PACKAGES,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        output, errors = await process.communicate()
    assert (process.returncode, errors.decode()) == (0, "")
    return json.loads(output)


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [part["text"] for message in messages for part in message["parts"] if part["type"] == "text"]


async def test_use_chat_streams_answers_asks_for_approval_and_resumes(url: str, store: Store):
    found = await run("use_chat.mjs", url)
    said = texts(found["chat"])
    assert said[:4] == ["say hello there", "hello there ", "remove it", "ended after 1: removed notes.txt"]
    (call,) = [
        part for message in found["chat"] for part in message["parts"] if part["type"] == "tool-remove"
    ]
    assert (call["state"], call["output"]) == ("output-available", "removed notes.txt")
    assert len(found["chat"]) == 6  # the approval continued the message that asked for it
    assert texts(found["page"]) == said  # a page that was opened half-way has the same conversation
    assert len(said[-1].split()) == 80
    kinds = [sent.kind for sent in (await store.submissions("stock-chat")).items]
    assert kinds == ["message", "message", "approval", "message"]


async def test_an_http_agent_runs_under_its_own_ids(url: str):
    found = await run("http_agent.mjs", url)
    assert [message["content"] for message in found["messages"]] == [
        "say hello there",
        "hello there ",
        "say more",
        "more ",
    ]
    started = [event["runId"] for event in found["events"] if event["type"] == "RUN_STARTED"]
    assert started == found["runs"]
    assert {event["threadId"] for event in found["events"] if "threadId" in event} == {"stock-thread"}


@pytest.mark.parametrize("client", ["durable_streams.mjs", "durable_streams_client.py"])
async def test_a_durable_stream_is_read_from_the_start_and_live(client: str, url: str, store: Store):
    found = await run(client, url)
    kinds = [event.kind for event in await store.events("stock-stream")]
    assert found["whole"][0] == "submission_queued"
    assert found["whole"] == kinds[: len(found["whole"])]
    for live in ("long-poll", "sse"):
        assert found[live] == kinds[: len(found[live])]
        assert len(found[live]) > len(found["whole"])
