"""The `holdfast` command. Each module has the commands of one topic."""

import sys
from typing import Annotated, NoReturn

import typer

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.help import Commands, UsageError, bad_usage
from holdfast.errors import HoldfastError
from holdfast.version import __version__

_COMMANDS = {
    "Sessions": {
        "send": ("talk:send", "Send a message to a session."),
        "tail": ("talk:tail", "Print the events of a session and follow new ones."),
        "interrupt": ("talk:interrupt", "Stop the running turn of a session."),
        "cancel": ("talk:cancel", "Cancel one message of a session, even if it has not started."),
        "approve": ("talk:approve", "Approve or deny a tool call that waits for a person."),
        "signal": ("talk:signal", "Send a signal to a session."),
        "tool-result": ("tool_result:tool_result", "Deliver the result of a tool call that ran outside."),
        "inbox": ("inbox:inbox", "List the sessions that wait for a person, oldest first."),
        "dismiss": ("inbox:dismiss", "Dismiss the failure of the last turn of a session."),
        "undo": ("history:undo", "Undo the last message and everything after it."),
        "rewind": ("history:rewind", "Continue from an earlier checkpoint."),
        "undo-effects": ("history:undo_effects", "Undo what the steps of a turn did outside the session."),
        "retry": ("history:retry", "Continue a turn that failed, was interrupted or was given up."),
        "fork": ("history:fork", "Copy the history of a session into a new session."),
        "compact": ("history:compact", "Replace the history with a shorter one."),
        "settle": ("history:settle", "Record the outcome of a tool call whose outcome is unknown."),
        "schedule": ("schedules:app", "Submit messages at the times of cron expressions."),
        "sessions": ("sessions+retention+sweep:app", "List, show, export, clean and erase sessions."),
        "runs": ("runs:app", "Show, resume and fork recorded runs."),
        "replay": ("replay:replay", "Check a session against today's code of its agent."),
    },
    "Serve": {
        "serve": ("serve:serve", "Serve sessions over HTTP and run them in worker processes."),
        "worker": ("worker:worker", "Run sessions until SIGTERM or Ctrl-C."),
        "workers": ("worker:workers", "List workers and other holders of session leases."),
        "demo": ("demo:demo", "Start a server with a scripted agent, and print things to try."),
    },
    "Content": {
        "sweep": ("sweep:sweep", "Clean, archive and erase sessions that are due by policy."),
        "audit": ("retention:audit", "List the audit log, newest first."),
        "archive": ("archive:app", "Verify, show, build and import archives of sessions."),
        "media": ("media:app", "List, verify, move and collect media."),
        "import": ("importing:app", "Import sessions from another system."),
    },
    "Operate": {
        "doctor": ("doctor:doctor", "Check settings, store, migrations, workers, clock and disk."),
        "top": ("doctor:top", "Show the latest sessions and the workers, live."),
        "copy": ("copying:copy", "Copy all sessions of a store into another store."),
        "subscription": ("subscriptions:app", "Send notices of events to webhooks."),
        "mirror": ("mirror:app", "List the mirrors of journals, and forget one that was removed."),
        "budget": ("budgets:app", "Limit what sessions, owners and agents may use."),
        "usage": ("usage:usage", "Show model requests, tokens, cost and tool calls."),
        "db": ("db:app", "Upgrade, show and check the database."),
        "token": ("tokens:app", "Manage access tokens."),
        "tokens": ("tokens:app", ""),  # as written by mistake
        "credentials": ("credentials:app", "Set, list and delete the credentials of a session."),
        "shell": ("shell:app", "Run, list and stop recorded shell commands."),
    },
}
"""By heading: the module and the help of each command. Only the module of the command that runs is imported."""

app = Commands(
    "Durable sessions for AI agents.",
    later=_COMMANDS,
    name="holdfast",
    epilog="Run `holdfast COMMAND --help` for the options and examples of a command.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"holdfast {__version__}")
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
        typer.echo("Aborted.", err=True)
        sys.exit(ExitCode.FAILED)
    except UsageError as error:
        _fail(bad_usage(error))
    except HoldfastError as error:
        _fail(error)
    sys.exit(code)


def _fail(error: HoldfastError) -> NoReturn:
    from holdfast.cli.terminal import echo, print_json

    if "--json" in sys.argv:
        print_json({"error": {"code": error.code, "message": str(error), "facts": error.facts}})
    echo(f"error: {error}", err=True)
    sys.exit(ExitCode.ERROR)
