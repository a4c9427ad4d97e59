"""`holdfast credentials`: secrets for the tools of a session. Values can be set, but not read."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.help import Commands
from holdfast.cli.options import AsJson, ServerUrl, SessionId, StoreUrl, connected
from holdfast.cli.terminal import TextTable, echo, new_console, one_line, print_json, record, time_text

if TYPE_CHECKING:
    from holdfast.api.models import CredentialInfo

app = Commands("Set, list and delete the credentials of a session.")
Name = Annotated[str, typer.Argument(help="Name of the credential.")]


@app.command("set")
def set_(
    session_id: SessionId,
    name: Name,
    ttl: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="Delete the credential after this time.")
    ] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Store a credential, sealed with HOLDFAST_CREDENTIAL_KEY.

    The value is read from standard input or a prompt, because other users of the machine can read a command line.

    Examples:
        holdfast credentials set s1 github < token.txt
        holdfast credentials set s1 github --ttl 3600
    """
    if sys.stdin.isatty():
        value: str = typer.prompt("Value", hide_input=True, err=True)
    else:
        value = sys.stdin.read().removesuffix("\n")

    async def work() -> None:
        async with connected(store, url) as client:
            await (await client.session(session_id)).set_credential(name, value, ttl=ttl)

    asyncio.run(work())
    _print_done(session_id, name, "set", as_json=as_json)


@app.command("list")
def list_(
    session_id: SessionId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """List the names of a session's credentials and when they expire.

    Examples:
        holdfast credentials list s1
    """

    async def work() -> "list[CredentialInfo]":
        async with connected(store, url) as client:
            return await (await client.session(session_id)).credentials()

    result = asyncio.run(work())
    if as_json:
        print_json({"credentials": [record(each) for each in result]})
        return
    table = TextTable("name", "expires")
    for each in result:
        table.add_row(one_line(each.name), time_text(each.expires_at))
    new_console().print(table)


@app.command()
def delete(
    session_id: SessionId, name: Name, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Delete a credential.

    If there is no such credential, nothing changes.

    Examples:
        holdfast credentials delete s1 github
    """

    async def work() -> None:
        async with connected(store, url) as client:
            await (await client.session(session_id)).delete_credential(name)

    asyncio.run(work())
    _print_done(session_id, name, "deleted", as_json=as_json)


def _print_done(session_id: str, name: str, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"session_id": session_id, "name": name, "done": done})
    else:
        echo(f"Credential {name} of session {session_id} is {done}.")
