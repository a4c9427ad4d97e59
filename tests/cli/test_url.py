"""The same commands with a server in between: `--url`, or `HOLDFAST_URL`, and a token."""

import asyncio
import json
import os
import re
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic_ai import Agent
from pydantic_ai.messages import ToolCallPart
from typer.testing import CliRunner, Result

from holdfast import Store, Turn, agent, open_store
from holdfast.cli import app
from holdfast.config import load_settings
from holdfast.server import create_app
from holdfast.server.auth import digest
from holdfast.types import Batch, Effect, Run
from tests import forking
from tests.builders import until
from tests.cli.test_db import COMMAND
from tests.cli.test_talk import BOT
from tests.client.agents import payer
from tests.conftest import Engine
from tests.record.agents import scripted
from tests.runtime.agents import echo, working
from tests.server.fronts import front
from tests.server.serving import serving
from tests.test_docs import commands

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


async def is_served(store: Store) -> bool:
    """Return whether the worker of the server is there: until then, `send --wait` reports that none is."""
    return any(holder.agents for holder in await store.holders())


@pytest.mark.thorough
async def test_everything_works_over_a_server(
    engine: Engine, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "bot.py").write_text(BOT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    await store.add_token(digest("hf_ada"), owner="ada")
    await store.add_token(digest("hf_bob"), owner="bob")
    async with front(engine.url, "bot:agent") as server:
        await until(partial(is_served, store))
        ada = Terminal(tmp_path, {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": "hf_ada"})
        assert await ada.text("send", "s", "hi", "--agent", "bot", "--wait") == "you said: hi\n"
        assert await ada.text("send", "s", "again", "--agent", "bot", "--wait") == "you said: again\n"
        failed = await ada.holdfast("send", "s", "fail", "--wait")
        told = "failed: RuntimeError: no network\nContinue it with: holdfast retry s\n"
        assert (failed.returncode, failed.stderr) == (1, told)

        assert await ada.text("send", "s", "long", "--wait") == "long " * 20_000 + "\n"

        waiting = await ada.holdfast("send", "s", "pay 5", "--wait")
        assert waiting.returncode == 5
        shown = await ada.json("sessions", "show", "s")
        assert (shown["session"]["owner"], shown["session"]["status"]) == ("ada", "waiting")
        assert [call["call_id"] for call in shown["approvals"]] == ["pay-5"]
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
        assert (hidden.returncode, hidden.stderr) == (2, "error: There is no session s.\n")
        nobody = await Terminal(tmp_path, {}).holdfast("sessions", "list", "--url", server.url)
        assert (nobody.returncode, "token" in nobody.stderr) == (2, True)


async def test_what_a_server_cannot_be_asked_is_not_asked_of_a_file_nearby(tmp_path: Path):
    async with open_store(f"sqlite:///{tmp_path}/holdfast.db") as store:
        await store.create_session(agent="bot", owner="ada", id="s")
    terminal = Terminal(tmp_path, {"HOLDFAST_URL": "http://127.0.0.1:1"})
    for command in (("db", "check"), ("token", "list"), ("media", "gc")):
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


def test_every_command_takes_a_url_or_is_listed_with_a_reason():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    listed = set(re.findall(r"`([a-z ]+)`", page.split("## Commands without --url")[1].split("\n## ")[0]))
    for name, command in commands(typer.main.get_command(app)):
        takes_url = any("--url" in parameter.opts for parameter in command.params)
        group = name.split(" ")[0]
        assert takes_url != (name in listed or group in listed), name


@dataclass
class Shell:
    """The commands in this process, with a server in the settings: no process is started for each."""

    environment: dict[str, str]

    async def holdfast(self, *arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner(env=self.environment).invoke, app, arguments)

    async def text(self, *arguments: str) -> str:
        done = await self.holdfast(*arguments)
        assert (done.exit_code, done.stderr) == (0, ""), done
        return done.stdout

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self.text(*arguments, "--json"))


@pytest.mark.parametrize("over_a_server", [False, True])
async def test_retry_continues_the_last_turn_if_it_failed(tmp_path: Path, over_a_server: bool):
    broken = [True, True]

    @agent("bot")
    async def bot(turn: Turn) -> str:
        if turn.text == "fail" and broken:
            broken.pop()
            message = "no network"
            raise ConnectionError(message)
        return "done"

    path = f"sqlite:///{tmp_path}/s.db"
    async with open_store(path) as store:
        await store.add_token(digest("hf_boss"), owner="ada", scopes=["admin"])
        async with serving(create_app(load_settings(), store, ["bot"])) as url, working(store, bot):
            server = {"HOLDFAST_URL": url, "HOLDFAST_TOKEN": "hf_boss"}
            boss = Shell(server if over_a_server else {"HOLDFAST_STORE": path})
            assert await boss.text("send", "s", "work", "--agent", "bot", "--wait") == "done\n"
            refused = await boss.holdfast("retry", "s")
            assert "only a turn that failed" in str(refused.exception)
            failed = await boss.holdfast("send", "s", "fail", "--wait")
            assert (failed.exit_code, "no network" in failed.stderr) == (1, True)
            assert failed.stderr.endswith("\nContinue it with: holdfast retry s\n")
            shown = (await boss.text("sessions", "show", "s")).splitlines()
            last = (await boss.json("sessions", "show", "s"))["failed"]["id"]
            assert f"last turn   {last} failed: ConnectionError: no network" in shown
            assert "retry       holdfast retry s" in shown
            assert (await boss.json("sessions", "show", "s"))["failed"]["state"] == "failed"
            again = await boss.holdfast("retry", "s", "--wait")
            assert (again.exit_code, again.stdout) == (1, "")
            assert again.stderr.endswith("\nContinue it with: holdfast retry s\n")
            assert await boss.text("retry", "s", "--wait") == "done\n"
            assert "failed" not in await boss.text("sessions", "show", "s")
            assert (await boss.json("sessions", "show", "s"))["failed"] is None
            missing = await boss.holdfast("retry", "s", "nothing")
            assert "nothing" in str(missing.exception)


@pytest.mark.parametrize("over_a_server", [False, True])
async def test_a_call_that_runs_again_is_running_and_one_in_question_can_be_settled(
    tmp_path: Path, over_a_server: bool
):
    begun: list[str] = []
    bot = Agent(scripted([ToolCallPart("slow", {}, "c1")], [ToolCallPart("wire", {}, "c2")]), name="bot")

    @bot.tool_plain(metadata={"recovery": "retry"})
    async def slow() -> str:
        begun.append("slow")
        await asyncio.sleep(60 if len(begun) < 3 else 0)
        return "slow"

    @bot.tool_plain(metadata={"recovery": "ask"})
    async def wire() -> str:
        begun.append("wire")
        await asyncio.sleep(60)
        return "wire"

    async def reached(number: int) -> bool:
        return len(begun) == number

    path = f"sqlite:///{tmp_path}/s.db"
    async with open_store(path) as store:
        await store.add_token(digest("hf_boss"), owner="ada", scopes=["admin"])
        async with serving(create_app(load_settings(), store, ["bot"])) as url:
            server = {"HOLDFAST_URL": url, "HOLDFAST_TOKEN": "hf_boss"}
            boss = Shell(server if over_a_server else {"HOLDFAST_STORE": path})
            await boss.text("send", "s", "work", "--agent", "bot")
            async with working(store, bot, grace=0.1):
                await until(lambda: reached(1))
            (run,) = (await boss.json("runs", "list", "s"))["runs"]
            command = f"holdfast settle {run['id']} c1 --result '…' # or --error \"…\""
            assert f"unknown     slow: {command}" in (await boss.text("sessions", "show", "s")).splitlines()
            async with working(store, bot, grace=0.1):
                await until(lambda: reached(2))
                shown = await boss.text("sessions", "show", "s")
                assert "running     slow c1" in shown.splitlines()
                assert "settle" not in shown
                shown = await boss.json("sessions", "show", "s")
                assert ([call["tool"] for call in shown["running"]], shown["effects"]) == (["slow"], [])
                assert (await boss.json("inbox"))["items"] == []
                assert (await boss.json("runs", "list", "--unresolved"))["runs"] == []
            async with working(store, bot, grace=0.1):
                await until(lambda: reached(4))
            async with working(store, bot):

                async def is_asked() -> bool:
                    return (await store.session("s")).status == "waiting"

                await until(is_asked)
                (question,) = (await boss.json("sessions", "show", "s"))["approvals"]
                command = (
                    f"holdfast settle {question['unsettled']['run_id']} c2 --result '…' # or --error \"…\""
                )
                assert f"or settle   {command}" in (await boss.text("sessions", "show", "s")).splitlines()
                listed = (await boss.text("inbox")).splitlines()
                assert command in listed
                assert "wire (run again?)" in listed[1]
                settled = await boss.text(
                    "settle", question["unsettled"]["run_id"], "c2", "--result", '"wired"'
                )
                assert settled == "Call c2 of wire is completed. Its turn continues with this outcome.\n"

                async def is_done() -> bool:
                    return (await store.session("s")).pending == 0

                await until(is_done)
    assert begun == ["slow", "slow", "slow", "wire"]


@pytest.mark.thorough
async def test_history_and_retention_over_a_server(tmp_path: Path):
    bot = Agent(echo(), name="bot")
    async with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        await store.add_token(digest("hf_boss"), owner="ada", scopes=["admin"])
        await store.create_session(agent="other", owner="bob", id="cut")
        lease = await store.acquire("cut", holder := await store.join("gone"))
        unknown = Effect(run_id="cut-1", call_id="call 1", tool="pay")
        await store.write(lease, Batch(runs=[Run(id="cut-1")], effects=[unknown], status="running"))
        await store.leave(holder)
        async with serving(create_app(load_settings(), store, ["bot"])) as url, working(store, bot):
            boss = Shell({"HOLDFAST_URL": url, "HOLDFAST_TOKEN": "hf_boss"})
            await change_history(boss)
            await find_and_settle(boss)
            await end_sessions(boss, tmp_path)


async def change_history(boss: Shell) -> None:
    assert await boss.text("send", "s", "one", "--agent", "bot", "--wait") == "one\n"
    assert await boss.text("send", "s", "two", "--wait") == "one | two\n"
    (second, run) = (await boss.json("runs", "list", "s"))["runs"]
    assert 0 < run["first_seq"] < second["first_seq"]
    shown = await boss.json("runs", "show", run["id"])
    assert (shown["run"]["status"], shown["settled"]["session_id"]) == ("completed", "s")
    assert (await boss.json("runs", "tree", run["id"]))["delegates"] == []
    assert (await boss.json("runs", "events", run["id"]))["events"][0]["kind"] == "run_started"
    await boss.text("rewind", "s", shown["settled"]["id"], "--wait")
    assert await boss.text("send", "s", "three", "--wait") == "one | three\n"
    await boss.text("undo", "s", "--wait")
    await boss.text("compact", "s")
    await boss.text("fork", "s", "--to", "copy", "--wait")
    assert (await boss.json("sessions", "show", "copy"))["session"]["agent"] == "bot"
    missing = await boss.holdfast("rewind", "s", "nothing", "--wait")
    assert (missing.exit_code, missing.stderr.startswith("failed: ")) == (1, True)
    assert [worker["agents"] for worker in (await boss.json("workers"))["workers"]] == [["bot"]]
    assert {each["id"] for each in (await boss.json("top", "--once"))["sessions"]} >= {"s", "copy"}


async def find_and_settle(boss: Shell) -> None:
    (cut,) = (await boss.json("runs", "list", "--interrupted"))["runs"]
    assert (cut["id"], cut["status"]) == ("cut-1", "interrupted")
    assert "cut-1" in await boss.text("runs", "list", "--unresolved")
    assert "call 1" in await boss.text("runs", "effects", "cut-1", "--unresolved")
    command = "holdfast settle cut-1 'call 1' --result '…' # or --error \"…\"\n"
    assert command in await boss.text("inbox")
    assert f"unknown     pay: {command}" in await boss.text("sessions", "show", "cut")
    settled = await boss.text("settle", "cut-1", "call 1", "--result", '{"paid": 5}')
    assert settled == "Call call 1 of pay is completed.\n"
    assert (await boss.json("runs", "list", "--unresolved"))["runs"] == []
    assert (await boss.json("sessions", "show", "cut"))["effects"] == []
    assert "holdfast settle" not in await boss.text("inbox")


async def end_sessions(boss: Shell, folder: Path) -> None:
    await boss.text("sessions", "export", "s", "--to", str(folder / "s.ndjson"))
    verified = await boss.text("archive", "verify", str(folder / "s.ndjson"))
    assert "differs from the digest of the file" in verified
    await boss.text("sessions", "hold", "s")
    assert (await boss.json("sessions", "retention", "s"))["held_by"] == "session"
    await boss.text("sessions", "hold", "s", "--off")
    assert "policy" in await boss.text("sessions", "retention", "s")
    cleaned = await boss.json("sessions", "clean", "s", "--force", "--yes")
    assert cleaned["deleted"]["runs"] == 3
    tailed = await boss.holdfast("tail", "s")
    assert (tailed.exit_code, "sessions rehydrate s --from FILE" in tailed.stderr) == (0, True)
    await boss.text("sessions", "rehydrate", "s", "--from", str(folder / "s.ndjson"))
    assert (await boss.json("sessions", "erase", "s", "--yes"))["deleted"]["runs"] == 3
    actions = [entry["action"] for entry in (await boss.json("audit", "--session", "s"))["entries"]]
    assert {"erase", "rehydrate", "clean", "hold", "lift hold"} <= set(actions)
    swept = await boss.holdfast("sweep", "--dry-run")
    assert (swept.exit_code, swept.stdout, "There is no retention policy" in swept.stderr) == (
        1,
        "Due: nothing.\n",
        True,
    )


async def test_waiting_for_an_approval_over_a_server_prints_no_traceback(
    engine: Engine, store: Store, tmp_path: Path
):
    await store.add_token(digest("hf_ada"), owner="ada")
    async with (
        open_store(engine.url) as served,
        working(store, payer),
        serving(create_app(load_settings(), served)) as url,
    ):
        await until(partial(is_served, store))
        ada = Terminal(tmp_path, {"HOLDFAST_URL": url, "HOLDFAST_TOKEN": "hf_ada"})
        waiting = await ada.holdfast("send", "s", "pay", "--agent", "payer", "--wait")
        assert waiting.returncode == 5
        assert waiting.stderr == "waiting: pay (first), pay (second)\n"


async def test_an_owner_that_is_full(engine: Engine, store: Store, tmp_path: Path):
    """The command prints the server's sentence, which names the session to erase."""
    await store.add_token(digest("hf_ada"), owner="ada")
    await store.create_session(agent="echo", owner="ada", id="s")
    settings = load_settings(max_stored_bytes_per_owner=1)
    async with open_store(engine.url) as served, serving(create_app(settings, served)) as url:
        ada = Terminal(tmp_path, {"HOLDFAST_URL": url, "HOLDFAST_TOKEN": "hf_ada"})
        await ada.text("send", "s", "hello")
        await store.measure("s")
        refused = await ada.holdfast("send", "s", "more")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert re.search(r"'ada' has [\d.]+ \w+ of stored content, and may have 1 B", refused.stderr)
        assert re.search(r"sessions erase.*The largest are: s \(", " ".join(refused.stderr.split()))
        assert (await ada.holdfast("send", "t", "hello", "--agent", "echo")).returncode == 2
        await ada.text("interrupt", "s")
        await ada.text("sessions", "erase", "s", "--yes")
        await ada.text("send", "t", "hello", "--agent", "echo")
