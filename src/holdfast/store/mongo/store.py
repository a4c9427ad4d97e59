"""MongoDB, as a replica set: the same transactions as on SQL, each statement an operation on documents.

A transaction that conflicts with another one, or meets a new primary, is run again from the start. A commit whose response was
lost is repeated until its outcome is known. Nothing is acknowledged before a majority has it in its journal.
"""

import asyncio
import hashlib
import os
import random
import re
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import pymongo
from bson import ObjectId
from bson.errors import InvalidDocument
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import (
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
)
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import parse_uri

from holdfast.config import Settings
from holdfast.counting import count
from holdfast.diagnostics import Violation
from holdfast.errors import (
    SessionBusy,
    StoreClosed,
    StoreError,
    StoreUnavailable,
)
from holdfast.ids import check_id
from holdfast.store.archive import PAGE_BYTES, PAGE_ROWS, Imported
from holdfast.store.beacons import FileBeacons
from holdfast.store.hub import READY, Hub
from holdfast.store.mongo import (
    retention,
    schema,
)
from holdfast.store.mongo.client import (
    MAJORITY,
    PRIMARY,
    Client,
    check_borrowed,
    connect,
    database,
    describe,
    election,
    time_limit,
)
from holdfast.store.mongo.documents import Clock, Documents, MongoRow
from holdfast.store.mongo.failures import BUSY_SECONDS, is_transient, is_unknown, translate
from holdfast.store.mongo.hints import Hints
from holdfast.store.mongo.transactions import LONG_SECONDS, PAUSE_SECONDS, SessionTurns, commit, run
from holdfast.store.mongo.write import write
from holdfast.store.rows import Rows, moment
from holdfast.store.schema import LATEST
from holdfast.store.store import Store
from holdfast.store.transactions import Progress, Statement, Tx, bounded, lease_lost, op, reading, slow
from holdfast.store.write import Writing
from holdfast.tables import SESSION, TABLES, Table
from holdfast.types import Batch, Holder, Lease

T = TypeVar("T")
Handler = Callable[..., Coroutine[Any, Any, list[MongoRow]]]

PATIENCE_SECONDS = 6.0
"""How long a call is retried while the server is unavailable. Shorter than a lease lives."""
_MONGODB_8 = 25
"""The wire protocol version that supports writes to several collections in one command."""
_LONGEST_PAUSE_SECONDS = 0.05
_DUPLICATE_TRIES = 3
"""A concurrent insert of the same key is visible when the transaction restarts; a real duplicate remains one."""

_SNAPSHOT = ReadConcern("snapshot")
_LINEARIZABLE = ReadConcern("linearizable")

_STANDALONE = (
    "it is not a replica set, which transactions and change streams require. One server is enough: start mongod with"
    " --replSet rs0, or set replication.replSetName in its configuration, and run rs.initiate() once in mongosh"
)


