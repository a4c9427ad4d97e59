"""The schema and its migrations: numbered files, applied in order, once per database."""

from abc import abstractmethod
from dataclasses import replace
from datetime import datetime
from typing import Final

from holdfast.diagnostics import Growth, SchemaStatus, ServerSetting, StoreStats, TableStats
from holdfast.errors import StoreError, StoreTooNew, StoreTooOld
from holdfast.store.rows import moment
from holdfast.store.transactions import Transactions, Tx, op, reading, scanning, slow

LATEST: Final = 1
"""The schema version that this code needs. Every engine has a migration with this number."""
FIRST: Final = "0001_tables"
"""The name of the first migration. Databases that were made before the first release have another one."""
_DAY_US = 86_400_000_000


class SchemaMethods(Transactions):
    """The transactions of schema.sql."""

    @abstractmethod
    async def upgrade(self) -> int:
        """Apply the missing migrations and return the version. Raises `StoreTooNew`."""

    async def require(self) -> int:
        """Return the version if it is the one that this code needs, else raise `StoreTooOld`."""
        version = await self._version()
        if version != LATEST:
            raise StoreTooOld(url=self.url, found=version, known=LATEST)
        return version

    @reading
    def _version(self) -> Tx[int]:
        return (yield from self._known_version())

    def _known_version(self) -> Tx[int]:
        if not (yield op("has_migrations")):
            for other in (yield op("other_tables")):
                raise StoreError(
                    url=self.url,
                    problem=f"it contains tables of another application, such as {other['name']}; use another database",
                )
            return 0
        rows = yield op("schema_version")
        version = rows[0]["version"]
        if version and rows[0]["first"] != FIRST:
            raise StoreError(
                url=self.url,
                problem=f"its schema, {rows[0]['first']}, is older than the first release and cannot be upgraded; use a new database",
            )
        if version > LATEST:
            raise StoreTooNew(url=self.url, found=version, known=LATEST)
        return version

    @reading
    def now(self) -> Tx[datetime]:
        """Return the database's time, which is the only clock for stored times."""
        return moment((yield op("now"))[0]["now"])

    @reading
    def schema(self) -> Tx[SchemaStatus]:
        """Return the schema version of the store and how much data it has."""
        version = yield from self._known_version()
        status = SchemaStatus(engine=self.engine, version=version, latest=LATEST)
        if version < LATEST:
            return status
        (row,) = yield scanning(op("totals"))
        return replace(
            status,
            sessions=row["sessions"],
            events=row["events"],
            pending=row["pending"],
            holders=row["holders"],
            expired_holders=row["expired_holders"],
            leases=row["leases"],
            queue_wait=max(0, row["queue_wait"]) / 1_000_000,
        )

    async def harmful_settings(self) -> list[ServerSetting]:
        """Return the settings of the database server that work against the store."""
        return []

    @reading
    def stats(self) -> Tx[StoreStats]:
        """Return the size of the store and its growth. The cost depends on how many sessions were active in the last week."""
        sizes = yield op("sizes")
        free = [row["free_bytes"] for row in sizes if row["free_bytes"] is not None]
        return StoreStats(
            engine=self.engine,
            bytes=sum(row["bytes"] for row in sizes),
            free_bytes=sum(free) if free else None,
            wal_bytes=None,
            tables=[
                TableStats(name=row["name"], bytes=row["bytes"], rows=row["number"])
                for row in sizes
                if row["name"] is not None
            ],
            last_day=(yield from self._growth(_DAY_US)),
            last_week=(yield from self._growth(7 * _DAY_US)),
        )

    def _growth(self, period_us: int) -> Tx[Growth]:
        (row,) = yield slow(op("growth", period_us=period_us))
        return Growth(sessions=row["sessions"], events=row["events"])
