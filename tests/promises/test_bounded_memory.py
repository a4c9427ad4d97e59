"""Memory is bounded by what is looked at, not by what is stored: real processes with a session of large messages."""

import json
import re
import sys
from pathlib import Path

import httpx2
import pytest

from holdfast import open_store
from holdfast.types import Batch, Checkpoint, Message, NewEvent, Segment
from tests.builders import until
from tests.conftest import Engine
from tests.promises.workers import worker
from tests.runtime.agents import ended, send
from tests.server.fronts import front

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(180),
    pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of a process from /proc"),
]

MESSAGES = 37
MEGABYTE = 1024 * 1024
MESSAGE_BYTES = 9 * MEGABYTE
MOST_BYTES = 260 * MEGABYTE
"""How far each process may rise above what it needed when it had started."""


def peak_bytes(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


async def fill(url: str, messages: int = MESSAGES) -> str:
    """Make a session with large messages, each with an event, and with large submissions that have ended."""
    text = "x" * MESSAGE_BYTES
    part = {"part_kind": "user-prompt", "content": text, "timestamp": "2026-01-01T00:00:00Z"}
    body = json.dumps({"kind": "request", "parts": [part]})
    async with open_store(url) as store:
        session_id = (await store.create_session(agent="agent", owner="owner")).id
        lease = await store.acquire(session_id, await store.join("filler"))
        await store.write(lease, Batch(segments=[Segment(number=1)]))
        for n in range(messages):
            message, event = (
                Message(segment=1, position=n, body=body),
                NewEvent(kind="message", message=(1, n)),
            )
            await store.write(lease, Batch(messages=[message], events=[event]))
            if n % 4 == 0:
                await store.submit(session_id, "approval", json.dumps({"text": text}), lane="control")
        await store.write(
            lease, Batch(checkpoints=[Checkpoint(id=f"c-{session_id}", segment=1, length=messages)])
        )
        await store.release(lease)
    return session_id


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
async def test_a_server_gives_out_large_sessions_in_bounded_memory(engine: Engine):
    session_id = await fill(engine.url)
    path = f"/api/sessions/{session_id}"
    async with front(engine.url, "--role", "api", token="t" * 40) as server:
        headers = {"authorization": f"Bearer {server.token}"}
        async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
            assert (await client.get(path)).status_code == 200
            before = peak_bytes(server.process.pid)
            for query, position in (("/events?limit=1000", "seq"), ("/messages?limit=1000", "position")):
                seen: set[int] = set()
                after = ""
                while after is not None:
                    page = (await client.get(f"{path}{query}{after and f'&after={after}'}")).json()
                    seen |= {item[position] for item in page["items"]}
                    after = page["next_cursor"]
                assert len(seen) >= MESSAGES
            chat: str | None = f"/api/chat/{session_id}"
            pages = 0
            while chat is not None:
                answer = await client.get(chat)
                pages += len(answer.json())
                chat = answer.links.get("prev", {}).get("url")
            assert pages == MESSAGES
            listed = (await client.get(f"{path}/submissions?limit=1000")).json()["items"]
            assert len(listed) == MESSAGES // 4 + 1
            async with client.stream(
                "GET", f"{path}/events", headers={"accept": "text/event-stream"}
            ) as stream:
                received = 0
                async for piece in stream.aiter_bytes():
                    received += len(piece)
                    if received >= MESSAGES * MESSAGE_BYTES:
                        break
            assert peak_bytes(server.process.pid) - before < MOST_BYTES


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
async def test_a_worker_does_not_load_a_history_that_is_too_large(engine: Engine):
    session_id = await fill(engine.url)
    async with worker(engine.url) as process:
        before = peak_bytes(process.process.pid)
        async with open_store(engine.url) as store:
            failed = await ended(store, await send(store, session_id, "hello"))
        assert "max_history_bytes" in str(failed.reason)
        assert peak_bytes(process.process.pid) - before < MOST_BYTES


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
async def test_a_worker_loads_large_histories_one_after_another(engine: Engine):
    """Four sessions of one owner, each with 63 MB. The scripted model copies them several times: together they would take 1 GB."""
    sessions = [await fill(engine.url, 7) for _ in range(4)]
    async with worker(engine.url) as process:
        before = peak_bytes(process.process.pid)
        async with open_store(engine.url) as store:
            sent = [await send(store, session_id, "hello") for session_id in sessions]

            async def all_done() -> bool:
                return {(await store.submission(each.id)).state for each in sent} == {"done"}

            await until(all_done, 150)
        assert peak_bytes(process.process.pid) - before < 800 * MEGABYTE
