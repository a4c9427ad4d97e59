"""The `holdfast` command. Each module has the commands of one topic."""

import sys
from typing import Annotated, NoReturn

import typer

from holdfast import __version__
from holdfast.cli import (
    archive,
    copying,
    credentials,
    db,
    demo,
    doctor,
    history,
    importing,
    inbox,
    media,
    retention,
    runs,
    serve,
    sessions,
    shell,
    sweep,
    talk,
    tokens,
    worker,
)
from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.help import Commands, UsageError, bad_usage
from holdfast.cli.terminal import echo, print_json
from holdfast.errors import HoldfastError

app = Commands(
    "Durable sessions for AI agents.",
    name="holdfast",
    epilog="Run `holdfast COMMAND --help` for the options and examples of a command.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)
for panel, commands in {
    "Sessions": (
        talk.send,
        talk.tail,
        talk.interrupt,
        talk.approve,
        inbox.inbox,
        history.undo,
        history.rewind,
        history.retry,
        history.fork,
        history.compact,
        history.settle,
    ),
    "Serve": (serve.serve, worker.worker, worker.workers, demo.demo),
    "Content": (sweep.sweep, retention.audit),
    "Operate": (doctor.doctor, doctor.top, copying.copy),
}.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(sessions.app, name="sessions", rich_help_panel="Sessions")
app.add_typer(runs.app, name="runs", rich_help_panel="Sessions")
app.add_typer(archive.app, name="archive", rich_help_panel="Content")
app.add_typer(media.app, name="media", rich_help_panel="Content")
app.add_typer(importing.app, name="import", rich_help_panel="Content")
app.add_typer(db.app, name="db", rich_help_panel="Operate")
app.add_typer(tokens.app, name="token", rich_help_panel="Operate")
app.add_typer(tokens.app, name="tokens", hidden=True)
app.add_typer(credentials.app, name="credentials", rich_help_panel="Operate")
app.add_typer(shell.app, name="shell", rich_help_panel="Operate")


def _print_version(requested: bool) -> None:
    if requested:
        echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def holdfast(
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Durable sessions for AI agents."""
    del show_version


def main() -> None:
    """Run the command line. Print an error as one line on standard error, without a traceback."""
    try:
        code = app(prog_name="holdfast", standalone_mode=False)
    except typer.Abort:
        echo("Aborted.", err=True)
        sys.exit(ExitCode.FAILED)
    except UsageError as error:
        _fail(bad_usage(error))
    except HoldfastError as error:
        _fail(error)
    sys.exit(code)


def _fail(error: HoldfastError) -> NoReturn:
    if "--json" in sys.argv:
        print_json({"error": {"code": error.code, "message": str(error), "facts": error.facts}})
    echo(f"error: {error}", err=True)
    sys.exit(ExitCode.ERROR)
