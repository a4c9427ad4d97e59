"""The options that commands share, and the store or server that they select."""

from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from getpass import getuser
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import typer

from holdfast.cli.terminal import all_pages
from holdfast.config import load_settings
from holdfast.errors import BadInput
from holdfast.store import Store, open_store
from holdfast.types import TURNS, Effect, Json, Session, Submission, is_refused_retry

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from holdfast.cli.remote import Remote
    from holdfast.media import MediaStore

    Sessions: TypeAlias = Store | Remote

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


def chosen_sessions(store: str | None, url: str | None) -> "Sessions":
    """Return the store of `--store` or the server of `--url`. Without either, the settings decide; a server comes first."""
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


async def conversation_of(opened: "Sessions", session_id: str) -> list[dict[str, Any]]:
    """Return the conversation in a session of another framework, on a server or in the store."""
    if not isinstance(opened, Store):
        return [entry async for entry in opened.conversation(session_id)]
    from holdfast.frameworks.conversations import conversation

    session = await opened.session(session_id)
    entries: list[dict[str, Any]] = []
    while page := await conversation(opened, session, after=entries[-1]["key"] if entries else None):
        entries += map(asdict, page)
    return entries


async def pending_approvals(opened: "Sessions", session_id: str) -> list[dict[str, Any]]:
    """Return the tool calls of a session that wait for a person's answer."""
    if not isinstance(opened, Store):
        return await opened.pending_approvals(session_id)
    from holdfast.runtime import questions

    return await questions.pending_approvals(opened, session_id)


async def unended_calls(opened: "Sessions", session: Session) -> "tuple[Sequence[Effect], Sequence[Effect]]":
    """Return the tool calls of a session that run now, and those that were cut off, so that their outcome is unknown."""
    from holdfast.runtime import questions

    return await questions.unended_calls(
        cast("Store", opened), session
    )  # calls only methods that `Remote` has


async def find_turn(
    opened: "Sessions", session_id: str, submission_id: str | None = None
) -> Submission | None:
    """Return a submission of a session without its payload, by default its last turn; None if there is none."""
    found = await all_pages(
        lambda cursor: opened.submissions(session_id, payloads=False, cursor=cursor, limit=1000)
    )
    for submission in reversed(found):
        is_turn = submission.kind in TURNS and not is_refused_retry(submission)
        if submission.id == submission_id or (submission_id is None and is_turn):
            return replace(submission, payload="{}")
    return None


async def why_waiting(opened: "Sessions", session_id: str) -> str | None:
    """Return why no worker continues a session, and what to do; None if one does or nothing waits."""
    if not isinstance(opened, Store):
        return await opened.problem(session_id)
    from holdfast.leases import why_waiting

    return await why_waiting(opened, await opened.session(session_id))


async def with_media(opened: "Sessions", text: Json) -> Json:
    """Return a message together with the content that it refers to in the media store."""
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
    """Return the store of `--store` or of the settings. Its schema is only changed with `upgrade`."""
    settings = load_settings() if url is None else load_settings(store=url)
    if url is None and settings.url is not None:  # never use a local file instead of the server
        problem = f"the settings name a server, {settings.url}, and this command needs a database; name one with --store"
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
