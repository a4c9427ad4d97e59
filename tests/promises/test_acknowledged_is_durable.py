"""Promise 1: what was answered 202, and what any reader saw, is there after everything was killed at once."""

import asyncio
import json
import random
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from holdfast.store import Store, open_store
from holdfast.types import Event
from tests.promises.workers import worker
from tests.raw_client import AsyncClient, ServerError, ServerUnavailable
from tests.server.fronts import front
from tests.servers import postgres

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
SESSIONS = 5


@pytest.mark.thorough("postgres")
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_a_power_cut_takes_nothing_that_was_acknowledged(engine: str, tmp_path: Path):
    """Front, worker and, where there is one, the server die in the same moment, three times over."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(postgres()) if engine == "postgres" else None
        url = f"sqlite:///{tmp_path}/store.db" if server is None else server.url()
        chance = random.Random(11)
        accepted: dict[str, str] = {}
        seen: dict[tuple[str, int], str] = {}
        async with open_store(url) as store:
            for n in range(SESSIONS):
                await store.create_session(agent="agent", owner="local", id=f"s{n}")
        for life in range(3):
            async with (
                front(url, "--role", "api", token="hf_test") as serving,
                worker(url) as working,
                serving.client() as client,
            ):
                readers = [asyncio.create_task(_read(client, f"s{n}", seen)) for n in range(SESSIONS)]
                submitting = asyncio.create_task(_submit(client, life, accepted))
                before = len(accepted)
                async with asyncio.timeout(30):
                    while len(accepted) < before + 10 + 10 * life:
                        await asyncio.sleep(chance.uniform(0.001, 0.02))
                serving.process.kill()
                working.process.kill()
                if server is not None:
                    await asyncio.to_thread(server.kill)
                with suppress(ServerUnavailable, ServerError):
                    await submitting
                for reader in readers:
                    reader.cancel()
                await asyncio.gather(*readers, return_exceptions=True)
            if server is not None:
                await asyncio.to_thread(server.start)
        assert len(accepted) >= 60
        async with open_store(url) as store, worker(url):
            for session_id in (f"s{n}" for n in range(SESSIONS)):
                async with asyncio.timeout(60):
                    while (await store.session(session_id)).pending:
                        await asyncio.sleep(0.02)
                events = {event.seq: event for event in await _events(store, session_id)}
                for (where, seq), kind in seen.items():
                    assert where != session_id or events[seq].kind == kind
                found = {
                    s.idempotency_key: s for s in (await store.submissions(session_id, limit=1000)).items
                }
                done = [
                    json.loads(e.payload)["submission_id"] for e in events.values() if e.kind.endswith("done")
                ]
                assert len(done) == len(set(done))
                for key, submission in found.items():
                    assert accepted.pop(str(key), submission.id) == submission.id
                    assert submission.state == "done"
            assert await store.check() == []
        assert accepted == {}


async def _submit(client: AsyncClient, life: int, accepted: dict[str, str]) -> None:
    for n in range(10_000):
        key = f"{life}-{n}"
        answer = await client.submit(f"s{n % SESSIONS}", f"hello {key}", idempotency_key=key)
        accepted[key] = answer["submission_id"]


async def _read(client: AsyncClient, session_id: str, seen: dict[tuple[str, int], str]) -> None:
    async for event in client.stream(session_id):
        seen[session_id, event["seq"]] = event["kind"]


async def _events(store: Store, session_id: str) -> list[Event]:
    found: list[Event] = []
    while page := await store.events(session_id, after=found[-1].seq if found else 0):
        found += page
    return found
