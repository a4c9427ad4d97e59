"""The commands of retention, as a person uses them."""

import json
import os
import pty
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from holdfast.media import open_media
from holdfast.store import open_store
from tests import forking
from tests.forking import Forked
from tests.promises.sessions import fill


def holdfast(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *arguments]
    return forking.run(command, cwd=folder)


async def test_there_and_back(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with open_store(url) as store:
        session_id = await fill(store, open_media(store=store), ["hello"], blobs=[b"picture"])
    for gzip in ([], ["--gzip"]):
        file = tmp_path / "talk"
        done = holdfast(tmp_path, "sessions", "export", session_id, "--to", "talk", *gzip, "--store", url)
        assert (done.returncode, done.stderr) == (0, "")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.chmod(0o644)  # the next export replaces it
        shown = json.loads(holdfast(tmp_path, "archive", "show", "talk", "--json").stdout)
        assert (shown["session_id"], shown["counts"]["messages"]) == (session_id, 2)
        assert "Valid" in holdfast(tmp_path, "archive", "verify", "talk").stdout
        refused = holdfast(tmp_path, "sessions", "clean", session_id, "--store", url)
        assert refused.returncode == 2
        assert "it was active" in refused.stderr
        cleaned = holdfast(
            tmp_path, "sessions", "clean", session_id, "--force", "--yes", "--store", url, "--json"
        )
        assert json.loads(cleaned.stdout)["deleted"]["messages"] == 2
        back = holdfast(tmp_path, "sessions", "rehydrate", session_id, "--from", "talk", "--store", url)
        assert "Restored session" in back.stdout
    file.write_bytes(file.read_bytes()[:-5])
    cut = holdfast(tmp_path, "archive", "verify", "talk")
    assert (cut.returncode, cut.stderr.startswith("error: Invalid archive: ")) == (1, True)
    told = json.loads(holdfast(tmp_path, "archive", "verify", "talk", "--json").stdout)["error"]
    assert (told["code"], "Nothing was changed" in told["message"]) == ("bad_archive", False)
    for name, problem in (
        ("nosuch", "There is no file nosuch."),
        (".", "Invalid input: cannot read .: Is a directory."),
    ):
        refused = holdfast(tmp_path, "archive", "verify", name)
        assert (refused.returncode, refused.stderr) == (2, f"error: {problem}\n")
    assert not list(tmp_path.glob("*.partial"))


async def test_a_clean_without_an_archive_is_confirmed(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with open_store(url) as store:
        session_id = await fill(store, open_media(store=store), ["hello"])
    refused = holdfast(tmp_path, "sessions", "clean", session_id, "--idle-days", "0", "--store", url)
    assert (refused.returncode, "has no archive of it" in refused.stderr) == (2, True)
    assert "--archive" in refused.stderr
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "holdfast", "sessions", "clean", session_id, "--force", "--store", url]
    process = Forked(command, cwd=tmp_path, stdin=end, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    os.write(terminal, b"n\n")
    _, said = process.communicate()
    os.close(end)
    os.close(terminal)
    assert (process.returncode, b"Delete the rows? [y/N]" in said) == (1, True)
    async with open_store(url) as store:
        assert (await store.session(session_id)).status == "idle"
    kept = holdfast(tmp_path, "sessions", "clean", session_id, "--force", "--archive", "--store", url)
    assert kept.returncode == 0


async def test_a_terminal_is_shown_how_far_it_is(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with open_store(url) as store:
        session_id = await fill(store, open_media(store=store), ["hello"] * 100)
    for word, arguments in (
        ("exporting", ("export", session_id, "--to", "talk")),
        ("cleaning", ("clean", session_id, "--force", "--yes")),
        ("rehydrating", ("rehydrate", session_id, "--from", "talk")),
    ):
        terminal, end = pty.openpty()
        command = [sys.executable, "-m", "holdfast", "sessions", *arguments, "--store", url]
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
        process = Forked(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=end, env=environment)
        os.close(end)
        shown = b""
        with suppress(OSError):  # the other end is closed
            while piece := os.read(terminal, 65536):
                shown += piece
        os.close(terminal)
        assert process.wait() == 0
        assert word.encode() in shown


async def test_hold_erase_import_audit(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with open_store(url) as store:
        session_id = await fill(store, open_media(store=store), ["hello"])
    async with open_store(f"sqlite:///{tmp_path}/other.db"):
        pass
    holdfast(tmp_path, "sessions", "export", session_id, "--to", "talk", "--store", url)
    moved = holdfast(tmp_path, "archive", "import", "talk", "--store", f"sqlite:///{tmp_path}/other.db")
    assert "Imported session" in moved.stdout
    holdfast(tmp_path, "sessions", "hold", session_id, "--store", url)
    held = holdfast(tmp_path, "sessions", "erase", session_id, "--yes", "--store", url)
    assert "on hold" in held.stderr
    holdfast(tmp_path, "sessions", "hold", session_id, "--off", "--store", url)
    erased = holdfast(tmp_path, "sessions", "erase", session_id, "--yes", "--store", url, "--json")
    assert json.loads(erased.stdout)["deleted"]["messages"] == 2
    audit = json.loads(holdfast(tmp_path, "audit", "--store", url, "--json").stdout)
    assert [entry["action"] for entry in audit["entries"]] == ["erase", "lift hold", "hold"]


async def test_sweep(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with open_store(url) as store:
        session_id = await fill(store, open_media(store=store), ["hello"])
        waiting = await fill(store, open_media(store=store), ["hello"])
        await store.submit(waiting, "message")
    nothing = holdfast(tmp_path, "sweep", "--store", url)
    assert (nothing.returncode, "There is no retention policy" in nothing.stderr) == (1, True)
    (tmp_path / "holdfast.toml").write_text(
        '[[retention]]\nname = "all"\nagent = "*"\nidle_days = 1e-9\naction = "clean"\n'
    )
    shown = holdfast(tmp_path, "sessions", "retention", session_id, "--store", url)
    assert "all" in shown.stdout
    assert (
        json.loads(
            holdfast(tmp_path, "sessions", "retention", waiting, "--store", url, "--json").stdout
        ).items()
        >= {"policy": "all", "guard": "pending"}.items()
    )
    dry = holdfast(tmp_path, "sweep", "--dry-run", "--store", url)
    assert (dry.returncode, "Due: 1 dry run, 1 refused." in dry.stdout) == (0, True)
    assert "refused: pending" in dry.stdout
    swept = holdfast(tmp_path, "sweep", "--store", url, "--json")
    assert json.loads(swept.stdout)["outcomes"] == {"cleaned": 1, "refused": 1}
    typo = '[[retention]]\nagent = "*"\nidle_day = 1\naction = "erase"\n'
    (tmp_path / "holdfast.toml").write_text(typo)
    stopped = holdfast(tmp_path, "sweep", "--store", url)
    assert (stopped.returncode, "idle_day" in stopped.stderr) == (2, True)
