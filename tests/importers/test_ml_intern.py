"""Sessions of ml-intern, in a real MongoDB, become sessions here."""

import json
from collections.abc import Generator
from datetime import UTC, datetime
from importlib import import_module
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai.messages import ModelResponse, SystemPromptPart, ToolCallPart, ToolReturnPart, UserPromptPart

from holdfast import load_history, open_store
from holdfast.errors import BadImport
from holdfast.importers import Report, import_ml_intern
from holdfast.importers.mongo import open_database
from holdfast.media import open_media
from holdfast.record import is_provider_valid
from holdfast.store import Store

pytestmark = pytest.mark.mongodb
AT = datetime(2026, 5, 1, 12, 0)  # noqa: DTZ001 - as MongoDB has it

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are an intern."},
    {"role": "user", "content": [{"type": "text", "text": "train a model"}]},
    {
        "role": "assistant",
        "content": "On it.",
        "reasoning_content": "First look.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}}
        ],
        "timestamp": "2026-05-01T12:00:00",
    },
    {"role": "tool", "tool_call_id": "c1", "name": "ls", "content": "data.csv"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c2", "type": "function", "function": {"name": "train", "arguments": "{}"}}],
    },
]


@pytest.fixture
def address(mongo_address: str) -> Generator[tuple[str, str], None, None]:
    """A database as ml-intern leaves it, with a call that waits for an approval, and a message that waits in the queue."""
    name = f"intern_{uuid4().hex}"
    pymongo: Any = import_module("pymongo")
    with pymongo.MongoClient(mongo_address, serverSelectionTimeoutMS=300_000) as client:
        database = client[name]
        database["sessions"].insert_many(
            [
                {
                    "_id": "s1",
                    "user_id": "ada",
                    "title": "Training",
                    "model": "m",
                    "created_at": AT,
                    "pending_approval": [{"tool_call_id": "c2"}],
                },
                {"_id": "s2", "user_id": "ada", "created_at": AT, "visibility": "deleted"},
            ]
        )
        database["session_messages"].insert_many(
            [
                {"_id": f"s1:{n}", "session_id": "s1", "idx": n, "message": message, "created_at": AT}
                for n, message in enumerate(MESSAGES)
            ]
        )
        database["session_events"].insert_one(
            {
                "_id": "s1:1",
                "session_id": "s1",
                "seq": 1,
                "event_type": "tool_call",
                "data": {"tool": "ls"},
                "created_at": AT,
            }
        )
        database["pending_submissions"].insert_many(
            [
                {
                    "session_id": "s1",
                    "op_type": "user_input",
                    "payload": {"text": "and then?"},
                    "status": "pending",
                    "created_at": AT,
                },
                {
                    "session_id": "s1",
                    "op_type": "user_input",
                    "payload": {"text": "train a model"},
                    "status": "done",
                    "created_at": AT,
                },
            ]
        )
        yield mongo_address, name
        client.drop_database(name)


async def imported(store: Store, address: tuple[str, str], **options: Any) -> Report:
    url, name = address
    async with open_database(url, "there", name) as database:
        return await import_ml_intern(
            store, open_media(store=store), database, source="there", actor="test", **options
        )


async def test_a_session_comes_with_its_history_its_calls_and_what_waited(address: tuple[str, str]):
    async with open_store("sqlite://:memory:") as store:
        report = await imported(store, address)
        assert (report.found, report.imported) == (1, 1)
        noted = [note.what for note in report.not_understood]
        assert noted == ["deleted sessions: skipped"]
        session = await store.session("s1")
        assert (session.owner, session.title, session.created_at) == (
            "ada",
            "Training",
            AT.replace(tzinfo=UTC),
        )
        assert json.loads(session.metadata)["ml_intern"]["model"] == "m"
        (latest,) = (await store.checkpoints(session_id="s1", limit=1)).items
        first, response, results, last = await load_history(store, latest)
        assert [type(part) for part in first.parts] == [SystemPromptPart, UserPromptPart]
        assert isinstance(response, ModelResponse)
        assert [part.part_kind for part in response.parts] == ["thinking", "text", "tool-call"]
        assert [part.content for part in results.parts if isinstance(part, ToolReturnPart)] == ["data.csv"]
        assert [part.tool_name for part in last.parts if isinstance(part, ToolCallPart)] == ["train"]
        effects = {effect.call_id: effect.state for effect in (await store.effects("s1")).items}
        assert sorted(effects.values()) == ["completed", "started"]
        assert (session.status, session.waiting_for) == ("waiting", "train (c2)")
        assert [one.state for one in (await store.submissions("s1")).items] == ["waiting", "queued"]
        kinds = [event.kind for event in await store.events("s1")]
        assert kinds.count("submission_queued") == 2
        assert kinds.count("ml_intern_event") == 1
        assert is_provider_valid((await load_history(store, latest))[:3])
        assert await store.check() == []
        again = await imported(store, address)
        assert (again.imported, again.already_present) == (0, 1)


async def test_deleted_sessions_and_another_owner_on_request(address: tuple[str, str]):
    async with open_store("sqlite://:memory:") as store:
        report = await imported(store, address, deleted=True, owner="grace")
        assert report.imported == 2
        assert (await store.session("s2")).owner == "grace"


async def test_a_database_of_something_else_is_refused(mongo_address: str):
    async with open_store("sqlite://:memory:") as store:
        with pytest.raises(BadImport, match="not a database of ml-intern"):
            await imported(store, (mongo_address, "empty"))
