import ast
import json
import re
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import AliasPath
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from holdfast import connect, events
from holdfast.events import KINDS, MessageAdded, OtherEvent, RunCompleted, parse_event
from holdfast.store import open_store
from tests.client.agents import AGENTS

_AT = datetime(2026, 1, 1, tzinfo=UTC).isoformat()


def _event(kind: str, payload: Any = None, **more: Any) -> dict[str, Any]:
    return {"seq": 1, "kind": kind, "run_id": None, "step": None, "at": _AT, "payload": payload or {}, **more}


def test_an_unknown_kind_keeps_all_of_its_content():
    event = parse_event(_event("tick", {"n": 1}, run_id="r"))
    assert event == OtherEvent(
        seq=1, at=datetime(2026, 1, 1, tzinfo=UTC), run_id="r", original_kind="tick", payload={"n": 1}
    )


def test_a_known_kind_with_a_payload_of_its_own_is_not_lost():
    event = parse_event(_event("forked", ["no object"]))
    assert isinstance(event, OtherEvent)
    assert (event.original_kind, event.payload) == ("forked", ["no object"])


def test_an_output_of_none_differs_from_no_output():
    absent, none = (
        parse_event(_event("run_completed")),
        parse_event(_event("run_completed", {"output": None})),
    )
    assert isinstance(absent, RunCompleted)
    assert isinstance(none, RunCompleted)
    assert ("output" in absent.model_fields_set, "output" in none.model_fields_set) == (False, True)


async def test_the_example_of_the_page_runs_with_its_own_imports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (example,) = re.findall(r"(?:^ {4}.*\n|^\n)+(?=^An event)", events.__doc__ or "", re.MULTILINE)
    example = textwrap.dedent(example).replace("events()", "events(follow=False)")
    code = compile(example, "<example>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    agent = Agent(TestModel(), name="clerk")

    @agent.tool_plain
    async def send_letter() -> str:
        return "sent"

    async with connect(f"sqlite:///{tmp_path}/store.db", agents=[agent]) as hf:
        session = await hf.session(agent=agent)
        await (await session.send("Write to Ada."))
        await eval(code, {"session": session})
    assert "running send_letter" in capsys.readouterr().out
    assert example.strip() in (
        Path(__file__).parents[2] / "docs" / "reference" / "events.md"
    ).read_text().replace("events()", "events(follow=False)")


async def test_a_large_output_is_stored_as_media_and_not_in_the_event(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with connect(url, agents=AGENTS) as hf:
        session = await hf.session(agent="large")
        await (await session.send("invoice"))
    async with open_store(url) as store:
        (payload,) = [e.payload for e in await store.events(session.id) if e.kind == "run_completed"]
        assert "media+sha256://" in payload
        assert len(payload) < 1000
        assert await store.check() == []


async def test_all_that_a_worker_writes_is_typed_without_a_rest(tmp_path: Path):
    """Every field of every payload has its place in a class: nothing is written that a reader cannot see."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with connect(url, agents=AGENTS) as hf:
        echo = await hf.session(agent="echo")
        await (await echo.send("one"))
        await (await echo.send("two"))
        await (await echo.undo())
        await (await echo.compact())
        await echo.fork(timeout=30)
        await echo.set_state({}, expected_version=0)
        await echo.set_state({}, expected_version=0, name="list")
        clerk = await hf.session(agent="clerk")
        await (await clerk.send("invoice"))
        payer = await hf.session(agent="payer")
        turn = await payer.send("pay")
        async for event in turn.events():
            if event.kind == "approval_requested":
                for call in event.calls:
                    await payer.deny(call, feedback="no")
        sleeper = await hf.session(agent="sleeper")
        sleeping = await sleeper.send("sleep")
        async for event in sleeping.events():
            if event.kind == "tool_call_started":
                await sleeping.cancel()
        ids = [echo.id, clerk.id, payer.id, sleeper.id]
    kinds: set[str] = set()
    async with open_store(url) as store:
        for session_id in ids:
            for event in await store.events(session_id):
                payload = json.loads(event.payload)
                message = None if event.message is None else json.loads(event.message)
                wire = _event(event.kind, payload) | ({} if message is None else {"message": message})
                typed = parse_event(wire)
                assert type(typed) is KINDS[event.kind], event
                aliases = [field.validation_alias for field in type(typed).model_fields.values()]
                places = {alias.path[1] for alias in aliases if isinstance(alias, AliasPath)}
                assert set(payload) <= places, event
                assert message is None or hasattr(typed, "message"), event
                kinds.add(event.kind)
    assert len(kinds) >= 18
    assert {"message", "compacted", "rewound", "forked", "state_changed", "approval_answered"} <= kinds
    assert MessageAdded.model_fields["message"].is_required()
