"""What the commands have in common: their options, and how they open the store that these name."""

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from holdfast.config import load_settings
from holdfast.errors import BadInput
from holdfast.store import Store, open_store
from holdfast.types import Json

if TYPE_CHECKING:
    from holdfast.cli.remote import Remote

    Sessions: TypeAlias = Store | Remote

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store", help="The store's URL; else HOLDFAST_STORE, else holdfast.toml.", show_default=False
    ),
]
LogAs = Annotated[
    str | None,
    typer.Option(
        "--log-format", help="text or json; else HOLDFAST_LOG_FORMAT, else holdfast.toml.", show_default=False
    ),
]
ServerUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="Ask a server instead, with the token in HOLDFAST_TOKEN; else HOLDFAST_URL.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]


def chosen_sessions(store: str | None, url: str | None) -> "Sessions":
    """Return the sessions of `--store` or of `--url`, else those of the settings: of a server, if they name one."""
    if store is not None and url is not None:
        raise BadInput(problem="give either --store or --url")
    settings = load_settings()
    if store is not None or (url or settings.url) is None:
        return chosen_store(store)
    from holdfast.cli.remote import Remote

    token = settings.token
    return Remote(url or settings.url or "", None if token is None else token.get_secret_value())


def chosen_server(store: str | None, url: str | None) -> "Remote | None":
    """Return the server of `--url` or of the settings; None if `--store` or the settings name a store."""
    chosen = chosen_sessions(store, url)
    return None if isinstance(chosen, Store) else chosen


async def asked(opened: "Sessions", session_id: str) -> list[dict[str, Any]]:
    """Return what a session asks a person now."""
    if not isinstance(opened, Store):
        return await opened.asked(session_id)
    from holdfast.runtime.questions import asked as asked_of

    return await asked_of(opened, session_id)


async def why_waiting(opened: "Sessions", session_id: str) -> str | None:
    """Return why no worker continues a session, and what to do; None if one does or nothing waits."""
    if not isinstance(opened, Store):
        return await opened.problem(session_id)
    from holdfast.leases import why_waiting

    return await why_waiting(opened, await opened.session(session_id))


async def with_media(opened: "Sessions", text: Json) -> Json:
    """Return a message with the content that was moved to the media store, which it only refers to."""
    from holdfast.media import open_media, to_uri, walker

    if not walker.is_changed(text):
        return text
    contents: dict[str, bytes] = {}
    for digest in walker.digests([text]):
        if isinstance(opened, Store):
            contents[digest] = await open_media(store=opened).get(to_uri(digest))
        else:
            contents[digest] = await opened.media(digest)
    return walker.put_back(text, contents)


def chosen_store(url: str | None, *, upgrade: bool = False) -> Store:
    """Return the store of `--store`, else that of the settings. Its schema is left alone unless `upgrade`."""
    settings = load_settings() if url is None else load_settings(store=url)
    if url is None and settings.url is not None:  # whoever set it means the sessions there
        problem = f"the settings name a server, {settings.url}, which cannot be asked for this; name a database with --store"
        raise BadInput(problem=problem)
    return open_store(upgrade=upgrade, settings=settings)
