"""The `holdfast` command. Each group of subcommands is a module of its own."""

import sys

import typer

from holdfast.cli import db
from holdfast.errors import HoldfastError

app = typer.Typer(
    name="holdfast",
    help="Durable sessions for AI agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(db.app, name="db")


@app.callback()
def holdfast() -> None:
    """Durable sessions for AI agents."""


def main() -> None:
    """Run the command; an error of our family is one line for a person, not a traceback."""
    try:
        app()
    except HoldfastError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
