import asyncio
import json
import os
import re
import subprocess
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Holdfast, Store, open_store
from holdfast.types import Batch, NewEvent, Run
from tests import forking
from tests.cli.test_db import COMMAND

WORKS = """
from pydantic_ai import Agent, TextOutput
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from holdfast import Holdfast, open_store

print("loading")


def answer(messages, info):
    return ModelResponse(parts=[TextPart(f"{len(messages)} messages, all is well")])


def refuse(messages, info):
    raise RuntimeError("still\\nno network")


def count(text: str) -> dict[str, int]:
    return {"length": len(text)}


agent = Agent(FunctionModel(answer), name="bot")
recorded = Agent(FunctionModel(answer), name="bot", capabilities=[Holdfast(open_store("sqlite:///elsewhere.db"))])
counting = Agent(FunctionModel(answer), name="bot", output_type=TextOutput(count))
failing = Agent(FunctionModel(refuse), name="bot")
number = 7


@agent.tool_plain
def look() -> str:
    raise RuntimeError("look has its result on record and is not run again")
"""


@dataclass
class Recorded:
    """A store on file with a delegating, a failed and an interrupted run; and the command, run on it."""

    folder: Path
    store: Store

    def holdfast(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        return forking.run(
            [COMMAND, "runs", *arguments],
            cwd=self.folder,
            env={**inherited, "HOLDFAST_STORE": f"sqlite:///{self.folder}/runs.db", **environment},
        )

    def text(self, *arguments: str, **environment: str) -> str:
        done = self.holdfast(*arguments, **environment)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.text(*arguments, "--json"))


def call(tool: str) -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart(tool, {})])


def turn(messages: list[ModelMessage]) -> int:
    return sum(isinstance(message, ModelResponse) for message in messages)


