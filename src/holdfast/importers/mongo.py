"""Open a MongoDB database to import from; needs PyMongo."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from holdfast.errors import BadImport, MissingExtra

_PATIENCE_MS = 30_000


@asynccontextmanager
async def open_database(address: str, name: str, database: str | None) -> AsyncGenerator[Any, None]:
    """Open the database in the address, or `database`. `name` is the address without its password."""
    try:
        pymongo: Any = import_module("pymongo")
        errors: Any = import_module("pymongo.errors")
    except ModuleNotFoundError as error:
        raise MissingExtra(extra="mongo") from error
    try:
        client = pymongo.AsyncMongoClient(address, serverSelectionTimeoutMS=_PATIENCE_MS, tz_aware=False)
        try:
            yield client[database] if database else client.get_default_database()
        finally:
            await client.close()
    except errors.ConfigurationError as error:
        problem = f"{error}; name the database in the URL or with --database"
        raise BadImport(source=name, problem=problem) from error
    except (errors.PyMongoError, ValueError) as error:
        raise BadImport(source=name, problem=f"it cannot be read: {error}") from error
