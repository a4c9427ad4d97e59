"""Every metric that is documented is there, on the command that a user starts, and counts what it says."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from holdfast import Store
from holdfast.config import load_settings
from holdfast.errors import StoreUnavailable
from holdfast.operations import metrics
from holdfast.server import create_app
from holdfast.server.auth import digest
from tests.conftest import Engine
from tests.promises.workers import worker
from tests.raw_client import AsyncClient, ServerError
from tests.server.fronts import Front, front
from tests.server.measured import CALLS
from tests.servers import free_port

pytestmark = pytest.mark.processes
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
DEPLOY = PAGE.parents[2] / "deploy"
DOCUMENTED = {
    name: set(re.findall(r"`(\w+)`", labels.split(":")[0]))
    for name, labels in re.findall(r"^\| `(holdfast_\w+)` \|([^|]*)\|", PAGE.read_text(), re.MULTILINE)
}


_SUFFIX = "_(bucket|count|sum)$"


def parsed(text: str) -> dict[str, float]:
    """Return the samples, each under its name and the values of its labels."""
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scraped(server: Front) -> str:
    headers = {"authorization": f"Bearer {server.token}"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as http:
        return (await http.get("/metrics")).text


async def samples(server: Front) -> dict[str, float]:
    return parsed(await scraped(server))


@pytest.fixture
async def server(engine: Engine, store: Store) -> AsyncGenerator[Front, None]:
    await store.add_token(digest("hf_limited"), owner="limited")
    async with front(engine.url, "tests.server.measured:agent", max_requests_per_minute=1) as running:
        yield running


async def turn(client: AsyncClient, session: str) -> None:
    sent = await client.submit(session, "hello")
    async with asyncio.timeout(30):
        async for event in client.stream(session, after=sent["position"]):
            if event["kind"] in {"submission_done", "submission_failed"}:
                return


async def used(server: Front) -> str:
    """Return the metrics of a server that has done everything that a metric counts."""
    async with AsyncClient(server.url, "hf_limited") as owner:
        await owner.request("GET", "/api/me")
        with pytest.raises(ServerError):
            await owner.request("GET", "/api/me")
    async with server.client() as client:
        session = (await client.create_session("measured"))["id"]
        await turn(client, session)
        await turn(client, session)
        for dry_run in (True, False):  # of which one counts
            given = {"idle_days": 0, "dry_run": dry_run}
            await client.request("POST", f"/api/sessions/{session}/clean", json=given)
        async with asyncio.timeout(30):
            while "holdfast_runs_total measured completed" not in parsed(text := await scraped(server)):
                await asyncio.sleep(0.05)
    return text


def labels_by_metric(text: str) -> dict[str, set[str]]:
    """Return the labels of every exported metric. A histogram has the name without its suffix."""
    exported: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = re.sub(_SUFFIX, "", sample.name)
            if not name.endswith("_created"):
                exported.setdefault(name, set()).update(sample.labels.keys() - {"le"})
    return exported


async def test_every_documented_metric_is_exposed(server: Front):
    found = parsed(text := await used(server))
    exported = labels_by_metric(text)
    assert len(DOCUMENTED) > 20
    assert exported == DOCUMENTED  # these, and no other
    assert found["holdfast_submissions_total message"] == 2
    assert found["holdfast_runs_total measured completed"] == 1
    assert found["holdfast_runs_total measured failed"] == 1
    assert found["holdfast_sessions"] == 1
    assert found["holdfast_commit_batches_count"] > 0
    assert found["holdfast_retention_total clean"] == 1


async def test_requests_tokens_cost_and_calls_are_counted_by_agent_model_and_tool(server: Front):
    found = parsed(text := await used(server))
    requests = len(CALLS) + 1
    assert found["holdfast_model_requests_total measured gpt-4o completed"] == requests
    assert found["holdfast_model_tokens_total measured input gpt-4o"] == 1000 * requests
    assert found["holdfast_model_tokens_total measured output gpt-4o"] == 100 * requests
    assert found["holdfast_model_tokens_total measured cache_read gpt-4o"] == 400 * requests
    assert found["holdfast_model_tokens_total measured cache_write gpt-4o"] == 10 * requests
    assert 0.01 < found["holdfast_model_cost_usd_total measured gpt-4o"] < 0.1
    assert found["holdfast_model_seconds_count measured gpt-4o"] == requests
    assert found["holdfast_tool_calls_total measured completed look"] == 2
    assert found["holdfast_tool_calls_total measured retry refuse"] == 1
    assert found["holdfast_tool_calls_total measured failed fail"] == 1
    assert found["holdfast_tool_seconds_count measured look"] == 2
    assert "secret" not in text  # no label comes from a model or from content


def expressions(file: str) -> dict[str, str]:
    """Return the PromQL expressions of a file, by the titles of their panels and alerts."""
    if file.endswith(".json"):
        board = json.loads((DEPLOY / file).read_text())
        labels = {
            variable["name"]: re.sub(r"label_values\((\w+), (\w+)\)", r"sum by (\2) (\1)", variable["query"])
            for variable in board["templating"]["list"]
            if variable["type"] == "query"
        }
        return labels | {
            f"{panel['title']}, {target['refId']}": target["expr"].replace("$__rate_interval", "5m")
            for panel in board["panels"]
            for target in panel.get("targets", [])
        }
    if file == "autoscaling.yaml":
        triggers = yaml.safe_load((DEPLOY / file).read_text())["spec"]["triggers"]
        return {trigger["metricType"]: trigger["metadata"]["query"] for trigger in triggers}
    groups = yaml.safe_load((DEPLOY / file).read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def used_labels(expression: str) -> dict[str, set[str]]:
    """Return the metrics of an expression, each with the labels that the expression uses of it."""
    labels: dict[str, set[str]] = {}
    groups: list[list[str]] = []

    def enter(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.AggregateExpr):
            groups.append(node.modifier.labels if node.modifier else [])
        elif isinstance(node, promql_parser.VectorSelector):
            matched = [matcher.name for matcher in node.matchers.matchers]
            labels.setdefault(str(node.name), set()).update(matched, *groups)

    def leave(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.AggregateExpr):
            groups.pop()

    promql_parser.walk(promql_parser.parse(expression), enter, leave)
    return labels


@pytest.mark.parametrize("file", ["grafana.json", "alerts.yaml", "autoscaling.yaml"])
async def test_dashboard_alerts_and_autoscaling_use_metrics_and_labels_that_are_exposed(
    server: Front, file: str
):
    exported = labels_by_metric(await used(server))
    for place, expression in expressions(file).items():
        for metric, labels in used_labels(expression).items():
            name = re.sub(_SUFFIX, "", metric)
            assert name in exported, place
            assert labels - ({"le"} if metric.endswith("_bucket") else set()) <= exported[name], place


async def test_queue_wait_and_leases_are_those_of_the_store(engine: Engine, store: Store):
    held = await store.create_session(agent="agent", owner="local")
    waiting = await store.create_session(agent="agent", owner="local")
    await store.acquire(held.id, await store.join("somebody", ttl=60))
    await store.submit(waiting.id, "message", '{"text": "hi"}')
    async with front(engine.url, "--role", "api") as server:
        first = await samples(server)
        assert first["holdfast_leases"] == 1
        async with asyncio.timeout(30):
            while (await samples(server))["holdfast_queue_wait_seconds"] <= first[
                "holdfast_queue_wait_seconds"
            ]:
                await asyncio.sleep(0.05)


async def test_a_worker_by_itself_shows_what_it_counts(engine: Engine, store: Store):
    port = free_port()
    session = (await store.create_session(agent="agent", owner="local")).id
    # What one worker leaves when it is killed, the next takes over.
    async with worker(engine.url, hold=600) as first:
        await store.submit(session, "message", '{"text": "work 1 /dev/null"}')
        async with asyncio.timeout(30):
            async for event in store.watch(session):
                if event.kind == "tool_call_started":
                    break
        first.signal(signal.SIGKILL)
    async with worker(engine.url, "--metrics-port", str(port)), httpx2.AsyncClient() as http:
        async with asyncio.timeout(30):
            async for event in store.watch(session):
                if event.kind == "submission_done":
                    break
            url = f"http://127.0.0.1:{port}/metrics"
            while "holdfast_runs_total agent completed" not in (found := parsed((await http.get(url)).text)):
                await asyncio.sleep(0.05)
    assert found["holdfast_takeovers_total"] == 1


async def test_metrics_without_a_database_are_those_of_the_process(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    app = create_app(load_settings(token="t" * 40), store)
    headers = {"authorization": f"Bearer {'t' * 40}"}
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app, raise_app_exceptions=False), base_url="http://x", headers=headers
    ) as http:
        await store.create_session(agent="agent", owner="local")
        up = parsed((await http.get("/metrics")).text)
        assert (up["holdfast_store_up"], up["holdfast_sessions"]) == (1, 1)

        async def refuse(*given: Any) -> None:
            raise StoreUnavailable(url="x", problem="it is down")

        async def hang(*given: Any) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(metrics, "STORE_SECONDS", 0.05)
        for broken in (refuse, hang):
            monkeypatch.setattr(store, "token", broken)
            answer = await http.get("/metrics")
            assert answer.status_code == 200
            down = parsed(answer.text)
            assert down["holdfast_store_up"] == 0
            assert down["holdfast_http_requests_total GET /metrics 200"] >= 1
            assert "holdfast_sessions" not in down  # a number that may be old is worse than none
        monkeypatch.undo()
        assert parsed((await http.get("/metrics")).text)["holdfast_store_up"] == 1
