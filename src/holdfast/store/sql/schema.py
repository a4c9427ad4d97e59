"""The schema and its migrations: numbered files, applied in order, each database once."""

from dataclasses import replace
from datetime import datetime

from holdfast.errors import StoreError, StoreTooNew, StoreTooOld
from holdfast.store.sql import library
from holdfast.store.sql.core import SqlCore, Tx, moment, reading, sql, writing
from holdfast.store.sql.library import Dialect, Statement
from holdfast.types import SchemaStatus

LATEST = library.migrations()[-1][0]


class Schema(SqlCore):
    """The transactions of schema.sql."""

    _dialect: Dialect

    async def upgrade(self) -> int:
        # Looked up first without a lock, and without the right to create anything.
        return LATEST if await self._version() == LATEST else await self._upgrade()

    async def require(self) -> int:
        """Return the version if it is the one this code needs."""
        version = await self._version()
        if version != LATEST:
            raise StoreTooOld(url=self.url, found=version, known=LATEST)
        return version

    @writing(repeatable=True)
    def _upgrade(self) -> Tx[int]:
        yield sql("migration_lock")
        yield sql("create_schema")
        version = yield from self._known_version()
        if version == 0 and not (yield sql("has_migrations")):
            yield sql("create_migrations")
        for number, name, script in library.migrations():
            if number > version:
                for text in library.split(script, self._dialect):
                    yield Statement(name, text=text)
                yield sql("add_migration", version=number, name=name)
        return LATEST

    @reading
    def _version(self) -> Tx[int]:
        return (yield from self._known_version())

    def _known_version(self) -> Tx[int]:
        if not (yield sql("has_migrations")):
            for other in (yield sql("other_tables")):
                raise StoreError(
                    url=self.url, problem=f"it holds tables of something else, such as {other['name']}"
                )
            return 0
        rows = yield sql("schema_version")
        version = rows[0]["version"]
        if version > LATEST:
            raise StoreTooNew(url=self.url, found=version, known=LATEST)
        return version

    @reading
    def now(self) -> Tx[datetime]:
        return moment((yield sql("now"))[0]["now"])

    @reading
    def schema(self) -> Tx[SchemaStatus]:
        version = yield from self._known_version()
        status = SchemaStatus(engine=self.engine, version=version, latest=LATEST)
        if version < LATEST:
            return status
        (row,) = yield sql("totals")
        return replace(
            status,
            sessions=row["sessions"],
            events=row["events"],
            pending=row["pending"],
            holders=row["holders"],
            expired_holders=row["expired_holders"],
            leases=row["leases"],
            unsafe=row["unsafe"],
            lag=max(0, row["lag"]) / 1_000_000,
        )
