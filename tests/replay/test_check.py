"""What a replay finds: nothing with unchanged code, and otherwise exactly the change."""

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Holdfast, Store, connect
from holdfast import agent as plain_agent
from holdfast.errors import ApprovalNeeded, BadArchive, BadInput, NotFound
from holdfast.media import open_media
from holdfast.record.profiles import Profiles
from holdfast.replay import ReplayReport, check_archive, replay
from holdfast.retention import write_archive
from holdfast.runtime.pydantic_agent import AgentSetup
from tests.builders import until
from tests.record.agents import Turn, call, scripted
from tests.runtime.agents import ended, send, working
from tests.runtime.agents import kinds as kinds_of

ran: list[str] = []


def look(name: str) -> str:
    """Look at something."""
    ran.append(name)
    return f"{name}?"


def pay(amount: int) -> str:
    """Pay."""
    ran.append("pay")
    return f"paid {amount}"


def picky(n: int) -> str:
    """Refuse most numbers."""
    ran.append("picky")
    if n < 2:
        raise ModelRetry("more")
    return "ok"


@plain_agent("plain")
async def plain(turn: Any) -> str:
    return "done"


def extra() -> str:
    """A tool that did not exist."""
    return "extra"


TURNS = [
    [TextPart("let me see"), call("look", "a", name="x"), call("pay", "b", amount=3)],
    [call("picky", "c", n=1)],
    [call("picky", "d", n=2)],
    [call("look", "e", name="y")],
]


def agent(*turns: Turn, tools: Any = (look, pay, picky), **options: Any) -> "Agent[None, Any]":
    options = {
        "instructions": "Be brief.",
        "model_settings": {"temperature": 0.2},
        "name": "agent",
        **options,
    }
    return Agent(options.pop("model", None) or scripted(*(turns or TURNS)), tools=list(tools), **options)


async def archived(store: Store, session_id: str) -> io.BytesIO:
    pieces = [piece async for piece in write_archive(store, open_media(store=store), session_id)]
    return io.BytesIO(b"".join(pieces))


async def recorded(store: Store, recording: "Agent[None, Any]", *texts: str) -> io.BytesIO:
    session_id = (await store.create_session(agent="agent", owner="you")).id
    async with working(store, recording):
        for text in texts or ("hello",):
            assert (await ended(store, await send(store, session_id, text))).state == "done"
    ran.clear()
    return await archived(store, session_id)


def kinds(report: ReplayReport) -> list[tuple[str, str]]:
    return sorted((each.kind, each.name) for each in report.differences)


async def test_unchanged_code_makes_the_same_requests(store: Store):
    archive = await recorded(store, agent(), "hello", "again")
    report = await check_archive(archive, agent())
    assert report.differences == []
    assert (report.runs, report.requests) == (2, 6)
    assert report.unchecked == []
    assert report.is_same
    assert ran == []


def described(name: str) -> str:
    """Look at something else."""
    return name


described.__name__ = "look"


def with_color(name: str, color: str) -> str:
    """Look at something."""
    return name + color


with_color.__name__ = "look"


class Answer(BaseModel):
    text: str


def other_model() -> FunctionModel:
    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise AssertionError("asked")

    return FunctionModel(respond, model_name="other")


