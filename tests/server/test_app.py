"""What applies to every request: limits, metrics, errors."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from holdfast.config import load_settings
from holdfast.server import create_app
from holdfast.store import open_store

STORE = "sqlite://:memory:"
TOKEN = "hf_app"


@pytest.fixture
async def client() -> AsyncGenerator[tuple[Any, httpx2.AsyncClient], None]:
    async with open_store(STORE) as store:
        app = create_app(load_settings(store=STORE, token=SecretStr(TOKEN)), store)
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
