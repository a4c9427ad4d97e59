"""`holdfast sweep` applies the retention policies; `holdfast sessions retention` shows how they apply to one session."""

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.options import AsJson, ServerUrl, SessionId, StoreUrl, connected
from holdfast.cli.sessions import app as sessions
from holdfast.cli.terminal import (
    TextTable,
    echo,
    new_console,
    one_line,
    print_json,
    progress_bar,
    record,
    time_text,
)

if TYPE_CHECKING:
    from holdfast.api.retention import RetentionStatus, SweepResult


def sweep(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="Maximum number of sessions.")
    ] = 10_000,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Clean, archive and erase sessions that are due by policy.

    Exits with 1 if it failed for a session.

    Examples:
        holdfast sweep --dry-run
        holdfast sweep --limit 100
    """

    async def work() -> "SweepResult":
        async with connected(store, url) as client:
            with progress_bar("sweeping", shown=not as_json):
                return await client.sweep(dry_run=dry_run, limit=limit)

    done = asyncio.run(work())
    if as_json:
        print_json(record(done))
    else:
        _show(done)
    raise typer.Exit(ExitCode.FAILED if done.problem or done.outcomes.get("failed") else ExitCode.OK)


def _show(done: "SweepResult") -> None:
    if done.items:
        table = TextTable("session", "outcome", "action", "rows", "policy")
        for outcome in done.items:
            result = outcome.outcome.replace("_", " ")
            table.add_row(
                one_line(outcome.session_id),
                f"{result}: {outcome.guard}" if outcome.guard else result,
                outcome.action,
                str(sum(outcome.deleted.values())),
                one_line(outcome.policy),
            )
        new_console().print(table)
    for outcome in done.items:
        if outcome.outcome == "failed":
            echo(f"failed: {one_line(outcome.problem)}", err=True)
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(done.outcomes.items()))
    echo(f"Due: {counts or 'nothing'}.")
    if done.submissions or done.shell_events or done.blobs or done.usage:
        echo(
            f"Deleted: {done.submissions} submissions, {done.shell_events} shell events, {done.blobs} blobs, {done.usage} sums of usage."
        )
    if done.problem:
        echo(f"The sweep ended early: {done.problem}", err=True)
    elif done.more:
        echo("More sessions are due. Run it again.")


@sessions.command()
def retention(
    session_id: SessionId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Show which policy applies to a session, and when it is due.

    Also shows any hold or guard that prevents it now.

    Examples:
        holdfast sessions retention s1
    """

    async def work() -> "RetentionStatus":
        async with connected(store, url) as client:
            return await (await client.session(session_id)).retention()

    result = asyncio.run(work())
    if as_json:
        print_json(record(result))
        return
    console = new_console()
    lines = {
        "policy": result.policy or "none",
        "action": result.action,
        "rehydrated": _time(result.rehydrated_at),
        "due": _time(result.due_at) or "never",
        "held by": result.held_by,
        "blocked by": result.guard,
        "": result.problem,
        "cleaned": _time(result.cleaned_at),
        "archive": result.archive,
    }
    for name, value in lines.items():
        if value:
            console.print(Text(f"{name:<16}").append_text(one_line(value)), soft_wrap=True)


def _time(at: datetime | None) -> str:
    return time_text(at).plain
