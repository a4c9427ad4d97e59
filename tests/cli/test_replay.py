"""`holdfast replay`: what it prints, and how it ends."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from pydantic_ai import Agent

from holdfast import Holdfast, open_store
from holdfast.cli.exit_codes import ExitCode
from tests.cli.test_help import invoke
from tests.record.agents import call, scripted

BOT = """
from pydantic_ai import Agent
from tests.record.agents import call, scripted

def look(name: str) -> str:
    '''Look at something.'''
    raise AssertionError("a tool ran")

def bot(instructions):
    return Agent(scripted([call("look", "a", name="x")]), tools=[look], name="bot", instructions=instructions)

same, other, wrong = bot("Be brief."), bot("Be long.\\x1b[31m"), 7
"""


def look(name: str) -> str:
    """Look at something."""
    return name


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with the session `s` of an agent, in a folder with the code of two agents."""

    async def fill() -> None:
        async with open_store(place) as store:
            await store.create_session(id="s", agent="bot", owner="you")
            model = scripted([call("look", "a", name="x")])
            recorder = Holdfast(store, owner="you")
            agent = Agent(model, tools=[look], name="bot", instructions="Be brief.", capabilities=[recorder])
            await agent.run("hello", conversation_id="s")

    place = f"sqlite:///{tmp_path}/store.db"
    asyncio.run(fill())
    (tmp_path / "replayed_bot.py").write_text(BOT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return place


def test_without_a_difference(url: str):
    shown = invoke("replay", "s", "--agent", "replayed_bot:same", "--store", url)
    assert shown.exit_code == ExitCode.OK
    assert shown.stdout.splitlines()[-1] == "2 model requests in 1 runs: no difference"


def test_a_difference_is_printed_without_control_characters(url: str):
    shown = invoke("replay", "s", "--agent", "replayed_bot:other", "--store", url)
    assert shown.exit_code == ExitCode.FAILED
    assert "the instructions, run " in shown.stdout
    assert "\n- Be brief.\n+ Be long." in shown.stdout
    assert "\x1b" not in shown.stdout


def test_json_from_a_file(url: str, tmp_path: Path):
    file = tmp_path / "s.ndjson"
    assert invoke("sessions", "export", "s", "--to", str(file), "--store", url).exit_code == ExitCode.OK
    shown = invoke("replay", "--file", str(file), "--agent", "replayed_bot:other", "--json")
    assert shown.exit_code == ExitCode.FAILED
    found = json.loads(shown.stdout)
    assert (found["session_id"], found["requests"], found["same"]) == ("s", 2, False)
    assert [each["kind"] for each in found["differences"]] == ["instructions"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["s"], "name the agent with --agent"),
        (["--agent", "replayed_bot:same"], "pass the id of a session, or --file"),
        (["s", "--file", "x", "--agent", "replayed_bot:same"], "pass the id of a session, or --file"),
        (["--file", "missing", "--agent", "replayed_bot:same"], "missing cannot be read"),
        (["s", "--agent", "replayed_bot:wrong"], "is of type int"),
        (["none", "--agent", "replayed_bot:same"], "There is no session none"),
    ],
)
def test_bad_arguments(url: str, arguments: list[str], problem: str):
    shown = invoke("replay", *arguments, *([] if "--file" in arguments else ["--store", url]))
    assert problem in str(shown.exception)
