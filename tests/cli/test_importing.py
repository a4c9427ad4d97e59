"""The commands that import, as a person uses them."""

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from holdfast.store import open_store
from tests import forking
from tests.forking import Forked
from tests.importers.sources import harness_folder
from tests.importers.test_agentex import TASK, WHOLE
from tests.importers.test_openhands import run


def holdfast(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *arguments]
    environment = os.environ | {"HOLDFAST_STORE": f"sqlite:///{folder}/store.db"}
    return forking.run(command, cwd=folder, env=environment)


def ready(folder: Path) -> None:
    assert holdfast(folder, "db", "upgrade").returncode == 0


async def test_moving_in_from_all_three(tmp_path: Path):
    ready(tmp_path)
    harness_folder(tmp_path)
    (tmp_path / "task.json").write_text(json.dumps(WHOLE))
    run(tmp_path / "bash_events", 0, "make", None, 0)
    commands = {
        "harness": ("steps", "Found 7 sessions: 7 imported, 0 already present"),
        "agentex": ("task.json", "Found 1 sessions: 1 imported, 0 already present"),
        "openhands": ("bash_events", "Found 1 commands: 1 imported, 0 already present"),
    }
    for name, (source, said) in commands.items():
        dry = holdfast(tmp_path, "import", name, source, "--dry-run")
        assert (dry.returncode, dry.stderr) == (0, "")
        assert dry.stdout.startswith(said.replace(" imported", " would be imported"))
        done = holdfast(tmp_path, "import", name, source, "--owner", "ada")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(said)
        report = json.loads(holdfast(tmp_path, "import", name, source, "--owner", "ada", "--json").stdout)
        assert (report["imported"], report["already_present"]) == (0, report["found"])
    again = holdfast(tmp_path, "import", "harness", "steps", "--owner", "ada")
    assert "0 imported, 7 already present and unchanged. Nothing was changed." in again.stdout
    checked = holdfast(tmp_path, "db", "check")
    assert (checked.returncode, checked.stdout) == (0, "Every invariant holds.\n")
    async with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        assert {session.owner for session in (await store.sessions()).items} == {"ada"}
        assert (await store.session(TASK)).agent == "weather-agent"
        actors = {entry.actor.partition(":")[0] for entry in (await store.audit_log()).items}
        assert actors == {"cli"}


def test_what_was_not_understood_is_shown_and_cannot_steer_the_terminal(tmp_path: Path):
    ready(tmp_path)
    folder = harness_folder(tmp_path)
    (folder / "evil\x1b[31m").write_text("x")
    done = holdfast(tmp_path, "import", "harness", "steps")
    assert "Not recognized" in done.stdout
    assert "files that do not belong to a step store" in done.stdout
    assert "\x1b" not in done.stdout


def test_bad_input_is_one_line_and_code_2(tmp_path: Path):
    ready(tmp_path)
    (tmp_path / "task.json").write_text('{"task_id": ')
    for arguments in (("harness", "nowhere"), ("agentex", "task.json"), ("openhands", "nowhere")):
        refused = holdfast(tmp_path, "import", *arguments)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith(f"error: Nothing was imported from {arguments[1]}: ")
        assert refused.stderr.count("\n") == 1
    told = holdfast(tmp_path, "import", "harness", "nowhere", "--json")
    assert json.loads(told.stdout)["error"]["code"] == "bad_import"


def test_a_terminal_is_shown_how_far_it_is(tmp_path: Path):
    ready(tmp_path)
    harness_folder(tmp_path)
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "holdfast", "import", "harness", "steps"]
    environment = os.environ | {
        "TERM": "xterm",
        "COLUMNS": "100",
        "HOLDFAST_STORE": f"sqlite:///{tmp_path}/store.db",
    }
    process = Forked(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=end, env=environment)
    os.close(end)
    shown = b""
    with suppress(OSError):  # the terminal is gone with the process
        while piece := os.read(terminal, 65536):
            shown += piece
    os.close(terminal)
    assert process.wait() == 0
    assert b"importing" in shown
    assert b"14/14" in shown
