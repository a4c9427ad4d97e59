"""Open a step store of the harness by its address."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from holdfast.errors import BadImport, MissingExtra
from holdfast.importers.harness_mongo import open_mongo
from holdfast.importers.harness_sources import TABLE, FileSource, HarnessSource, Postgres, SqliteFile

_SQLITE = b"SQLite format 3\0"


@asynccontextmanager
async def open_source(
    address: str, *, table: str = TABLE, database: str | None = None
) -> AsyncGenerator[HarnessSource, None]:
    """Open a step store by its address: a folder, a SQLite file, `postgresql://…` or `mongodb://…`."""
    scheme, separator, rest = address.partition("://")
    if separator and scheme in {"postgresql", "postgres"}:
        async with _postgres(address, table) as source:
            yield source
        return
    if separator and scheme in {"mongodb", "mongodb+srv"}:
        async with open_mongo(address, without_password(address), database) as source:
            yield source
        return
    if separator and scheme != "sqlite":
        problem = "use a folder, a SQLite file, postgresql://… or mongodb://…"
        raise BadImport(source=without_password(address), problem=problem)
    path = Path(rest.removeprefix("/") if separator else address)
    try:
        connection = await asyncio.to_thread(_connect, path)
        if connection is None:
            yield FileSource(path)
            return
    except OSError as error:
        raise BadImport(source=address, problem=f"it cannot be read: {error}") from error
    with closing(connection):
        yield SqliteFile(path, connection)


def _connect(path: Path) -> sqlite3.Connection | None:
    """Open a SQLite file and start a read transaction; None if it is a folder."""
    if path.is_dir():
        return None
    with path.open("rb") as file:
        if file.read(len(_SQLITE)) != _SQLITE:
            raise BadImport(source=str(path), problem="it is neither a SQLite database nor a folder")
    uri = f"file:{quote(str(path.resolve()))}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN")
    return connection


@asynccontextmanager
async def _postgres(address: str, table: str) -> AsyncGenerator[HarnessSource, None]:
    name = without_password(address)
    if not (table.isascii() and table.replace("_", "a").isalnum() and table == table.lower()):
        raise BadImport(source=name, problem=f"{table!r} is not a valid prefix of the harness's tables")
    try:
        import asyncpg
    except ModuleNotFoundError as error:
        raise MissingExtra(extra="postgres") from error
    failures = (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError)
    try:
        connection: Any = await asyncpg.connect(address)
    except failures as error:
        raise BadImport(source=name, problem=f"it cannot be reached: {error}") from error
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            yield Postgres(name, table, connection)
    except failures as error:
        raise BadImport(source=name, problem=f"it cannot be read: {error}") from error
    finally:
        await connection.close()


def without_password(address: str) -> str:
    """Return an address without its password, for display."""
    try:
        parts = urlsplit(address)
        password = parts.password
    except ValueError:
        return address.partition("://")[0] + "://…"
    if password is None:
        return address
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{password}@", ":***@", 1)))
