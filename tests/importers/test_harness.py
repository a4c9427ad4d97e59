"""Step stores that pydantic-ai-harness 0.62.0 really wrote become sessions that an agent goes on with."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)

from holdfast import continue_session, inspect_run, load_history, resume
from holdfast.config import load_settings
from holdfast.errors import BadImport, MissingExtra
from holdfast.importers import Report, import_harness
from holdfast.importers.harness_address import open_source
from holdfast.media import open_media
from holdfast.record.open_calls import is_provider_valid
from holdfast.retention import import_archive, spool, write_archive
from holdfast.store import Store, open_store
from tests.conftest import Engine, new_database
from tests.importers.sources import harness_folder, harness_postgres, harness_sqlite
from tests.record.agents import recorded
from tests.servers import Postgres

NAMES = ["beside", "delegating", "explicit", "killed", "named", "silent", "talk"]


@pytest.fixture(params=["folder", "sqlite", "postgres"])
async def source(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[str, None]:
    match request.param:
        case "folder":
            yield str(harness_folder(tmp_path))
        case "sqlite":
            yield str(harness_sqlite(tmp_path))
        case _:
            server: Postgres = request.getfixturevalue("postgres_server")
            yield await harness_postgres(await new_database(server))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(harness_folder(tmp_path))


@pytest.fixture
async def memory() -> AsyncGenerator[Store, None]:
    async with open_store("sqlite://:memory:") as store:
        yield store
        assert await store.check() == []


async def imported(store: Store, address: str, **options: Any) -> Report:
    async with open_source(address) as found:
        return await import_harness(store, open_media(store=store), found, actor="test", **options)


async def sessions(store: Store) -> list[str]:
    return sorted(session.id for session in (await store.sessions(limit=100)).items)


async def last(store: Store, session_id: str) -> tuple[Any, list[ModelMessage]]:
    (checkpoint,) = (await store.checkpoints(session_id=session_id, limit=1)).items
    return checkpoint, await load_history(store, checkpoint)


async def archive(store: Store, session_id: str) -> bytes:
    return b"".join([piece async for piece in write_archive(store, open_media(store=store), session_id)])


async def test_every_conversation_is_a_session(memory: Store, source: str):
    report = await imported(memory, source, owner="ada")
    assert (report.found, report.imported, report.already_present) == (7, 7, 0)
    assert await sessions(memory) == NAMES
    assert (report.records["runs"], report.records["checkpoints"], report.records["effects"]) == (10, 21, 13)
    assert [note.what for note in report.not_understood] == [
        "calls without a recorded end that the history answers: completed"
    ]
    assert await memory.check() == []
    session = await memory.session("talk")
    assert (session.agent, session.owner, session.status) == ("bot", "ada", "idle")
    first, second = (await memory.runs(session_id="talk")).items
    assert (first.status, second.status) == ("completed", "completed")
    assert json.loads(first.metadata) == {"team": "red", "harness_resumes": "nothing"}
    assert first.started_at == session.created_at
    events = await memory.events("talk", limit=200)
    assert [event.seq for event in events] == list(range(1, session.seq + 1))
    assert events[0].kind == "imported"
    told = [event.kind for event in events if event.run_id == first.id]
    assert told[:3] == ["run_started", "message", "model_request_started"]
    assert told[-1] == "run_completed"
    assert (
        sum(kind == "message" for kind in told) == 6
    )  # each once, though a request was met before it was sent


async def test_again_changes_nothing(store: Store, folder: str):
    await imported(store, folder)
    before = [await archive(store, name) for name in NAMES]
    again = await imported(store, folder)
    assert (again.imported, again.already_present, again.records, again.skipped) == (0, 7, {}, [])
    assert [await archive(store, name) for name in NAMES] == before


async def test_a_dry_run_changes_nothing_and_tells_the_same(memory: Store, source: str):
    dry = await imported(memory, source, dry_run=True)
    assert await sessions(memory) == []
    real = await imported(memory, source)
    assert (dry.imported, dry.records) == (real.imported, real.records)


async def test_large_content_is_whole(memory: Store, source: str):
    await imported(memory, source)
    _, messages = await last(memory, "talk")
    assert is_provider_valid(messages)
    (prompt,) = messages[0].parts
    assert isinstance(prompt, UserPromptPart)
    picture = prompt.content[1]
    assert isinstance(picture, BinaryContent)
    assert (picture.data, picture.media_type) == (b"not really a picture. " * 20, "image/png")
    shouted, lookalike = messages[8].parts
    assert isinstance(shouted, ToolReturnPart)
    assert isinstance(lookalike, ToolReturnPart)
    assert shouted.content == "GRÜSSE" * 40
    assert lookalike.content == {
        "__harness_external_media__": True,
        "uri": "mine",
        "content": "not a marker",
    }
    assert isinstance(messages[-1], ModelResponse)
    assert messages[-1].text == "THAT'S IT"


async def test_what_is_large_here_goes_to_the_media_store(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Even if the content is deleted between the upload and the import, because another session with it is erased."""
    folder = harness_folder(tmp_path)
    for path in folder.glob("*/snapshots/*.json"):
        path.write_text(path.read_text().replace('"add these"', json.dumps("add " * 1000)))
    settings = load_settings(store=engine.url, media_threshold_bytes=1024)
    async with open_store(settings=settings) as store:
        media, import_rows = open_media(store=store), store.import_rows
        deleted: list[str] = []

        async def delete_before(session_id: str, rows: Any, **options: Any) -> Any:
            found = [f"media+sha256://{row['sha256']}" for name, row in rows() if name == "blob_references"]
            for uri in found if not deleted else ():
                deleted.append(uri)
                await media.delete(uri)
            return await import_rows(session_id, rows, **options)

        monkeypatch.setattr(store, "import_rows", delete_before)
        await imported(store, str(folder))
        assert deleted
        assert len(await store.references(session_id="talk")) == 1
        _, messages = await last(store, "talk")
        (prompt,) = messages[0].parts
        assert isinstance(prompt, UserPromptPart)
        assert prompt.content[0] == "add " * 1000
        again = await imported(store, str(folder))
        assert again.already_present == 7
        assert await store.check() == []


