"""Talking to a session from a terminal: a real worker process answers what real commands ask."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from typer.testing import CliRunner

from holdfast import open_store
from holdfast.cli import app
from holdfast.media import open_media
from holdfast.retention import clean
from tests.cli.test_db import COMMAND
from tests.conftest import Engine
from tests.forking import Forked
from tests.promises.sessions import fill

RETRY = "Continue it with: holdfast retry s\n"
BOT = """
import asyncio

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel


def answer(messages, info):
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse(parts=[TextPart(f"the tool said: {last.content}")])
    match str(last.content).split():
        case ["pay", amount, *more]:
            calls = [ToolCallPart("pay", {"amount": int(a)}, f"pay-{a}") for a in (amount, *more)]
            return ModelResponse(parts=calls)
        case ["wait" | "cling" as tool]:
            return ModelResponse(parts=[ToolCallPart(tool, {}, f"{tool}-1")])
        case ["fail"]:
            raise RuntimeError("no network")
        case ["steer", "by", "error"]:
            raise RuntimeError("\\x1b]0;owned\\x07")
        case ["steer"]:
            return ModelResponse(parts=[TextPart("\\x1b[2Jred\\x07\\tand\\nmore\\u202e")])
        case ["long"]:
            return ModelResponse(parts=[TextPart("long " * 20_000)])
        case _:
            return ModelResponse(parts=[TextPart(f"you said: {last.content}")])


agent = Agent(FunctionModel(answer), name="bot")
other = Agent(FunctionModel(answer), name="other")
both = [agent, other]
number = 7


@agent.tool_plain(requires_approval=True, metadata={"editable": True})
def pay(amount: int) -> str:
    return f"paid {amount}"


@agent.tool_plain
async def wait() -> str:
    await asyncio.sleep(60)
    return "waited"


