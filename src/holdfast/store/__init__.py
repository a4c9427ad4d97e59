"""Where sessions live: one interface, one folder of engines."""

from holdfast.errors import MissingExtra, UnknownStore
from holdfast.store.base import Store

__all__ = ["Store", "open_store"]

_MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
_MAX_PENDING = 1000


def open_store(
    url: str,
    *,
    upgrade: bool = True,
    max_payload_bytes: int = _MAX_PAYLOAD_BYTES,
    max_pending: int = _MAX_PENDING,
) -> Store:
    """Return the store behind a URL. It connects when it is entered, with `async with`.

    `sqlite:///file.db` is relative to the working folder, `sqlite:////var/lib/file.db` absolute, `sqlite://:memory:`
    lives as long as the store; `postgresql://user@host/database` needs the extra `postgres`. The schema is brought
    up to date on opening, unless `upgrade` is false: then an old one is refused.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and (rest == ":memory:" or (rest.startswith("/") and len(rest) > 1)):
        from holdfast.store.sqlite import SqliteStore

        path = rest.removeprefix("/")
        return SqliteStore(
            url, path, upgrade=upgrade, max_payload_bytes=max_payload_bytes, max_pending=max_pending
        )
    if scheme in {"postgresql", "postgres"} and rest:
        try:
            from holdfast.store.postgres import PostgresStore
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            raise MissingExtra(extra="postgres") from error
        return PostgresStore(
            url, upgrade=upgrade, max_payload_bytes=max_payload_bytes, max_pending=max_pending
        )
    raise UnknownStore(url=url)
