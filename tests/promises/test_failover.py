"""The primary is killed and its synchronous standby promoted, again and again, while clients submit and stream."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from holdfast.store import open_store
from tests.builders import until
from tests.pooler import pooled
from tests.raw_client import AsyncClient, ServerError, ServerUnavailable
from tests.servers import Pair, free_port, replicated
from tests.torture.app import effects_folder
from tests.torture.clients import Clients
from tests.torture.drill import until_quiet
from tests.torture.fleet import front, worker
from tests.torture.verdict import Effects, Verdict, judge

pytestmark = [pytest.mark.processes, pytest.mark.thorough, pytest.mark.timeout(300)]

_FAILOVERS = 3
_TOKEN = "hf_failover"
_SETTINGS = {
    "HOLDFAST_TOKEN": _TOKEN,
    "HOLDFAST_LEASE_TTL_SECONDS": "5",
    "HOLDFAST_LEASE_RENEW_SECONDS": "1",
    "HOLDFAST_STREAM_COMMENT_SECONDS": "1",
}
_CONTINUE_SECONDS, _AT_MOST = 5.0, 20.0
"""The best of the failovers must be within the first, and each within the second: other tests run beside this one."""
_SESSIONS = 12


async def test_a_failover_loses_nothing_and_repeats_nothing(tmp_path: Path):
    async with AsyncExitStack() as stack:
        pair = await stack.enter_async_context(replicated())
        await _drill(pair, pair.url(), pair.fail_over, tmp_path, stack)


@pytest.mark.pgbouncer
async def test_a_failover_behind_a_pooler(tmp_path: Path):
    """The operator points the pooler at the new primary. Its clients stay connected to it."""
    async with AsyncExitStack() as stack:
        pair = await stack.enter_async_context(replicated())
        pooler = stack.enter_context(pooled(pair.primary.port, size=8))

        async def fail_over() -> None:
            await pair.fail_over()
            pooler.point_at(pair.primary.port)

        await _drill(pair, pooler.url(pooler="transaction"), fail_over, tmp_path, stack)


async def _drill(
    pair: Pair, url: str, fail_over: Callable[[], Awaitable[None]], folder: Path, stack: AsyncExitStack
) -> None:
    (folder / "counted").mkdir()
    effects_folder(folder / "effects").mkdir()
    async with open_store(url):
        pass
    ports = [free_port(), free_port()]
    members = [
        *(worker(n, url, folder, _SETTINGS) for n in (1, 2)),
        *(front(n, port, url, folder, _SETTINGS) for n, port in enumerate(ports, 1)),
    ]
    for member in members:
        stack.callback(member.abandon)
        member.start()
    await asyncio.gather(*(member.up() for member in members))
    fronts = [f"http://127.0.0.1:{port}" for port in ports]
    clients = Clients(7, fronts, _TOKEN, [f"s{n}" for n in range(_SESSIONS)])
    stack.push_async_callback(clients.close)
    await clients.create()
    background = [asyncio.create_task(reader.read()) for reader in clients.readers]
    background.append(asyncio.create_task(clients.approve()))
    submitting = [asyncio.create_task(clients.submit(at_most_open=20)) for _ in range(4)]
    for task in (*background, *submitting):
        stack.callback(task.cancel)

    seconds: list[float] = []
    for number in range(_FAILOVERS):
        before = len(clients.sent)
        await _until(lambda before=before: len(clients.sent) >= before + 20)
        killed = time.monotonic()
        await fail_over()
        promoted = time.monotonic()
        took = await asyncio.gather(
            *(_continues(url, promoted, f"p{number}-{n}") for n, url in enumerate(fronts))
        )
        accepted, ended = (max(times) for times in zip(*took, strict=True))
        print(
            f"failover {number + 1}: promoted after {promoted - killed:.2f} s; then all API servers accepted"
            f" after {accepted:.2f} s, and workers had ended a turn of each after {ended:.2f} s",
            file=sys.stderr,
        )
        seconds.append(ended)
        await pair.rebuild()
    assert min(seconds) < _CONTINUE_SECONDS
    assert max(seconds) < _AT_MOST

    clients.stopping.set()
    await asyncio.gather(*submitting)
    await _until(lambda: not clients.open)
    await until_quiet(clients)  # readers may still receive what followed the last end
    assert all(not task.done() for task in background)
    verdict = Verdict()
    assert await asyncio.gather(*(member.end(30) for member in members)) == [0] * len(members)
    for member in members:
        verdict.add("processes that ended by themselves", member.fell)
    for task in background:
        task.cancel()
    async with open_store(url) as store:
        assert await store.check() == []
        await judge(store, clients, Effects(folder / "effects"), None, verdict)
    print(dict(sorted(verdict.counts.items())), file=sys.stderr)
    assert verdict.holds, {name: problems for name, problems in verdict.broken.items() if problems}
    assert verdict.counts["submissions done"] >= 20 * _FAILOVERS


async def _until(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await until(holds, seconds=60)


async def _continues(url: str, since: float, session_id: str) -> tuple[float, float]:
    """Return after how many seconds a submission over this API server was accepted, and had been carried out."""
    accepted: float | None = None
    submitted = ""
    async with AsyncClient(url, _TOKEN, timeout=6) as client:
        while True:
            try:
                if accepted is None:
                    body = {"agent": "plain", "id": session_id}
                    try:
                        await client.request("POST", "/api/sessions", json=body)
                    except ServerError as error:
                        if error.facts["code"] != "session_exists":
                            raise
                    body = {
                        "text": f"{session_id} []",
                        "idempotency_key": session_id,
                    }
                    path = f"/api/sessions/{session_id}/submissions"
                    submitted = (await client.request("POST", path, json=body))["submission_id"]
                    accepted = time.monotonic() - since
                path = f"/api/sessions/{session_id}/submissions/{submitted}"
                if (await client.request("GET", path))["state"] == "done":
                    return accepted, time.monotonic() - since
            except (ServerUnavailable, ServerError):
                pass
            await asyncio.sleep(0.05)