async def test_the_ledger_knows_what_the_harness_knew(memory: Store, source: str):
    await imported(memory, source)
    (killed,) = (await memory.runs(session_id="killed")).items
    report = await inspect_run(memory, killed.id)
    assert killed.status == "interrupted"
    assert [(effect.tool, effect.state) for effect in report.unresolved] == [("die", "started")]
    (done,) = report.completed
    assert (done.tool, done.idempotency_key, done.summary) == ("add", "add-2-2", "2 and 2")
    assert done.body is not None  # its result is in the history
    assert '"content":4' in done.body
    first, _ = (await memory.runs(session_id="talk")).items
    (repeated,) = (await inspect_run(memory, first.id)).completed
    assert repeated.call_id == "c1~2"  # the harness keeps the latest call with an id
    failed = (await inspect_run(memory, "explicit-1")).failed
    assert [(effect.tool, effect.error) for effect in failed] == [("explode", "RuntimeError('boom')")]


@pytest.mark.parametrize(
    ("session_id", "told"), [("killed", {"c2": "die"}), ("beside", {"c1": "add", "c2": "wait_and_die"})]
)
async def test_an_agent_goes_on_and_repeats_nothing(
    store: Store, folder: str, session_id: str, told: dict[str, str]
):
    """A run that was killed in a tool: the model is told what is known of its calls, and none of them is run again."""
    await imported(store, folder)
    checkpoint, messages = await last(store, session_id)
    assert checkpoint.kind == "interrupted"
    ran: list[str] = []

    def die() -> str:
        ran.append("die")
        return "no"

    def wait_and_die() -> str:
        ran.append("wait_and_die")
        return "no"

    def add(a: int, b: int) -> int:
        ran.append("add")
        return a + b

    agent = recorded(store, *([[TextPart("x")]] * 3), [TextPart("on we go")], tools=[die, wait_and_die, add])
    result = await continue_session(agent, store, session_id, "go on")
    assert ran == []
    history = result.all_messages()
    assert is_provider_valid(history)
    closing = history[len(messages)]
    answers = {
        part.tool_call_id: str(part.content) for part in closing.parts if isinstance(part, ToolReturnPart)
    }
    assert set(answers) == set(told)
    for call_id, text in answers.items():
        known = "could not be recorded" if told[call_id] == "add" else "it is unknown whether it took effect"
        assert known in text
    assert (await store.session(session_id)).status == "idle"


