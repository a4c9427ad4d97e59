"""An archive that is built from JSON lines is one that every reader accepts."""

import json
import stat
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from holdfast import continue_session
from holdfast.errors import BadImport
from holdfast.importers.build import build_archive
from holdfast.media import open_media
from holdfast.retention import clean, import_archive, rehydrate
from holdfast.retention.archive import verify_archive
from holdfast.store import Store
from tests import forking
from tests.promises.test_exact_return import export
from tests.record.agents import recorded

MESSAGES = [
    {
        "kind": "request",
        "parts": [{"part_kind": "user-prompt", "content": "Hello", "timestamp": "2025-03-01T10:00:00Z"}],
    },
    {
        "kind": "response",
        "parts": [{"part_kind": "text", "content": "Good day."}],
        "timestamp": "2025-03-01T10:00:02Z",
    },
]
SESSION = {"id": "moved-in", "agent": "scribe", "owner": "ada", "title": "Hello", "metadata": {"case": 12}}


def lines(*values: dict[str, Any]) -> list[str]:
    return [json.dumps(value) for value in values]


def built(*values: dict[str, Any]) -> bytes:
    return b"".join(build_archive(lines(*values)))


async def test_a_built_archive_is_imported_cleaned_and_rehydrated(store: Store):
    media = open_media(store=store)
    archive = built(
        {"session": SESSION},
        *({"message": each} for each in MESSAGES),
        {"state": {"value": {"step": 3}}},
        {"state": {"name": "planner", "value": [1]}},
    )
    assert verify_archive(BytesIO(archive), longest=10**6).counts["messages"] == 2
    assert built({"session": SESSION}, {"message": MESSAGES[0]}) == built(
        {"session": SESSION}, {"message": MESSAGES[0]}
    )
    await import_archive(store, media, BytesIO(archive), actor="test")
    session = await store.session("moved-in")
    assert (session.title, session.owner, session.metadata) == ("Hello", "ada", '{"case": 12}')
    assert session.created_at.isoformat() == "2025-03-01T10:00:00+00:00"
    assert json.loads((await store.state("moved-in")).body) == {"step": 3}
    assert (await store.state("moved-in", name="planner")).body == "[1]"
    assert await export(store, "moved-in") == archive
    await clean(store, media, "moved-in", actor="test", force=True)
    await rehydrate(store, media, "moved-in", BytesIO(archive), actor="test")
    assert await export(store, "moved-in") == archive
    answer = await continue_session(recorded(store), store, "moved-in", "And then?")
    assert (answer.output, len(answer.all_messages())) == ("done", 4)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([], "it has no session"),
        ([{"message": MESSAGES[0]}], "line 1: the session must be on the first line"),
        ([{"session": SESSION}, {"session": SESSION}], "line 2: the session must be on the first line"),
        ([{"session": {"owner": "ada"}}], "line 1: session.agent: Field required"),
        ([{"session": SESSION}, {"message": {"kind": "reply"}}], "line 2 has a message"),
        ([{"session": SESSION}, {"text": "hello"}], "line 2: text: Extra inputs"),
        (
            [
                {"session": SESSION},
                {"message": {"kind": "response", "parts": [{"part_kind": "tool-call", "tool_name": "pay"}]}},
            ],
            "of the tool pay has no result",
        ),
        ([{"session": SESSION | {"agent": ""}}], "agent"),
        (
            [{"session": SESSION}, *[{"state": {"name": "n", "value": 1}}] * 2],
            "line 3: this state is duplicated",
        ),
    ],
)
def test_a_wrong_line_is_named(given: list[dict[str, Any]], problem: str):
    with pytest.raises(BadImport, match=problem):
        built(*given)


def test_the_command_writes_a_verified_archive(tmp_path: Path):
    (tmp_path / "talk.jsonl").write_text("\n".join(lines({"session": SESSION}, {"message": MESSAGES[0]})))
    done = forking.run(
        [sys.executable, "-m", "holdfast", "archive", "build", "talk.jsonl", "--to", "talk.ndjson", "--json"],
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["session_id"], result["counts"]["messages"]) == ("moved-in", 1)
    assert stat.S_IMODE((tmp_path / "talk.ndjson").stat().st_mode) == 0o600
    with (tmp_path / "talk.ndjson").open("rb") as file:
        assert verify_archive(file, longest=10**6).sha256 == result["sha256"]
    (tmp_path / "bad.jsonl").write_text("{")
    assert forking.run(
        [sys.executable, "-m", "holdfast", "archive", "build", "bad.jsonl", "--to", "bad.ndjson"],
        cwd=tmp_path,
    ).stderr.startswith("error: ")
    assert not (tmp_path / "bad.ndjson").exists()
