"""The demo as a newcomer runs it: kill its worker in mid-tool, come back, and its line was written once."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.promises.workers import lines
from tests.raw_client import AsyncClient


@pytest.mark.thorough
@pytest.mark.timeout(90)
async def test_the_demo_survives_what_it_says_to_try(tmp_path: Path):
    quick = {"HOLDFAST_LEASE_TTL_SECONDS": "2", "HOLDFAST_LEASE_RENEW_SECONDS": "0.5"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", "demo", "--keep", str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | quick,
    )
    try:
        assert process.stdout is not None
        said = [(await asyncio.wait_for(process.stdout.readline(), 30)).decode() for _ in range(7)]
        assert [line.split()[0] for line in said[1:5]] == ["1.", "2.", "3.", "4."]
        found = re.search(r"serves at (\S+)/\?token=(\S+)", said[6])
        assert found, said
        async with AsyncClient(found[1], found[2]) as client:
            session: str = (await client.create_session("demo"))["id"]
            await client.submit(session, "prepare a release")
            await lines(tmp_path / "releases.log", 1)  # the tool has written, and is still at it
            holder: str = (await client.session(session))["holder"]
            killed = await client.request("POST", "/api/demo/kill", json={"session_id": session})
            assert str(killed["pid"]) == holder.rpartition(":")[2]
            (asked,) = await questions(client, session)
            assert asked["tool"] == "deploy"
            await client.approve(session, asked)
            events = [event async for event in until_done(client, session)]
            assert "recovered" in [event["kind"] for event in events]
            # Real commands were run, on record; a second agent was asked, in a session of its own; a picture is media.
            commands = (await client.request("GET", f"/api/sessions/{session}/commands"))["items"]
            assert [(one["state"], one["exit_code"]) for one in commands] == [("done", 0), ("done", 0)]
            assert (tmp_path / "scratch" / "NOTES.md").read_text().startswith("# Release 1.0")
            output = await client.request(
                "GET", f"/api/sessions/{session}/commands/{commands[0]['id']}/output"
            )
            assert "all checks passed" in "".join(item["stdout"] or "" for item in output["items"])
            agents = {item["agent"] for item in (await client.sessions())["items"]}
            assert agents == {"demo", "reviewer"}
            later: str = (await client.create_session("demo"))["id"]
            await client.submit(later, "publish later")
            events_later = [event async for event in until_done(client, later)]
            (answer,) = [event["payload"] for event in events_later if event["kind"] == "approval_answered"]
            assert (answer["approved"], answer["by"]) == (False, "deadline")
            assert [event["kind"] for event in events_later].count("wait_ended") == 1
            found = re.search(r"media\+sha256://([0-9a-f]{64})", str(events))
            assert found
        assert (tmp_path / "releases.log").read_text() == "release 1.0\n"
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        _, logged = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0
    entries = logged.decode().splitlines()
    assert entries
    assert all(re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z [A-Z]+ [\w.]+: ", entry) for entry in entries), entries


async def questions(client: AsyncClient, session: str) -> list[dict[str, Any]]:
    async for event in client.stream(session):
        if event["kind"] == "approval_requested":
            break
    return (await client.session(session))["approvals"]


async def until_done(client: AsyncClient, session: str) -> AsyncGenerator[dict[str, Any], None]:
    async for event in client.stream(session):
        yield event
        if event["kind"] == "run_completed":
            return


@pytest.mark.parametrize("model", ["nonsense", "nobody:knows-this"])
def test_a_model_that_cannot_be_used_is_said_at_once(model: str):
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "demo", "--model", model],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert f"error: The model {model!r} cannot be used" in done.stderr or "cannot be used" in done.stderr
    assert "Traceback" not in done.stderr
