"""Run every Python block of README and docs: programs as they are, fragments with the names of their page.

Blocks in `COMPILED` are only compiled and their imports resolved, for the stated reason. The pages of docs/reference that are generated
contain signatures, which tests/test_docs.py compares with the code.
"""

import ast
import asyncio
import builtins
import doctest
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
import tomllib
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic_ai import Agent, DeferredToolResults, RunContext, ToolDenied
from pydantic_ai.exceptions import CallDeferred
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset

import holdfast
from holdfast import Holdfast, Turn, annotate_effect, connect, idempotency_key, open_store, resume
from holdfast.cli import app
from holdfast.media import open_media
from holdfast.notices.signature import new_secret, sign
from holdfast.record import ExternalMedia
from holdfast.runtime import Worker, current_session
from holdfast.runtime.credentials import new_key
from holdfast.shell import ShellService
from holdfast.store import Store
from holdfast.types import Batch, NewEvent, Run, SubmissionChange
from tests import forking
from tests.builders import until
from tests.forking import Forked
from tests.server.fronts import front

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MADE = ROOT / "docs" / "reference"
"""Signatures, written by docs/make_reference.py from the code; test_docs.py compares them."""

FRAMEWORKS = {"adk.md", "claude-agent-sdk.md", "harness.md", "openai-agents.md"}
"""Pages with programs that need another framework. The tests in tests/frameworks run them."""


@dataclass(frozen=True)
class Block:
    """One block of code, and where it stands."""

    page: Path
    number: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}#{self.number}"

    @property
    def is_whole(self) -> bool:
        return "asyncio.run(" in self.text


def fenced() -> list[Block]:
    found: list[Block] = []
    for page in (page for page in PAGES if MADE not in page.parents and page.name not in FRAMEWORKS):
        blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        found += [Block(page, n, language, text) for n, (language, text) in enumerate(blocks)]
    return found


QUICKSTART = ROOT / "docs" / "quickstart.md"
SERVED = "docs/quickstart.md#0"
"""A program that needs the server of its page."""
WHOLE = [b for b in fenced() if b.language == "python" and b.is_whole and b.name != SERVED]
COMPILED = {
    "docs/how-to/stores.md#0": "needs a pool and a client of the application; tests/store/test_borrowed.py opens stores on both",
    "docs/how-to/langgraph.md#0": "needs LangGraph; tests/frameworks/test_langgraph.py runs it",
}
"""Python blocks that are not run, and why."""
PYTHON = [block for block in fenced() if block.language == "python"]
FRAGMENTS = [block for block in PYTHON if not block.is_whole and block.name not in COMPILED]
PLACEHOLDERS = {
    *("agent", "other", "model", "store", "media", "shell", "bank", "pool", "client", "session", "turn"),
    *("session_id", "run_id", "key", "lease", "submission", "answer"),
}
"""Names that a fragment may use without defining them: what its page is about."""


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.name)
def test_a_block_can_be_pasted(block: Block):
    code = compile(block.text, block.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    names = [node for node in ast.walk(code) if isinstance(node, ast.Name)]
    defined = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    for node in ast.walk(code):
        if isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name is not None:
            defined.add(node.name)
    assert {node.id for node in names} - defined - set(dir(builtins)) <= PLACEHOLDERS


def test_every_import_in_the_docs_can_be_resolved():
    seen = 0
    for page in PAGES:
        for module, names in re.findall(
            r"from (holdfast(?!\.frameworks)[\w.]*) import (\w+(?:, \w+)*)", page.read_text()
        ):
            for name in names.split(", "):
                assert hasattr(import_module(module), name), (page, module, name)
                seen += 1
    assert seen > 50


def indented() -> list[Block]:
    """Return the Python modules that pages show as indented blocks."""
    found: list[Block] = []
    for page in PAGES:
        blocks = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}|\n {4}))+", page.read_text(), re.MULTILINE)
        modules = [textwrap.dedent(block).strip() for block in blocks]
        found += [
            Block(page, n, "python", text)
            for n, text in enumerate(modules)
            if text.startswith(("import ", "from "))
        ]
    return found


