"""The URL of a PostgreSQL store: which servers to connect to, and which pooler is in front of them."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from holdfast.errors import StoreError

Pooler: TypeAlias = Literal["transaction", "session"]
_POOLERS: Final = ("transaction", "session")


@dataclass(frozen=True)
class Address:
    """Where to connect: one URL for each server, of which one accepts writes, and the mode of a pooler in between."""

    hosts: tuple[str, ...]
    pooler: Pooler | None = None


def parse_address(url: str) -> Address:
    """Read the URL of a store. With several hosts, connect to the one that accepts writes, unless the URL says otherwise."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    pooler = query.pop("pooler", None)
    if pooler not in {None, *_POOLERS}:
        problem = f"Invalid value {pooler!r} for pooler. Use transaction or session"
        raise StoreError(url=without_password(url), problem=problem)
    user, at, netloc = parts.netloc.rpartition("@")
    hosts = netloc.split(",")
    if len(hosts) > 1:
        query.setdefault("target_session_attrs", "read-write")
    elif pooler is None:
        return Address((url,))
    text = urlencode(query)
    urls = (urlunsplit(parts._replace(netloc=f"{user}{at}{host}", query=text)) for host in hosts)
    return Address(tuple(urls), cast("Pooler | None", pooler))


def without_password(url: str) -> str:
    """Return the URL as it may be shown."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@", 1)))
