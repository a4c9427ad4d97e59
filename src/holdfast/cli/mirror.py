"""`holdfast mirror`: list the mirrors of a store, and forget one whose folder no longer exists."""

import asyncio
from typing import Annotated

import typer

from holdfast.cli.help import Commands
from holdfast.cli.options import AsJson, StoreUrl, chosen_store
from holdfast.cli.terminal import TextTable, echo, new_console, print_json
from holdfast.errors import NotFound

app = Commands("List the mirrors of journals, and forget one that was removed.")


@app.command("list")
def list_mirrors(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List the mirrors and the sessions whose files they must delete.

    The name of a mirror is in the file .mirror of its folder. Counts up to 1,000
    sessions of each.

    Examples:
        holdfast mirror list
    """

    async def work() -> dict[str, int]:
        async with chosen_store(store) as opened:
            return await opened.mirrors()

    mirrors = asyncio.run(work())
    if as_json:
        print_json({"mirrors": [{"name": name, "to_delete": number} for name, number in mirrors.items()]})
        return
    table = TextTable("name", "to delete")
    for name, number in mirrors.items():
        table.add_row(name, str(number))
    new_console().print(table)


@app.command()
def forget(
    name: Annotated[
        str, typer.Argument(help="The name of the mirror, as in the file .mirror of its folder.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Forget a mirror whose folder you have deleted.

    Deletes no files: after this, Holdfast does not delete files that are left in the folder.

    Examples:
        holdfast mirror forget 0199a1b2-6f3e-7c4d-8e5f-a1b2c3d4e5f6
    """
    if not yes:
        typer.confirm(f"Have all files of the mirror {name} been deleted?", abort=True, err=True)

    async def work() -> int:
        async with chosen_store(store) as opened:
            forgotten = 0
            while dropped := await opened.drop_mirror(name):
                forgotten += dropped
            return forgotten

    forgotten = asyncio.run(work())
    if not forgotten:
        raise NotFound(what="mirror", id=name)
    if as_json:
        print_json({"name": name, "sessions": forgotten})
    else:
        echo(f"Forgot the mirror {name} with {forgotten} session{'' if forgotten == 1 else 's'}.")