@agent.tool_plain
async def cling() -> str:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("I stay", flush=True)
"""


@dataclass
class Terminal:
    """A folder with an agent and a store, and the command run in it."""

    folder: Path
    url: str
    started: list[Forked] = field(default_factory=list[Forked])

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        return {**inherited, "HOLDFAST_STORE": self.url, "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, *arguments: str) -> Forked:
        process = Forked(
            [COMMAND, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )
        self.started.append(process)
        return process

    async def holdfast(self, *arguments: str, say: str = "") -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = await asyncio.wait_for(asyncio.to_thread(process.communicate, say), 60)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    async def text(self, *arguments: str, say: str = "") -> str:
        done = await self.holdfast(*arguments, say=say)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self.text(*arguments, "--json"))

    @asynccontextmanager
    async def worker(self, app: str = "bot:agent", *options: str) -> AsyncGenerator["Working", None]:
        working = Working(self.start("worker", app, *options))
        try:
            await working.says(" serves ")
            yield working
        finally:
            with suppress(ProcessLookupError):
                working.process.kill()
            await asyncio.to_thread(working.process.communicate)

    async def becomes(self, session: str, status: str) -> None:
        """Wait until a session has this status."""
        async with asyncio.timeout(30), open_store(self.url) as store:
            while (await store.session(session)).status != status:
                await asyncio.sleep(0.01)


@dataclass
class Working:
    """A worker process and what it has said so far."""

    process: Forked
    said: str = ""

    async def says(self, wanted: str) -> None:
        async with asyncio.timeout(30):
            while wanted not in self.said:
                assert self.process.stderr is not None
                line = await asyncio.to_thread(self.process.stderr.readline)
                assert line, self.said
                self.said += line

    async def ends(self, *signals: int) -> int:
        for number in signals:
            self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, 30)


@asynccontextmanager
async def terminal_at(folder: Path, url: str) -> AsyncGenerator[Terminal, None]:
    (folder / "bot.py").write_text(BOT)
    (folder / "broken.py").write_text("raise OSError('no licence')")
    async with open_store(url):
        pass  # the commands that talk do not make a schema
    terminal = Terminal(folder, url)
    try:
        yield terminal
    finally:
        for process in terminal.started:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
    async with open_store(url) as store:
        assert await store.check() == []


@pytest.fixture
async def terminal(tmp_path: Path) -> AsyncGenerator[Terminal, None]:
    async with terminal_at(tmp_path, f"sqlite:///{tmp_path}/talk.db") as terminal:
        yield terminal


@pytest.mark.processes
async def test_a_worker_answers_what_is_sent(engine: Engine, tmp_path: Path):
    async with terminal_at(tmp_path, engine.url) as terminal, terminal.worker():
        assert await terminal.text("send", "s", "hi", "--agent", "bot", "--wait") == "you said: hi\n"
        assert (
            await terminal.text("send", "s", "-", "--wait", say="from a pipe\n")
            == "you said: from a pipe\n\n"
        )
        sent = await terminal.json("send", "s", "once more", "--wait")
        assert (sent["submission"]["state"], sent["answer"]) == ("done", "you said: once more")
        failed = await terminal.holdfast("send", "s", "fail", "--wait")
        assert (failed.returncode, failed.stderr) == (1, f"failed: RuntimeError: no network\n{RETRY}")


async def test_answers_and_errors_cannot_steer_the_terminal(terminal: Terminal):
    async with terminal.worker():
        said = await terminal.text("send", "s", "steer", "--agent", "bot", "--wait")
        assert said == "\\x1b[2Jred\\x07\tand\nmore\\u202e\n"
        failed = await terminal.holdfast("send", "s", "steer by error", "--wait")
        assert (failed.returncode, failed.stderr) == (1, f"failed: RuntimeError: \\x1b]0;owned\\x07\n{RETRY}")
        shown = [
            await terminal.holdfast(*command)
            for command in (
                ("tail", "s", "--no-follow"),
                ("sessions", "show", "s"),
                ("runs", "list", "s"),
                ("send", "no\x1b[2Jsuch", "hi"),
            )
        ]
        assert not {"\x1b", "\x07", "\u202e"} & {*"".join(done.stdout + done.stderr for done in shown)}


async def test_send_wait_prints_an_answer_that_was_moved_to_the_media_store(terminal: Terminal):
    async with terminal.worker():
        said = await terminal.text("send", "s", "long", "--agent", "bot", "--wait")
        assert said == "long " * 20_000 + "\n"


async def test_send_without_a_worker_only_queues(terminal: Terminal):
    sent = await terminal.text("send", "s", "hi", "--agent", "bot", "--owner", "ada", "--key", "k")
    again = await terminal.text("send", "s", "hi", "--key", "k")
    assert sent == again
    busy = await terminal.holdfast("send", "s", "more", "--when-busy", "reject")
    assert (busy.returncode, "is busy (open submissions: 1)" in busy.stderr) == (2, True)
    shown = await terminal.json("sessions", "show", "s")
    assert [item["id"] for item in shown["submissions"]] == [sent.strip()]
    assert (shown["session"]["owner"], shown["session"]["status"]) == ("ada", "queued")


async def test_send_wait_says_that_nobody_is_there(terminal: Terminal):
    waiting = terminal.start("send", "s", "hello", "--agent", "bot", "--wait")
    assert waiting.stderr is not None
    line = await asyncio.wait_for(asyncio.to_thread(waiting.stderr.readline), 30)
    assert "No live worker serves agent 'bot'" in line
    async with terminal.worker():
        out, _ = await asyncio.wait_for(asyncio.to_thread(waiting.communicate), 30)
    assert (waiting.returncode, out) == (0, "you said: hello\n")


async def test_a_typo_in_the_agent_is_reported_and_the_wait_ends(terminal: Terminal):
    async with terminal.worker():
        late = await terminal.holdfast("send", "s", "hi", "--agent", "bott", "--wait", "--timeout", "0.1")
        assert (late.returncode, "Did you mean 'bot'?" in late.stderr) == (6, True)
        shown = await terminal.json("sessions", "show", "s")
        assert (shown["session"]["waiting_for"], "Did you mean 'bot'?" in shown["problem"]) == (
            "worker",
            True,
        )
        assert "Did you mean 'bot'?" in await terminal.text("sessions", "show", "s")
        assert "queued  worker" in await terminal.text("sessions", "list")
        checked = await terminal.holdfast("doctor")
        assert (checked.returncode, "1 sessions wait for agent 'bott'" in checked.stdout) == (1, True)
        other = await terminal.holdfast("send", "s", "hi", "--agent", "bot")
        assert (other.returncode, "belongs to agent 'bott', not 'bot'" in other.stderr) == (2, True)


async def test_send_wait_gives_the_answer_to_its_own_message(terminal: Terminal):
    """What was sent before may ask a person, or say something: neither is the answer to this."""
    await terminal.text("send", "s", "hello", "--agent", "bot")
    await terminal.text("send", "s", "pay 5")
    waiting = terminal.start("send", "s", "bye", "--wait")
    async with open_store(terminal.url) as store, asyncio.timeout(30):
        while (await store.session("s")).pending < 3:
            await asyncio.sleep(0.01)
    async with terminal.worker():
        await terminal.becomes("s", "waiting")
        await terminal.text("approve", "s")
        out, _ = await asyncio.wait_for(asyncio.to_thread(waiting.communicate), 30)
    assert (waiting.returncode, out) == (0, "you said: bye\n")


async def test_tail_prints_what_is_there_and_what_comes(terminal: Terminal):
    async with terminal.worker():
        await terminal.text("send", "s", "one", "--agent", "bot", "--wait")
        whole = await terminal.text("tail", "s", "--no-follow", "--json")
        events = [json.loads(line) for line in whole.splitlines()]
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert {"submission_queued", "run_started", "run_completed"} <= {event["kind"] for event in events}
        for_people = await terminal.text("tail", "s", "--no-follow", "--after", "1")
        assert len(for_people.splitlines()) == len(events) - 1
        assert "you said: one" in for_people
        following = terminal.start("tail", "s", "--after", str(len(events)), "--json")
        assert following.stdout is not None
        await terminal.text("send", "s", "two")
        line = await asyncio.wait_for(asyncio.to_thread(following.stdout.readline), 30)
        assert (json.loads(line)["seq"], json.loads(line)["kind"]) == (len(events) + 1, "submission_queued")
        following.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(following.wait, 30) == 130


async def test_approve_deny_and_edit(terminal: Terminal):
    async with terminal.worker():
        asks = await terminal.holdfast("send", "s", "pay 5", "--agent", "bot", "--wait")
        assert (asks.returncode, asks.stderr) == (5, "waiting: pay (pay-5)\n")
        shown = await terminal.json("sessions", "show", "s")
        (asked,) = shown["approvals"]
        assert (asked["call_id"], asked["tool"], asked["arguments"]) == ("pay-5", "pay", {"amount": 5})
        assert shown["session"]["waiting_for"] == "pay (pay-5)"
        assert 'approval    pay-5: pay {"amount": 5}' in await terminal.text("sessions", "show", "s")
        assert 'approved pay-5: pay {"amount": 5}\n' in await terminal.text("approve", "s", "--wait")
        await terminal.becomes("s", "idle")
        await terminal.text("send", "s", "pay 6")
        await terminal.becomes("s", "waiting")
        sent = await terminal.text("approve", "s", "pay-6", "--deny", "--feedback", "too much")
        assert 'sent denial of pay-6: pay {"amount": 6}\n' in sent
        await terminal.becomes("s", "idle")
        await terminal.text("send", "s", "pay 7")
        await terminal.becomes("s", "waiting")
        await terminal.json("approve", "s", "pay-7", "--arguments", '{"amount": 1}')
        await terminal.becomes("s", "idle")
        told = await terminal.text("tail", "s", "--no-follow")
    for text in ("the tool said: paid 5", "the tool said: too much", "the tool said: paid 1"):
        assert text in told
    assert "paid 6" not in told
    assert "paid 7" not in told


async def test_approve_needs_one_call(terminal: Terminal):
    nothing = await terminal.holdfast("approve", "s")
    assert (nothing.returncode, nothing.stderr) == (2, "error: There is no session s.\n")
    async with terminal.worker():
        await terminal.text("send", "s", "pay 5 6", "--agent", "bot")
        await terminal.becomes("s", "waiting")
        which = await terminal.holdfast("approve", "s")
        assert (which.returncode, "one of the waiting calls: pay-5, pay-6" in which.stderr) == (2, True)
        bad = await terminal.holdfast("approve", "s", "pay-5", "--arguments", "{")
        assert (bad.returncode, "--arguments is not JSON" in bad.stderr) == (2, True)
        await terminal.text("approve", "s", "pay-5")
        await terminal.text("approve", "s", "pay-6", "--deny")
        await terminal.becomes("s", "idle")
    assert "paid 5" in await terminal.text("tail", "s", "--no-follow")


async def test_an_answer_that_is_rejected_is_not_reported_as_given(terminal: Terminal):
    async with terminal.worker():
        await terminal.text("send", "s", "pay 5", "--agent", "bot")
        await terminal.becomes("s", "waiting")
    await terminal.text("interrupt", "s")  # no worker runs: the question stays open until one does
    answer = terminal.start("approve", "s", "--wait")
    async with asyncio.timeout(30), open_store(terminal.url) as store:
        while "approval" not in [each.kind for each in (await store.submissions("s")).items]:
            await asyncio.sleep(0.01)
    async with terminal.worker():
        out, err = await asyncio.wait_for(asyncio.to_thread(answer.communicate), 30)
    assert answer.returncode == 1
    assert "approved" not in out
    assert "does not wait for an answer" in err


async def test_cancel_removes_a_message_for_later(terminal: Terminal):
    later = ("--agent", "bot", "--at", "2036-01-01T00:00:00Z")
    sent = (await terminal.text("send", "s", "hi", *later)).strip()
    async with terminal.worker():
        cancelled = await terminal.json("cancel", "s", sent, "--wait")
        assert (cancelled["submission"]["kind"], cancelled["submission"]["state"]) == ("interrupt", "done")
        assert (await terminal.json("sessions", "show", "s"))["submissions"] == []
        again = await terminal.holdfast("cancel", "s", sent)
    assert (again.returncode, "has already ended: it is failed" in again.stderr) == (2, True)


async def test_interrupt_reaches_a_tool(terminal: Terminal):
    async with terminal.worker():
        waiting = terminal.start("send", "s", "wait", "--agent", "bot", "--wait")
        async with asyncio.timeout(30), open_store(terminal.url) as store:
            while not [s for s in (await store.sessions()).items if s.id == "s"]:
                await asyncio.sleep(0.01)
            async for event in store.watch("s"):
                if event.kind == "tool_call_started":
                    break
        await terminal.text("interrupt", "s")
        _, err = await asyncio.wait_for(asyncio.to_thread(waiting.communicate), 30)
        assert (waiting.returncode, err) == (1, f"failed: interrupted\n{RETRY}")
        assert await terminal.text("send", "s", "and now?", "--wait") == "you said: and now?\n"


async def test_sessions_are_listed(terminal: Terminal):
    await terminal.text("send", "a", "hi", "--agent", "bot", "--owner", "ada")
    await terminal.text("send", "b", "hi", "--agent", "other", "--owner", "bob")
    async with open_store(terminal.url) as store:
        await store.update_session("a", title="Über \x1b[2J alles")

    async def found(*options: str) -> list[str]:
        return [item["id"] for item in (await terminal.json("sessions", "list", *options))["sessions"]]

    assert await found() == ["b", "a"]
    assert await found("--agent", "bot") == await found("--owner", "ada") == await found("--search", "ÜBER")
    assert await found("--status", "queued") == ["b", "a"]
    assert await found("--status", "idle") == []
    page = await terminal.json("sessions", "list", "--limit", "1")
    assert await found("--cursor", page["next_cursor"]) == ["a"]
    text = await terminal.text("sessions", "list")
    assert "Über \\x1b[2J alles" in text
    wrong = await terminal.holdfast("sessions", "list", "--status", "lost")
    assert (wrong.returncode, "lost" in wrong.stderr) == (2, True)


async def test_workers_are_listed(terminal: Terminal):
    assert await terminal.json("workers") == {"workers": []}
    async with terminal.worker("bot:both", "--name", "one") as worker:
        assert "serves bot, other" in worker.said
        await terminal.text("send", "s", "wait", "--agent", "bot")
        await terminal.becomes("s", "running")
        (held,) = (await terminal.json("workers"))["workers"]
        assert (held["name"], held["sessions"]) == ("one", 1)
        assert "one " in await terminal.text("workers")


async def test_a_worker_says_how_it_ended(terminal: Terminal):
    async with terminal.worker() as worker:
        assert await worker.ends(signal.SIGTERM) == 0
    async with terminal.worker("bot:agent", "--grace", "0.2") as worker:
        await terminal.text("send", "s", "wait", "--agent", "bot")
        await terminal.becomes("s", "running")
        assert await worker.ends(signal.SIGINT) == 3
    async with terminal.worker("bot:agent", "--grace", "60") as worker:
        await terminal.text("send", "t", "wait", "--agent", "bot")
        await terminal.becomes("t", "running")
        await terminal.becomes("s", "idle")  # it was cut off, and this worker continues it first
        worker.process.send_signal(signal.SIGTERM)
        await worker.says("is stopping and hands over 1 sessions")
        assert await worker.ends(signal.SIGTERM) == 4


@pytest.mark.thorough
async def test_a_worker_ends_although_a_tool_swallows_its_cancellation(terminal: Terminal):
    async with terminal.worker("bot:agent", "--grace", "0.2") as worker:
        await terminal.text("send", "s", "cling", "--agent", "bot")
        await terminal.becomes("s", "running")
        assert await worker.ends(signal.SIGTERM) == 3


@pytest.mark.parametrize(
    ("app", "problem"),
    [
        ("broken:agent", "importing broken failed: OSError: no licence"),
        ("nowhere:agent", "module nowhere was not found, neither here nor installed"),
        ("bot:nobody", "module bot has no attribute nobody"),
        (
            "bot:number",
            "bot:number is of type int, not a pydantic_ai.Agent, a function with @holdfast.agent, or a list of them",
        ),
        ("bot", "'bot' does not name an agent; use module:attribute"),
    ],
)
async def test_a_worker_without_an_agent_does_not_start(terminal: Terminal, app: str, problem: str):
    failed = await terminal.holdfast("worker", app)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr == f"error: Invalid input: {problem}.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("worker", "bot:agent", "--concurrency", "0"),
        ("worker", "bot:agent", "--grace", "-1"),
        ("worker", "bot:agent", "--store", "mysql://x"),
        ("send", "s", "hi"),
        ("send", "s", "hi", "--when-busy", "panic"),
        ("send", "../s", "hi", "--agent", "bot"),
        ("tail", "s", "--after", "-1"),
        ("tail", "s"),
        ("interrupt", "s"),
        ("sessions", "show", "s"),
        ("sessions", "list", "--cursor", "x"),
    ],
    ids=" ".join,
)
async def test_bad_options_are_an_error(terminal: Terminal, arguments: tuple[str, ...]):
    failed = await terminal.holdfast(*arguments)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "Traceback" not in failed.stderr
    assert failed.stderr


async def test_a_session_of_an_agent_that_nobody_serves_waits(terminal: Terminal):
    """It is not this worker's to fail: one that serves the agent may come."""
    async with terminal.worker("bot:agent"):
        await terminal.text("send", "o", "hi", "--agent", "other")
        assert await terminal.text("send", "s", "hi", "--agent", "bot", "--wait") == "you said: hi\n"
        assert (await terminal.json("sessions", "show", "o"))["session"]["status"] == "queued"
    async with terminal.worker("bot:both"):
        assert await terminal.text("send", "o", "again", "--wait") == "you said: again\n"


@pytest.mark.parametrize("kept", ["media", None])
def test_tail_of_a_cleaned_session_advises_what_works(tmp_path: Path, kept: Literal["media"] | None):
    url = f"sqlite:///{tmp_path}/store.db"

    async def make() -> str:
        async with open_store(url) as store:
            media = open_media(store=store)
            session_id = await fill(store, media, ["hello"])
            await clean(store, media, session_id, actor="test", force=True, archive=kept)
            return session_id

    session_id = asyncio.run(make())
    advice = CliRunner().invoke(app, ["tail", session_id, "--store", url]).stderr
    command = f"holdfast sessions rehydrate {session_id}"
    assert (f"`{command}`" in advice, f"`{command} --from FILE`" in advice) == (kept == "media", kept is None)
    restored = CliRunner().invoke(app, ["sessions", "rehydrate", session_id, "--store", url])
    assert restored.exit_code == (0 if kept == "media" else 1)
