"""`holdfast shell`: run commands on record, and look at, stop or purge those of any process."""

import asyncio
import json
import sys
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated

import typer
from pydantic_core import to_jsonable_python
from rich.table import Table
from rich.text import Text

from holdfast.cli.options import AsJson, StoreUrl, chosen_store
from holdfast.cli.terminal import echo, new_console, safe
from holdfast.config import load_settings
from holdfast.errors import BadInput
from holdfast.types import Command, Output

app = typer.Typer(help="Run shell commands on record, and look after those that were.", no_args_is_help=True)
CommandId = Annotated[str, typer.Argument(help="The command's id.")]

_TIMED_OUT, _STOPPED = 124, 143  # as `timeout` and the shell have it
_INTERRUPTED = 130
_LEAST = {"id": 36, "state": 9, "started": 14}  # columns, on a narrow terminal
_COLOURS = {"running": "yellow", "done": "green", "lost": "red", "killed": "red", "timed_out": "red"}


@app.command()
def run(
    command: Annotated[str, typer.Argument(help="A line for the shell.")],
    cwd: Annotated[str | None, typer.Option("--cwd", help="The folder to run it in.")] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds after which it is ended.")] = 300.0,
    session: Annotated[str | None, typer.Option("--session", help="The session it belongs to.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Run a command, show its output while it runs, and exit with its code: 124 if it timed out, 143 if stopped."""
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
        raise typer.Exit(_INTERRUPTED) from None
    if as_json:
        _print_json({"command": asdict(ended), "stdout": stdout, "stderr": stderr})
    raise typer.Exit(_exit_code(ended))


@app.command("list")
def list_(
    session: Annotated[str | None, typer.Option("--session", help="Only those of this session.")] = None,
    running: Annotated[bool, typer.Option("--running", help="Only those that run.")] = False,
    limit: Annotated[int, typer.Option("--limit", help="How many at the most.")] = 50,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List commands and their results, newest first, also those whose output was purged."""

    async def work() -> list[Command]:
        async with chosen_store(store) as opened:
            state = "running" if running else None
            return list((await opened.commands(session_id=session, state=state, limit=limit)).items)

    result = asyncio.run(work())
    if as_json:
        _print_json({"commands": [asdict(command) for command in result]})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "state", "exit", "started", "command"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=_LEAST.get(name, len(name)))
    for each in result:
        table.add_row(
            each.id,
            _state(each),
            "" if each.exit_code is None else str(each.exit_code),
            f"{each.started_at:%m-%d %H:%M:%S}" if each.started_at else "",
            Text("(purged)" if each.purged_at else " ".join(each.command.split())),
        )
    new_console().print(table)


@app.command()
def output(
    command_id: CommandId,
    after: Annotated[int, typer.Option("--after", help="Only what follows this number.")] = -1,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the command has ended.")] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print what a command wrote, stdout to stdout and stderr to stderr; with `--json` one line for each output."""

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
        raise typer.Exit(_INTERRUPTED) from None


@app.command()
def stop(command_id: CommandId, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Stop a command, whichever process runs it; exit 1 if it has not ended after five seconds."""
    from holdfast.shell import ShellService

    async def work() -> Command:
        # A service of our own: it also records what a dead one has left running.
        async with chosen_store(store) as opened, ShellService(opened, settings=load_settings()) as shell:
            return await shell.stop(command_id)

    ended = asyncio.run(work())
    if as_json:
        _print_json({"command": asdict(ended)})
    else:
        echo(f"{ended.id} {ended.state if ended.ended_at else 'does not end'}")
    raise typer.Exit(0 if ended.ended_at else 1)


@app.command()
def sweep(
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than", help="Seconds; else HOLDFAST_SHELL_RETENTION_SECONDS.", show_default=False
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete the output of commands that ended long enough ago. Their results stay."""
    from holdfast.shell.retention import purge

    seconds = load_settings().shell_retention_seconds if older_than is None else older_than
    if seconds is None:
        raise BadInput(problem="give --older-than SECONDS, or set HOLDFAST_SHELL_RETENTION_SECONDS")

    async def work() -> int:
        async with chosen_store(store) as opened:
            return await purge(opened, seconds)

    gone = asyncio.run(work())
    if as_json:
        _print_json({"deleted": gone})
    else:
        echo(f"{gone} events deleted")


def _exit_code(command: Command) -> int:
    if command.exit_code is not None and command.exit_code >= 0:
        return command.exit_code
    return _TIMED_OUT if command.state == "timed_out" else _STOPPED


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
