"""`holdfast doctor`, `holdfast top` and completion, as a person runs them."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.doctor import EXTRAS
from holdfast.store import Store, open_store
from tests import forking
from tests.conftest import Engine

pytestmark = pytest.mark.processes


def holdfast(*arguments: str, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    return forking.run(
        [sys.executable, "-m", "holdfast", *arguments],
        cwd=cwd,
        env=os.environ | {"COLUMNS": "200"} | more,
    )


def findings(*arguments: str, **more: Any) -> dict[str, dict[str, str]]:
    done = holdfast("doctor", "--json", *arguments, **more)
    found = {each["check"]: each for each in json.loads(done.stdout)["findings"]}
    assert done.returncode == int(any(each["verdict"] == "error" for each in found.values()))
    return found


async def test_all_is_well(store: Store, engine: Engine):
    found = findings("--store", engine.url)
    if engine.name == "postgres":  # the tests' server does not sync
        server = found.pop("server")
        assert server["verdict"] == "warn"
        assert (
            "fsync = off: a crash of the machine loses or damages data; full_page_writes = off"
            in server["detail"]
        )
        assert server["action"].startswith("Set fsync = on, full_page_writes = on for")
        del found["overridden"]
    assert {each["verdict"] for each in found.values()} == {"ok"}
    wanted = {"system", "settings", "store", "migrations", "clock", "workers"}
    assert set(found) == wanted | ({"disk"} if engine.name == "sqlite" else set())
    assert await store.holders() == []  # it has left nothing behind
    said = holdfast("doctor", "--store", engine.url)
    assert said.returncode == 0
    assert "\x1b" not in said.stdout  # colours are for terminals
    assert "a commit took" in said.stdout


@pytest.mark.thorough("postgres")
def test_all_extras_are_listed(tmp_path: Path):
    """The environment of the tests has all but those of other frameworks."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extras = findings(cwd=tmp_path)["system"]["detail"].partition("extras: ")[2].split(", ")
    assert set(EXTRAS) == set(project["optional-dependencies"])
    assert set(extras) == set(EXTRAS) - {"adk", "claude-agent-sdk", "harness", "openai-agents"}


async def test_what_is_wrong_is_said_with_what_to_do(store: Store, engine: Engine, tmp_path: Path):
    session = await store.create_session(agent="bot", owner="ada")
    await store.submit(session.id, "message", "{}")
    lonely = findings("--store", engine.url)["workers"]
    assert (lonely["verdict"], "Start `holdfast worker`" in lonely["action"]) == ("error", True)
    await store.join("a worker that is gone", ttl=0.001)
    assert "1 past their deadline" in findings("--store", engine.url)["workers"]["detail"]
    nowhere = findings("--store", "postgresql://nobody@127.0.0.1:1/none")["store"]
    assert (nowhere["verdict"], "HOLDFAST_STORE" in nowhere["action"]) == ("error", True)
    typo = findings(HOLDFAST_STROE="x")["settings"]
    assert (typo["verdict"], "For HOLDFAST_STROE, did you mean HOLDFAST_STORE?" in typo["detail"]) == (
        "error",
        True,
    )
    (tmp_path / "empty").mkdir()
    missing = findings(cwd=tmp_path / "empty")["store"]
    assert (missing["verdict"], "db upgrade" in missing["detail"]) == ("error", True)
    open_wide = findings("--store", engine.url, HOLDFAST_HOST="0.0.0.0")["settings"]
    assert (open_wide["verdict"], "HOLDFAST_TOKEN" in open_wide["action"]) == ("warn", True)


async def test_top_shows_sessions_and_workers(store: Store, engine: Engine):
    session = await store.create_session(agent="bot", owner="ada", title="Find <b>me</b>")
    holder = await store.join("worker:7", ttl=timedelta(minutes=1).total_seconds())
    await store.acquire(session.id, holder)
    once = holdfast("top", "--store", engine.url)
    assert once.returncode == 0
    assert session.id in once.stdout
    assert "Find <b>me</b>" in once.stdout
    assert "worker:7" in once.stdout
    found = json.loads(holdfast("top", "--json", "--store", engine.url).stdout)
    assert [each["id"] for each in found["sessions"]] == [session.id]
    assert [each["sessions"] for each in found["workers"]] == [1]


def _hear_ctrl_c() -> None:
    """A shell has what it starts in the background ignore it, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


async def test_top_on_a_terminal_goes_on_until_ctrl_c(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with open_store(url) as store:
        await store.create_session(agent="bot", owner="ada", title="First")
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast", "top", "--store", url, "--interval", "0.1"),
            stdout=theirs,
            env=os.environ | {"COLUMNS": "160"},
            start_new_session=True,
            preexec_fn=_hear_ctrl_c,
        )
        os.close(theirs)
        seen = ""
        async with asyncio.timeout(30):
            while "First" not in seen:
                seen += (await asyncio.to_thread(os.read, ours, 65536)).decode()
            await store.create_session(agent="bot", owner="ada", title="Second")
            while "Second" not in seen:
                seen += (await asyncio.to_thread(os.read, ours, 65536)).decode()
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 10) == 0
        os.close(ours)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str):
    typed = {
        "bash": {"COMP_WORDS": "holdfast do", "COMP_CWORD": "1"},
        "zsh": {"_TYPER_COMPLETE_ARGS": "holdfast do"},
        "fish": {"_TYPER_COMPLETE_ARGS": "holdfast do", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    program = Path(sys.executable).with_name("holdfast")
    done = forking.run(
        [program],
        env=os.environ | typed | {"_HOLDFAST_COMPLETE": f"complete_{shell}"},
    )
    assert "doctor" in done.stdout


def test_variables_of_another_server_are_named_with_the_nearest_setting(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    holdfast("db", "upgrade", "--store", url)
    found = findings("--store", url, OH_BASH_RETENTION_SECONDS="60", OH_XYZ="1")["environment"]
    assert (found["verdict"], found["detail"]) == (
        "warn",
        "Holdfast does not read OH_BASH_RETENTION_SECONDS, OH_XYZ",
    )
    assert "For OH_BASH_RETENTION_SECONDS, did you mean HOLDFAST_SHELL_RETENTION_SECONDS?" in found["action"]
    assert "For OH_XYZ" not in found["action"]


async def test_the_folder_of_the_mirror_must_be_writable(store: Store, engine: Engine, tmp_path: Path):
    folder = tmp_path / "new" / "journals"
    found = findings("--store", engine.url, HOLDFAST_MIRROR=str(folder))
    assert found["mirror"]["verdict"] == "ok"
    assert not folder.parent.exists()
    folder.parent.write_text("a file")
    found = findings("--store", engine.url, HOLDFAST_MIRROR=str(folder))
    assert found["mirror"]["verdict"] == "error"
    assert "cannot write" in found["mirror"]["detail"]
