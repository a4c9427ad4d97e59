"""`holdfast media`, as a person and as a program runs it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.media import MediaContext, open_media
from holdfast.retention import clean
from holdfast.store import open_store
from holdfast.types import Batch
from tests import forking
from tests.builders import held_session


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


def run(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    options = ("--store", f"sqlite:///{place}/s.db", "--media", f"disk://{place}/media")
    command = [sys.executable, "-m", "holdfast", "media", *arguments, *options]
    return forking.run(command, cwd=place)


def fill(place: Path) -> tuple[str, str, Path, str]:
    """Store a blob that a session refers to and one that none does."""

    async def work() -> tuple[str, str, Path, str]:
        async with open_store(f"sqlite:///{place}/s.db") as store:
            media = open_media(f"disk://{place}/media", store=store)
            kept = await media.put(
                b"k" * 5000, MediaContext(media_type="image/png", file_name="a\x1b[31m.png")
            )
            loose = await media.put(b"l" * 3000)
            lease, _ = await held_session(store)
            await store.write(lease, Batch(blobs=[kept.removeprefix("media+sha256://")]))
            key = (await media.metadata(kept)).key
            return kept, loose, place / "media" / key, lease.session_id

    return asyncio.run(work())


def test_list_and_show(place: Path):
    kept, loose, _, session_id = fill(place)
    listed = run(place, "list")
    assert listed.returncode == 0
    assert kept.removeprefix("media+sha256://") in listed.stdout
    assert loose.removeprefix("media+sha256://") in listed.stdout
    assert "4.9 KiB" in listed.stdout
    assert "\x1b" not in listed.stdout
    found = json.loads(run(place, "list", "--json").stdout)["media"]
    assert [(blob["uri"], blob["references"]) for blob in found] == [(kept, 1), (loose, 0)]
    shown = run(place, "show", kept.removeprefix("media+sha256://"))
    assert session_id in shown.stdout
    assert "image/png" in shown.stdout
    facts = json.loads(run(place, "show", kept, "--json").stdout)
    assert (facts["size"], facts["present"], facts["sessions"]) == (5000, True, [session_id])
    missing = run(place, "show", "0" * 64)
    assert (missing.returncode, "media+sha256://000" in missing.stderr) == (2, True)
    assert run(place, "show", "nonsense").returncode == 2


def test_an_archive_is_shown_as_referenced(place: Path):
    async def work() -> str:
        async with open_store(f"sqlite:///{place}/s.db") as store:
            media = open_media(f"disk://{place}/media", store=store)
            await store.create_session(agent="a", owner="o", id="kept")
            cleaned = await clean(store, media, "kept", actor="test", idle_days=0, archive="media")
            assert cleaned.archive is not None
            return cleaned.archive

    archive = asyncio.run(work())
    (blob,) = json.loads(run(place, "list", "--json").stdout)["media"]
    assert (blob["uri"], blob["references"]) == (archive, 1)
    shown = json.loads(run(place, "show", archive, "--json").stdout)
    assert (shown["sessions"], shown["archive_of"]) == ([], ["kept"])


def test_gc(place: Path):
    kept, loose, _, _ = fill(place)
    young = run(place, "gc")
    assert (young.returncode, young.stdout) == (0, "Deleted 0 blobs, 0 B.\n")
    dry = json.loads(run(place, "gc", "--grace", "0", "--dry-run", "--json").stdout)
    assert dry == {"blobs": 1, "bytes": 3000, "dry_run": True, "failed": []}
    done = run(place, "gc", "--grace", "0")
    assert (done.returncode, done.stdout) == (0, "Deleted 1 blobs, 2.9 KiB.\n")
    left = json.loads(run(place, "list", "--json").stdout)["media"]
    assert [blob["uri"] for blob in left] == [kept]
    assert run(place, "show", loose).returncode == 2


def test_verify(place: Path):
    kept, _, file, _ = fill(place)
    sound = run(place, "verify")
    assert (sound.returncode, sound.stdout) == (0, "2 of 2 blobs are intact.\n")
    file.write_bytes(b"x" * 5000)
    broken = run(place, "verify")
    assert broken.returncode == 1
    assert f"The bytes of {kept}" in broken.stdout
    assert "1 of 2 blobs are intact." in broken.stdout
    file.unlink()
    report = json.loads(run(place, "verify", "--json").stdout)
    assert report["verified"] == 2
    assert len(report["problems"]) == 1


def test_a_bad_media_url(place: Path):
    fill(place)
    command = [sys.executable, "-m", "holdfast", "media", "list", "--store", f"sqlite:///{place}/s.db"]
    done = forking.run([*command, "--media", "ftp://x", "--json"], cwd=place)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "unknown_media"


def test_move_reports_what_it_moved(place: Path):
    kept, _, file, _ = fill(place)
    options = ("--to", "database", "--store", f"sqlite:///{place}/s.db", "--json")
    moved = forking.run([sys.executable, "-m", "holdfast", "media", "move", *options], cwd=place)
    assert (moved.returncode, json.loads(moved.stdout)) == (0, {"blobs": 2, "bytes": 8000, "failed": []})
    assert not file.exists()
    assert json.loads(run(place, "show", kept, "--json").stdout)["location"] == "database"