@pytest.mark.parametrize("session_id", ["talk", "named", "delegating"])
async def test_an_agent_goes_on_from_a_settled_place(store: Store, folder: str, session_id: str):
    await imported(store, folder)
    checkpoint, messages = await last(store, session_id)
    assert checkpoint.kind == "settled"
    assert is_provider_valid(messages)
    agent = Agent(recorded(store, [TextPart("done")]).model)
    result = await continue_session(agent, store, session_id, "and now?")
    assert result.output == "done"
    later, history = await last(store, session_id)
    assert len(history) == len(messages) + 2
    assert later.segment == checkpoint.segment  # nothing was written again
    again = await imported(store, folder)
    assert again.already_present == 7  # what went on here is not taken for a change there


async def test_an_agent_goes_on_after_calls_that_were_closed_elsewhere(store: Store, folder: str):
    await imported(store, folder)
    agent = Agent(recorded(store, [TextPart("done")]).model)
    result = await continue_session(agent, store, "explicit", "and now?")
    assert is_provider_valid(result.all_messages())
    assert (await store.run(result.run_id)).status == "completed"


@pytest.mark.parametrize("session_id", ["killed", "beside"])
async def test_a_run_that_was_killed_there_is_resumed_here(store: Store, folder: str, session_id: str):
    await imported(store, folder)
    (run,) = (await store.runs(session_id=session_id)).items
    ran: list[str] = []

    def die() -> str:
        ran.append("die")
        return "no"

    def wait_and_die() -> str:
        ran.append("wait_and_die")
        return "no"

    def add(a: int, b: int) -> int:
        ran.append("add")
        return a + b

    agent = recorded(store, *([[TextPart("x")]] * 2), [TextPart("y")], tools=[die, wait_and_die, add])
    result = await resume(agent, store, run.id)
    assert ran == []
    assert is_provider_valid(result.all_messages())
    assert (await store.run(result.run_id)).status == "completed"


async def test_ids_that_cannot_be_ids_are_given_others(store: Store, tmp_path: Path):
    folder = harness_folder(tmp_path)
    no_id(folder)
    report = await imported(store, str(folder), rename=True)
    assert report.imported == 7
    (session_id,) = set(await sessions(store)) - set(NAMES)
    assert json.loads((await store.session(session_id)).metadata) == {"conversation_id": "to be/side"}
    assert (await store.run("beside-1")).session_id == session_id
    assert (await imported(store, str(folder), rename=True)).already_present == 7


async def test_a_run_has_one_name(memory: Store, source: str):
    """The harness may call a run otherwise than its messages do; here both have the name on record."""
    await imported(memory, source)
    (named,) = (await memory.runs(session_id="named")).items
    assert named.id.startswith("sp-")
    assert named.agent == "calculator"
    _, messages = await last(memory, "named")
    assert {message.run_id for message in messages} == {named.id}
    assert json.loads(named.metadata)["pydantic_ai_run_id"]
    _, messages = await last(memory, "explicit")
    assert messages[0].run_id == "explicit-1"


async def test_a_run_has_one_name_also_if_a_snapshot_ends_with_what_was_not_sent(
    memory: Store, tmp_path: Path
):
    """As `StepPersistence(run_id=…)` writes it: only the records have that id, the messages have their own."""
    folder = harness_folder(tmp_path)
    (run_id,) = [
        path.parent.name
        for path in folder.glob("*/run.json")
        if json.loads(path.read_text())["metadata"].get("team") == "red"
    ]
    (folder / run_id).rename(folder / "given")
    for path in (folder / "given").rglob("*.json*"):
        path.write_text(path.read_text().replace(f'"run_id": "{run_id}", "k', '"run_id": "given", "k'))
        path.write_text(path.read_text().replace(f'{{"run_id": "{run_id}"', '{"run_id": "given"'))
        path.write_text(
            path.read_text().replace(f'"run_id": "{run_id}", "status', '"run_id": "given", "status')
        )
    first = json.loads((folder / "given" / "snapshots" / "0.json").read_text())
    assert (first["run_id"], first["messages"][1]["run_id"], first["messages"][2]["run_id"]) == (
        "given",
        run_id,
        None,
    )
    await imported(memory, str(folder))
    _, messages = await last(memory, "talk")
    assert [message.run_id for message in messages[:6]] == ["given"] * 6
    assert [effect.call_id for effect in (await inspect_run(memory, "given")).completed] == ["c1~2"]
    assert json.loads((await memory.run("given")).metadata)["pydantic_ai_run_id"] == run_id


