"""The client of a store: its own, or one that belongs to the application.

The store does not depend on how a client was configured: it sets its own codec, concerns and read preference on everything it uses.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pymongo
from bson import ObjectId
from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Primary
from pymongo.write_concern import WriteConcern

from holdfast.errors import StoreError
from holdfast.store.mongo.documents import MongoRow

Client = AsyncMongoClient[Any]
TimeLimit = Callable[[], AbstractContextManager[None]]

ANSWER_SECONDS = 5.0
"""How long a server may take to respond before a call counts as lost. Full scans may take longer."""
MAJORITY: Final = WriteConcern("majority", j=True)
PRIMARY: Final = Primary()
_LEAST: Final = 2
"""The change stream takes one connection while it waits."""


def connect(url: str) -> Client:
    """Return a new client for the store."""
    return AsyncMongoClient(
        url,
        appname="holdfast",
        w="majority",
        journal=True,
        readConcernLevel="majority",
        readPreference="primary",
        **_limits(url),
    )


def check_borrowed(client: Client, url: str) -> None:
    """Raise `StoreError` if the application's client has too few connections."""
    size = client.options.pool_options.max_pool_size
    if size and size < _LEAST:
        problem = f"the client has maxPoolSize={size}, but a store needs at least {_LEAST}"
        raise StoreError(url=url, problem=problem)


def describe(client: Client, name: str) -> str:
    """Return the URL that identifies a store on an application's client."""
    servers = sorted(client.topology_description.server_descriptions())
    return f"mongodb://{','.join(f'{host}:{port}' for host, port in servers)}/{name}"


def database(client: Client, name: str) -> AsyncDatabase[MongoRow]:
    """Return the database with the store's options, regardless of how the client is configured."""
    return client.get_database(
        name,
        codec_options=CodecOptions(document_class=MongoRow),
        read_preference=PRIMARY,
        write_concern=MAJORITY,
        read_concern=ReadConcern("majority"),
    )


def election(client: Client) -> ObjectId | None:
    """Return the id of the election of the current primary; None if no primary is known."""
    servers = client.topology_description.server_descriptions().values()
    return next((server.election_id for server in servers if server.is_writable), None)


def time_limit(*, borrowed: bool) -> TimeLimit:
    """Return a time limit for each operation. The store's own client has its own limits."""
    return (lambda: pymongo.timeout(ANSWER_SECONDS)) if borrowed else nullcontext


def _limits(url: str) -> dict[str, Any]:
    """Return the timeouts in milliseconds that the URL does not set itself."""
    given = {name.lower() for name in parse_qs(urlsplit(url).query)}
    names = ("serverSelectionTimeoutMS", "connectTimeoutMS", "socketTimeoutMS")
    return {name: ANSWER_SECONDS * 1000 for name in names if name.lower() not in given}
