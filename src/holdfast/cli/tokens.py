"""`holdfast token` manages access tokens."""

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.cli.options import AsJson, StoreUrl, chosen_store
from holdfast.cli.terminal import echo, new_console, new_table, one_line, print_json, time_text
from holdfast.ids import check_choice
from holdfast.types import ROLES, SCOPES, Token

app = typer.Typer(help="Manage access tokens.", no_args_is_help=True)


@app.command("create")
def create(
    owner: Annotated[str, typer.Option(help="Whose sessions it opens.")],
    role: Annotated[str, typer.Option(help="user, or admin for all sessions.")] = "user",
    scope: Annotated[
        list[str] | None,
        typer.Option(help="read, write, delete, shell or admin; may be repeated. By default read and write."),
    ] = None,
    expires: Annotated[float | None, typer.Option(min=0, help="After so many days.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print it, once: only its digest is kept.

    Without the scope delete, an owner erases only sessions that were idle for `retention_min_idle_days`.
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

    made = asyncio.run(work())
    if as_json:
        print_json({"token": secret, **asdict(made)})
    else:
        echo(secret)


@app.command("list")
def list_(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List all tokens, without their secrets."""

    async def work() -> list[Token]:
        async with chosen_store(store) as opened:
            return await opened.tokens()

    result = asyncio.run(work())
    if as_json:
        print_json({"tokens": [asdict(token) for token in result]})
        return
    table = new_table("id", "owner", "role", "scopes", "created", "expires", "revoked")
    for token in result:
        table.add_row(
            one_line(token.id),
            one_line(token.owner),
            token.role,
            one_line(" ".join(token.scopes)),
            time_text(token.created_at),
            time_text(token.expires_at),
            time_text(token.revoked_at),
        )
    new_console().print(table)


@app.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(help="The token's id; `list` names them.")],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a token worth nothing; within five seconds on every front."""

    async def work() -> Token:
        async with chosen_store(store) as opened:
            return await opened.revoke_token(token_id)

    revoked = asyncio.run(work())
    if as_json:
        print_json(asdict(revoked))
    else:
        echo(f"{revoked.id} of {revoked.owner} is worth nothing any more")
