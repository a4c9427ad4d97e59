"""`holdfast token` manages access tokens."""

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.cli.help import Commands
from holdfast.cli.options import AsJson, StoreUrl, chosen_store
from holdfast.cli.terminal import TextTable, echo, new_console, one_line, print_json, time_text
from holdfast.ids import check_choice
from holdfast.types import ROLES, SCOPES, Token

app = Commands("Manage access tokens.")


@app.command("create")
def create(
    owner: Annotated[str, typer.Option(help="Owner of the sessions that the token gives access to.")],
    role: Annotated[str, typer.Option(help="user, or admin for access to all sessions.")] = "user",
    scope: Annotated[
        list[str] | None,
        typer.Option(help="read, write, delete, shell or admin. May be repeated. Default: read and write."),
    ] = None,
    expires: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="Expire after this many days.")
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print it.

    It is printed only once: the store contains only its digest. Without the scope delete, the owner can erase a session only
    after it was idle for `retention_min_idle_days`.

    Examples:
        holdfast token create --owner ada
        holdfast token create --owner ops --role admin --expires 30
        holdfast token create --owner ada --scope read --scope shell
    """
    check_choice(role, ROLES, "role")
    scopes = [check_choice(each, SCOPES, "scope") for each in scope or ()]
    if not scopes:
        scopes = ["admin"] if role == "admin" else ["read", "write"]
    from holdfast.server.auth import digest, new_token

    secret = new_token()

    async def work() -> Token:
        async with chosen_store(store, upgrade=True) as opened:
            return await opened.add_token(
                digest(secret),
                owner=owner,
                role=role,  # pyright: ignore[reportArgumentType]
                scopes=scopes,
                lifetime=None if expires is None else expires * 86_400,
            )

    created = asyncio.run(work())
    if as_json:
        print_json({"token": secret, **asdict(created)})
    else:
        echo(secret)


@app.command("list")
def list_(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List all tokens, without their secrets.

    Examples:
        holdfast token list
    """

    async def work() -> list[Token]:
        async with chosen_store(store) as opened:
            return await opened.tokens()

    result = asyncio.run(work())
    if as_json:
        print_json({"tokens": [asdict(token) for token in result]})
        return
    table = TextTable("id", "owner", "role", "revoked", "expires", "scopes", "created")
    for token in result:
        table.add_row(
            one_line(token.id),
            one_line(token.owner),
            token.role,
            time_text(token.revoked_at),
            time_text(token.expires_at),
            one_line(" ".join(token.scopes)),
            time_text(token.created_at),
        )
    new_console().print(table)


@app.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(help="Id of the token. `holdfast token list` prints it.")],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a token.

    Every API server rejects it within five seconds.

    Examples:
        holdfast token revoke 019a8f4c-77aa-7c1e-9d3f-2b6f0a1c5e77
    """

    async def work() -> Token:
        async with chosen_store(store) as opened:
            return await opened.revoke_token(token_id)

    revoked = asyncio.run(work())
    if as_json:
        print_json(asdict(revoked))
    else:
        echo(f"Revoked token {revoked.id} of {revoked.owner}.")
