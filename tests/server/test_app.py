"""What applies to every request: limits, metrics, errors."""

import subprocess
import sys
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from holdfast.config import load_settings
from holdfast.server import create_app
from holdfast.store import Store, open_store

STORE = "sqlite://:memory:"
TOKEN = "hf_app"


async def pieces(count: int, read: list[int]) -> AsyncGenerator[bytes, None]:
    """Yield a body without a declared length, a kilobyte at a time, and note what is read of it."""
    for number in range(count):
        read.append(number)
        yield b" " * 1024


@pytest.fixture
async def client() -> AsyncGenerator[tuple[Any, httpx2.AsyncClient], None]:
    async with open_store(STORE) as store:
        settings = load_settings(
            store=STORE, token=SecretStr(TOKEN), max_body_bytes=10_000, max_archive_bytes=50_000
        )
        app = create_app(settings, store)
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as http:
            yield app, http


def samples(registry: CollectorRegistry) -> int:
    return sum(len(metric.samples) for metric in registry.collect())


async def test_invented_http_methods_do_not_become_metric_labels(client: tuple[Any, httpx2.AsyncClient]):
    app, http = client
    registry = app.state.metrics.registry
    paths = ("/health", "/api/sessions/some", "/no/such/path", "/static/none")
    for method in ("GET", "POST", "INVENTED"):
        for path in paths:
            await http.request(method, path)
    before = samples(registry)
    for number in range(20):
        for path in paths:
            await http.request(f"INVENTED{number}", f"{path}?x={number}")
            await http.get(f"{path}{number}" if path != "/health" else path)
    assert samples(registry) == before
    methods = {
        sample.labels["method"]
        for metric in registry.collect()
        for sample in metric.samples
        if "method" in sample.labels
    }
    assert methods == {"GET", "POST", "other"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PATCH", "/api/sessions/rehydrate"),
        ("PUT", "/api/sessions/rehydrate/cursors/rehydrate"),
        ("PUT", "/api/sessions/rehydrate/state"),
        ("POST", "/api/sessions/rehydrate/submissions"),
    ],
)
async def test_the_limit_of_a_body_follows_the_route_and_not_the_end_of_the_path(
    client: tuple[Any, httpx2.AsyncClient], method: str, path: str
):
    app, http = client
    await app.state.service.store.create_session(agent="agent", owner="local", id="rehydrate")
    headers = {"authorization": f"Bearer {TOKEN}"}
    read: list[int] = []
    for body in (b" " * 40_000, pieces(40, read)):
        answer = await http.request(method, path, content=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")
    assert len(read) < 12


async def test_the_larger_limit_needs_authorization(client: tuple[Any, httpx2.AsyncClient]):
    app, http = client
    await app.state.service.store.create_session(agent="agent", owner="local", id="mine")
    for path, status in (("/api/sessions/mine/rehydrate", 401), ("/no/such/rehydrate", 404)):
        read: list[int] = []
        assert (await http.post(path, content=pieces(40, read))).status_code == status
        assert read == []


async def test_a_body_with_many_unknown_fields_is_refused_at_once(client: tuple[Any, httpx2.AsyncClient]):
    """Each of them would be an error of its own."""
    body = {f"field-{number}": 1 for number in range(101)}
    answer = await client[1].post("/api/sessions", json=body, headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 422
    assert "more than 100 fields" in answer.json()["error"]["message"]


async def test_signing_in_takes_a_small_body_only(client: tuple[Any, httpx2.AsyncClient]):
    answer = await client[1].post("/sign-in", json={"token": "x" * 20_000})
    assert answer.status_code == 413


async def test_anybody_can_send_a_few_values_only(client: tuple[Any, httpx2.AsyncClient]):
    answer = await client[1].post("/sign-in", json=[[1]] * 1000)
    assert answer.status_code == 422
    assert "more than 100 values" in answer.text


async def test_errors_carry_their_facts(store: Store, http: httpx2.AsyncClient):
    await store.create_session(agent="a", owner="owner", id="s")
    holder = await store.join("worker-1")
    await store.acquire("s", holder)
    busy = (await http.post("/api/sessions/s/clean", json={})).json()["error"]
    assert (busy["code"], busy["facts"]["guard"], busy["facts"]["holder"]) == (
        "retention_refused",
        "running",
        "worker-1",
    )
    assert datetime.fromisoformat(busy["facts"]["until"]) > datetime.now(UTC)
    assert busy["message"].endswith(busy["facts"]["hint"])
    forbidden = (await http.post("/api/sessions", json={"agent": "a", "owner": "other"})).json()["error"]
    assert forbidden["facts"] == {
        "required": "the role admin to create sessions for others",
        "principal": "owner",
    }
    late = (await http.put("/api/sessions/s/state", json={"body": 1, "expected_version": 3})).json()["error"]
    assert late["facts"] == {"session_id": "s", "version": 0, "expected_version": 3}
    large = (
        await http.put("/api/sessions/s/state", json={"body": "x" * 200_000, "expected_version": 0})
    ).json()["error"]
    assert (large["code"], large["facts"]["limit"]) == ("payload_too_large", 100_000)
    assert large["facts"]["size"] > 200_000
    wrong = (await http.post("/api/sessions", json={"agent": 1})).json()["error"]
    assert wrong["facts"]["problems"][0]["where"] == "body.agent"
    assert wrong.keys() == {"code", "message", "facts"}
    assert (await http.get("/api/nothing")).json()["error"]["facts"] == {}
    for metadata in ([1], 1, "x"):
        refused = await http.post("/api/sessions", json={"agent": "a", "metadata": metadata})
        assert refused.status_code == 422


def test_a_server_starts_without_what_it_may_never_need():
    """Pydantic AI alone takes as long as everything else. Who needs it pays for it, once."""
    code = "import sys, holdfast.server.app; print([*sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in ("pydantic_ai", "jwt", "httpx2", "holdfast.frameworks.framework_store"):
        assert f"'{name}'" not in done.stdout, name
