"""`holdfast db`: upgrade, show and check the database of a store."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.help import Commands
from holdfast.cli.options import AsJson, StoreUrl, chosen_store
from holdfast.cli.terminal import TextTable, echo, new_console
from holdfast.diagnostics import SchemaStatus, StoreStats
from holdfast.errors import StoreTooOld

if TYPE_CHECKING:
    from holdfast.retention import Forecast

app = Commands("Upgrade, show and check the database.")


@app.command()
def upgrade(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Apply the missing migrations.

    Several processes may do this at the same time.

    Examples:
        holdfast db upgrade
        holdfast db upgrade --store postgresql://localhost/holdfast
    """

    async def work() -> tuple[str, int]:
        async with chosen_store(store, upgrade=True) as opened:
            return opened.url, (await opened.schema()).version

    url, version = asyncio.run(work())
    if as_json:
        echo(json.dumps({"store": url, "version": version}))
    else:
        new_console().print(f"{url} is at schema version {version}.", highlight=False)


@app.command()
def status(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show the schema version and how much the store contains.

    Examples:
        holdfast db status --json
    """

    async def work() -> dict[str, object]:
        closed = chosen_store(store)
        try:
            async with closed as opened:
                schema = await opened.schema()
        except StoreTooOld as old:
            version, latest = int(str(old.facts["found"])), int(str(old.facts["known"]))
            schema = SchemaStatus(engine=closed.engine, version=version, latest=latest)
        return {"store": closed.url, **asdict(schema)}

    result = asyncio.run(work())
    if as_json:
        echo(json.dumps(result))
        return
    for name, value in result.items():
        new_console().print(f"{name.replace('_', ' '):<16} {value}", highlight=False)
    if result["version"] != result["latest"]:
        new_console().print("Run `holdfast db upgrade`.")
    if result["expired_holders"]:
        new_console().print("The leases of expired holders have ended: workers take over their sessions.")


@app.command()
def stats(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show the size and growth of the database, and sessions due.

    Numbers of rows and freed bytes are estimates. The cost depends on recent activity, not on the size.

    Examples:
        holdfast db stats
        holdfast db stats --store postgresql://localhost/holdfast --json
    """

    async def work() -> "tuple[str, StoreStats, Forecast | None]":
        from holdfast.retention import forecast

        async with chosen_store(store) as opened:
            return opened.url, await opened.stats(), await forecast(opened)

    url, result, due = asyncio.run(work())
    if as_json:
        echo(json.dumps({"store": url, **asdict(result), "retention": None if due is None else asdict(due)}))
        return
    console = new_console()
    for name, value in {"store": url, **_stats_lines(result, due)}.items():
        console.print(f"{name:<16} {value}", soft_wrap=True)
    if result.tables:
        table = TextTable("table", "size", "rows (estimate)")
        for each in result.tables:
            table.add_row(each.name, decimal(each.bytes), str(each.rows))
        console.print(table)


def _stats_lines(result: StoreStats, due: "Forecast | None") -> dict[str, str]:
    lines = {"size": decimal(result.bytes)}
    if result.free_bytes is not None:
        lines["free in it"] = decimal(result.free_bytes)
    if result.wal_bytes is not None:
        lines["write-ahead log"] = decimal(result.wal_bytes)
    for name, growth in (("last 24 hours", result.last_day), ("last 7 days", result.last_week)):
        lines[name] = f"{_count(growth.sessions, 'session')}, {_count(growth.events, 'event')}"
    if due is None:
        lines["retention"] = "no policy is configured"
        return lines
    counts = ", ".join(f"{count} to {action}" for action, count in due.due.items())
    lines["retention"] = f"due: {counts}{'; more may be due' if due.more else ''}"
    lines["would free"] = f"about {decimal(due.bytes)}, estimated from {_count(due.sampled, 'session')}"
    return lines


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@app.command()
def check(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Check every invariant of the store.

    Changes nothing. Exits with 1 if an invariant is violated. A terminal shows which invariant is being checked.

    Examples:
        holdfast db check
    """

    async def work(show: Callable[[str], None]) -> list[dict[str, object]]:
        def progress(name: str, number: int, total: int) -> None:
            show(f"{number} of {total}: {name}")

        async with chosen_store(store) as opened:
            return [asdict(violation) for violation in await opened.check(progress=progress)]

    with Console(stderr=True).status("opening the store") as status:
        violations = asyncio.run(work(status.update))
    if as_json:
        echo(json.dumps({"violations": violations}))
    elif violations:
        for violation in violations:
            line = f"{violation['invariant']}: session {violation['session_id']}: {violation['detail']}"
            new_console().print(Text("violated ", style="red").append(line, style=""), soft_wrap=True)
    else:
        new_console().print("Every invariant holds.")
    raise typer.Exit(ExitCode.FAILED if violations else ExitCode.OK)
