"""Where sessions live: one interface, one folder of engines."""

from holdfast.config import Settings, load_settings
from holdfast.errors import MissingExtra, UnknownStore
from holdfast.plugins import STORES, find_plugin
from holdfast.store.store import Store

__all__ = ["Store", "open_store"]


def open_store(url: str | None = None, *, upgrade: bool = True, settings: Settings | None = None) -> Store:
    """Return the store behind a URL. It connects when it is entered, with `async with`.

    `sqlite:///file.db` is relative to the working folder, `sqlite:////var/lib/file.db` absolute, `sqlite://:memory:`
    lives as long as the store; `postgresql://user@host/database` needs the extra `postgres`; `mongodb://host/database`
    the extra `mongo`, and a replica set. Other packages may register further schemes. Without a URL it is the one of the settings, which
    are read from the environment and holdfast.toml unless they are given. The schema is upgraded on opening, unless `upgrade` is
    false: then an old one is rejected.
    """
    settings = settings or load_settings()
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
