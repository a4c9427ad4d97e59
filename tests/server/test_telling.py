"""What the processes tell of themselves: traces that belong together, and logs that keep secrets."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast import Store
from tests.conftest import Engine
from tests.raw_client import ServerError
from tests.server.fronts import front
from tests.server.traced import SECRET

pytestmark = pytest.mark.processes
APP = "tests.server.traced:agent"
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def ended(client: Any, session: str, submission: dict[str, Any]) -> None:
    async with asyncio.timeout(30):
        async for event in client.stream(session, after=submission["position"]):
            if event["kind"] in {"submission_done", "submission_failed"}:
                return


async def test_a_turn_belongs_to_the_trace_of_the_request_that_queued_it(
    engine: Engine, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SPANS", str(tmp_path / "spans"))
    async with front(engine.url, APP) as server, server.client() as client:
        session = (await client.create_session("agent"))["id"]
        path = f"/api/sessions/{session}/submissions"
        headers = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
        given = {"text": "hello", "idempotency_key": "once"}
        sent = await client.request("POST", path, json=given, headers=headers)
        await ended(client, session, sent)
        # Sent again from elsewhere, it is still the same submission.
        again = await client.request("POST", path, json=given)
        assert again["submission_id"] == sent["submission_id"]
        async with httpx2.AsyncClient(base_url=server.url) as http:
            assert (await http.get("/", params={"token": f"no {SECRET}"})).status_code == 303
    spans = [json.loads(line) for line in (tmp_path / "spans").read_text().splitlines()]
    by_id = {span["context"]["span_id"].removeprefix("0x"): span for span in spans}
    (turn,) = [span for span in spans if span["name"] == "holdfast message"]
    assert turn["context"]["trace_id"].removeprefix("0x") == TRACE
    assert turn["attributes"]["holdfast.session_id"] == session
    assert turn["attributes"]["holdfast.submission_id"] == sent["submission_id"]
    submitted = by_id[turn["parent_id"].removeprefix("0x")]
    assert submitted["name"] == "holdfast submit"
    above = submitted["parent_id"].removeprefix("0x")
    while above in by_id:  # FastAPI has spans of its own for the request
        above = by_id[above]["parent_id"].removeprefix("0x")
    assert above == CALLER
    (run,) = [span for span in spans if span["name"].startswith(("invoke_agent", "agent run"))]
    assert by_id[run["parent_id"].removeprefix("0x")] is turn
    requests = [span for span in spans if "url.path" in span["attributes"]]
    assert "/" in [span["attributes"]["url.path"] for span in requests]
    assert SECRET not in json.dumps(requests)
    assert SECRET not in json.dumps([turn, submitted])


@pytest.mark.parametrize("format", ["json", "text"])
async def test_logs_name_sessions_and_runs_and_keep_secrets(
    engine: Engine, store: Store, tmp_path: Path, format: str
):
    """Whatever is said, thrown, sent or refused: no content and no secret is in any line."""
    with (tmp_path / "log").open("wb") as log:
        token = f"hf_{SECRET}"
        options = (APP, "--log-format", format)
        async with front(engine.url, *options, stderr=log, token=token) as server:
            async with server.client() as client:
                session = (await client.create_session("agent", title=f"About {SECRET}"))["id"]
                for text in ("hello", "broken model", "broken tool"):
                    await ended(client, session, await client.submit(session, f"{text} {SECRET}"))
                with pytest.raises(ServerError):
                    await client.submit(session, f"again {SECRET}", when_busy=SECRET)
            async with server.client(f"wrong-{SECRET}") as stranger:
                with pytest.raises(ServerError):
                    await stranger.sessions()
            async with httpx2.AsyncClient(base_url=server.url) as http:
                assert (await http.get("/", params={"token": f"no {SECRET}"})).status_code == 303
                assert (await http.get(f"/api/{SECRET}")).status_code == 404
    text = (tmp_path / "log").read_text()
    assert SECRET not in text
    told = [line for line in text.splitlines() if "the run ended" in line]
    assert len(told) == 3
    if format == "text":
        assert all(f"session_id={session}" in line and "run_id=" in line for line in told)
        return
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"at", "level", "logger", "message"} <= set(line) for line in lines)
    runs = {run.id for run in (await store.runs(session_id=session)).items}
    found = [line for line in lines if "the run ended" in line["message"]]
    assert {line["session_id"] for line in found} == {session}
    assert {line["run_id"] for line in found} == runs
