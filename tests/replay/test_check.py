"""What a replay finds: nothing with unchanged code, and otherwise exactly the change."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Holdfast, Store
from holdfast.media import open_media
from holdfast.replay import ReplayReport, check_archive
from holdfast.retention import write_archive
from tests.record.agents import Turn, call, scripted
from tests.runtime.agents import ended, send, working

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


TURNS = [
    [TextPart("let me see"), call("look", "a", name="x"), call("pay", "b", amount=3)],
    [call("picky", "c", n=1)],
    [call("picky", "d", n=2)],
    [call("look", "e", name="y")],
]


def agent(*turns: Turn, tools: Any = (look, pay, picky), **options: Any) -> "Agent[None, Any]":
    options = {"instructions": "Be brief.", "model_settings": {"temperature": 0.2}, "name": "agent", **options}
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


CHANGES: dict[str, tuple[Callable[[], "Agent[None, Any]"], list[tuple[str, str]]]] = {
    "instructions": (lambda: agent(instructions="Be long."), [("instructions", "")]),
    "setting": (lambda: agent(model_settings={"temperature": 0.9}), [("settings", "temperature")]),
    "new setting": (lambda: agent(model_settings={"temperature": 0.2, "seed": 1}), [("settings", "seed")]),
    "no setting": (lambda: agent(model_settings=None), [("settings", "temperature")]),
    "model": (
        lambda: agent(model=FunctionModel(scripted(*TURNS).function, model_name="other")),
        [("model", "model")],
    ),
    "tool added": (lambda: agent(tools=(look, pay, picky, ended)), [("tool_added", "ended")]),
    "tool description": (lambda: agent(tools=(described, pay, picky)), [("tool_changed", "look")]),
    "tool removed": (
        lambda: agent(tools=(look, picky)),
        [("call_rejected", "pay"), ("tool_removed", "pay")],
    ),
    "tool needs more": (
        lambda: agent(tools=(with_color, pay, picky)),
        [("call_rejected", "look"), ("call_rejected", "look"), ("tool_changed", "look")],
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
    assert (await XX).touched == []


def rewound(archive: io.BytesIO) -> io.BytesIO:
    archive.seek(0)
    return archive


async def test_a_run_outside_a_worker(memory: Store):
    recording = agent(capabilities=[Holdfast(memory, agent="agent")])
    await recording.run("hello", conversation_id="s1")
    ran.clear()
    report = await check_archive(await archived(memory, "s1"), agent())
    assert [each for each in report.differences if each.kind != "output"] == []
    assert report.requests == 5
    assert ran == []


async def test_the_model_is_not_asked(memory: Store):
    archive = await recorded(memory, agent())

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise AssertionError("asked")

    report = await check_archive(archive, agent(model=FunctionModel(respond, model_name="other")))
    assert kinds(report) == [("model", "model")]
    archive.seek(0)
    report = await check_archive(archive, agent(model="openai:gpt-5"))
    assert kinds(report) == [("model", "model")]


async def test_an_approval_is_answered_as_it_was(store: Store):
    ...