async def test_delegates_keep_their_parents(memory: Store, source: str):
    await imported(memory, source)
    boss, helper = (await memory.runs(session_id="delegating")).items
    assert (helper.parent_id, helper.agent) == (boss.id, "helper")
    checkpoint, messages = await last(memory, "delegating")
    assert checkpoint.run_id == boss.id
    assert isinstance(messages[-1], ModelResponse)
    assert messages[-1].text == "the helper says 2"


async def test_a_run_begins_with_its_first_event_although_its_start_was_recorded_late(
    store: Store, tmp_path: Path
):
    folder = harness_folder(tmp_path)
    talk = [
        path.parent
        for path in folder.glob("*/run.json")
        if json.loads(path.read_text())["conversation_id"] == "talk"
    ]
    first, second = sorted(talk, key=lambda run: json.loads((run / "run.json").read_text())["started_at"])[:2]
    start = json.loads((first / "events.jsonl").read_text().splitlines()[0])["timestamp"]
    events = [json.loads(line) for line in (second / "events.jsonl").read_text().splitlines()]
    events.sort(key=lambda event: event["kind"] == "run_started")
    early = datetime.fromisoformat(start) - timedelta(seconds=1)
    events[0]["timestamp"] = early.isoformat()
    (second / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    await imported(store, str(folder))
    everything = await store.events("talk")
    for run in (await store.runs(session_id="talk")).items:
        of_run = [event.seq for event in everything if event.run_id == run.id]
        assert run.first_seq == of_run[0]
        assert [event.seq for event in await store.events("talk", run_id=run.id)] == of_run


async def test_a_session_goes_on_from_the_conversation_not_from_a_delegate(store: Store, tmp_path: Path):
    folder = harness_folder(tmp_path)
    for path in folder.glob("*/run.json"):
        if json.loads(path.read_text())["agent_name"] == "boss":
            for snapshot in path.parent.glob("snapshots/*.json"):
                snapshot.unlink()  # killed while the delegate was at work
            boss = path.parent.name
            break
    else:
        pytest.fail("the fixture has no boss")
    await imported(store, str(folder))
    checkpoint, messages = await last(store, "delegating")
    assert (checkpoint.run_id, messages) == (boss, [])
    agent = Agent(recorded(store, [TextPart("anew")]).model)
    assert (await continue_session(agent, store, "delegating", "again")).output == "anew"


async def test_what_was_imported_moves_on_as_an_archive(store: Store, folder: str, tmp_path: Path):
    await imported(store, folder)
    exported = await archive(store, "talk")

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield exported

    async with open_store(f"sqlite:///{tmp_path}/other.db") as other:
        with await spool(pieces()) as file:
            await import_archive(other, open_media(store=other), file, actor="test")
        assert await archive(other, "talk") == exported
        assert await other.check() == []


async def test_what_changed_there_or_here_is_left_alone(store: Store, tmp_path: Path):
    folder = harness_folder(tmp_path)
    await store.create_session(agent="a", owner="o", id="named")
    await imported(store, str(folder))
    (events,) = folder.glob("beside-1/events.jsonl")
    lines = events.read_text().splitlines()
    events.write_text("\n".join([*lines, lines[-1].replace("tool_call_completed", "run_completed")]) + "\n")
    report = await imported(store, str(folder))
    assert {note.what.partition(";")[0]: list(note.examples) for note in report.skipped} == {
        "it has changed in the source since it was imported": ["beside"],
        "a session with this id already exists, from another source": ["named"],
    }
    assert (report.already_present, report.imported) == (5, 0)


async def test_what_is_not_understood_is_told(store: Store, tmp_path: Path):
    folder = harness_folder(tmp_path)
    (folder / "notes.txt").write_text("mine")
    (folder / "beside-1" / "extra.bin").write_text("mine")
    events = folder / "beside-1" / "events.jsonl"
    odd = json.loads(events.read_text().splitlines()[0]) | {
        "kind": "run_paused",
        "mood": "good",
        "idempotency_key": None,
    }
    with events.open("a") as file:
        file.write(json.dumps(odd) + "\n")
    (folder / "explicit-1" / "run.json").unlink()
    report = await imported(store, str(folder))
    told = {note.what: note.count for note in report.not_understood}
    assert told["files that do not belong to a step store"] == 2
    assert told["events of an unknown kind: run_paused"] == 1
    assert told["an unknown field of a harness event: mood"] == 1
    assert told["runs that were never registered: derived from their steps"] == 1
    kept = [event for event in await store.events("beside", limit=100) if event.kind == "imported"]
    assert json.loads(kept[-1].payload)["kind"] == "run_paused"
    assert (await store.run("explicit-1")).session_id == "explicit"


def cut_short(folder: Path) -> None:
    path = folder / "beside-1" / "snapshots" / "1.json"
    path.write_text(path.read_text()[:-20])


def cut_line(folder: Path) -> None:
    path = folder / "beside-1" / "events.jsonl"
    path.write_text(path.read_text()[:-20])


def no_id(folder: Path) -> None:
    path = folder / "beside-1" / "run.json"
    path.write_text(path.read_text().replace('"beside"', '"to be/side"'))


def other_run(folder: Path) -> None:
    path = folder / "beside-1" / "run.json"
    path.write_text(path.read_text().replace('"beside-1"', '"beside-2"'))


def new_part(folder: Path) -> None:
    path = folder / "beside-1" / "snapshots" / "0.json"
    path.write_text(path.read_text().replace('"user-prompt"', '"telepathy"'))


def new_state(folder: Path) -> None:
    path = folder / "beside-1" / "snapshots" / "0.json"
    path.write_text(
        path.read_text().replace('"state": "complete", "messages"', '"state": "frozen", "messages"')
    )


def new_marks(folder: Path) -> None:
    for path in folder.glob("*/snapshots/*.json"):
        path.write_text(path.read_text().replace("literal-v1", "literal-v2"))


def no_media(folder: Path) -> None:
    for path in folder.glob("media/*.bin"):
        path.unlink()


def other_media(folder: Path) -> None:
    for path in folder.glob("media/*.bin"):
        path.write_text("something else")


def too_deep(folder: Path) -> None:
    for path in folder.glob("*/snapshots/*.json"):
        path.write_text(path.read_text().replace('"not a marker"', "[" * 700 + "]" * 700))


def no_time(folder: Path) -> None:
    path = folder / "beside-1" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"started_at": "yesterday"}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut_short, "1.json is not valid JSON, or is truncated"),
        (cut_line, "events.jsonl:6 is not valid JSON, or is truncated"),
        (no_id, "'to be/side' is not a valid session id"),
        (other_run, "belongs to run 'beside-2', not beside-1"),
        (new_part, "cannot read"),
        (new_state, "of an unknown version (state"),
        (new_marks, "in an unknown format; upgrade Holdfast"),
        (no_media, "which the source does not contain"),
        (other_media, "are damaged"),
        (too_deep, "nested too deeply"),
        (no_time, "of an unknown version (started_at"),
    ],
)
async def test_bad_input_is_refused_and_nothing_goes_in(
    store: Store, tmp_path: Path, damage: Callable[[Path], None], said: str
):
    folder = harness_folder(tmp_path)
    damage(folder)
    with pytest.raises(BadImport) as refused:
        await imported(store, str(folder))
    assert said in str(refused.value)
    assert await sessions(store) == []


