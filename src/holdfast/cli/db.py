"""`holdfast db`: the schema of a store, and whether everything in it is sound."""

import asyncio
import json
from dataclasses import asdict

import typer

from holdfast.cli.options import AsJson, StoreUrl, chosen_store
from holdfast.cli.terminal import echo, new_console
from holdfast.errors import StoreTooOld
from holdfast.types import SchemaStatus

app = typer.Typer(help="Look after the database of a store.", no_args_is_help=True)


@app.command()
def upgrade(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Apply the migrations that are missing. Safe while others do the same."""

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
    """Show the schema's version and how much is in the store."""

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
        new_console().print(
            "Sessions of expired holders are free: the next `reclaim` or `acquire` takes them."
        )


@app.command()
def check(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Verify every invariant; exit 1 if one is broken. Changes nothing."""

    async def work() -> list[dict[str, object]]:
        async with chosen_store(store) as opened:
            return [asdict(violation) for violation in await opened.check()]

    with new_console().status("checking every invariant"):
        violations = asyncio.run(work())
    if as_json:
        echo(json.dumps({"violations": violations}))
    elif violations:
        for violation in violations:
            new_console().print(
                f"[red]broken[/] {violation['invariant']}: session {violation['session_id']}: {violation['detail']}",
                highlight=False,
            )
    else:
        new_console().print("Every invariant holds.")
    raise typer.Exit(1 if violations else 0)
