import json
import os
import pty
import sqlite3
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.store import open_store
from holdfast.store.schema import LATEST
from holdfast.store.sql.check import invariants
from tests import forking
from tests.builders import held_session, new_session, ticks
from tests.conftest import Engine

COMMAND = Path(sys.executable).parent / "holdfast"


def holdfast(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return forking.run([COMMAND, *arguments], cwd=folder)


@pytest.mark.processes
async def test_upgrade_status_check(engine: Engine, tmp_path: Path):
    def run(*arguments: str):
        return holdfast("db", *arguments, "--store", engine.url, "--json", folder=tmp_path)

    assert json.loads(run("upgrade").stdout) == {"store": engine.url, "version": LATEST}
    status = json.loads(run("status").stdout)
    assert (status["version"], status["latest"], status["sessions"]) == (LATEST, LATEST, 0)
    checked = run("check")
    assert (checked.returncode, json.loads(checked.stdout)) == (0, {"violations": []})


def test_output_for_people(tmp_path: Path):
    assert (
        holdfast("db", "upgrade", folder=tmp_path).stdout
        == f"sqlite:///holdfast.db is at schema version {LATEST}.\n"
    )
    assert "sessions         0" in holdfast("db", "status", folder=tmp_path).stdout
    assert holdfast("db", "check", folder=tmp_path).stdout == "Every invariant holds.\n"
    assert (tmp_path / "holdfast.db").exists()


def test_a_terminal_is_shown_which_invariant_is_checked(tmp_path: Path):
    holdfast("db", "upgrade", folder=tmp_path)
    assert holdfast("db", "check", folder=tmp_path).stderr == ""
    terminal, end = pty.openpty()
    process = forking.Forked(
        [sys.executable, "-m", "holdfast", "db", "check"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=end,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(end)
    shown = b""
    with suppress(OSError):  # the terminal is gone with the process
        while piece := os.read(terminal, 65536):
            shown += piece
    os.close(terminal)
    assert process.wait() == 0
    total = len(invariants("sqlite", of_session=False))
    assert f"{total} of {total}: submissions have session".encode() in shown


@pytest.mark.processes
async def test_stats_for_programs(engine: Engine, tmp_path: Path):
    async with open_store(engine.url) as store:
        lease, _ = await held_session(store)
        await store.write(lease, ticks(3))
    shown = json.loads(holdfast("db", "stats", "--store", engine.url, "--json", folder=tmp_path).stdout)
    assert shown["store"] == engine.url
    assert shown["bytes"] > 0
    assert shown["last_day"] == shown["last_week"] == {"sessions": 1, "events": 3}
    assert shown["retention"] is None
    assert bool(shown["tables"]) == (engine.name != "sqlite")
    people = holdfast("db", "stats", "--store", engine.url, folder=tmp_path).stdout
    assert "last 7 days      1 session, 3 events\n" in people
    assert "retention        no policy is configured\n" in people
    assert ("rows (estimate)" in people) == (engine.name != "sqlite")


async def test_stats_show_what_retention_would_free(tmp_path: Path):
    (tmp_path / "holdfast.toml").write_text(
        '[[retention]]\nagent = "*"\nmax_age_days = 0.0000001\naction = "clean"\n'
    )
    async with open_store(f"sqlite:///{tmp_path}/holdfast.db") as store:
        await store.submit(await new_session(store), "message", '"hello"')
    shown = json.loads(holdfast("db", "stats", "--json", folder=tmp_path).stdout)["retention"]
    assert (shown["due"], shown["more"]) == ({"clean": 1, "archive": 0, "erase": 0}, False)
    assert shown["bytes"] > 0
    people = holdfast("db", "stats", folder=tmp_path).stdout
    assert "retention        due: 1 to clean, 0 to archive, 0 to erase\n" in people
    assert "bytes, estimated from 1 session\n" in people


def test_check_names_what_is_broken(tmp_path: Path):
    holdfast("db", "upgrade", folder=tmp_path)
    connection = sqlite3.connect(tmp_path / "holdfast.db")
    connection.execute(
        "INSERT INTO heads (session_id, number, agent, owner, epoch, seq, writes, written) VALUES ('ghost', 99, 'bot', 'you', 0, 0, 0, 0)"
    )
    connection.commit()
    connection.close()
    checked = holdfast("db", "check", folder=tmp_path)
    assert checked.returncode == 1
    assert "head has session: session ghost" in checked.stdout


def test_an_old_schema_is_shown_and_not_touched(tmp_path: Path):
    sqlite3.connect(tmp_path / "holdfast.db").close()
    shown = holdfast("db", "status", folder=tmp_path)
    assert shown.returncode == 0
    assert "version          0" in shown.stdout
    assert "holdfast db upgrade" in shown.stdout
    checked = holdfast("db", "check", folder=tmp_path)
    assert (checked.returncode, "Run `holdfast db upgrade`" in checked.stderr) == (2, True)


def test_looking_creates_nothing(tmp_path: Path):
    for command in ("status", "stats", "check"):
        looked = holdfast("db", command, folder=tmp_path)
        assert looked.returncode == 2
        assert looked.stderr.startswith(
            f"error: No store exists at sqlite:///holdfast.db: the file {tmp_path}"
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [("--store", "mysql://x"), ("--store", "postgresql://a:secret@127.0.0.1:1/x")]
)
def test_an_error_is_one_line(tmp_path: Path, arguments: tuple[str, ...]):
    failed = holdfast("db", "status", *arguments, folder=tmp_path)
    assert failed.returncode == 2
    assert failed.stderr.startswith("error: ")
    assert failed.stderr.count("\n") == 1
    assert "secret" not in failed.stderr


def test_an_error_for_programs(tmp_path: Path):
    failed = holdfast("db", "check", "--json", folder=tmp_path)
    assert json.loads(failed.stdout)["error"]["code"] == "store_missing"
    status = holdfast("db", "upgrade", "--json", folder=tmp_path)
    assert json.loads(status.stdout)["version"] == LATEST


def test_version(tmp_path: Path):
    assert holdfast("--version", folder=tmp_path).stdout.startswith("holdfast 0.")
