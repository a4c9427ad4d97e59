"""Snapshots of tasks in the form that scale-agentex exports and rehydrates become sessions.

The server is not on our package index, so the snapshots are written here, by its schema: `task_id`, `messages` and
`task_states`, each with its id, its task and its times.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from holdfast import continue_session, inspect_run, load_history
from holdfast.errors import BadImport
from holdfast.importers import Report, import_agentex
from holdfast.media import open_media
from holdfast.record.open_calls import is_provider_valid, pending_calls
from holdfast.retention import clean, rehydrate, write_archive
from holdfast.store import Store
from tests.record.agents import recorded

TASK = "5b0b2c9e-7c1b-4bb0-9d6f-0a1d7c1f2a11"
BEGAN = datetime(2026, 10, 1, 10, tzinfo=UTC)


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "author": "user", "style": "static", "format": "plain", "content": text, **more}


def agent_says(text: str) -> dict[str, Any]:
    return {**user(text), "author": "agent", "format": "markdown", "attachments": None}


def thinks(*summary: str, content: list[str] | None = None) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "author": "agent",
        "style": "static",
        "summary": list(summary),
        "content": content,
    }


def calls(call_id: str, tool: str = "weather", **arguments: Any) -> dict[str, Any]:
    named = {"tool_call_id": call_id, "name": tool, "arguments": arguments}
    return {"type": "tool_request", "author": "agent", "style": "static", **named}


def answers(call_id: str, content: Any, tool: str = "weather", **more: Any) -> dict[str, Any]:
    named = {"tool_call_id": call_id, "name": tool, "content": content, **more}
    return {"type": "tool_response", "author": "agent", "style": "static", **named}


def data(**values: Any) -> dict[str, Any]:
    return {"type": "data", "author": "agent", "style": "static", "data": values}


def snapshot(*contents: dict[str, Any], states: dict[str, Any] | None = None) -> dict[str, Any]:
    def at(seconds: float) -> str:
        return (BEGAN + timedelta(seconds=seconds)).isoformat()

    messages = [
        {
            "id": f"m{n}",
            "task_id": TASK,
            "content": content,
            "streaming_status": "DONE",
            "created_at": at(n).removesuffix("+00:00")
            if n % 2
            else at(n),  # MongoDB gives times without a zone
            "updated_at": at(n),
        }
        for n, content in enumerate(contents)
    ]
    kept = [
        {
            "id": f"s-{name}",
            "task_id": TASK,
            "agent_id": name,
            "state": state,
            "created_at": at(0),
            "updated_at": at(99),
        }
        for name, state in (states or {}).items()
    ]
    return {"task_id": TASK, "messages": messages, "task_states": kept}


WHOLE = snapshot(
    user("What is the weather?", attachments=None),
    thinks("look it up", content=["I have to", "look"]),
    calls("c1", city="Bern"),
    calls("c2", city="Rome"),
    answers("c1", {"sky": "blue"}),
    answers("c2", "no such city", is_error=True),
    agent_says("**Blue** in Bern."),
    data(chart=[1, 2]),
    user("Thanks"),
    states={"weather-agent": {"turns": 2}},
)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    def write(value: Any) -> Path:
        file = tmp_path / "task.json"
        file.write_text(value if isinstance(value, str) else json.dumps(value))
        return file

    return write


async def imported(store: Store, file: Path, **options: Any) -> Report:
    return await import_agentex(store, open_media(store=store), file, actor="test", **options)


async def history(store: Store) -> tuple[str, list[Any]]:
    (checkpoint,) = (await store.checkpoints(session_id=TASK, limit=1)).items
    return checkpoint.kind, await load_history(store, checkpoint)


async def test_a_task_is_a_session(store: Store, write: Callable[[Any], Path]):
    report = await imported(store, write(WHOLE), owner="ada")
    assert (report.imported, report.records["messages"], report.records["effects"]) == (1, 5, 2)
    assert {note.what: note.count for note in report.not_understood} == {
        "data messages: kept as JSON text": 1
    }
    session = await store.session(TASK)
    assert (session.agent, session.owner, session.status) == ("weather-agent", "ada", "idle")
    assert (session.created_at, session.active_at) == (BEGAN, BEGAN + timedelta(seconds=99))
    kind, messages = await history(store)
    assert (kind, is_provider_valid(messages)) == ("settled", True)
    asked, called, told, said, thanked = messages
    assert isinstance(asked, ModelRequest)
    assert [type(part) for part in called.parts] == [ThinkingPart, ToolCallPart, ToolCallPart]
    assert called.parts[0].content == "I have to\n\nlook"
    assert called.parts[1].args == {"city": "Bern"}
    assert [(part.tool_call_id, part.content, part.outcome) for part in told.parts] == [
        ("c1", {"sky": "blue"}, "success"),
        ("c2", "no such city", "failed"),
    ]
    assert [part.content for part in said.parts] == ["**Blue** in Bern.", '{"chart": [1, 2]}']
    assert isinstance(said, ModelResponse)
    assert [part.content for part in thanked.parts] == ["Thanks"]
    events = [event for event in await store.events(TASK) if event.kind == "message"]
    kept = [item for event in events for item in json.loads(event.payload)["agentex"]]
    assert [item["id"] for item in kept] == [f"m{n}" for n in range(9)]
    assert kept[1]["content"]["summary"] == ["look it up"]
    assert kept[6]["content"]["format"] == "markdown"
    assert events[2].at == BEGAN + timedelta(seconds=4)
    assert json.loads((await store.state(TASK)).body) == {"turns": 2}
    (changed,) = [event for event in await store.events(TASK) if event.kind == "state_changed"]
    assert json.loads(changed.payload)["agentex"][0]["id"] == "s-weather-agent"
    (run,) = (await store.runs(session_id=TASK)).items
    ledger = await inspect_run(store, run.id)
    assert ([e.call_id for e in ledger.completed], [e.call_id for e in ledger.failed]) == (["c1"], ["c2"])


async def test_again_changes_nothing(store: Store, write: Callable[[Any], Path]):
    file = write(WHOLE)
    dry = await imported(store, file, dry_run=True)
    assert dry.imported == 1
    assert (await store.schema()).sessions == 0
    await imported(store, file)
    again = await imported(store, file)
    assert (again.imported, again.already_present, again.records, again.skipped) == (0, 1, {}, [])
    changed = await imported(store, write(snapshot(user("something else"))))
    assert (changed.imported, changed.already_present, len(changed.skipped)) == (0, 0, 1)


async def test_an_agent_goes_on(store: Store, write: Callable[[Any], Path]):
    await imported(store, write(WHOLE))
    agent = Agent(recorded(store, [TextPart("at your service")]).model)
    result = await continue_session(agent, store, TASK, "and tomorrow?")
    assert is_provider_valid(result.all_messages())
    assert (await store.session(TASK)).status == "idle"


async def test_it_is_cleaned_and_brought_back(store: Store, write: Callable[[Any], Path], tmp_path: Path):
    await imported(store, write(WHOLE))
    media = open_media(store=store)
    exported = b"".join([piece async for piece in write_archive(store, media, TASK)])
    (tmp_path / "archive").write_bytes(exported)
    await clean(store, media, TASK, actor="test", force=True)
    assert (
        await imported(store, tmp_path / "task.json")
    ).already_present == 1  # it was imported, and then cleaned
    with (tmp_path / "archive").open("rb") as file:
        await rehydrate(store, media, TASK, file, actor="test")
    assert b"".join([piece async for piece in write_archive(store, media, TASK)]) == exported


async def test_answers_stand_behind_their_calls(store: Store, write: Callable[[Any], Path]):
    """Whatever was said in between, and a call that nothing answers does not brick the session."""
    await imported(
        store,
        write(
            snapshot(
                user("go"),
                calls("a"),
                calls("b"),
                answers("a", 1),
                agent_says("wait"),
                user("hurry"),
                answers("b", 2),
                calls("lost"),
                user("well?"),
                answers("orphan", 3),
            )
        ),
    )
    kind, messages = await history(store)
    assert (kind, is_provider_valid(messages)) == ("settled", True)
    assert [part.content for part in messages[2].parts] == [1, 2]
    closing = [
        part
        for message in messages
        for part in message.parts
        if getattr(part, "outcome", "") == "interrupted"
    ]
    assert [part.tool_call_id for part in closing] == ["lost"]
    texts = [
        part.content for message in messages for part in message.parts if isinstance(part, UserPromptPart)
    ]
    assert texts[-1] == "Result of the tool weather (orphan): 3"
    (run,) = (await store.runs(session_id=TASK)).items
    assert [effect.call_id for effect in (await inspect_run(store, run.id)).unresolved] == ["lost"]


async def test_a_call_that_waits_at_the_end_is_not_repeated(store: Store, write: Callable[[Any], Path]):
    report = await imported(store, write(snapshot(user("go"), calls("a", "deploy"))))
    assert [note.what for note in report.not_understood] == [
        "tool requests without a response: their outcome is unknown"
    ]
    kind, messages = await history(store)
    assert (kind, [call.tool_call_id for call in pending_calls(messages)]) == ("interrupted", ["a"])
    ran: list[str] = []

    def deploy() -> str:
        ran.append("deploy")
        return "deployed"

    agent = recorded(store, [TextPart("x")], [TextPart("I shall check")], tools=[deploy])
    result = await continue_session(agent, store, TASK, "go on")
    assert ran == []
    (told,) = [
        part
        for message in result.all_messages()
        for part in message.parts
        if isinstance(part, ToolReturnPart) and part.tool_call_id == "a"
    ]
    assert "it is unknown whether it took effect" in str(told.content)


async def test_what_has_no_place_is_told(store: Store, write: Callable[[Any], Path]):
    odd = snapshot(
        user("see this", attachments=[{"file_id": "f", "name": "n", "size": 1, "type": "t"}], mood="good"),
        states={"one": {"a": 1}, "two": {"b": 2}},
    )
    odd["messages"][0] |= {"streaming_status": "IN_PROGRESS", "shard": 7}
    odd["messages"][0]["id"] = None
    odd["params"] = {}
    report = await imported(store, write(odd), agent="bot")
    assert {note.what for note in report.not_understood} == {
        "messages without an id",
        "an unknown field of the snapshot: params",
        "an unknown field of a message: shard",
        "an unknown field of text content: mood",
        "messages that were still being streamed: kept as they were",
        "attachments: a snapshot names files but does not contain them",
    }
    states = {name: json.loads((await store.state(TASK, name=name)).body) for name in ("one", "two")}
    assert states == {"one": {"a": 1}, "two": {"b": 2}}
    assert (await store.session(TASK)).agent == "bot"
    (event,) = [event for event in await store.events(TASK) if event.kind == "message"]
    (kept,) = json.loads(event.payload)["agentex"]
    assert (kept["shard"], kept["content"]["attachments"][0]["file_id"]) == (7, "f")  # nothing of it is lost


def changed(**more: Any) -> dict[str, Any]:
    return json.loads(json.dumps(WHOLE)) | more


def other_task() -> dict[str, Any]:
    value = changed()
    value["messages"][3]["task_id"] = "another"
    return value


def twice() -> dict[str, Any]:
    value = changed()
    value["messages"][3]["id"] = "m1"
    return value


def unknown_type() -> dict[str, Any]:
    value = changed()
    value["messages"][3]["content"]["type"] = "hologram"
    return value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (json.dumps(WHOLE)[:-30], "is not valid JSON, or is truncated"),
        ("[" * 100_000, "is not valid JSON, or is truncated"),
        ("[]", "not a snapshot of an agentex task"),
        ('{"format": "holdfast-archive"}', "not a snapshot of an agentex task"),
        (changed(task_id="no id/at all"), "belongs to task"),
        ({"task_id": "no id/at all", "messages": [], "task_states": []}, "it is empty"),
        (other_task(), "messages[3] belongs to task 'another'"),
        (twice(), "messages 'm1' is duplicated"),
        (unknown_type(), "of an unknown version (messages.3.content"),
        (
            json.loads(json.dumps(WHOLE).replace(TASK, "no id/at all")),
            "Invalid session id 'no id/at all'",
        ),
    ],
)
async def test_bad_input_is_refused_and_nothing_goes_in(
    store: Store, write: Callable[[Any], Path], value: Any, said: str
):
    with pytest.raises(BadImport) as refused:
        await imported(store, write(value))
    assert said in str(refused.value)
    assert (await store.schema()).sessions == 0


async def test_a_file_that_is_not_there(store: Store, tmp_path: Path):
    with pytest.raises(BadImport, match="No such file"):
        await imported(store, tmp_path / "nowhere.json")