async def test_what_is_no_step_store_is_refused(store: Store, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("hello")
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("CREATE TABLE runs (x)")
    connection.close()
    for name, said in (
        ("empty", "not a step store"),
        ("text", "neither a SQLite database nor a folder"),
        ("nowhere", "cannot be read"),
        ("other.db", "no table events, snapshots, tool_effects"),
    ):
        with pytest.raises(BadImport, match=said):
            await imported(store, str(tmp_path / name))
    with pytest.raises(BadImport, match=r"use a folder, a SQLite file") as refused:
        await imported(store, "redis://me:secret@here/0")
    assert "secret" not in str(refused.value)


async def test_a_database_that_is_cut_off_is_refused(store: Store, tmp_path: Path):
    file = harness_sqlite(tmp_path)
    file.write_bytes(file.read_bytes()[:20_000])
    with pytest.raises(BadImport, match=r"cannot be read|is not valid JSON|not a step store"):
        await imported(store, str(file))
    assert await sessions(store) == []


async def test_sqlite_of_another_format_is_refused(store: Store, tmp_path: Path):
    file = harness_sqlite(tmp_path)
    connection = sqlite3.connect(file)
    connection.execute("UPDATE snapshots SET messages = '{\"packed\": 3}' WHERE seq = 3")
    connection.commit()
    connection.close()
    with pytest.raises(BadImport, match="stores its messages in an unknown format"):
        await imported(store, str(file))
    assert await sessions(store) == []


async def test_sqlite_that_lacks_messages_is_refused(store: Store, tmp_path: Path):
    file = harness_sqlite(tmp_path)
    connection = sqlite3.connect(file)
    connection.execute(
        "DELETE FROM snapshot_messages WHERE sha256 IN (SELECT sha256 FROM snapshot_messages LIMIT 1)"
    )
    connection.commit()
    connection.close()
    with pytest.raises(BadImport, match="is missing 1 of its"):
        await imported(store, str(file))


async def test_tables_of_others_are_told_of(memory: Store, tmp_path: Path):
    file = harness_sqlite(tmp_path)
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE conversations (id TEXT)")
    connection.execute("INSERT INTO conversations VALUES ('c'), ('d')")
    connection.execute("ALTER TABLE runs ADD COLUMN mood TEXT")
    connection.commit()
    connection.close()
    told = {note.what: note.count for note in (await imported(memory, str(file))).not_understood}
    assert told["rows of tables that do not belong to a step store"] == 2
    assert told["an unknown field of a harness run: mood"] == 10


async def test_postgres_that_is_not_there_or_has_other_tables(store: Store, postgres_server: Postgres):
    with pytest.raises(BadImport, match="cannot be reached") as refused:
        await imported(store, "postgresql://me:secret@127.0.0.1:1/none")
    assert "secret" not in str(refused.value)
    url = await new_database(postgres_server)
    with pytest.raises(BadImport, match="no table step_persistence_runs"):
        await imported(store, url)
    with pytest.raises(BadImport, match="not a valid prefix"):
        async with open_source(url, table="x; DROP TABLE y"):
            pass


async def test_erased_stays_erased(store: Store, tmp_path: Path):
    from holdfast.retention import erase

    folder = str(harness_folder(tmp_path))
    await imported(store, folder)
    await erase(store, open_media(store=store), "talk", actor="test")
    report = await imported(store, folder)
    assert [(note.what, list(note.examples)) for note in report.skipped] == [
        ("it was erased in this store, and is not imported again", ["talk"])
    ]
    assert "talk" not in await sessions(store)


@pytest.mark.thorough
@pytest.mark.processes
async def test_killed_half_way_it_converges(engine: Engine, tmp_path: Path):
    """Killed again and again while it imports; in the end it is as if it had never been."""
    folder = harness_folder(tmp_path)
    for n in range(40):  # more to do, so that a kill comes in the middle
        copy = folder / f"copy-{n}"
        copy.mkdir()
        for path in (folder / "beside-1").rglob("*"):
            if path.is_file():
                target = copy / path.relative_to(folder / "beside-1")
                target.parent.mkdir(exist_ok=True)
                text = path.read_text().replace("beside-1", f"copy-{n}").replace('"beside"', f'"copy-{n}"')
                target.write_text(text)
    async with open_store(engine.url):
        pass
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "import",
        "harness",
        str(folder),
        "--store",
        engine.url,
        "--json",
    ]
    counts: list[int] = []
    async with open_store(engine.url) as store:
        for wanted in (5, 20):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
            while process.poll() is None and (await store.schema()).sessions < wanted:
                await asyncio.sleep(0.001)
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
            counts.append((await store.schema()).sessions)
            assert await store.check() == []
        assert counts[0] < 47  # else nothing was cut off
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        report = json.loads(done.stdout)
        assert report["already_present"] + report["imported"] == 47
        assert report["already_present"] >= counts[1]
        assert (await store.schema()).sessions == 47
    async with open_store("sqlite://:memory:") as fresh:
        await imported(fresh, str(folder), owner="local")
        async with open_store(engine.url) as store:
            for name in ("talk", "copy-7", "copy-39"):
                assert await archive(store, name) == await archive(fresh, name)


async def test_a_run_that_another_session_has_is_refused_before_anything_goes_in(
    store: Store, tmp_path: Path
):
    agent = recorded(store, [TextPart("hello")], run_id="beside-1")
    await agent.run("hi", conversation_id="mine")
    with pytest.raises(BadImport, match="run beside-1 of session beside already exists in session mine"):
        await imported(store, str(harness_folder(tmp_path)))
    assert await sessions(store) == ["mine"]


async def test_without_the_driver_the_extra_is_named(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pymongo", None)
    with pytest.raises(MissingExtra, match="mongo"):
        await imported(store, "mongodb://127.0.0.1/steps")
