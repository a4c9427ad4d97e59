"""What waits in ml-intern waits here: an approval, and messages in the queue. No database is needed for these tests."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast.importers import Report, import_ml_intern
from holdfast.media import open_media
from holdfast.questions import pending_approvals
from holdfast.runtime.worker import Worker
from holdfast.store import Store
from tests.importers.test_ml_intern import MESSAGES

AT = datetime(2026, 5, 1, 12, 0)  # noqa: DTZ001 - as MongoDB has it


class Rows:
    """A cursor of a collection."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def sort(self, key: str, order: int) -> "Rows":
        return Rows(sorted(self.rows, key=lambda row: str(row.get(key)), reverse=order < 0))

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        for row in self.rows:
            yield row

    def find(self, wanted: dict[str, Any]) -> "Rows":
        return Rows([row for row in self.rows if wanted.items() <= row.items()])


class Database(dict[str, list[dict[str, Any]]]):
    """A database as the importer reads it."""

    async def list_collection_names(self) -> list[str]:
        return list(self)

    def __getitem__(self, name: str) -> Any:
        return Rows(self.get(name, []))


def waiting(
    pending: Any, *, messages: list[Any] = MESSAGES, queue: list[dict[str, Any]] | None = None
) -> Database:
    session = {
        "_id": "s1",
        "user_id": "ada",
        "title": "Training",
        "created_at": AT,
        "pending_approval": pending,
    }
    return Database(
        sessions=[session],
        session_messages=[
            {"session_id": "s1", "idx": n, "message": message, "created_at": AT}
            for n, message in enumerate(messages)
        ],
        pending_submissions=[{"session_id": "s1", "created_at": AT, **row} for row in queue or []],
    )


async def imported(store: Store, database: Database, **options: Any) -> Report:
    media = open_media(store=store)
    return await import_ml_intern(store, media, database, source="there", actor="test", **options)


TRAINED: list[str] = []


def intern(name: str = "ml-intern") -> Agent[None, str]:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart(f"answer {len(messages)}")])

    agent = Agent(FunctionModel(answer), name=name, output_type=str)

    @agent.tool_plain(requires_approval=True)
    def train() -> str:  # pyright: ignore[reportUnusedFunction]
        TRAINED.append("trained")
        return "trained"

    return agent


async def served(store: Store, agent: Agent[None, str], *, until: str = "done") -> list[str]:
    """Run a worker until all submissions have this state, and return the answers."""
    worker = Worker(store, agent)
    running = asyncio.create_task(worker.run())
    while {one.state for one in (await store.submissions("s1")).items if one.kind == "message"} != {until}:
        assert not running.done()
        await asyncio.sleep(0.02)
    worker.stop()
    await running
    events = await store.events("s1")
    return [json.loads(event.payload).get("output") for event in events if event.kind == "run_completed"]


@pytest.mark.parametrize(
    "pending",
    [
        [{"tool_call_id": "c2"}],
        [{"id": "c2", "type": "function"}],
        {"tool_calls": [{"id": "c2"}]},
    ],
)
@pytest.mark.parametrize("approved", [True, False])
async def test_a_waiting_approval_is_imported_as_a_question_that_can_be_answered(
    store: Store, pending: Any, approved: bool
):
    TRAINED.clear()
    report = await imported(store, waiting(pending))
    assert (report.imported, list(report.not_understood)) == (1, [])
    session = await store.session("s1")
    assert (session.status, session.waiting_for) == ("waiting", "train (c2)")
    (question,) = await pending_approvals(store, "s1")
    assert (question["call_id"], question["tool"], question["arguments"]) == ("c2", "train", {})
    assert await store.check() == []
    answer = {"call_id": "c2", "digest": question["digest"], "approved": approved}
    await store.submit("s1", "approval", json.dumps(answer), lane="control")
    await served(store, intern())
    assert (["trained"] if approved else []) == TRAINED
    assert (await store.session("s1")).status == "idle"
    assert await store.check() == []
    assert (await imported(store, waiting(pending))).already_present == 1