async def delegate(store: Store) -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("found")])

    def lead(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return call("ask") if turn(messages) == 0 else ModelResponse(parts=[TextPart("done")])

    helper = Agent(FunctionModel(answer), name="helper", capabilities=[Holdfast(store, run_id="below")])
    leader = Agent(FunctionModel(lead), name="leader", capabilities=[Holdfast(store, run_id="above")])

    @leader.tool_plain
    async def ask() -> str:
        return (await helper.run("search", conversation_id="helping")).output

    await leader.run("hello", conversation_id="leading")


async def fail(store: Store) -> None:
    def lose(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if turn(messages) == 0:
            return call("look")
        problem = "no [bold]network\x1b[2J\n"
        raise RuntimeError(problem)

    agent = Agent(FunctionModel(lose), name="bot", capabilities=[Holdfast(store, run_id="lost")])

    @agent.tool_plain
    def look() -> str:
        return "seen"

    with pytest.raises(RuntimeError):
        await agent.run("hello", conversation_id="losing")


async def interrupt(store: Store) -> None:
    reached = asyncio.Event()

    def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return call("look") if turn(messages) == 0 else call("pay")

    agent = Agent(FunctionModel(script), name="payer", capabilities=[Holdfast(store, run_id="stopped")])

    @agent.tool_plain
    def look() -> str:
        return "seen"

    @agent.tool_plain
    async def pay() -> None:
        reached.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(agent.run("hello", conversation_id="stopping"))
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.fixture
async def recorded(tmp_path: Path) -> AsyncGenerator[Recorded, None]:
    (tmp_path / "bot.py").write_text(WORKS)
    (tmp_path / "broken.py").write_text("import nowhere.to.be.found")
    async with open_store(f"sqlite:///{tmp_path}/runs.db") as store:
        await delegate(store)
        await fail(store)
        await interrupt(store)
        yield Recorded(tmp_path, store)
        assert await store.check() == []


async def test_list(recorded: Recorded):
    (run,) = recorded.json("list", "losing")["runs"]
    assert (run["id"], run["agent"], run["status"]) == ("lost", "bot", "failed")
    assert run["error"] == "RuntimeError: no [bold]network\x1b[2J\n"
    assert run["started_at"].endswith("Z")
    titles, row = recorded.text("list", "losing").splitlines()
    assert titles.split() == ["id", "status", "agent", "error", "started", "duration", "parent"]
    assert re.fullmatch(
        r"lost +failed +bot +RuntimeError: no \[bold\]network\\x1b\[2J +[\d-]+ [\d:]+Z +\d\.\d\ds", row
    )
    assert "above" in recorded.text("list", "helping")


async def test_list_is_paged_and_fits_the_terminal(recorded: Recorded):
    holder = await recorded.store.join("test")
    await recorded.store.create_session(agent="a", owner="o", id="many")
    lease = await recorded.store.acquire("many", holder)
    for number in range(120):
        run = Run(id=f"run-{number:032}", agent="a", status="failed", error="far too long " * 20)
        await recorded.store.write(lease, Batch(events=[NewEvent(kind="x")], runs=[run]))
    await recorded.store.leave(holder)
    ids = [f"run-{number:032}" for number in reversed(range(120))]
    assert [run["id"] for run in recorded.json("list", "many", "--limit", "200")["runs"]] == ids
    page = recorded.json("list", "many")
    rest = recorded.json("list", "many", "--limit", "100", "--cursor", page["next_cursor"])
    assert (len(page["runs"]), rest["next_cursor"]) == (50, None)
    assert [run["id"] for run in page["runs"] + rest["runs"]] == ids
    lines = recorded.text("list", "many", "--limit", "200", COLUMNS="100").splitlines()[1:]
    assert [line.split()[0] for line in lines] == ids
    assert max(map(len, lines)) <= 100


async def test_show(recorded: Recorded):
    shown = recorded.json("show", "stopped")
    assert (shown["run"]["status"], shown["run"]["session_id"]) == ("interrupted", "stopping")
    assert (shown["latest"]["kind"], shown["latest"]["length"]) == ("interrupted", 4)
    assert (shown["settled"]["kind"], shown["settled"]["length"]) == ("settled", 3)
    assert shown["effects"] == {"started": 1, "completed": 1, "failed": 0}
    assert [effect["tool"] for effect in shown["unresolved"]] == ["pay"]
    text = recorded.text("show", "stopped")
    assert f"latest      {shown['latest']['id']} interrupted, 4 messages" in text
    assert f"settled     {shown['settled']['id']} settled, 3 messages" in text
    assert "effects     1 started, 1 completed, 0 failed\n" in text
    assert f"unresolved  pay {shown['unresolved'][0]['call_id']}, step 2, started " in text


async def test_tree(recorded: Recorded):
    above = recorded.json("tree", "above")
    assert (above["id"], above["truncated"]) == ("above", False)
    assert [(run["id"], run["session_id"], run["delegates"]) for run in above["delegates"]] == [
        ("below", "helping", [])
    ]
    first, second = recorded.text("tree", "above").splitlines()
    assert first.startswith("above leader completed ")
    assert second.startswith("└── below helper completed ")


async def test_a_tree_ends(recorded: Recorded):
    holder = await recorded.store.join("test")
    await recorded.store.create_session(agent="a", owner="o", id="odd")
    lease = await recorded.store.acquire("odd", holder)
    circle = [Run(id="chicken", parent_id="egg"), Run(id="egg", parent_id="chicken")]
    chain = [Run(id=f"run-{n}", parent_id=f"run-{n - 1}" if n else None) for n in range(60)]
    await recorded.store.write(lease, Batch(events=[NewEvent(kind="x")], runs=[*circle, *chain]))
    await recorded.store.leave(holder)
    chicken = recorded.json("tree", "chicken")
    (egg,) = chicken["delegates"]
    assert (egg["id"], egg["delegates"], egg["truncated"]) == ("egg", [], True)
    lines = recorded.text("tree", "run-0").splitlines()
    assert len(lines) == 52
    assert "run-50 " in lines[-2]
    assert lines[-1].endswith("└── …")


async def test_events(recorded: Recorded):
    events = recorded.json("events", "lost")["events"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (events[0]["kind"], events[-1]["kind"]) == ("run_started", "run_failed")
    assert events[0]["payload"]["agent"] == "bot"
    lines = recorded.text("events", "lost", COLUMNS="70").splitlines()
    assert len(lines) == len(events)
    assert re.match(r' +1  [\d:]+Z  run_started +0  \{"agent": "bot", "pa…', lines[0])
    assert max(map(len, lines)) == 70
    assert lines[1].endswith("  hello")
    assert not any("…" in line for line in recorded.text("events", "lost").splitlines())


async def test_events_reads_all_pages(recorded: Recorded):
    holder = await recorded.store.join("test")
    await recorded.store.create_session(agent="a", owner="o", id="long")
    lease = await recorded.store.acquire("long", holder)
    for _ in range(2):
        events = [NewEvent(kind="x", run_id="r") for _ in range(500)]
        await recorded.store.write(lease, Batch(events=events, runs=[Run(id="r", agent="a")]))
    await recorded.store.leave(holder)
    assert [e["seq"] for e in recorded.json("events", "r")["events"]] == list(range(1, 1001))


async def test_effects(recorded: Recorded):
    found = recorded.json("effects", "stopped")["effects"]
    assert [(effect["tool"], effect["state"]) for effect in found] == [
        ("look", "completed"),
        ("pay", "started"),
    ]
    unresolved = recorded.json("effects", "stopped", "--unresolved")["effects"]
    assert unresolved == found[1:]
    titles, row = recorded.text("effects", "stopped", "--unresolved").splitlines()
    assert titles.split()[:5] == ["call", "tool", "state", "error", "summary"]
    assert row.split()[:5] == [found[1]["call_id"], "pay", "started", "2", "1"]  # without error and summary


async def test_resume_completes_a_failed_run(recorded: Recorded):
    resumed = recorded.holdfast("resume", "bot:agent", "lost")
    assert (resumed.returncode, resumed.stdout) == (0, "3 messages, all is well\n")
    assert resumed.stderr == "loading\n"
    runs = recorded.json("list", "losing")["runs"]
    assert [run["status"] for run in runs] == ["completed", "failed"]
    again = recorded.holdfast("resume", "bot:agent", "lost")
    assert again.returncode == 2
    assert "another run has continued since" in again.stderr


@pytest.mark.parametrize(
    ("app", "output"),
    [("bot:agent", "3 messages, all is well"), ("bot:counting", {"length": 23})],
)
async def test_resume_for_programs(recorded: Recorded, app: str, output: object):
    said = json.loads(recorded.holdfast("resume", app, "lost", "--json").stdout)
    assert said["output"] == output
    assert recorded.json("show", said["run_id"])["run"]["status"] == "completed"


async def test_resume_records_where_the_run_is(recorded: Recorded):
    assert recorded.holdfast("resume", "bot:recorded", "lost").returncode == 0
    assert [run["status"] for run in recorded.json("list", "losing")["runs"]] == ["completed", "failed"]
    assert not (recorded.folder / "elsewhere.db").exists()


async def test_resume_that_fails_again(recorded: Recorded):
    failed = recorded.holdfast("resume", "bot:failing", "lost", "--json")
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["error"]["code"] == "run_failed"
    assert failed.stderr == (
        "loading\nerror: The run failed: RuntimeError: still no network. See `holdfast runs list losing`.\n"
    )
    assert [run["status"] for run in recorded.json("list", "losing")["runs"]] == ["failed", "failed"]


@pytest.mark.parametrize(
    ("app", "problem"),
    [
        ("bot", "'bot' does not name an agent; use module:attribute"),
        (":agent", "':agent' does not name an agent; use module:attribute"),
        ("..bot:agent", "'..bot:agent' does not name an agent; use module:attribute"),
        ("robot:agent", "module robot was not found, neither here nor installed"),
        ("bot.arm:agent", "module bot.arm was not found, neither here nor installed"),
        ("bot:nobody", "module bot has no attribute nobody"),
        ("bot:number", "bot:number is of type int, not a pydantic_ai.Agent"),
        ("broken:agent", "importing broken failed: ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
async def test_a_bad_app_is_refused(recorded: Recorded, app: str, problem: str):
    refused = recorded.holdfast("resume", app, "lost")
    said = refused.stderr.removeprefix("loading\n")
    assert (refused.returncode, refused.stdout, said.count("\n")) == (2, "", 1)
    assert said.startswith(f"error: Invalid input: {problem}")


async def test_fork(recorded: Recorded):
    settled = recorded.json("show", "stopped")["settled"]["id"]
    (forked,) = recorded.text("fork", settled).splitlines()
    (checkpoint,) = (await recorded.store.checkpoints(session_id=forked)).items
    assert checkpoint.length == 3
    assert recorded.json("fork", settled)["session_id"] != forked


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("list", "nobody"), "There is no session nobody."),
        (("show", "nobody"), "There is no run nobody."),
        (("tree", "nobody"), "There is no run nobody."),
        (("events", "nobody"), "There is no run nobody."),
        (("effects", "nobody"), "There is no run nobody."),
        (("fork", "nobody"), "There is no checkpoint nobody."),
    ],
)
async def test_an_unknown_id_is_one_line(recorded: Recorded, arguments: tuple[str, ...], said: str):
    failed = recorded.holdfast(*arguments)
    assert (failed.returncode, failed.stdout, failed.stderr) == (2, "", f"error: {said}\n")


async def test_resume_of_an_unknown_run(recorded: Recorded):
    failed = recorded.holdfast("resume", "bot:agent", "nobody")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr == "loading\nerror: There is no run nobody.\n"


def test_looking_creates_nothing(tmp_path: Path):
    recorded = Recorded(tmp_path, open_store("sqlite://:memory:"))
    for arguments in (("list", "x"), ("show", "x"), ("fork", "x")):
        assert recorded.holdfast(*arguments).returncode == 2
    assert list(tmp_path.iterdir()) == []
