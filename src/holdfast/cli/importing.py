"""`holdfast import`: import sessions and shell commands of other systems."""

import asyncio
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.cli.help import Commands
from holdfast.cli.options import AsJson, MediaUrl, StoreUrl, actor, chosen_store, opened_media
from holdfast.cli.terminal import new_console, one_line, print_json

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.importers import Report
    from holdfast.importers.report import Progress as OnProgress

app = Commands("Import sessions from another system.")
Owner = Annotated[str, typer.Option(help="Owner of the imported records.")]
Agent = Annotated[
    str | None,
    typer.Option(help="Agent that continues the sessions. Default: the recorded agent.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Read and check everything, but change nothing.")]


@app.command()
def harness(
    source: Annotated[
        str, typer.Argument(help="A folder, a SQLite file, postgresql://… or mongodb://….", metavar="source")
    ],
    table: Annotated[
        str, typer.Option(metavar="PREFIX", help="PostgreSQL: prefix of the table names.")
    ] = "step_persistence",
    database: Annotated[
        str | None,
        typer.Option(help="MongoDB: name of the database. Default: that of the URL.", show_default=False),
    ] = None,
    rename: Annotated[
        bool,
        typer.Option("--rename", help="Give new ids to conversations whose ids are not valid session ids."),
    ] = False,
    owner: Owner = "local",
    agent: Agent = None,
    dry_run: DryRun = False,
    store: StoreUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Import the step store of pydantic-ai-harness.

    Each conversation becomes a session. A second import changes nothing; with another
    `--agent`, it only changes the agent.

    Examples:
        holdfast import harness ./steps --dry-run
        holdfast import harness postgresql://localhost/app --owner ada
    """

    async def work() -> "Report":
        from holdfast.importers import import_harness
        from holdfast.importers.harness_address import open_source

        async with (
            opened_media(store, media) as kept,
            open_source(source, table=table, database=database) as opened,
        ):
            with _shown(as_json) as progress:
                return await import_harness(
                    kept.store,
                    kept,
                    opened,
                    owner=owner,
                    agent=agent,
                    rename=rename,
                    actor=actor(),
                    dry_run=dry_run,
                    progress=progress,
                )

    _print_report(asyncio.run(work()), as_json)


@app.command()
def agentex(
    file: Annotated[Path, typer.Argument(help="JSON file with the snapshot of a task.")],
    owner: Owner = "local",
    agent: Agent = None,
    dry_run: DryRun = False,
    store: StoreUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Import a task of scale-agentex from its exported snapshot.

    The task becomes a session. A second import changes nothing; with another
    `--agent`, it only changes the agent.

    Examples:
        holdfast import agentex task.json --owner ada
    """

    async def work() -> "Report":
        from holdfast.importers import import_agentex

        async with opened_media(store, media) as kept:
            with _shown(as_json) as progress:
                return await import_agentex(
                    kept.store,
                    kept,
                    file,
                    owner=owner,
                    agent=agent,
                    actor=actor(),
                    dry_run=dry_run,
                    progress=progress,
                )

    _print_report(asyncio.run(work()), as_json)


@app.command(name="ml-intern")
def ml_intern(
    source: Annotated[str, typer.Argument(help="URL of its database, mongodb://….", metavar="source")],
    database: Annotated[
        str | None, typer.Option(help="Name of the database. Default: that of the URL.", show_default=False)
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(help="Owner of the sessions. Default: the user of each session.", show_default=False),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="Agent that continues the sessions. Default: ml-intern.", show_default=False),
    ] = None,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="Also import sessions that were deleted in ml-intern.")
    ] = False,
    dry_run: DryRun = False,
    store: StoreUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Import the sessions of ml-intern from its MongoDB.

    A second import changes nothing; with another `--agent`, it only changes the agent.

    Examples:
        holdfast import ml-intern mongodb://localhost/intern --dry-run
    """

    async def work() -> "Report":
        from holdfast.importers import import_ml_intern
        from holdfast.importers.harness_address import without_password
        from holdfast.importers.mongo import open_database

        name = without_password(source)
        async with opened_media(store, media) as kept, open_database(source, name, database) as opened:
            with _shown(as_json) as progress:
                return await import_ml_intern(
                    kept.store,
                    kept,
                    opened,
                    source=name,
                    owner=owner,
                    agent=agent,
                    deleted=deleted,
                    actor=actor(),
                    dry_run=dry_run,
                    progress=progress,
                )

    _print_report(asyncio.run(work()), as_json)


@app.command()
def openhands(
    folder: Annotated[Path, typer.Argument(help="Folder with the bash events.")],
    session: Annotated[
        str | None, typer.Option(help="Session that the commands belong to.", show_default=False)
    ] = None,
    owner: Owner = "local",
    dry_run: DryRun = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Import the bash events of an OpenHands agent server.

    They become shell commands. A second import changes nothing.

    Examples:
        holdfast import openhands ./bash_events --session s1
    """

    async def work() -> "Report":
        from holdfast.importers import import_openhands

        async with chosen_store(store) as opened:
            with _shown(as_json) as progress:
                return await import_openhands(
                    opened,
                    folder,
                    owner=owner,
                    session_id=session,
                    actor=actor(),
                    dry_run=dry_run,
                    progress=progress,
                )

    _print_report(asyncio.run(work()), as_json)


@contextmanager
def _shown(as_json: bool) -> "Generator[OnProgress, None, None]":
    """Show a progress bar on a terminal. The total may become known later."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = as_json or not console.is_terminal
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task("importing", total=None)

        def progress(by: int, total: int | None) -> None:
            bar.update(task, advance=by, total=total)

        yield progress


def _print_report(report: "Report", as_json: bool) -> None:
    if as_json:
        print_json(asdict(report))
        return
    console = new_console()
    would = "would be imported" if report.dry_run else "imported"
    summary = f"Found {report.found} {report.unit}: {report.imported} {would}, {report.already_present} already present and unchanged."
    if report.reassigned:
        summary += f" {report.reassigned} {'would be' if report.dry_run else 'were'} given to another agent."
    elif not report.imported and not report.skipped:
        summary += " Nothing to do." if report.dry_run else " Nothing was changed."
    console.print(summary, soft_wrap=True)
    for name, count in report.records.items():
        console.print(f"{name:<16}{count}", soft_wrap=True)
    for title, notes in (
        ("Skipped", report.skipped),
        ("Not recognized, or not imported exactly", report.not_understood),
    ):
        if notes:
            console.print(f"{title}:", soft_wrap=True)
        for note in notes:
            examples = ", ".join(note.examples) + (", …" if note.count > len(note.examples) else "")
            console.print(one_line(f"  {note.count:>6} {note.what}: {examples}"), soft_wrap=True)
