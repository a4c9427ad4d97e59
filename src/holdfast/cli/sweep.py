"""`holdfast sweep` applies the retention policies; `holdfast sessions retention` shows how they apply to one session."""

import asyncio
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.options import (
    AsJson,
    ServerUrl,
    SessionId,
    StoreUrl,
    actor,
    chosen_server,
    chosen_sessions,
    chosen_store,
)
from holdfast.cli.sessions import app as sessions
from holdfast.cli.terminal import TextTable, echo, new_console, one_line, print_json, progress_bar, time_text
from holdfast.errors import BadSettings, SweepRunning
from holdfast.store import Store

if TYPE_CHECKING:
    from holdfast.retention import Outcome, Swept


def sweep(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Maximum number of sessions.")] = None,
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
    outcomes: list[Outcome] = []

    async def work() -> "Swept":
        from holdfast.media import open_media
        from holdfast.retention import Outcome, Swept, sweep
        from holdfast.retention.sweep import DUTY, is_configured

        if (server := chosen_server(store, url)) is not None:
            async with server:
                options = {"dry_run": dry_run} | ({} if limit is None else {"limit": limit})
                swept: dict[str, Any] = await server.sweep(**options)
            outcomes.extend(Outcome(**item) for item in swept.pop("items"))
            return Swept(**swept)
        async with chosen_store(store) as opened:
            if not is_configured(opened):
                raise BadSettings(
                    problem="There is no retention policy. Set HOLDFAST_RETENTION, or [[retention]] in holdfast.toml."
                )
            with progress_bar("sweeping", shown=not as_json) as advance:

                def add(outcome: "Outcome") -> None:
                    outcomes.append(outcome)
                    advance(1)

                media = open_media(store=opened)
                done = await sweep(opened, media, actor=actor(), dry_run=dry_run, limit=limit, on_outcome=add)
            if done is None:
                duty = await opened.duty(DUTY)
                raise SweepRunning(holder=duty.holder if duty and duty.holder else "another")
            return done

    done = asyncio.run(work())
    if as_json:
        print_json({"items": [asdict(outcome) for outcome in outcomes], **asdict(done)})
    else:
        _show(outcomes, done)
    raise typer.Exit(ExitCode.FAILED if done.problem or done.outcomes.get("failed") else ExitCode.OK)


def _show(outcomes: "list[Outcome]", done: "Swept") -> None:
    if outcomes:
        table = TextTable("session", "outcome", "action", "rows", "policy")
        for outcome in outcomes:
            result = outcome.outcome.replace("_", " ")
            table.add_row(
                one_line(outcome.session_id),
                f"{result}: {outcome.guard}" if outcome.guard else result,
                outcome.action,
                str(sum(outcome.deleted.values())),
                one_line(outcome.policy),
            )
        new_console().print(table)
    for outcome in outcomes:
        if outcome.outcome == "failed":
            echo(f"failed: {one_line(outcome.problem)}", err=True)
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(done.outcomes.items()))
    echo(f"Due: {counts or 'nothing'}.")
    if done.submissions or done.shell_events or done.blobs:
        echo(
            f"Deleted: {done.submissions} submissions, {done.shell_events} shell events, {done.blobs} blobs."
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

    Also shows a hold or a guard that prevents it now.

    Examples:
        holdfast sessions retention s1
    """

    async def work() -> dict[str, Any]:
        async with chosen_sessions(store, url) as opened:
            if not isinstance(opened, Store):
                return await opened.retention(session_id)
            from holdfast.retention import outlook

            result = await outlook(opened, session_id)
        terms = None if result.terms is None else result.terms.model_dump(exclude_unset=True)
        return {**asdict(result), "terms": terms, "action": result.terms and result.terms.action}

    result = asyncio.run(work())
    if as_json:
        print_json(result)
        return
    console = new_console()
    lines = {
        "policy": result["policy"] or "none",
        "action": result["action"],
        "rehydrated": _time(result["rehydrated_at"]),
        "due": _time(result["due_at"]) or "never",
        "held by": result["held_by"],
        "blocked by": result["guard"],
        "": result["problem"],
        "cleaned": _time(result["cleaned_at"]),
        "archive": result["archive"],
    }
    for name, value in lines.items():
        if value:
            console.print(Text(f"{name:<16}").append_text(one_line(value)), soft_wrap=True)


def _time(at: datetime | str | None) -> str:
    return time_text(datetime.fromisoformat(at) if isinstance(at, str) else at).plain
