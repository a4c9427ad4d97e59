"""Every command has help with examples that parse, and the exit codes are those that the docs list."""

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import typer.main
from rich.console import Console
from typer.testing import CliRunner

import holdfast.cli
from holdfast.cli import app, main
from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.terminal import TextTable
from tests.test_docs import commands

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
ROOT = typer.main.get_command(app)
COMMANDS = dict(commands(ROOT))
Run: TypeAlias = Callable[..., tuple[object, str, str]]


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def invoke(*arguments: str, columns: int = 80) -> Any:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, arguments)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `holdfast` in this process, and return its exit code and output."""

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["holdfast", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def parse(example: str) -> None:
    """Parse an example as the shell and `holdfast` would, and run nothing."""
    words = shlex.split(example.rpartition(" | ")[2])
    words = words[: next((place for place, word in enumerate(words) if word in {"<", ">"}), len(words))]
    assert words.pop(0) == "holdfast"
    command: Any = ROOT
    name = "holdfast"
    while hasattr(command, "commands"):
        name = words.pop(0)
        command = command.commands[name]
    command.make_context(name, words)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_examples(name: str):
    command = COMMANDS[name]
    summary = command.get_short_help_str(1000)
    assert summary == command.help.split("\n\n")[0]
    assert re.fullmatch(r"[A-Z][^.]{10,64}\.", summary)
    assert all(parameter.help for parameter in command.params)
    examples = command.epilog.splitlines()
    assert 1 <= len(examples) <= 3
    for example in examples:
        parse(example)
        assert f"holdfast {name} " in f"{example} "
    shown = invoke(*name.split(), "--help")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout.endswith("Examples:\n" + "".join(f"  {example}\n" for example in examples))
    wide = [line for line in shown.stdout.splitlines() if len(line) > 80]
    assert all(line.strip() in examples for line in wide)
    assert f"| `holdfast {name}` | {summary} |" in PAGE


def test_every_command_prints_json_or_is_listed_with_a_reason():
    listed = set(re.findall(r"`([a-z ]+)`", section("Commands without --json")))
    without = {
        name for name, command in COMMANDS.items() if "--json" not in str([p.opts for p in command.params])
    }
    assert without == listed


def test_the_output_of_every_command_with_json_is_documented():
    rows = re.findall(r"^\| (`[^|]+`) \|", section("JSON output"), re.MULTILINE)
    documented = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    expected = [
        name for name, command in COMMANDS.items() if "--json" in str([p.opts for p in command.params])
    ]
    assert sorted(documented) == sorted(expected)


def test_the_commands_are_grouped():
    shown = invoke()
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout == invoke("--help").stdout
    headings = re.findall(r"^(\w+):$", shown.stdout, re.MULTILINE)
    assert headings == ["Sessions", "Serve", "Content", "Operate", "Options"]
    assert re.findall(r"^  ([a-z]+) ", shown.stdout.split("Serve:")[0], re.MULTILINE)[:2] == ["send", "tail"]
    assert max(map(len, shown.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("sned",), "Did you mean 'send'?"),
        (("session", "list"), "Did you mean 'sessions'?"),
        (("sessions", "lst"), "Did you mean 'list'"),
        (("workers", "--jsn"), "--json"),
    ],
    ids=" ".join,
)
def test_a_typo_is_an_error_with_a_suggestion(arguments: tuple[str, ...], hint: str, run: Run):
    code, stdout, stderr = run(*arguments)
    assert (code, stdout) == (ExitCode.ERROR, "")
    assert stderr.startswith("error: ")
    assert hint in stderr


@pytest.mark.parametrize(
    ("arguments", "command", "problem"),
    [
        (("sned",), "holdfast", "No such command 'sned'. Did you mean 'send'?"),
        (("sessions", "show"), "holdfast sessions show", "Missing argument 'session_id'."),
        (
            ("top", "--intervall", "1"),
            "holdfast top",
            "No such option: --intervall (Possible options: --interval).",
        ),
        (
            ("top", "--interval", "0"),
            "holdfast top",
            "Invalid value for '--interval': Input should be greater than or equal to 0.1.",
        ),
    ],
    ids=["command", "argument", "option", "value"],
)
def test_wrong_usage_is_reported_like_every_error(
    arguments: tuple[str, ...], command: str, problem: str, run: Run
):
    code, stdout, stderr = run(*arguments)
    assert (code, stdout) == (ExitCode.ERROR, "")
    assert stderr.startswith(f"error: {problem} Usage: `{command} ")
    assert stderr.endswith(f" Run `{command} --help` for details.\n")
    assert stderr.count("\n") == 1
    code, stdout, stderr = run(*arguments, "--json")
    error = json.loads(stdout)["error"]
    assert (code, error["code"], f"error: {error['message']}\n") == (ExitCode.ERROR, "bad_usage", stderr)
    assert (error["facts"]["problem"], error["facts"]["command"]) == (problem, command)


def test_every_exit_code_is_documented():
    documented = re.findall(r"^\| (\d+) \|", section("Exit codes"), re.MULTILINE)
    assert [int(code) for code in documented] == sorted(ExitCode)


def test_exit_codes_are_named():
    """A number in an exit would be missing from the table."""
    for file in Path(holdfast.cli.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"typer.Exit", "sys.exit"}:
                numbers = [
                    each.value
                    for part in node.args
                    for each in ast.walk(part)
                    if isinstance(each, ast.Constant)
                ]
                assert not [number for number in numbers if isinstance(number, int)], (file.name, node.lineno)


def test_help_is_quick():
    """Only the module of the command that runs is imported, and what it needs when it runs."""
    code = "import sys; from holdfast.cli import main\ntry: main()\nexcept SystemExit: pass\nprint([*sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1]
    assert "'holdfast.cli'" in modules
    for name in ("asyncio", "pydantic", "rich", "holdfast.config", "holdfast.store", "holdfast.cli.talk"):
        assert f"'{name}'" not in modules


def printed(table: TextTable, width: int) -> list[str]:
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def test_a_table_fits_the_terminal():
    table = TextTable("id", "status", "title", "active", "owner")
    table.add_row(
        "0" * 36, "running", "A title that is long enough to be cut somewhere", "2026-01-01 10:00:00Z", ""
    )
    assert printed(table, 200)[1].endswith("be cut somewhere  2026-01-01 10:00:00Z")
    for width in (60, 80, 90, 120):
        lines = printed(table, width)
        assert len(lines) == 2
        assert max(map(len, lines)) <= width
        assert lines[1].startswith("0" * 36)
        assert "owner" not in lines[0]
    assert printed(table, 80)[1] == f"{'0' * 36}  running  A title that is long enough to b…"
    assert printed(table, 20)[1] == f"{'0' * 19}…"


def test_the_overview_says_what_each_command_says():
    root: Any = typer.main.get_command(app)
    for rows in root.commands.headings.values():
        for name, text in rows:
            assert root.commands[name].get_short_help_str(100) == text
    assert root.commands["tokens"].hidden
