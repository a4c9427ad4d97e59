"""`holdfast db`: upgrade, show and check the database of a store."""

import asyncio
import json
from dataclasses import asdict

import typer
from rich.console import Console
from rich.text import Text

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.help import Commands
from holdfast.cli.options import AsJson, StoreUrl, chosen_store
from holdfast.cli.terminal import echo, new_console
from holdfast.errors import StoreTooOld
from holdfast.types import SchemaStatus

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
def check(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Check every invariant of the store.

    Changes nothing. Exits with 1 if an invariant is violated.

    Examples:
        holdfast db check
    """

    async def work() -> list[dict[str, object]]:
        async with chosen_store(store) as opened:
            return [asdict(violation) for violation in await opened.check()]

    with Console(stderr=True).status("checking every invariant"):
        violations = asyncio.run(work())
    if as_json:
        echo(json.dumps({"violations": violations}))
    elif violations:
        for violation in violations:
            line = f"{violation['invariant']}: session {violation['session_id']}: {violation['detail']}"
            new_console().print(Text("violated ", style="red").append(line, style=""), soft_wrap=True)
    else:
        new_console().print("Every invariant holds.")
    raise typer.Exit(ExitCode.FAILED if violations else ExitCode.OK)
