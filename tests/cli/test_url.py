"""The same commands with a server in between: `--url`, or `HOLDFAST_URL`, and a token."""

import asyncio
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import Store, open_store
from holdfast.server.auth import digest
from tests import forking
from tests.cli.test_db import COMMAND
from tests.cli.test_talk import BOT
from tests.conftest import Engine
from tests.server.fronts import front

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@dataclass
class Terminal:
    """Commands that know a server, and no store."""

    folder: Path
    environment: dict[str, str]

    async def holdfast(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            forking.run,
            [COMMAND, *arguments],
            cwd=self.folder,
            env=os.environ | {"COLUMNS": "200"} | self.environment,
            timeout=60,
        )

    async def text(self, *arguments: str) -> str:
        done = await self.holdfast(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self.text(*arguments, "--json"))


@pytest.mark.thorough("postgres")
async def test_everything_works_over_a_server(
    engine: Engine, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "bot.py").write_text(BOT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    await store.add_token(digest("hf_ada"), owner="ada")
    await store.add_token(digest("hf_bob"), owner="bob")
    async with front(engine.url, "bot:agent") as server:
        ada = Terminal(tmp_path, {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": "hf_ada"})
        assert await ada.text("send", "s", "hi", "--agent", "bot", "--wait") == "you said: hi\n"
        assert await ada.text("send", "s", "again", "--agent", "bot", "--wait") == "you said: again\n"
        failed = await ada.holdfast("send", "s", "fail", "--wait")
        assert (failed.returncode, failed.stderr) == (1, "failed: RuntimeError: no network\n")

        assert await ada.text("send", "s", "long", "--wait") == "long " * 20_000 + "\n"

        waiting = await ada.holdfast("send", "s", "pay 5", "--wait")
        assert waiting.returncode == 5
        shown = await ada.json("sessions", "show", "s")
        assert (shown["session"]["owner"], shown["session"]["status"]) == ("ada", "waiting")
        assert [call["call_id"] for call in shown["asked"]] == ["pay-5"]
        assert "pay-5: pay" in await ada.text("sessions", "show", "s")
        after = shown["session"]["seq"]
        await ada.text("approve", "s")
        async with asyncio.timeout(30):
            async for event in store.watch("s", after=after):
                if event.kind == "submission_done" and "paid 5" in await ada.text("tail", "s", "--no-follow"):
                    break

        sent = await ada.text("send", "s", "wait", "--key", "once")
        assert await ada.text("send", "s", "wait", "--key", "once") == sent
        async with asyncio.timeout(30):
            async for event in store.watch("s", after=after):
                if event.kind == "tool_call_started" and "wait" in event.payload:
                    break
        await ada.text("interrupt", "s")
        async with asyncio.timeout(30):
            async for event in store.watch("s", after=after):
                if event.kind == "run_interrupted":
                    break

        lines = (await ada.text("tail", "s", "--no-follow", "--json")).splitlines()
        assert [json.loads(line)["seq"] for line in lines] == list(range(1, len(lines) + 1))
        listed = await ada.json("sessions", "list")
        assert [item["id"] for item in listed["sessions"]] == ["s"]

        # Others see nothing of it; without a token, nothing at all.
        bob = Terminal(tmp_path, {"HOLDFAST_TOKEN": "hf_bob"})
        assert (await bob.json("sessions", "list", "--url", server.url))["sessions"] == []
        hidden = await bob.holdfast("tail", "s", "--no-follow", "--url", server.url)
        assert (hidden.returncode, "session_not_found" in hidden.stderr) == (2, True)
        nobody = await Terminal(tmp_path, {}).holdfast("sessions", "list", "--url", server.url)
        assert (nobody.returncode, "unauthenticated" in nobody.stderr) == (2, True)


async def test_what_a_server_cannot_be_asked_is_not_asked_of_a_file_nearby(tmp_path: Path):
    async with open_store(f"sqlite:///{tmp_path}/holdfast.db") as store:
        await store.create_session(agent="bot", owner="ada", id="s")
    terminal = Terminal(tmp_path, {"HOLDFAST_URL": "http://127.0.0.1:1"})
    for command in (("sessions", "erase", "s", "--yes"), ("sessions", "clean", "s", "--force"), ("workers",)):
        refused = await terminal.holdfast(*command)
        assert (refused.returncode, "--store" in refused.stderr) == (2, True)
    local = ("--store", f"sqlite:///{tmp_path}/holdfast.db")
    assert (await terminal.holdfast("sessions", "erase", "s", "--yes", *local)).returncode == 0


async def test_bad_addresses(tmp_path: Path):
    terminal = Terminal(tmp_path, {})
    both = await terminal.holdfast(
        "sessions", "list", "--url", "http://localhost:1", "--store", "sqlite:///x.db"
    )
    assert (both.returncode, "either --store or --url" in both.stderr) == (2, True)
    for bad in ("http://127.0.0.1:1", "nonsense", "ftp://localhost"):
        nowhere = await terminal.holdfast("sessions", "list", "--url", bad)
        assert nowhere.returncode == 2, nowhere
        assert nowhere.stderr.startswith("error: "), nowhere.stderr
        assert bad in nowhere.stderr
