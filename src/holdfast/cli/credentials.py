"""`holdfast credentials`: what the tools of a session need to act for its owner. Values can be set, but not read."""

import asyncio
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.cli.options import AsJson, ServerUrl, StoreUrl, chosen_sessions
from holdfast.cli.sessions import SessionId
from holdfast.cli.terminal import echo, new_console, new_table, one_line, plain, print_json, time_text
from holdfast.config import load_settings
from holdfast.store import Store
from holdfast.types import Credential

app = typer.Typer(help="Set, list and delete the credentials of a session.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The credential's name.")]


@app.command("set")
def set_(
    session_id: SessionId,
    name: Name,
    ttl: Annotated[float | None, typer.Option(min=1, help="Delete it after so many seconds.")] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Store a credential, sealed with HOLDFAST_CREDENTIAL_KEY.

    The value is read from standard input, or asked for: on a command line, everybody on the machine could see it.
    """
    if sys.stdin.isatty():
        value: str = typer.prompt("Value", hide_input=True, err=True)
    else:
        value = sys.stdin.read().removesuffix("\n")

    async def work() -> None:
        async with chosen_sessions(store, url) as opened:
            if not isinstance(opened, Store):
                await opened.set_credential(session_id, name, value, ttl=ttl)
                return
            from holdfast.runtime.credentials import Credentials

            key = load_settings().credential_key
            credentials = Credentials(opened, None if key is None else key.get_secret_value())
            await credentials.set(session_id, name, value, ttl=ttl)

    asyncio.run(work())
    _print_done(session_id, name, "set", as_json=as_json)


@app.command("list")
def list_(
    session_id: SessionId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """List the names of a session's credentials, and when they expire."""

    async def work() -> list[Credential]:
        async with chosen_sessions(store, url) as opened:
            return await opened.credentials(session_id)

    result = asyncio.run(work())
    if as_json:
        shown = [{"name": each.name, "expires_at": plain(asdict(each)["expires_at"])} for each in result]
        print_json({"credentials": shown})
        return
    table = new_table("name", "expires")
    for each in result:
        table.add_row(one_line(each.name), time_text(each.expires_at))
    new_console().print(table)


@app.command()
def delete(
    session_id: SessionId, name: Name, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Delete a credential. Deleting one that is not there changes nothing."""

    async def work() -> None:
        async with chosen_sessions(store, url) as opened:
            if isinstance(opened, Store):
                await opened.set_credential(session_id, name, None)
            else:
                await opened.delete_credential(session_id, name)

    asyncio.run(work())
    _print_done(session_id, name, "deleted", as_json=as_json)


def _print_done(session_id: str, name: str, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"session_id": session_id, "name": name, "done": done})
    else:
        echo(f"Credential {name} of session {session_id} is {done}.")
