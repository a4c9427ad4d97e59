"""`holdfast shell`: run, list, stop and purge shell commands."""

import asyncio
import json
import sys
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated

import typer
from pydantic_core import to_jsonable_python
from rich.text import Text

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.help import Commands
from holdfast.cli.options import AsJson, StoreUrl, chosen_store
from holdfast.cli.terminal import TextTable, echo, new_console, one_line, safe, time_text
from holdfast.commands import Command, Output
from holdfast.config import load_settings
from holdfast.errors import BadInput

app = Commands("Run, list and stop recorded shell commands.")
CommandId = Annotated[str, typer.Argument(help="Id of the command.")]

_COLOURS = {"running": "yellow", "done": "green", "lost": "red", "killed": "red", "timed_out": "red"}


@app.command()
def run(
    command: Annotated[str, typer.Argument(help="Command line for the shell.")],
    cwd: Annotated[str | None, typer.Option("--cwd", metavar="FOLDER", help="Working directory.")] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="Stop the command after this time.")
    ] = 300.0,
    session: Annotated[
        str | None, typer.Option("--session", help="Session that the command belongs to.")
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Run a shell command and record it.

    Prints the output while the command runs, and exits with its exit code: 124 if it timed out, 143 if it was stopped.

    Examples:
        holdfast shell run "make test" --timeout 600
        holdfast shell run "git status" --cwd ./repo --session s1
    """
    from holdfast.shell import ShellService

    async def work() -> tuple[Command, str, str]:
        texts: tuple[list[str], list[str]] = ([], [])
        settings = load_settings()
        async with (
            chosen_store(store, upgrade=True) as opened,
            ShellService(opened, settings=settings) as shell,
        ):
            started = await shell.start(command, cwd=cwd, timeout=timeout, session_id=session)
            async with aclosing(shell.follow(started.id)) as outputs:
                async for output in outputs:
                    if as_json:
                        texts[0].append(output.stdout or "")
                        texts[1].append(output.stderr or "")
                    else:
                        _show(output)
            return await opened.command(started.id), "".join(texts[0]), "".join(texts[1])

    try:
        ended, stdout, stderr = asyncio.run(work())
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        _print_json({"command": asdict(ended), "stdout": stdout, "stderr": stderr})
    raise typer.Exit(_exit_code(ended))


@app.command("list")
def list_(
    session: Annotated[str | None, typer.Option("--session", help="Only commands of this session.")] = None,
    running: Annotated[bool, typer.Option("--running", help="Only running commands.")] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="Maximum number of results.")] = 50,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List commands and their results, newest first.

    Commands stay in the list after their output was purged.

    Examples:
        holdfast shell list --running
        holdfast shell list --session s1 --json
    """

    async def work() -> list[Command]:
        async with chosen_store(store) as opened:
            state = "running" if running else None
            return list((await opened.commands(session_id=session, state=state, limit=limit)).items)

    result = asyncio.run(work())
    if as_json:
        _print_json({"commands": [asdict(command) for command in result]})
        return
    table = TextTable("id", "state", "command", "exit", "started")
    for each in result:
        table.add_row(
            each.id,
            _state(each),
            one_line("(purged)" if each.purged_at else each.command),
            "" if each.exit_code is None else str(each.exit_code),
            time_text(each.started_at),
        )
    new_console().print(table)


@app.command()
def output(
    command_id: CommandId,
    after: Annotated[
        int, typer.Option("--after", metavar="ORDER", help="Only output after this number.")
    ] = -1,
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing until the command ends.")] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print the output of a command.

    Its stdout goes to stdout, and its stderr to stderr. With --json, each output is one line.

    Examples:
        holdfast shell output 0d5a1f6e4c9b4a7f8e2d3c1b5a697887 --follow
    """

    async def work() -> None:
        async with chosen_store(store) as opened:
            if follow:
                async with aclosing(opened.watch_outputs(command_id, after=after)) as outputs:
                    async for each in outputs:
                        _print(each, as_json)
                return
            last = after
            while page := await opened.outputs(command_id, after=last):
                for each in page:
                    _print(each, as_json)
                last = page[-1].order

    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None


@app.command()
def stop(command_id: CommandId, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Stop a command, whichever process started it.

    Exits with 1 if the command has not ended after five seconds.

    Examples:
        holdfast shell stop 0d5a1f6e4c9b4a7f8e2d3c1b5a697887
    """
    from holdfast.shell import ShellService

    async def work() -> Command:
        # A service in this process also records the end of commands that a dead service left running.
        async with chosen_store(store) as opened, ShellService(opened, settings=load_settings()) as shell:
            return await shell.stop(command_id)

    ended = asyncio.run(work())
    if as_json:
        _print_json({"command": asdict(ended)})
    else:
        echo(f"Command {ended.id} {'ended: ' + ended.state if ended.ended_at else 'has not ended'}.")
    raise typer.Exit(ExitCode.OK if ended.ended_at else ExitCode.FAILED)


@app.command()
def sweep(
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than",
            metavar="SECONDS",
            help="Minimum age. Default: HOLDFAST_SHELL_RETENTION_SECONDS.",
            show_default=False,
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete the output of old commands.

    The commands and their results are kept.

    Examples:
        holdfast shell sweep --older-than 604800
    """
    from holdfast.shell.retention import purge

    seconds = load_settings().shell_retention_seconds if older_than is None else older_than
    if seconds is None:
        raise BadInput(problem="pass --older-than SECONDS, or set HOLDFAST_SHELL_RETENTION_SECONDS")

    async def work() -> int:
        async with chosen_store(store) as opened:
            return await purge(opened, seconds)

    deleted = asyncio.run(work())
    if as_json:
        _print_json({"deleted": deleted})
    else:
        echo(f"Deleted {deleted} events.")


def _exit_code(command: Command) -> int:
    if command.exit_code is not None and command.exit_code >= 0:
        return command.exit_code
    return ExitCode.COMMAND_TIMED_OUT if command.state == "timed_out" else ExitCode.COMMAND_STOPPED


def _state(command: Command) -> Text:
    if command.state == "running" and command.service is None:
        return Text("orphaned", style="red")
    return Text(command.state, style=_COLOURS.get(command.state, ""))


def _print(each: Output, as_json: bool) -> None:
    if as_json:
        _print_json(asdict(each))
    else:
        _show(each)


def _show(each: Output) -> None:
    for text, stream in ((each.stdout, sys.stdout), (each.stderr, sys.stderr)):
        if text:
            stream.buffer.write((safe(text) if stream.isatty() else text).encode())
            stream.flush()


def _print_json(value: object) -> None:
    echo(json.dumps(to_jsonable_python(value)))