class MongoStore(Store):
    """Sessions in a database of a MongoDB replica set."""

    engine = "mongodb"

    def __init__(
        self, source: str | Client, *, name: str | None = None, upgrade: bool, settings: Settings
    ) -> None:
        """Store sessions in the database at a URL, or in one of an application's client, which is never closed."""
        self._source = source
        if isinstance(source, str):
            _check_address(source)
            self._name = urlsplit(source).path.strip("/") or "holdfast"
            url = re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", source)
        else:
            self._name = name or source.get_default_database("holdfast").name
            url = describe(source, self._name)
        super().__init__(url, settings)
        self._limit = time_limit(borrowed=not isinstance(source, str))
        self._upgrade_on_open = upgrade
        self._hub = Hub()
        self._client: Client | None = None
        self._hints: Hints | None = None
        self._beacons: FileBeacons | None = None
        self._has_bulk_write = False
        self._settled: ObjectId | None = None
        """The election whose primary has been waited for."""
        self._clock = Clock()
        self._turns = SessionTurns()

    def clone_for_thread(self) -> "MongoStore | None":
        if not isinstance(self._source, str):
            return None  # another thread cannot use a client of this event loop
        return MongoStore(self._source, upgrade=False, settings=self.settings)

    async def open(self) -> Self:
        self._opened_by = os.getpid()
        try:
            if isinstance(self._source, str):
                self._client = connect(self._source)
            else:
                check_borrowed(self._source, self.url)
                self._client = self._source
            with self._limit():
                hello = await self._client.admin.command("hello")
            if "setName" not in hello:
                raise StoreError(url=self.url, problem=_STANDALONE)  # noqa: TRY301
            self._has_bulk_write = hello["maxWireVersion"] >= _MONGODB_8
            await (self.upgrade() if self._upgrade_on_open else self.require())
            database = self._running()
            self._beacons = _beacons(await schema.identity(Documents(database, None)))
        except BaseException as error:
            await self.close()
            raise translate(error, self.url, self._name) from error
        self._hints = Hints(database, self._hub, self._poll, limited=self.limits_running)
        return self

    async def close(self) -> None:
        if self._is_inherited():
            return
        client, hints, beacons = self._client, self._hints, self._beacons
        self._client = self._hints = self._beacons = None
        self._hub.wake_all()  # so that no task waits for a closed store
        await self._unfinished.wait()
        if hints is not None:
            await hints.close()
        if beacons is not None:
            beacons.close()
        if client is not None and isinstance(self._source, str):
            await client.close()

    async def upgrade(self) -> int:
        version = await self._version()
        if version < LATEST:
            try:
                with pymongo.timeout(LONG_SECONDS):
                    await schema.upgrade(Documents(self._running(), None), version)
            except PyMongoError as error:
                raise translate(error, self.url, self._name) from error
        return LATEST

    def _violations(
        self, *, limit: int, session_id: str | None = None, progress: Progress | None = None
    ) -> Tx[list[Violation]]:
        find = op("violations", limit=limit, session_id=session_id, progress=progress)
        rows = yield find if session_id is not None else slow(find)
        violations = [
            Violation(invariant=row["invariant"], session_id=row["session_id"], detail=row["detail"])
            for row in rows
        ]
        if session_id is None:
            loose = yield slow(op("loose_pieces", limit=limit, progress=progress))
            violations += [
                Violation(invariant="piece has row", session_id=row["session_id"], detail=row["detail"])
                for row in loose
            ]
        return violations

    async def write(self, lease: Lease, batch: Batch) -> int:
        writing = Writing(lease.session_id, batch, self._max_payload_bytes)
        database = self._running()
        return await self._unfinished.run(self._write(database, lease, writing))

    async def _write(self, database: AsyncDatabase[MongoRow], lease: Lease, writing: Writing) -> int:
        async with self._turns.of(lease.session_id):
            if lease.lost:
                raise lease_lost(lease, "it was released or lost before")
            writing.refuse()
            try:
                seq, ready = await self._commit(
                    database,
                    lambda db: self._write_batch(db, lease, writing),
                )
            except Exception as error:
                writing.fail(error)
                lease.lost = lease.lost or isinstance(error, StoreUnavailable)
                raise
            count("commit_batches")  # concurrent commits share the server's journal
            lease.writes += 1
            lease.seq = seq
            if writing.release:
                lease.lost = lease.released = True
        is_ready = ready or (writing.release and self.limits_running)
        self._hub.changed((lease.session_id, READY) if is_ready else (lease.session_id,))
        return seq

    async def _write_batch(self, db: Documents, lease: Lease, writing: Writing) -> tuple[int, bool]:
        at = self._clock.now() if self._has_bulk_write else None
        with self._limit():
            return await write(db, lease, writing, at=at)

    async def acquire(self, session_id: str, holder: Holder, *, cleaned: bool = False) -> Lease:
        """Read first: locking the head changes it, and a caller that finds it busy would roll back the holder's own writes."""
        await self._refuse_leased(session_id)
        return await super().acquire(session_id, holder, cleaned=cleaned)

    @reading
    def _refuse_leased(self, session_id: str) -> Tx[None]:
        held = yield Statement("lease_holder", {"session_id": check_id(session_id, "session id")})
        for row in held:
            until = moment(row["deadline"]).isoformat(timespec="seconds")
            raise SessionBusy(session_id=session_id, holder=row["name"], until=until)

    def _announce(self, *topics: str) -> None:
        self._hub.changed(topics)  # other processes receive the change stream

    async def shrink(self, *, limit: int = 1000) -> int:
        """Do nothing: the server reuses the space of deleted documents."""
        del limit
        return 0

    async def _transact(
        self,
        make: Callable[[], Tx[T]],
        *,
        repeatable: bool,
        changes: Sequence[str] = (),
        long: bool = False,
    ) -> T:
        """Run it to its end, even if the caller is cancelled meanwhile."""
        del repeatable, long  # the outcome of a commit is always determined; the server does the work
        database = self._running()
        result = await self._unfinished.run(self._in_turn(database, make, changes))
        self._hub.changed(changes)
        return result

    async def _in_turn(
        self, database: AsyncDatabase[MongoRow], make: Callable[[], Tx[T]], changes: Sequence[str]
    ) -> T:
        """Run it when no other change of the same session is in progress in this process: the two would only conflict."""
        async with self._turns.of(changes[0]) if changes else nullcontext():
            return await self._commit(database, lambda db: run(db, make(), self._limit))

    async def _commit(
        self, database: AsyncDatabase[MongoRow], work: Callable[[Documents], Coroutine[Any, Any, T]]
    ) -> T:
        """Run the work in a transaction, and again from the start whenever the server rolls it back.

        All attempts use one session: each new transaction makes the server abort the previous one, which then cannot commit.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        attempt = duplicates = 0
        async with database.client.start_session(causal_consistency=False) as session:
            while True:
                attempt += 1
                try:
                    async with await session.start_transaction(_SNAPSHOT, MAJORITY, PRIMARY):
                        result = await work(Documents(database, session, self._clock, attempt=attempt))
                        await commit(session, loop.time() + PATIENCE_SECONDS, self._limit)
                except DuplicateKeyError as error:
                    duplicates += 1
                    if duplicates >= _DUPLICATE_TRIES:
                        raise translate(error, self.url, self._name) from error
                except (PyMongoError, InvalidDocument, ValueError, OverflowError) as error:
                    met = isinstance(error, OperationFailure)
                    patience = BUSY_SECONDS if met else PATIENCE_SECONDS
                    if is_unknown(error) or not is_transient(error) or loop.time() - began > patience:
                        raise translate(error, self.url, self._name) from error
                    longest = min(_LONGEST_PAUSE_SECONDS, 0.002 * 2 ** min(attempt, 8))
                    await asyncio.sleep(random.uniform(0, longest) if met else PAUSE_SECONDS)  # noqa: S311
                else:
                    return result

    async def _read(self, make: Callable[[], Tx[T]]) -> T:
        """Run a read-only transaction on one snapshot that a majority has, and again if another primary was elected meanwhile."""
        database = self._running()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        while True:
            try:
                settled = await self._settle(database)
                async with database.client.start_session(snapshot=True) as session:
                    result = await run(Documents(database, session), make(), self._limit)
                if election(database.client) == settled:
                    return result
            except (PyMongoError, InvalidDocument, ValueError, OverflowError) as error:
                if not is_transient(error) or loop.time() > deadline:
                    raise translate(error, self.url, self._name) from error
                await asyncio.sleep(PAUSE_SECONDS)

    async def _settle(self, database: AsyncDatabase[MongoRow]) -> ObjectId | None:
        """Wait until the snapshots of a new primary contain every acknowledged write, and return its election.

        It has all of them, but it learns that a majority has the last ones only with the first write of its own. A linearizable
        read makes such a write and waits for it.
        """
        while (elected := election(database.client)) != self._settled:
            with self._limit():
                await database["migrations"].with_options(read_concern=_LINEARIZABLE).find_one({"_id": 0})
            if election(database.client) == elected:
                self._settled = elected
        return elected

    async def _snapshot(
        self, session_id: str
    ) -> AsyncGenerator[tuple[str, Sequence[Mapping[str, object]]], None]:
        database = self._running()
        try:
            await self._settle(database)
            async with database.client.start_session(snapshot=True) as session:
                db = Documents(database, session)
                result = await retention.export_session(db, session_id=session_id)
                yield SESSION.name, _of(SESSION, result)
                for table in TABLES:
                    async for page in _pages(db, table, session_id):
                        yield table.name, page
        except (PyMongoError, InvalidDocument) as error:
            raise translate(error, self.url, self._name) from error

    def _content_sizes(self, session_id: str) -> Tx[Rows]:
        return (yield slow(op("content_sizes", session_id=session_id)))

    def _taken_ids(self, table: Table, ids: Sequence[str]) -> Tx[Rows]:
        return (yield op("taken_ids", table=table.name, column=table.unique, ids=ids))

    def _add_rows(self, table: Table, rows: Sequence[Imported], *, exist_ok: bool = False) -> Tx[None]:
        if not exist_ok:
            yield op("import_rows", table=table.name, rows=rows)
            return
        for row in rows:
            yield op("add_shared_row", table=table.name, row=row)

    def _shared_rows(self, table: Table, after: tuple[object, ...] | None, limit: int) -> Tx[Rows]:
        wanted = {"table": table.name, "only": dict(table.only), "after": after, "limit": limit}
        return (yield bounded(Statement("shared_rows", wanted), *table.texts))

    async def _lock_beacon(self, holder_id: str) -> bool:
        return self._beacons is not None and await asyncio.to_thread(self._beacons.lock, holder_id)

    async def _unlock_beacon(self, holder_id: str) -> None:
        if self._beacons is not None:
            await asyncio.to_thread(self._beacons.unlock, holder_id)

    async def _dead_holders(self) -> list[str]:
        return [] if self._beacons is None else await asyncio.to_thread(self._beacons.dead)

    async def _poll(self) -> None:
        """Compare the numbers of all waiting tasks with the current ones."""
        topics = self._hub.topics()
        if topics:
            self._hub.at(await self._read(lambda: self._latest_numbers(topics)))

    def _running(self) -> AsyncDatabase[MongoRow]:
        self._refuse_inherited()
        if self._client is None:
            raise StoreClosed(url=self.url)
        return database(self._client, self._name)


def _check_address(url: str) -> None:
    """Raise `ValueError` if a URL is invalid. A `mongodb+srv://` URL cannot be checked without DNS."""
    if url.startswith("mongodb://"):
        try:
            parse_uri(url)
        except PyMongoError as error:
            raise ValueError(str(error)) from error


async def _pages(
    db: Documents, table: Table, session_id: str
) -> AsyncGenerator[list[dict[str, object]], None]:
    """Read a session's rows of a table in order, in bounded pages."""
    where = retention.of_session(table.name, session_id)
    sort = [("_id", 1)]
    rows: list[dict[str, object]] = []
    size = 0
    cursor = db[table.name].find(where, sort=sort, session=db.session, batch_size=PAGE_ROWS)
    async for row in cursor:
        await db.whole([row])
        (plain,) = _of(table, [row])
        rows.append(plain)
        size += sum(len(value) for value in plain.values() if isinstance(value, str))
        if len(rows) >= PAGE_ROWS or size >= PAGE_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _of(table: Table, rows: Sequence[MongoRow]) -> list[dict[str, object]]:
    return [{name: row[name] for name in table.names} for row in rows]


def _beacons(identity: str) -> FileBeacons | None:
    """Return the beacons of this user's processes on this host; None if the folder belongs to another user."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    name = f"holdfast-{user}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    folder = Path(tempfile.gettempdir()) / name
    with suppress(FileNotFoundError):
        if folder.is_symlink() or folder.stat().st_uid != user:
            return None
    return FileBeacons(folder)
