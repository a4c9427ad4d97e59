"""Bash event files as the OpenHands agent server names and writes them become shell commands.

The server is not on our package index, so the files are written here, in the form that its source has for them: one file
per event, named by time, kind, command and event, with the event as JSON.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast.commands import Command
from holdfast.errors import BadImport, SessionNotFound
from holdfast.importers import Report, import_openhands
from holdfast.media import open_media
from holdfast.retention import write_archive
from holdfast.store import Store, open_store
from tests.builders import new_session
from tests.conftest import Engine

BEGAN = datetime(2026, 9, 1, 12, tzinfo=UTC)


def write(folder: Path, after: float, kind: str, command_id: str | None = None, **fields: Any) -> str:
    """Write an event as the agent server does, and return its id."""
    folder.mkdir(exist_ok=True)
    at, event_id = BEGAN + timedelta(seconds=after), uuid4().hex
    names = [at.strftime("%Y%m%d%H%M%S%f"), kind, *([command_id] if command_id else []), event_id]
    owner = {"command_id": command_id} if command_id else {}
    event = {
        "id": event_id,
        "timestamp": at.isoformat().replace("+00:00", "Z"),
        **owner,
        **fields,
        "kind": kind,
    }
    (folder / "_".join(names)).write_text(json.dumps(event, indent=2))
    return event_id


def run(folder: Path, after: float, command: str, *codes: int | None, **fields: Any) -> str:
    """Write a command and one output for each of the exit codes."""
    given: dict[str, Any] = {"cwd": "/workspace", "timeout": 300, **fields}
    command_id = write(folder, after, "BashCommand", command=command, **given)
    for order, code in enumerate(codes):
        text: dict[str, Any] = {"stdout": f"out {order}\n", "stderr": None}
        write(folder, after + order + 1, "BashOutput", command_id, order=order, exit_code=code, **text)
    return command_id


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bash_events"
    run(folder, 0, "make", None, None, 2)
    run(folder, 10, "sleep 60", -1, timeout=1)
    run(folder, 20, "kill $$", -15)
    run(folder, 30, "cannot be run", -1)
    run(folder, 40, "yes", None)
    run(folder, 50, "true", 0)
    return folder


async def imported(store: Store, folder: Path, **options: Any) -> Report:
    return await import_openhands(store, folder, actor="test", **options)


async def by_text(store: Store) -> dict[str, Command]:
    return {command.command: command for command in (await store.commands(limit=100)).items}


async def test_commands_and_outputs_keep_their_ids_and_times(store: Store, folder: Path):
    report = await imported(store, folder, owner="ada")
    assert (report.unit, report.found, report.imported, report.records) == (
        "commands",
        6,
        6,
        {"commands": 6, "outputs": 8},
    )
    commands = await by_text(store)
    assert {text: (command.state, command.exit_code) for text, command in commands.items()} == {
        "make": ("done", 2),
        "sleep 60": ("timed_out", -1),
        "kill $$": ("done", 143),
        "cannot be run": ("lost", -1),
        "yes": ("lost", -1),
        "true": ("done", 0),
    }
    made = commands["make"]
    assert (made.owner, made.cwd, made.timeout) == ("ada", "/workspace", 300)
    assert (made.started_at, made.ended_at) == (BEGAN, BEGAN + timedelta(seconds=3))
    assert (made.outputs, made.stdout_bytes) == (3, 18)
    names = {path.name.split("_")[-1] for path in folder.iterdir()}
    assert UUID(made.id).hex in names
    outputs = await store.outputs(made.id)
    assert [(output.order, output.stdout, output.exit_code) for output in outputs] == [
        (0, "out 0\n", None),
        (1, "out 1\n", None),
        (2, "out 2\n", 2),
    ]
    assert {UUID(output.id).hex for output in outputs} <= names
    log = await store.shell_events(owner="ada", since=BEGAN, until=BEGAN + timedelta(seconds=10))
    assert [event.id for event in log.items] == [made.id, *(output.id for output in outputs)]
    assert [output.stdout async for output in store.watch_outputs(commands["yes"].id)] == ["out 0\n"]
    assert [note.what for note in report.not_understood] == [
        "commands without a recorded end: they count as lost"
    ]
    (entry,) = (await store.audit_log()).items
    assert (entry.action, entry.actor) == ("import", "test")


async def test_again_changes_nothing_and_what_is_new_is_added(store: Store, folder: Path):
    dry = await imported(store, folder, dry_run=True)
    assert (dry.imported, await by_text(store)) == (6, {})
    await imported(store, folder)
    before = await by_text(store)
    again = await imported(store, folder)
    assert (again.imported, again.already_present, again.skipped) == (0, 6, [])
    assert await by_text(store) == before
    run(folder, 60, "later", 0)
    more = await imported(store, folder)
    assert (more.imported, more.already_present) == (1, 6)


async def test_a_command_that_went_on_there_is_left_alone(store: Store, folder: Path):
    await imported(store, folder)
    still = UUID((await by_text(store))["yes"].id).hex
    write(folder, 70, "BashOutput", still, order=1, exit_code=0, stdout=None, stderr=None)
    report = await imported(store, folder)
    assert (report.imported, report.already_present) == (0, 5)
    assert "has changed in the source" in report.skipped[0].what


async def test_they_can_belong_to_a_session_and_go_with_it(store: Store, folder: Path):
    session_id = await new_session(store, owner="bob")
    await imported(store, folder, session_id=session_id)
    assert {command.owner for command in (await by_text(store)).values()} == {"bob"}
    pieces = [piece async for piece in write_archive(store, open_media(store=store), session_id)]
    assert b'"commands":6' in b"".join(pieces)
    with pytest.raises(SessionNotFound):
        await imported(store, folder, session_id="nobody")


async def test_what_has_no_place_here_is_told(store: Store, folder: Path):
    write(folder, 80, "BashError", code="X", detail="it broke")
    write(folder, 81, "BashOutput", uuid4().hex, order=0, exit_code=0, stdout="of nobody", stderr=None)
    (folder / "README").write_text("mine")
    run(folder, 82, "new", 0, agent_profile_id="p")
    gap = run(folder, 83, "gap")
    write(folder, 84, "BashOutput", gap, order=5, exit_code=0, stdout="bad \x00 byte", stderr=None)
    report = await imported(store, folder)
    told = {note.what: note.count for note in report.not_understood}
    assert told == {
        "events of an unsupported kind: BashError": 1,
        "files that are not bash events": 1,
        "output of commands whose own files are missing": 1,
        "commands without a recorded end: they count as lost": 1,
        "an unknown field of a BashCommand: agent_profile_id": 1,
        "outputs that were renumbered because earlier ones are missing or duplicated": 1,
    }
    command = (await by_text(store))["gap"]
    (output,) = await store.outputs(command.id)
    assert (command.damaged, output.damaged, output.stdout) == (True, True, "bad � byte")


def cut_short(path: Path) -> None:
    path.write_text(path.read_text()[:-10])


def no_uuid(path: Path) -> None:
    path.write_text(path.read_text().replace('"id": "', '"id": "../'))


def other_name(path: Path) -> None:
    path.rename(path.with_name(path.name[:-32] + uuid4().hex))


def not_an_object(path: Path) -> None:
    path.write_text("[]")


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut_short, "is not valid JSON, or is truncated"),
        (no_uuid, "of an unknown version (id"),
        (other_name, "contains the event"),
        (not_an_object, "of an unknown version"),
        (no_text, "is not valid JSON, or is truncated"),
    ],
)
async def test_bad_input_is_refused_and_nothing_goes_in(
    store: Store, folder: Path, damage: Callable[[Path], None], said: str
):
    damage(sorted(folder.iterdir())[-2])
    with pytest.raises(BadImport) as refused:
        await imported(store, folder)
    assert said in str(refused.value)
    assert await by_text(store) == {}


async def test_what_is_no_folder_of_events_is_refused(store: Store, tmp_path: Path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    for name, said in (("other", "no bash event"), ("nowhere", "No such file")):
        with pytest.raises(BadImport, match=said):
            await imported(store, tmp_path / name)
    with pytest.raises(BadImport, match="owner"):
        await imported(store, tmp_path / "other", owner="")


@pytest.mark.thorough
@pytest.mark.processes
async def test_killed_half_way_it_converges(engine: Engine, tmp_path: Path):
    folder = tmp_path / "bash_events"
    for n in range(600):
        run(folder, n, f"echo {n}", None, 0)
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "import",
        "openhands",
        str(folder),
        "--store",
        engine.url,
        "--json",
    ]
    async with open_store(engine.url) as store:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None and not (await store.commands(limit=1)).items:
            await asyncio.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert await store.check() == []
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        report = json.loads(done.stdout)
        assert report["already_present"] + report["imported"] == 600
        assert report["already_present"] > 0
        assert await store.check() == []
        assert (await imported(store, folder)).already_present == 600
