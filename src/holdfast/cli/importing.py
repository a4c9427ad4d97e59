"""`holdfast import`: what other systems keep, as sessions and shell commands of this store."""

import asyncio
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.cli.options import AsJson, StoreUrl, chosen_store
from holdfast.cli.retention import MediaUrl, actor, opened_media
from holdfast.cli.terminal import new_console, one_line, print_json

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.importers import Report
    from holdfast.importers.report import Progress as Told

app = typer.Typer(help="Move in from another system; a second import changes nothing.", no_args_is_help=True)
Owner = Annotated[str, typer.Option(help="Who is to own what is imported.")]
Agent = Annotated[
    str | None, typer.Option(help="The agent that is to go on; else the one on record.", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Read and check everything, and change nothing.")]


@app.command()
def harness(
    source: Annotated[
        str, typer.Argument(help="A folder, a SQLite file, postgresql://… or mongodb://…", metavar="SOURCE")
    ],
    table: Annotated[
        str, typer.Option(help="How the names of the tables begin, on PostgreSQL.")
    ] = "step_persistence",
    database: Annotated[
        str | None, typer.Option(help="The database, on MongoDB; else that of the URL.", show_default=False)
    ] = None,
    rename: Annotated[
        bool, typer.Option("--rename", help="Give other ids to conversations whose own cannot be ids here.")
    ] = False,
    owner: Owner = "local",
    agent: Agent = None,
    dry_run: DryRun = False,
    store: StoreUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Import the step store of pydantic-ai-harness: each conversation becomes a session."""

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

    _say(asyncio.run(work()), as_json)


@app.command()
def agentex(
    file: Annotated[Path, typer.Argument(help="The snapshot of a task, as JSON.")],
    owner: Owner = "local",
    agent: Agent = None,
    dry_run: DryRun = False,
    store: StoreUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Import the exported snapshot of a task of scale-agentex as a session."""

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

    _say(asyncio.run(work()), as_json)


@app.command(name="ml-intern")
def ml_intern(
    source: Annotated[str, typer.Argument(help="mongodb://…", metavar="SOURCE")],
    database: Annotated[
        str | None, typer.Option(help="The database; else that of the URL.", show_default=False)
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(help="Owner of the sessions; else the user of each session there.", show_default=False),
    ] = None,
    agent: Annotated[str, typer.Option(help="The agent that continues the sessions.")] = "ml-intern",
    deleted: Annotated[
        bool, typer.Option("--deleted", help="Import sessions that were deleted there, too.")
    ] = False,
    dry_run: DryRun = False,
    store: StoreUrl = None,
    media: MediaUrl = None,
    as_json: AsJson = False,
) -> None:
    """Import the sessions of ml-intern from its MongoDB."""

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

    _say(asyncio.run(work()), as_json)


@app.command()
def openhands(
    folder: Annotated[Path, typer.Argument(help="The folder of bash events.")],
    session: Annotated[
        str | None, typer.Option(help="Make them commands of this session.", show_default=False)
    ] = None,
    owner: Owner = "local",
    dry_run: DryRun = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Import the bash events of the OpenHands agent server as shell commands."""

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

    _say(asyncio.run(work()), as_json)


@contextmanager
def _shown(as_json: bool) -> "Generator[Told, None, None]":
    """Show on a terminal how far it is, as soon as it is known how much there is."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = as_json or not console.is_terminal
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task("importing", total=None)

        def progress(by: int, total: int | None) -> None:
            bar.update(task, advance=by, total=total)

        yield progress


def _say(report: "Report", as_json: bool) -> None:
    if as_json:
        print_json(asdict(report))
        return
    console = new_console()
    would = "would be imported" if report.dry_run else "imported"
    said = f"{report.found} {report.unit} found: {report.imported} {would}, {report.present} here already, unchanged."
    if not report.imported and not report.left_alone:
        said += " Nothing to do." if report.dry_run else " Nothing was changed."
    console.print(said, soft_wrap=True)
    for name, count in report.records.items():
        console.print(f"{name:<16}{count}", soft_wrap=True)
    for title, notes in (
        ("Left alone", report.left_alone),
        ("Not understood, or not kept as it was", report.not_understood),
    ):
        if notes:
            console.print(f"{title}:", soft_wrap=True)
        for note in notes:
            examples = ", ".join(note.examples) + (", …" if note.count > len(note.examples) else "")
            console.print(one_line(f"  {note.count:>6} {note.what}: {examples}"), soft_wrap=True)
