import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import forking
from tests.cli.test_db import COMMAND
from tests.forking import Forked

STORE = "sqlite:///shell.db"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def shell(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return forking.run(
        [COMMAND, "shell", *arguments, "--store", STORE],
        cwd=folder,
        timeout=60,
    )


def listed(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    return json.loads(shell(folder, "list", "--json", *arguments).stdout)["commands"]


def test_run_shows_the_output_and_exits_with_the_code(folder: Path):
    done = shell(folder, "run", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 7)
    done = shell(folder, "run", "--json", "--cwd", "/", "pwd")
    facts = json.loads(done.stdout)
    assert (facts["stdout"], facts["command"]["exit_code"], done.returncode) == ("/\n", 0, 0)
    assert shell(folder, "run", "--timeout", "0.2", "sleep 9").returncode == 124
    text = shell(folder, "list").stdout
    assert [line.split()[1] for line in text.splitlines()] == ["state", "timed_out", "done", "done"]
    assert "pwd" in text


def test_errors_are_one_line(folder: Path):
    for arguments, said in (
        (("run", "ls", "--cwd", "/nowhere"), "The working directory /nowhere does not exist"),
        (("run", "ls", "--session", "nobody"), "There is no session nobody"),
        (("output", "7"), "Use a UUID"),
        (("stop", "0" * 32), "There is no command"),
        (("sweep",), "--older-than"),
    ):
        if arguments[0] == "output":
            shell(folder, "run", "true")  # so that there is a store
        failed = shell(folder, *arguments)
        assert failed.returncode == 2
        assert said in failed.stderr
        assert "Traceback" not in failed.stderr


def test_output_is_read_stopped_and_purged_from_other_processes(folder: Path):
    with Forked(
        [COMMAND, "shell", "run", "echo up; sleep 100", "--store", STORE],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout
        assert running.stdout.readline() == "up\n"
        (command,) = listed(folder, "--running")
        with Forked(
            [COMMAND, "shell", "output", "--follow", command["id"], "--store", STORE],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        ) as following:
            stopped = shell(folder, "stop", command["id"].replace("-", ""))
            assert (stopped.stdout, stopped.returncode) == (f"Command {command['id']} ended: stopped.\n", 0)
            assert following.communicate(timeout=30)[0] == "up\n"
        assert running.wait(timeout=30) == 143
    lines = shell(folder, "output", command["id"], "--json").stdout.splitlines()
    outputs = [json.loads(line) for line in lines]
    assert (outputs[0]["stdout"], outputs[-1]["exit_code"]) == ("up\n", -1)
    assert shell(folder, "sweep", "--older-than", "3600").stdout == "Deleted 0 events.\n"
    assert json.loads(shell(folder, "sweep", "--older-than", "0", "--json").stdout) == {
        "deleted": len(outputs) + 1
    }
    (result,) = listed(folder)
    assert (result["state"], result["command"], result["stdout_bytes"]) == ("stopped", "", 3)
    assert shell(folder, "output", command["id"]).stdout == ""


def test_an_interrupt_ends_the_command(folder: Path):
    with Forked(
        [COMMAND, "shell", "run", "echo up; sleep 100", "--store", STORE],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout
        assert running.stdout.readline() == "up\n"
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=30) == 130
    (ended,) = listed(folder)
    assert (ended["state"], ended["exit_code"]) == ("killed", -1)
