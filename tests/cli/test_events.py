"""How `holdfast tail` prints events."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from typer.testing import CliRunner

from holdfast import connect
from holdfast.cli import app
from holdfast.store import open_store
from holdfast.types import Batch, NewEvent


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    del info
    if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
        return ModelResponse(parts=[TextPart("The beds\nare wet.")])
    calls = [ToolCallPart("irrigate", {"bed": bed}, f"call-{bed}") for bed in "AB"]
    return ModelResponse(parts=[ThinkingPart("It is dry."), TextPart("I water both."), *calls])


agent = Agent(FunctionModel(answer), name="gardener")


@agent.tool_plain
async def irrigate(bed: str) -> str:
    return f"bed {bed} is wet ☂"


def tail(url: str, *options: str, columns: str = "") -> list[str]:
    runner = CliRunner(env={"COLUMNS": columns} if columns else {"COLUMNS": None})
    done = runner.invoke(app, ["tail", "s", "--no-follow", "--store", url, *options])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def contents(lines: list[str]) -> list[str]:
    width = len(lines[0].partition("submission_queued")[0]) + 24 + 1 + 3 + 2
    return [line[width:] for line in lines]


def talked(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/store.db"

    async def work() -> None:
        async with connect(url, agents=[agent]) as hf:
            session = await hf.session("s", agent=agent)
            await (await session.send("Water the beds."))

    asyncio.run(work())
    return url


def test_each_part_of_a_message_has_its_line(tmp_path: Path):
    shown = contents(tail(talked(tmp_path)))
    begin = shown.index("Water the beds.")
    assert '{"parts"' not in str(shown)
    assert [line for line in shown[begin:] if line and line[0] != "{"] == [
        "Water the beds.",
        "thinking: It is dry.",
        "I water both.",
        'irrigate {"bed": "A"}',
        'irrigate {"bed": "B"}',
        "irrigate (call-A)",
        "irrigate (call-B)",
        "irrigate (call-A)",
        "irrigate (call-B)",
        'irrigate → "bed A is wet ☂"',
        'irrigate → "bed B is wet ☂"',
        "The beds are wet.",
    ]


def test_lines_are_cut_at_the_width_of_the_terminal_and_json_is_complete(tmp_path: Path):
    url = talked(tmp_path)
    assert max(map(len, tail(url, columns="60"))) == 60
    events = [json.loads(line) for line in tail(url, "--json", columns="60")]
    (called,) = [e for e in events if e["message"] and "tool-call" in str(e["message"])]
    assert [part["part_kind"] for part in called["message"]["parts"]][-1] == "tool-call"
    assert events[0]["payload"]["kind"] == "message"


@pytest.mark.parametrize(
    ("kind", "payload", "line"),
    [
        ("step_started", {"name": "pay", "call_id": "c/pay", "attempt": 1}, "pay"),
        ("step_started", {"name": "pay", "call_id": "c/pay", "attempt": 2}, "pay (attempt 2)"),
        ("step_completed", {"name": "pay", "call_id": "c/pay"}, "pay"),
        (
            "step_completed",
            {"name": "pay", "call_id": "c/pay", "probe": True},
            "pay (found by its probe)",
        ),
        ("step_failed", {"name": "pay", "call_id": "c/pay", "error": "no network"}, "pay: no network"),
        (
            "step_failed",
            {"name": "pay", "call_id": "c", "error": "no network", "retry_at": "2026-01-01T00:00:00Z"},
            "pay: no network, next attempt at 2026-01-01T00:00:00Z",
        ),
        ("probe_answered", {"name": "pay", "call_id": "c", "answer": "not_done"}, "pay: not done"),
        (
            "probe_answered",
            {"name": "pay", "call_id": "c", "answer": "unknown", "error": "no network"},
            "pay: unknown (no network)",
        ),
        (
            "tool_call_completed",
            {"tool": "pay", "call_id": "c", "outcome": "unknown"},
            "pay (c): outcome unknown",
        ),
        (
            "tool_call_completed",
            {"tool": "pay", "call_id": "c", "manual": True, "actor": "grace"},
            "pay (c): settled by grace",
        ),
        ("tool_call_failed", {"tool": "pay", "call_id": "c", "error": "no money"}, "pay (c): no money"),
        (
            "approval_requested",
            {"calls": [{"call_id": "c", "tool": "pay", "arguments": {"amount": 5}, "digest": "0"}]},
            'pay {"amount": 5} (c)',
        ),
        ("approval_answered", {"call_id": "c", "digest": "0", "approved": True}, "c approved"),
        (
            "approval_answered",
            {"call_id": "c", "digest": "0", "approved": True, "by": "ada", "arguments": {"amount": 3}},
            'c approved by ada with {"amount": 3}',
        ),
        (
            "approval_answered",
            {"call_id": "c", "digest": "0", "approved": False, "feedback": "too much"},
            "c denied: too much",
        ),
        (
            "approval_answered",
            {"call_id": "c", "digest": "0", "approved": True, "by": "ada", "external": True},
            "c result delivered by ada",
        ),
        ("effect_undone", {"name": "refund", "call_id": "t/pay~undo", "undoes": "t/pay"}, "t/pay by refund"),
        ("step_started", {"other": 1}, '{"other": 1}'),
        ("tick", [1, 2], "[1, 2]"),
    ],
)
def test_steps_and_approvals_are_readable(tmp_path: Path, kind: str, payload: Mapping[str, Any], line: str):
    url = f"sqlite:///{tmp_path}/store.db"

    async def work() -> None:
        async with open_store(url) as store:
            await store.create_session(agent="a", owner="o", id="s")
            lease = await store.acquire("s", await store.join("test"))
            await store.write(lease, Batch(events=[NewEvent(kind=kind, payload=json.dumps(payload))]))

    asyncio.run(work())
    (shown,) = tail(url)
    assert shown.endswith(f"  {line}")


def test_text_of_a_stopped_turn_is_printed(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    parts = [{"index": 0, "part_kind": "text", "content": "Once upon"}]

    async def work() -> None:
        async with open_store(url) as store:
            await store.create_session(agent="clerk", owner="ada", id="s")
            lease = await store.acquire("s", await store.join("worker"))
            payload = json.dumps({"parts": parts, "truncated": True})
            await store.write(lease, Batch(events=[NewEvent(kind="partial_response", payload=payload)]))

    asyncio.run(work())
    first, second = tail(url)
    assert first.endswith("Once upon")
    assert second.endswith("(cut: the rest was not recorded)")
