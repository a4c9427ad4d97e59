"""The `holdfast` command. Each group of subcommands is a module of its own."""

import sys
from typing import Annotated

import typer

from holdfast import __version__
from holdfast.cli import (
    copying,
    credentials,
    db,
    demo,
    doctor,
    history,
    importing,
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
from holdfast.cli.terminal import echo, print_json
from holdfast.errors import HoldfastError

app = typer.Typer(
    name="holdfast",
    help="Durable sessions for AI agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(db.app, name="db")
app.add_typer(runs.app, name="runs")
app.add_typer(shell.app, name="shell")
app.add_typer(media.app, name="media")
app.add_typer(sessions.app, name="sessions")
app.add_typer(retention.app, name="archive")
app.add_typer(importing.app, name="import")
app.add_typer(credentials.app, name="credentials")
app.add_typer(tokens.app, name="token")
app.add_typer(tokens.app, name="tokens", hidden=True)
for command in (
    serve.serve,
    demo.demo,
    worker.worker,
    worker.workers,
    doctor.doctor,
    doctor.top,
    talk.send,
    talk.tail,
    talk.interrupt,
    talk.approve,
    history.undo,
    history.rewind,
    history.compact,
    history.fork,
    history.settle,
    retention.audit,
    sweep.sweep,
    copying.copy,
):
    app.command()(command)


def _say_version(wanted: bool) -> None:
    if wanted:
        echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def holdfast(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Durable sessions for AI agents."""
    del show_version


def main() -> None:
    """Run the command; an error of our family is one line for a person, not a traceback."""
    try:
        app()
    except HoldfastError as error:
        if "--json" in sys.argv:
            print_json({"error": {"code": error.code, "message": str(error), "facts": error.facts}})
        echo(f"error: {error}", err=True)
        sys.exit(2)