@pytest.mark.parametrize("block", indented(), ids=lambda block: block.name)
def test_a_module_with_an_agent_can_be_imported(block: Block):
    """Its tools take seconds, so no message is sent here: tests/cli and tests/promises do that with agents like it."""
    names: dict[str, Any] = {}
    exec(compile(block.text, block.name, "exec"), names)
    assert isinstance(names["agent"], Agent)


def docstrings() -> Iterator[tuple[Path, str]]:
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, ast.get_docstring(node) or ""


def test_python_examples_in_docstrings():
    """Run what `>>>` begins. Compile other examples: they show a part of a program. Commands are checked below."""
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    for path, text in docstrings():
        runner.run(parser.get_doctest(text, {}, str(path), str(path), 0))
        for example in re.findall(r"(?:^ {4}.*\n?|^\n)+", text, re.MULTILINE):
            if example.strip() and not example.lstrip().startswith("holdfast "):
                code = textwrap.dedent(example).strip("\n")
                compile(code, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert runner.summarize().failed == 0


@pytest.mark.parametrize("block", WHOLE, ids=lambda block: block.name)
def test_a_program_runs_as_it_stands(block: Block, tmp_path: Path):
    done = forking.run([sys.executable, "-c", block.text], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


async def test_the_quickstart_runs_unchanged_on_a_store_and_on_a_server(tmp_path: Path):
    (program,) = [block for block in fenced() if block.name == SERVED]
    module, _ = [block for block in indented() if block.page == QUICKSTART]
    names: dict[str, Any] = {}
    exec(module.text.replace("sleep(10)", "sleep(0)"), names)
    url = f"sqlite:///{tmp_path}/holdfast.db"
    async with open_store(url) as store, front(url, "--role", "api") as server:
        worker = Worker(store, names["agent"])
        serving = asyncio.create_task(worker.run())
        for settings in (
            {"HOLDFAST_STORE": url},
            {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": server.token},
        ):
            command = [sys.executable, "-c", program.text]
            done = await asyncio.to_thread(forking.run, command, cwd=tmp_path, env=os.environ | settings)
            assert done.stdout == "Hello, Ada.\n", done.stderr
            (tmp_path / "talk.ndjson").unlink()
        worker.stop()
        await serving


async def test_the_approval_of_the_quickstart_is_asked_and_answered(tmp_path: Path):
    _, module = [block for block in indented() if block.page == QUICKSTART]
    (tmp_path / "clerk.py").write_text(module.text)
    section = QUICKSTART.read_text().partition("into `clerk.py`")[2]
    commands = re.findall(r"^    holdfast (.+)$", section, re.MULTILINE)
    worker, send, inbox, approve, tail = [shlex.split(line, comments=True) for line in commands]

    def start(arguments: list[str]) -> Forked:
        command = [sys.executable, "-m", "holdfast", *arguments]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return Forked(command, cwd=tmp_path, env=inherited, **pipes)

    def follow() -> None:
        with ended(start(worker)) as working:
            assert working.stderr is not None
            assert any(" serves " in line for line in working.stderr)
            with ended(start(send)) as sending:
                assert sending.communicate()[1].startswith("waiting: pay (")
            with ended(start(inbox)) as listing:
                (row,) = listing.communicate()[0].splitlines()[1:]
            assert row.split()[:3] == ["bill", "clerk", "pay"]
            with ended(start(approve)) as approving:
                assert "approved" in approving.communicate()[0]
            with ended(start(tail)) as tailing:
                assert tailing.stdout is not None
                assert any("The bill is paid." in line for line in tailing.stdout)

    await asyncio.wait_for(asyncio.to_thread(follow), 60)


@contextmanager
def ended(process: Forked) -> Generator[Forked, None, None]:
    """Stop a process at the end."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate()


async def run(text: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a fragment, which may await, among these names."""
    code = compile(text, "<docs>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running = eval(code, names)
    if inspect.iscoroutine(running):
        await running
    return names


@dataclass
class Bank:
    paid: int = 0

    async def pay(self, amount: int, *, idempotency_key: str) -> str:
        assert idempotency_key
        self.paid += amount
        return "r-1"


def calls(*made: ToolCallPart) -> FunctionModel:
    """Return a model that makes these calls and then is done."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        asked = any(isinstance(part, ToolCallPart) for message in messages for part in message.parts)
        return ModelResponse(parts=[TextPart("done")] if asked else list(made))

    return FunctionModel(answer)


async def searches(store: Store, text: str) -> None:
    call = ToolCallPart("search", {"query": "x"}, "c1")
    agent = Agent(calls(call), name="clerk", capabilities=[Holdfast(store)])
    await run(text, {"agent": agent})
    await agent.run("go", conversation_id="talk")
    assert [effect.state for effect in (await store.effects("talk")).items] == ["completed"]


async def pays(store: Store, text: str) -> None:
    agent = Agent(
        calls(ToolCallPart("pay", {"amount": 5}, "c1")), name="clerk", capabilities=[Holdfast(store)]
    )
    bank = Bank()
    names = {
        "agent": agent,
        "bank": bank,
        "RunContext": RunContext,
        "idempotency_key": idempotency_key,
        "annotate_effect": annotate_effect,
    }
    await run(text, names)
    await agent.run("go", conversation_id="talk")
    assert bank.paid == 5
    assert (await store.effects("talk")).items[0].summary == "paid 5, receipt r-1"


async def answers_later(store: Store, text: str) -> None:
    made = (ToolCallPart("wait", {}, "call-1"), ToolCallPart("buy", {}, "call-2"))
    agent = Agent(
        calls(*made), name="clerk", capabilities=[Holdfast(store)], output_type=[str, _deferred_requests()]
    )

    @agent.tool_plain
    def wait() -> str:
        raise CallDeferred

    @agent.tool_plain(requires_approval=True)
    def buy() -> str:
        raise AssertionError("it was denied")

    run_id = (await agent.run("go", conversation_id="talk")).run_id
    names = {"agent": agent, "store": store, "run_id": run_id, "resume": resume}
    names |= {"DeferredToolResults": DeferredToolResults, "ToolDenied": ToolDenied}
    assert (await run(text, names))["result"].output == "done"


def _deferred_requests() -> Any:
    from pydantic_ai import DeferredToolRequests

    return DeferredToolRequests


async def asks(store: Store, text: str) -> None:
    agent = Agent(TestModel(), name="clerk")
    names = await run(text, {"agent": agent})
    assert names["pay"](5) is None


async def expires(store: Store, text: str) -> None:
    agent = Agent(calls(ToolCallPart("refund", {"amount": 5}, "c1")), name="clerk")
    await run(text, {"agent": agent})
    async with connect(store, agents=[agent]) as hf:
        session = await hf.session(agent="clerk")
        await session.send("go")

        async def has_a_deadline() -> bool:
            return any(question.default == "deny" for question in (await session.info()).approvals)

        await until(has_a_deadline)


async def delegates(store: Store, text: str) -> None:
    agent = Agent(calls(ToolCallPart("settle_invoice", {"number": 5}, "c1")), name="clerk")
    model = calls(ToolCallPart("pay", {}, "c1"))
    names = await run(text, {"agent": agent, "store": store, "model": model})
    names["payer"].tool_plain(name="pay", requires_approval=True)(lambda: "paid")
    async with connect(store, agents=[agent]) as hf:
        session = await hf.session(agent="clerk")
        turn = await session.send("go")

        async def asks_through_the_delegate() -> bool:
            return [call.tool for call in (await session.info()).approvals] == ["pay"]

        await until(asks_through_the_delegate)
        await session.approve((await session.info()).approvals[0])
        await turn.result(timeout=20)


async def delivers(store: Store, text: str) -> None:
    outside = ExternalToolset([ToolDefinition(name="order")])
    model = calls(*(ToolCallPart("order", {}, call_id) for call_id in ("call-7", "call-8")))
    agent = Agent(model, name="clerk", toolsets=[outside])
    async with connect(store, agents=[agent]) as hf:
        session = await hf.session(agent="clerk")
        await session.send("go")

        async def waits() -> bool:
            return len((await session.info()).approvals) == 2

        await until(waits)
        await run(text, {"session": session})

        async def has_continued() -> bool:
            return (await store.session(session.id)).pending == 0

        await until(has_continued)
        states = sorted(effect.state for effect in (await store.effects(session.id)).items)
        assert states == ["completed", "failed"]


async def approves(store: Store, text: str) -> None:
    agent = Agent(calls(ToolCallPart("pay", {"amount": 5}, "c1")), name="clerk")

    @agent.tool_plain(requires_approval=True)
    def pay(amount: int) -> int:
        return amount

    session = (await store.create_session(agent="clerk", owner="ada")).id
    await store.submit(session, "message", '{"text": "go"}')
    async with working(store, agent):

        async def waits() -> bool:
            return (await store.session(session)).status == "waiting"

        await until(waits)
        await run(text, {"store": store, "session_id": session, "json": json})

        async def is_paid() -> bool:
            return [effect.state for effect in (await store.effects(session)).items] == ["completed"]

        await until(is_paid)


@asynccontextmanager
async def working(store: Store, agent: Any, **options: Any) -> AsyncGenerator[None, None]:
    worker = Worker(store, [agent], **options)
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running


async def works(store: Store, text: str) -> None:
    text = text.replace('open_store("postgresql://…")', "here")
    names: dict[str, Any] = {"here": open_store(store.url)}
    names |= {"agent": Agent(TestModel(), name="one"), "other": Agent(TestModel(), name="two")}
    running = asyncio.create_task(run(text, names))

    async def has_joined() -> bool:
        return bool(await store.holders())

    await until(has_joined)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def looks_around(store: Store, text: str) -> None:
    agent = Agent(calls(ToolCallPart("look", {}, "c1")), name="clerk")
    names: dict[str, Any] = {"current_session": current_session}

    @agent.tool_plain
    async def look() -> str:
        await run(text, names)
        return "seen"

    session = (await store.create_session(agent="clerk", owner="ada")).id
    await store.submit(session, "message", '{"text": "go"}')
    async with working(store, agent, credential_key=new_key()):

        async def is_done() -> bool:
            return bool((await store.effects(session)).items) and "token" in names

        await until(is_done)
    assert json.loads((await store.state(session)).body) == {"seen": 3}


async def seals(store: Store, text: str) -> None:
    session = (await store.create_session(agent="clerk", owner="ada")).id
    await run(text, {"store": store, "key": new_key(), "session_id": session})


async def compacts(store: Store, text: str) -> None:
    names = await run(text, {"agent": Agent(TestModel(), name="clerk")})
    session = (await store.create_session(agent="clerk", owner="ada")).id
    async with working(store, names["setup"]):
        for kind in ("message",) * 5 + ("compact",):
            await store.submit(session, kind, '{"text": "go"}' if kind == "message" else "{}")

        async def is_compacted() -> bool:
            return any(event.kind == "compacted" for event in await store.events(session, limit=1000))

        await until(is_compacted)
    (compacted,) = [event for event in await store.events(session, limit=1000) if event.kind == "compacted"]
    assert json.loads(compacted.payload) == {"before": 10, "after": 6}


async def writes_an_answer(store: Store, text: str) -> None:
    session = (await store.create_session(agent="clerk", owner="ada")).id
    submission = await store.submit(session, "message", "{}")
    lease = await store.acquire(session, await store.join("test"))
    names = {"store": store, "lease": lease, "submission": submission, "answer": '{"text": "hi"}'}
    names |= {"Batch": Batch, "NewEvent": NewEvent, "SubmissionChange": SubmissionChange}
    await run(text, names)
    assert (await store.events(session))[-2].kind == "answer" or (await store.events(session))[
        -1
    ].kind == "answer"


async def claims(store: Store, text: str) -> None:
    session = (await store.create_session(agent="clerk", owner="ada")).id
    submission = await store.submit(session, "message", "{}")
    lease = await store.acquire(session, await store.join("test"))
    names: dict[str, Any] = {"submission": submission, "run_id": "r-1", "Batch": Batch, "Run": Run}
    await run(text, names | {"SubmissionChange": SubmissionChange})
    names = await run(text, names | {"SubmissionChange": SubmissionChange})
    await store.write(lease, names["batch"])
    assert (await store.run("r-1")).session_id == session


async def makes_media(store: Store, text: str) -> None:
    names = await run(text, {"store": store})
    assert "my-bucket" in names["media"].location


async def publishes(store: Store, text: str) -> None:
    names = {"Agent": Agent, "model": TestModel(), "Holdfast": Holdfast, "ExternalMedia": ExternalMedia}
    made = await run(text, names | {"store": store, "media": open_media("database", store=store)})
    assert (await made["agent"].run("hi")).output


async def verifies(store: Store, text: str) -> None:
    """The receiver accepts every webhook that its page shows, if it is signed, and handles it once."""
    del store
    receive, secret = (await run(text, {}))["receive"], new_secret()
    seen: set[str] = set()
    bodies = [
        block.text.encode()
        for block in fenced()
        if block.page.name == "notices.md" and block.language == "json"
    ]
    for number, body in enumerate(bodies):
        headers = sign(f"msg-{number}", int(time.time()), body, [secret])
        assert receive(secret, headers, body, seen) == receive(secret, headers, body, seen) == 204
        assert (
            receive(secret, headers, body + b" ", seen) == receive(new_secret(), headers, body, seen) == 401
        )
    assert len(seen) == len(bodies) == 7


async def conforms(store: Store, text: str) -> None:
    assert " 8 passed" in await run_pytest(store, text, os.devnull, "-k", "comes_back or part")


async def passes(store: Store, text: str) -> None:
    settings = Path(store.url.removeprefix("sqlite:///")).with_name("pyproject.toml")
    (setting,) = [b for b in fenced() if b.name == "docs/how-to/testing.md#0"]
    settings.write_text(setting.text)
    assert " 1 passed" in await run_pytest(store, text, str(settings))


async def run_pytest(store: Store, text: str, settings: str, *options: str) -> str:
    """Run a block as a test file, in a folder of its own and with these settings. Return the last line of pytest."""
    file = Path(store.url.removeprefix("sqlite:///")).with_name("test_block.py")
    file.write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", settings, str(file)]
    done = await asyncio.to_thread(
        subprocess.run, [*command, *options], capture_output=True, text=True, cwd=file.parent
    )
    assert done.returncode == 0, done.stdout
    return f" {done.stdout.splitlines()[-1]}"


async def has_a_shell(store: Store, text: str) -> None:
    async with ShellService(store) as shell:
        names = {"Agent": Agent, "model": TestModel(call_tools=[]), "Holdfast": Holdfast}
        made = await run(text, names | {"store": store, "shell": shell})
        assert (await made["agent"].run("hi")).output


async def talks(store: Store, text: str) -> None:
    names = await run(text, {})
    async with front(store.url, "tests.promises.app:bot") as server:
        async with asyncio.timeout(60):
            await names["ask"](server.url, server.token)


async def runs_alone(store: Store, text: str) -> None:
    del store
    await run(text, {})


async def has_a_session(store: Store, text: str) -> None:
    async with connect(store) as hf:
        await run(text, {"session": await hf.session("order-5", agent="shop")})


async def has_a_turn(store: Store, text: str) -> None:
    @holdfast.agent("shop")
    async def shop(turn: Turn) -> None:
        del turn

    async with connect(store, agents=[shop]) as hf:
        turn = await (await hf.session("ada", agent=shop)).send("Rome")
        await turn.result()
        await run(text, {"turn": turn})


async def has_a_recorded_session(store: Store) -> None:
    agent = Agent(TestModel(), name="bot", instructions="Be brief.")
    await agent.run("hello", conversation_id="s1", capabilities=[Holdfast(store)])


async def reads_a_profile(store: Store, text: str) -> None:
    await has_a_recorded_session(store)
    names = await run(text, {})
    assert json.loads(await names["first_profile"](store.url, "s1"))["model"] == "test"


async def replays(store: Store, text: str) -> None:
    await has_a_recorded_session(store)
    names = await run(text, {})
    assert await names["check"](store.url, "s1") == []


AMONG: dict[str, Callable[[Store, str], Any]] = {
    "docs/how-to/steps.md#1": runs_alone,
    "docs/how-to/testing.md#1": passes,
    "docs/how-to/testing.md#2": passes,
    "docs/how-to/approvals.md#0": asks,
    "docs/how-to/approvals.md#1": approves,
    "docs/how-to/approvals.md#2": expires,
    "docs/how-to/approvals.md#3": delegates,
    "docs/how-to/approvals.md#4": delivers,
    "docs/how-to/fairness.md#0": has_a_session,
    "docs/how-to/media.md#2": makes_media,
    "docs/how-to/media.md#3": publishes,
    "docs/how-to/notices.md#10": verifies,
    "docs/how-to/record.md#1": searches,
    "docs/how-to/record.md#2": pays,
    "docs/how-to/record.md#3": answers_later,
    "docs/how-to/replay.md#1": replays,
    "docs/how-to/requests.md#0": reads_a_profile,
    "docs/how-to/serve.md#1": talks,
    "docs/how-to/shell.md#1": has_a_shell,
    "docs/how-to/stores.md#3": conforms,
    "docs/how-to/time.md#1": runs_alone,
    "docs/how-to/time.md#2": has_a_session,
    "docs/how-to/time.md#4": has_a_session,
    "docs/how-to/undo.md#1": runs_alone,
    "docs/how-to/undo.md#2": has_a_turn,
    "docs/how-to/worker.md#0": works,
    "docs/how-to/worker.md#1": looks_around,
    "docs/how-to/worker.md#2": seals,
    "docs/how-to/worker.md#3": compacts,
    "docs/how-to/worker.md#5": writes_an_answer,
    "docs/how-to/worker.md#6": claims,
}
"""What each fragment needs around it."""


@pytest.mark.parametrize("block", FRAGMENTS, ids=lambda block: block.name)
async def test_a_fragment_runs_among_what_its_page_talks_about(block: Block, tmp_path: Path):
    async with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        await AMONG[block.name](store, textwrap.dedent(block.text))
        assert await store.check() == []


def test_every_other_block_is_a_command_or_can_be_read():
    """What is for a browser (`ts`) is not run here."""
    read: dict[str, Callable[[str], object]] = {"json": json.loads, "toml": tomllib.loads}
    for block in fenced():
        assert block.language in {"python", "sh", "ts", *read}, block.name
        if block.language in read:
            assert read[block.language](block.text), block.name


CURL = """
set -eu
curl() {
  local code=0
  command curl --silent --show-error --fail-with-body --max-time 3 "$@" || code=$?
  case " $* " in *" -N "*) test "$code" = 28 ;; *) return "$code" ;; esac  # a stream ends only with the time limit
}
"""


@pytest.mark.parametrize("page", ["reference/http.md", "how-to/serve.md"])
async def test_every_curl_example_runs(page: str, tmp_path: Path):
    examples = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    assert any("curl" in example for example in examples)
    async with front(f"sqlite:///{tmp_path}/store.db", "tests.promises.app:bot") as server:
        for example in examples:
            done = await asyncio.to_thread(
                subprocess.run,
                ["bash", "-c", CURL + example],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env=os.environ
                | {"URL": server.url, "TOKEN": server.token, "DIGEST": "0" * 64}
                | {"AUTH": f"Authorization: Bearer {server.token}"},
                check=False,
            )
            assert done.returncode == 0, (example, done.stdout, done.stderr)


def typed() -> Iterator[tuple[str, list[str]]]:
    """Yield every `holdfast …` line of indented blocks, sh blocks and code in the text, and of docstrings."""
    pages = [
        (page, page.read_text()) for page in PAGES if page.name != "cli.md"
    ]  # test_docs.py checks its tables
    for page, text in [*pages, *docstrings()]:
        lines = re.findall(r"^(?:    |\$ )?(?:\S+=\S+ )*(?:\.venv/bin/)?holdfast (.+)$", text, re.MULTILINE)
        for line in lines:
            words = shlex.split(line.replace("…", "x").replace("'[", "").replace("]'", ""), comments=True)
            if words and re.fullmatch(r"[a-z-]+", words[0]):
                yield f"{page.name}: {line}", words


def test_every_command_in_the_docs_exists_with_its_options():
    seen = 0
    root: Any = typer.main.get_command(app)
    for where, words in typed():
        command = root
        rest = list(words)
        while rest and hasattr(command, "commands"):
            name = rest.pop(0)
            assert name in command.commands, where
            command = command.commands[name]
        assert not hasattr(command, "commands"), where
        options = {
            option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        for word in rest:
            if word.startswith("--"):
                assert word.partition("=")[0] in options | {"--help"}, where
        seen += 1
    assert seen > 25
