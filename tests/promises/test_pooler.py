"""Workers and an API server that reach PostgreSQL only through a small pooler in transaction mode."""

import signal
from collections.abc import Generator
from contextlib import aclosing
from pathlib import Path

import pytest

from holdfast import open_store
from tests.pooler import pooled
from tests.promises.workers import lines, worker
from tests.raw_client import AsyncClient
from tests.runtime.agents import ended, kinds, send
from tests.server.fronts import front
from tests.servers import Postgres

pytestmark = [pytest.mark.processes, pytest.mark.pgbouncer, pytest.mark.timeout(240)]

_SHORT = {"lease_ttl_seconds": "2", "lease_renew_seconds": "0.5"}


@pytest.fixture
def url(postgres_server: Postgres, postgres_url: str) -> Generator[str, None, None]:
    with pooled(postgres_server.port, size=4) as pooler:
        yield pooler.url(postgres_url.rpartition("/")[2], "transaction")


async def test_a_killed_worker_is_replaced_by_its_deadline(url: str, tmp_path: Path):
    """No lock shows that its process is gone. Its lease ends, another worker continues, and no effect is repeated."""
    log = tmp_path / "log"
    async with open_store(url) as store:
        session = (await store.create_session(agent="agent", owner="you")).id
        async with worker(url, hold=60, **_SHORT) as first:
            message = await send(store, session, f"work 3 {log}")
            await lines(log, 1)
            async with worker(url, hold=0, **_SHORT):
                first.signal(signal.SIGKILL)
                assert (await ended(store, message)).state == "done"
        assert [line.split()[0] for line in log.read_text().splitlines()] == ["0", "1", "2"]
        assert "takeover" in await kinds(store, session)
        assert await store.check() == []


async def test_streams_resume(url: str, tmp_path: Path):
    """A client follows a turn of a worker over an API server, and continues after its last event over another one."""
    log = tmp_path / "log"
    token = {"token": "hf_of-the-pooler-test"}
    async with worker(url, hold=0.1), front(url, "--role", "api", **token) as one, one.client() as client:
        session = (await client.create_session("agent"))["id"]
        await client.submit(session, f"work 5 {log}")
        seen = await _follow(client, session, 0, "tool_call_completed")
        async with front(url, "--role", "api", **token) as other, other.client() as second:
            seen += await _follow(second, session, seen[-1], "submission_done")
        assert seen == list(range(1, len(seen) + 1))
    assert [line.split()[0] for line in log.read_text().splitlines()] == [str(n) for n in range(5)]


async def _follow(client: AsyncClient, session_id: str, after: int, last: str) -> list[int]:
    """Return the numbers of the events up to one of a kind."""
    seen: list[int] = []
    async with aclosing(client.stream(session_id, after=after)) as events:
        async for event in events:
            seen.append(event["seq"])
            if event["kind"] == last:
                break
    return seen