CHANGES: dict[str, tuple[Callable[[], "Agent[None, Any]"], list[tuple[str, str]]]] = {
    "instructions": (lambda: agent(instructions="Be long."), [("instructions", "")]),
    "setting": (lambda: agent(model_settings={"temperature": 0.9}), [("settings", "temperature")]),
    "new setting": (lambda: agent(model_settings={"temperature": 0.2, "seed": 1}), [("settings", "seed")]),
    "no setting": (lambda: agent(model_settings=None), [("settings", "temperature")]),
    "model": (
        lambda: agent(model=other_model()),
        [("model", "model")],
    ),
    "tool added": (lambda: agent(tools=(look, pay, picky, extra)), [("tool_added", "extra")]),
    "tool description": (lambda: agent(tools=(described, pay, picky)), [("tool_changed", "look")]),
    "tool removed": (
        lambda: agent(tools=(look, picky)),
        [("call_rejected", "pay"), ("tool_removed", "pay")],
    ),
    "tool needs more": (
        lambda: agent(tools=(with_color, pay, picky)),
        [("call_rejected", "look"), ("tool_changed", "look")],
    ),
    "approval": (
        lambda: agent(tools=(look, Tool(pay, requires_approval=True), picky)),
        [("call_waits", "pay"), ("tool_changed", "pay")],
    ),
    "system prompt": (lambda: agent(system_prompt="You are a bot."), [("message", "system-prompt")]),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_each_change_is_named(memory: Store, change: str):
    archive = await recorded(memory, agent())
    make, expected = CHANGES[change]
    report = await check_archive(archive, make())
    assert kinds(report) == expected
    assert ran == []


async def test_an_output_that_no_longer_validates(memory: Store):
    archive = await recorded(memory, agent())
    strict = agent()

    @strict.output_validator
    def validate(output: Any) -> Any:
        raise ModelRetry("shorter")

    del validate
    report = await check_archive(archive, strict)
    assert ("output_rejected", "") in kinds(report)


async def test_code_that_fails_is_a_difference(memory: Store):
    archive = await recorded(memory, agent())
    broken = agent()

    @broken.instructions
    def instructions(ctx: RunContext[None]) -> str:
        raise ZeroDivisionError

    del instructions
    report = await check_archive(archive, broken)
    assert kinds(report) == [("fails", "")]


async def test_what_the_code_opens_is_reported(memory: Store, tmp_path: Any):
    archive = await recorded(memory, agent())
    file = tmp_path / "instructions.txt"
    file.write_text("Be brief.")
    reading = agent(instructions=None)

    @reading.instructions
    def instructions() -> str:
        return file.read_text()

    del instructions
    report = await check_archive(archive, reading)
    assert report.differences == []
    assert report.touched == [f"open {file}"]
    archive.seek(0)
    assert (await check_archive(archive, agent())).touched == []


async def test_a_run_outside_a_worker(memory: Store):
    recording = agent(capabilities=[Holdfast(memory, agent="agent")])
    await recording.run("hello", conversation_id="s1")
    ran.clear()
    archive = await archived(memory, "s1")
    for today in (agent(), recording):  # with a recorder of its own, too
        archive.seek(0)
        report = await check_archive(archive, today)
        assert report.differences == []
        assert report.requests == 5
    assert ran == []
    assert (await archived(memory, "s1")).getvalue() == archive.getvalue()


async def test_the_model_is_not_asked(memory: Store):
    archive = await recorded(memory, agent())

    report = await check_archive(archive, agent(model=other_model()))
    assert kinds(report) == [("model", "model")]
    archive.seek(0)
    named = agent(model="openai:gpt-5", defer_model_check=True)
    assert kinds(await check_archive(archive, named)) == [("model", "model")]


def asking(*, approve: bool = True) -> "Agent[None, Any]":
    turns = [[call("pay", "p", amount=3), call("look", "q", name="x")], [call("pay", "r", amount=4)]]
    return agent(*turns, tools=(look, Tool(pay, requires_approval=approve), picky))


@pytest.mark.parametrize("approved", [True, False])
async def test_approvals_are_answered_as_they_were(store: Store, approved: bool):
    session_id = (await store.create_session(agent="agent", owner="you")).id
    async with working(store, asking()), connect(store) as client:
        session = await client.session(session_id)
        turn = await session.send("hello")
        while True:
            try:
                await turn.result(timeout=20)
                break
            except ApprovalNeeded as needed:
                for question in needed.calls:
                    await (session.approve(question) if approved else session.deny(question, feedback="no"))
    ran.clear()
    report = await check_archive(await archived(store, session_id), asking())
    assert report.differences == []
    assert (report.runs, report.requests) == (3, 3)
    assert ran == []


async def test_a_turn_that_was_interrupted_and_continued(store: Store):
    """The process of the first run dies in a tool; the second run continues with the result of the probe or the policy."""
    holding = asyncio.Event()

    async def slow() -> str:
        """Take time."""
        if not holding.is_set():
            holding.set()
            await asyncio.Event().wait()
        return "slow"

    tools = (look, slow, picky)
    turns = [[call("look", "a", name="x"), call("slow", "b")], [call("picky", "c", n=2)]]
    recording = AgentSetup(agent=agent(*turns, tools=tools), policies={"slow": "retry"})
    session_id = (await store.create_session(agent="agent", owner="you")).id
    submission = await send(store, session_id, "hello")
    async with working(store, recording, grace=0) as worker:
        await holding.wait()
        worker.stop()
    async with working(store, recording):
        assert (await ended(store, submission)).state == "done"
    ran.clear()
    report = await check_archive(await archived(store, session_id), recording)
    assert report.differences == []
    assert report.requests == 3
    assert ran == []


async def test_a_delegate_is_not_asked_again(store: Store):
    inner = Agent(scripted(), name="inner")

    async def ask(question: str) -> str:
        """Ask another agent."""
        ran.append("ask")
        return (await inner.run(question, capabilities=[Holdfast(store)])).output

    archive = await recorded(store, agent([call("ask", "a", question="why")], tools=(ask,)))
    report = await check_archive(archive, agent(tools=(ask,)))
    assert report.differences == []
    assert ran == []


async def test_a_structured_output(store: Store):
    turns = [[call("final_result", "o", text="hello")]]
    archive = await recorded(store, agent(*turns, output_type=Answer))
    assert (await check_archive(archive, agent(output_type=Answer))).differences == []

    class Longer(Answer):
        more: int

    archive.seek(0)
    report = await check_archive(archive, agent(output_type=Longer))
    assert kinds(report) == [("output", ""), ("output_rejected", "")]


async def test_a_message_that_steered_the_turn_is_part_of_the_record(store: Store):
    steered = asyncio.Event()

    async def wait() -> str:
        """Wait for a message."""
        await steered.wait()
        return "ok"

    recording = agent([call("wait", "a")], tools=(wait,))
    session_id = (await store.create_session(agent="agent", owner="you")).id
    async with working(store, recording), connect(store) as client:
        session = await client.session(session_id)
        turn = await session.send("hello")

        async def calls() -> bool:
            return "tool_call_started" in await kinds_of(store, session_id)

        await until(calls)
        await session.send("faster", when_busy="steer")
        steered.set()
        await turn.result(timeout=20)
    report = await check_archive(await archived(store, session_id), recording)
    assert report.differences == []
    assert report.requests == 2


async def test_sessions_that_cannot_be_replayed(memory: Store):
    session_id = (await memory.create_session(agent="other", owner="you")).id
    archive = await archived(memory, session_id)
    with pytest.raises(BadInput, match="runs agent 'other', which was not passed"):
        await check_archive(archive, [agent(), agent(name="third")])
    archive.seek(0)
    with pytest.raises(BadInput, match="plain agent"):
        await check_archive(archive, plain)
    foreign = await memory.create_session(agent="adk", owner="you", metadata='{"framework": "adk"}')
    with pytest.raises(BadInput, match="adk"):
        await check_archive(await archived(memory, foreign.id), agent())
    with pytest.raises(BadArchive):
        await check_archive(io.BytesIO(b"nothing"), agent())


async def test_a_session_without_runs(memory: Store):
    session_id = (await memory.create_session(agent="agent", owner="you")).id
    report = await check_archive(await archived(memory, session_id), agent())
    assert (report.runs, report.requests, report.is_same) == (0, 0, True)


async def test_the_session_stays_as_it_is(store: Store):
    archive = await recorded(store, agent())
    session_id = (await store.sessions()).items[0].id
    await check_archive(archive, agent(instructions="else"))
    assert (await archived(store, session_id)).getvalue() == archive.getvalue()


async def test_a_file_or_a_handle(store: Store, tmp_path: Path):
    archive = await recorded(store, agent(), "hello", "again")
    file = tmp_path / "talk.ndjson"
    file.write_bytes(archive.getvalue())
    report = await replay(file, agent())
    assert (report.runs, report.requests, report.is_same) == (2, 6, True)
    async with connect(store) as client:
        session = await client.session(report.session_id)
        assert await replay(session, agent()) == report
        (first, _) = [run.id async for run in session.runs()][::-1]
        assert (await replay(session, agent(), run_id=first)).runs == 1
        with pytest.raises(NotFound):
            await replay(session, agent(), run_id="none")
    with pytest.raises(BadInput, match=r"missing cannot be read: No such file"):
        await replay(tmp_path / "missing", agent())


async def test_a_session_recorded_before_profiles_existed(memory: Store, monkeypatch: pytest.MonkeyPatch):
    def nothing(*_: object) -> dict[str, object]:
        return {}

    monkeypatch.setattr(Profiles, "facts", nothing)
    archive = await recorded(memory, agent())
    monkeypatch.undo()
    report = await check_archive(archive, agent(model_settings={"seed": 5}, instructions="other"))
    assert kinds(report) == [("instructions", "")]
    assert report.unchecked == [
        "models, settings and tools: the session was recorded before profiles existed"
    ]
