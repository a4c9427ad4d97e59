"""The options that commands share, and the store or server that they select."""

from contextlib import aclosing, asynccontextmanager
from getpass import getuser
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.config import load_settings
from holdfast.errors import BadInput, ServerUnavailable
from holdfast.store import Store, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.api.models import EffectInfo, RunInfo, SessionInfo
    from holdfast.client import Client
    from holdfast.media import MediaStore

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="URL of the store. Default: HOLDFAST_STORE or holdfast.toml.",
        show_default=False,
    ),
]
LogAs = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        help="Log as text or json. Default: HOLDFAST_LOG_FORMAT or holdfast.toml.",
        show_default=False,
    ),
]
ServerUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Use the server at this URL, with the token in HOLDFAST_TOKEN. Default: HOLDFAST_URL.",
        show_default=False,
    ),
]
MediaUrl = Annotated[
    str | None,
    typer.Option(
        "--media",
        metavar="URL",
        help="URL of the media store. Default: HOLDFAST_MEDIA or holdfast.toml.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SessionId = Annotated[str, typer.Argument(help="Id of the session.")]
Cursor = Annotated[str | None, typer.Option(help="Print the page after this `next_cursor`.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Maximum number of results.")]


@asynccontextmanager
async def connected(
    store: str | None, url: str | None, media: str | None = None
) -> "AsyncGenerator[Client, None]":
    """Connect to the store of `--store` or the server of `--url`. Without either, use the settings; a server takes precedence."""
    from holdfast.client import connect

    if store is not None and url is not None:
        raise BadInput(problem="pass either --store or --url")
    server = url or load_settings().url if store is None else None
    if server is None:
        async with chosen_store(store, media=media) as opened, connect(opened, actor=actor()) as client:
            yield client
        return
    if media is not None:
        raise BadInput(problem="--media cannot be used with a server, which has its own media store")
    if not server.startswith(("http://", "https://")):
        raise ServerUnavailable(url=server, problem="the server's URL must start with http:// or https://")
    async with connect(server) as client:
        yield client


async def unended_calls(
    client: "Client", session: "SessionInfo"
) -> "tuple[list[EffectInfo], list[EffectInfo]]":
    """Return the tool calls of a session that run now, and those that were cut off, so that their outcome is unknown."""
    from holdfast.questions import split_calls

    runs = [run async for run in client.runs(session_id=session.id, unresolved=True)]
    events: list[tuple[str, Any]] = []
    current: RunInfo | None = None
    if session.status == "running":
        async with aclosing(client.runs(session_id=session.id)) as latest:
            async for run in latest:  # newest first: the rest is not read
                if run.status == "running":
                    current = run
                    break
    if current is not None:
        runs.append(current)
        journal = client.run(current.id).journal(after=max(0, current.first_seq - 1))
        events = [(event.kind, event.payload) async for event in journal]
    calls = [
        effect
        for run in runs
        async for effect in client.run(run.id).effects(unresolved=True)
        if effect.result is None  # the others wait
    ]
    return split_calls(calls, None if current is None else current.id, events)


def chosen_store(url: str | None, *, media: str | None = None, upgrade: bool = False) -> Store:
    """Return the store of `--store` or of the settings. Its schema is only changed with `upgrade`."""
    given = {"store": url, "media": media}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    if url is None and settings.url is not None:  # never use a local file instead of the server
        problem = f"the settings name a server, {settings.url}, but this command needs a database; select one with --store"
        raise BadInput(problem=problem)
    return open_store(upgrade=upgrade, settings=settings)


@asynccontextmanager
async def opened_media(store: str | None, media: str | None) -> "AsyncGenerator[MediaStore, None]":
    """Open the media store of `--media` on the store of `--store`."""
    from holdfast.media import open_media

    async with chosen_store(store) as opened:
        yield open_media(media, store=opened)


def actor() -> str:
    """Return the name of this user for audit entries."""
    try:
        return f"cli:{getuser()}"
    except (OSError, KeyError):  # the user id has no name
        return "cli"
