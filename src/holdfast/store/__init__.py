"""The store of sessions: one interface, and one folder per engine."""

from typing import TYPE_CHECKING, Any

from holdfast.config import Settings, load_settings
from holdfast.errors import BadInput, MissingExtra, UnknownStore
from holdfast.plugins import STORES, find_plugin
from holdfast.store.store import Store

if TYPE_CHECKING:
    import asyncpg
    from pymongo import AsyncMongoClient

__all__ = ["Store", "open_store"]


def open_store(
    url: str | None = None,
    *,
    pool: "asyncpg.Pool[Any] | None" = None,
    client: "AsyncMongoClient[Any] | None" = None,
    database: str | None = None,
    upgrade: bool = True,
    settings: Settings | None = None,
) -> Store:
    """Return the store at a URL. It connects when it is entered with `async with`.

    `sqlite:///file.db` is relative to the working directory, `sqlite:////var/lib/file.db` is absolute, and `sqlite://:memory:`
    lives as long as the store. `postgresql://user@host/database` needs the extra `postgres`; `mongodb://host/database` needs the
    extra `mongo` and a replica set. Other packages may register more schemes. The default URL comes from `settings`. Without
    them, the settings are read from the environment and holdfast.toml. The schema is upgraded on opening. With `upgrade=False` an
    old schema is rejected instead.

    Instead of a URL, pass your application's `asyncpg.Pool` or PyMongo `AsyncMongoClient`, with the name of the `database` if it
    is not the client's default. The store returns connections with their original settings, and never closes the pool or the client.
    """
    settings = settings or load_settings()
    if pool is not None or client is not None or database is not None:
        return _open_on(url, pool, client, database, upgrade=upgrade, settings=settings)
    url = settings.store if url is None else url
    scheme, _, rest = url.partition("://")
    if "\x00" in url:
        raise UnknownStore(url=url)
    if scheme == "sqlite" and (rest == ":memory:" or (len(rest) > 1 and rest[0] == "/")) and "?" not in rest:
        from holdfast.store.sqlite.store import SqliteStore

        return SqliteStore(url, rest.removeprefix("/"), upgrade=upgrade, settings=settings)
    if scheme in {"postgresql", "postgres"} and rest:
        try:
            from holdfast.store.postgres.store import PostgresStore
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            raise MissingExtra(extra="postgres") from error
        try:
            return PostgresStore(url, upgrade=upgrade, settings=settings)
        except ValueError as error:
            raise UnknownStore(url=url) from error
    if scheme in {"mongodb", "mongodb+srv"} and rest:
        try:
            from holdfast.store.mongo.store import MongoStore
        except ModuleNotFoundError as error:
            if error.name not in {"pymongo", "bson"}:
                raise
            raise MissingExtra(extra="mongo") from error
        try:
            return MongoStore(url, upgrade=upgrade, settings=settings)
        except ValueError as error:
            raise UnknownStore(url=url) from error
    if rest and (make := find_plugin(STORES, scheme)):
        return make(url, upgrade=upgrade, settings=settings)
    raise UnknownStore(url=url)


def _open_on(
    url: str | None,
    pool: "asyncpg.Pool[Any] | None",
    client: "AsyncMongoClient[Any] | None",
    database: str | None,
    *,
    upgrade: bool,
    settings: Settings,
) -> Store:
    """Return a store on a pool or client of the application."""
    if sum(given is not None for given in (url, pool, client)) != 1:
        raise BadInput(problem="open_store requires exactly one of a URL, a pool and a client")
    if pool is not None and database is None:
        from holdfast.store.postgres.store import PostgresStore

        return PostgresStore(pool, upgrade=upgrade, settings=settings)
    if client is None:
        raise BadInput(
            problem="open_store accepts a database only with a client; a URL and a pool already name theirs"
        )
    from holdfast.store.mongo.store import MongoStore

    return MongoStore(client, name=database, upgrade=upgrade, settings=settings)