async def test_an_approval_of_a_call_that_is_over_is_noted(store: Store):
    report = await imported(store, waiting([{"tool_call_id": "c1"}]))
    assert any("not imported" in note.what for note in report.not_understood)
    assert (await store.session("s1")).status == "idle"
    assert await pending_approvals(store, "s1") == []


async def test_messages_in_the_queue_are_imported_as_submissions(store: Store):
    queue: list[dict[str, Any]] = [
        {"op_type": "user_input", "payload": {"text": "and then?"}, "status": "pending"},
        {"op_type": "user_input", "payload": {"text": "begun"}, "status": "claimed"},
        {"op_type": "undo", "payload": {}, "status": "pending"},
        {"op_type": "user_input", "payload": {"text": "finally"}, "status": "pending"},
        {"op_type": "user_input", "payload": {"text": "over"}, "status": "done"},
    ]
    database = waiting(None, messages=MESSAGES[:4], queue=queue)
    report = await imported(store, database)
    assert [note.count for note in report.not_understood if "send them again" in note.what] == [2]
    queued = (await store.submissions("s1")).items
    texts = [(one.state, json.loads(one.payload)["text"]) for one in queued]
    assert texts == [("queued", "and then?"), ("queued", "finally")]
    assert (await store.session("s1")).status == "queued"
    kinds = [event.kind for event in await store.events("s1")]
    assert (kinds.count("submission_queued"), kinds.count("ml_intern_submission")) == (2, 2)
    assert await store.check() == []
    assert len(await served(store, intern())) == 3  # with the run that was imported
    assert (await imported(store, database)).already_present == 1
    assert len((await store.submissions("s1")).items) == 2


async def test_a_message_behind_an_approval_waits_for_it(store: Store):
    queue = [{"op_type": "user_input", "payload": {"text": "and then?"}, "status": "pending"}]
    await imported(store, waiting([{"tool_call_id": "c2"}], queue=queue))
    assert [one.state for one in (await store.submissions("s1")).items] == ["waiting", "queued"]
    (question,) = await pending_approvals(store, "s1")
    answer = {"call_id": "c2", "digest": question["digest"], "approved": True}
    await store.submit("s1", "approval", json.dumps(answer), lane="control")
    assert len(await served(store, intern())) == 2


async def test_a_wrong_agent_is_corrected_by_another_import(store: Store):
    queue = [{"op_type": "user_input", "payload": {"text": "and then?"}, "status": "pending"}]
    database = waiting(None, messages=MESSAGES[:4], queue=queue)
    await imported(store, database, agent="intren")
    dry = await imported(store, database, agent="intern", dry_run=True)
    assert (dry.reassigned, (await store.session("s1")).agent) == (1, "intren")
    report = await imported(store, database, agent="intern")
    assert (report.imported, report.already_present, report.reassigned) == (0, 0, 1)
    assert list(report.skipped) == []
    assert (await store.session("s1")).agent == "intern"
    assert await store.check() == []
    (entry,) = [
        entry for entry in (await store.audit_log(session_id="s1")).items if entry.action == "set agent"
    ]
    assert (entry.actor, json.loads(entry.detail)) == ("test", {"before": "intren", "after": "intern"})
    for agent in ("intern", None):  # nothing is changed without being asked for
        again = await imported(store, database, agent=agent)
        assert (again.already_present, again.reassigned, list(again.skipped)) == (1, 0, [])
        assert (await store.session("s1")).agent == "intern"
    assert len(await served(store, intern("intern"))) == 2


async def test_a_session_that_changed_in_the_source_is_not_given_to_another_agent(store: Store):
    await imported(store, waiting(None), agent="intren")
    report = await imported(store, waiting(None, messages=MESSAGES[:4]), agent="intern")
    assert report.reassigned == 0
    assert ["has changed in the source" in note.what for note in report.skipped] == [True]
    assert (await store.session("s1")).agent == "intren"
