"""The demo as a newcomer runs it: kill its worker in mid-tool, come back, and its line was written once."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from holdfast.client import AsyncClient
from tests.promises.workers import lines


@pytest.mark.timeout(90)
async def test_the_demo_survives_what_it_says_to_try(tmp_path: Path):
    quick = {"HOLDFAST_LEASE_TTL_SECONDS": "2", "HOLDFAST_LEASE_RENEW_SECONDS": "0.5"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", "demo", "--keep", str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | quick,
    )
    try:
        assert process.stdout is not None
        said = [(await asyncio.wait_for(process.stdout.readline(), 30)).decode() for _ in range(5)]
        assert [line.split()[0] for line in said[1:4]] == ["1.", "2.", "3."]
        found = re.search(r"serves at (\S+)/\?token=(\S+)", said[4])
        assert found, said
        async with AsyncClient(found[1], found[2]) as client:
            session: str = (await client.create_session("demo"))["id"]
            await client.submit(session, "prepare a release")
            await lines(tmp_path / "ledger.txt", 1)  # the tool has written, and is still at it
            (worker,) = (await client.request("GET", "/api/workers"))["items"]
            os.kill(int(worker["name"].rpartition(":")[2]), SIGKILL)
            (asked,) = await questions(client, session)
            assert asked["tool"] == "deploy"
            await client.approve(session, asked)
            kinds = [event["kind"] async for event in until_done(client, session)]
            assert "recovered" in kinds
        assert (tmp_path / "ledger.txt").read_text() == "released with care\n"
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def questions(client: AsyncClient, session: str) -> list[dict[str, Any]]:
    async for event in client.stream(session):
        if event["kind"] == "approval_requested":
            break
    return (await client.session(session))["asked"]


async def until_done(client: AsyncClient, session: str) -> AsyncGenerator[dict[str, Any], None]:
    async for event in client.stream(session):
        yield event
        if event["kind"] == "run_completed":
            return
