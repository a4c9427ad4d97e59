"""Rows as documents: the reads and writes of a statement, within one transaction or on one snapshot.

A document has the columns of the SQL schema by the same names; a NULL column may be missing. Its `_id` is the
table's key. A text that is too long for a document is stored in `pieces`, and is joined again on reading, transparently
to callers.
"""

import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from bson import MaxKey, ObjectId
from bson.codec_options import CodecOptions
from pymongo import InsertOne, ReplaceOne, ReturnDocument, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure

from holdfast.store.transactions import PAGE_BYTES
from holdfast.tables import KEYS

_PLAIN: Final = CodecOptions[dict[str, Any]]()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST = 500_000
"""Longer texts go to `pieces`: a document may have 16 MiB, and no row has enough texts of this length to exceed that."""
_PIECE = 1_000_000
_DUPLICATE = 11000
_FRESH_SECONDS = 10
NOW: Final = {"$multiply": [{"$toLong": "$$NOW"}, 1000]}
"""The server's time in microseconds, as an expression, evaluated once per command."""


class MongoRow(dict[str, Any]):
    """A document. A missing column is None."""

    def __missing__(self, column: str) -> None:
        return None


Where: TypeAlias = Mapping[str, Any]
Sort: TypeAlias = Sequence[tuple[str, int]]


def span(
    table: str, first: str, *, after: Where | None = None, before: Where | None = None
) -> dict[str, Any]:
    """Return a filter for the rows of one session or command by their keys, optionally between two of them."""
    column, second = KEYS[table][:2]
    low = {column: first, **(after or {})}
    high = {column: first, **(before or {second: MaxKey()})}
    return {"_id": {"$gt": low, "$lt": high}}


def beyond(way: str, **columns: object) -> dict[str, Any]:
    """Return a filter for rows that sort after (`$gt`) or before (`$lt`) these values, column by column."""
    names = list(columns)
    return {
        "$or": [
            {**{name: columns[name] for name in names[:n]}, names[n]: {way: columns[names[n]]}}
            for n in range(len(names))
        ]
    }


def microseconds(at: datetime) -> int:
    """Return a server time as it is stored."""
    return (at.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


@contextmanager
def plain_errors() -> Generator[None, None, None]:
    """Raise the first error of a bulk write as if it were the only one, without the content of the row."""
    try:
        yield
    except BulkWriteError as error:
        results: list[Any] = dict(error.details).get("writeErrors") or []
        first: Any = results[0] if results else {"errmsg": "a bulk write failed", "code": error.code}
        details = {name: first[name] for name in ("keyPattern", "keyValue") if name in first}
        kind = DuplicateKeyError if first["code"] == _DUPLICATE else OperationFailure
        raise kind(first["errmsg"], first["code"], details) from None


class Clock:
    """An estimate of the server's time: its last known time plus the time since then.

    It lags by the duration of the fastest recent response, and does not go back while it is fresh.
    """

    def __init__(self) -> None:
        self._ahead: float = -math.inf  # lower bound of how far the server is ahead of the local clock
        self._updated = -math.inf

    def update(self, now_us: int) -> int:
        """Update the estimate with the server's time, and return that."""
        ours = time.monotonic()
        ahead = now_us - ours * 1e6
        if ahead > self._ahead or not self._is_fresh(ours):
            self._ahead, self._updated = ahead, ours
        return now_us

    def now(self) -> int | None:
        """Return the server's time in microseconds; None if the last known time is too old."""
        ours = time.monotonic()
        return int(ours * 1e6 + self._ahead) if self._is_fresh(ours) else None

    def _is_fresh(self, ours: float) -> bool:
        return ours - self._updated < _FRESH_SECONDS


class PageSize:
    """Counts the content of a page: the bytes in these columns, up to a limit."""

    def __init__(self, columns: Sequence[str] = (), most: int = PAGE_BYTES) -> None:
        self._columns = columns
        self._most = most
        self._size = 0
        self._is_full = False

    def again(self) -> "PageSize":
        """Restart the count, and return the same page."""
        self._size, self._is_full = 0, False
        return self

    def add(self, row: MongoRow) -> bool:
        """Count a row, and return whether the page is now full."""
        self._size += sum(len(row[column] or "") for column in self._columns)
        self._is_full = self._size >= self._most
        return self._is_full

    def cut(self, rows: list[MongoRow]) -> bool:
        """Remove the rows of a complete result that are beyond a full page; return whether the page is full."""
        if not self._is_full:
            self._size = 0
            for number, row in enumerate(rows, 1):
                if self.add(row):
                    del rows[number:]
                    break
        return self._is_full


class Documents:
    """The documents as one transaction sees them. `attempt` counts its attempts, from 1."""

    def __init__(
        self,
        database: AsyncDatabase[MongoRow],
        session: AsyncClientSession | None,
        clock: Clock | None = None,
        *,
        attempt: int = 1,
    ) -> None:
        self.database = database
        self.session = session
        self.attempt = attempt
        self._clock = clock or Clock()
        self.page = PageSize()
        """The page that the current statement fills, if it reads row by row."""
        self.heads: dict[str, MongoRow] = {}
        """The heads that this transaction has locked, as they were last changed."""
        self._gathered: dict[str, list[Mapping[str, Any]]] = {}
        self._now: int | None = None

    def __getitem__(self, table: str) -> AsyncCollection[MongoRow]:
        return self.database[table]

    async def now(self) -> int:
        """Return the server's time, the same within a transaction. It comes from the head if one was changed, else from a query."""
        if self._now is None:
            hello = await self.database.client.admin.command("hello", codec_options=_PLAIN)
            self._now = self._clock.update(microseconds(hello["localTime"]))
        return self._now

    async def head(
        self,
        session_id: str,
        where: Where | None = None,
        *,
        inc: Mapping[str, int] | None = None,
        values: Where | None = None,
    ) -> list[MongoRow]:
        """Change a session's head, which locks it until the commit and returns the time; return it, if it exists."""
        update: dict[str, Any] = {"$currentDate": {"touched_at": True}}
        if inc:
            update["$inc"] = inc
        if values:
            update["$set"] = values
        head = await self["heads"].find_one_and_update(
            {"_id": session_id, **(where or {})},
            update,
            return_document=ReturnDocument.AFTER,
            session=self.session,
        )
        if head is None:
            return []
        self._now = self._clock.update(microseconds(head["touched_at"]))
        self.heads[session_id] = head
        return [head]

    async def find(
        self,
        table: str,
        where: Where,
        *,
        sort: Sort | None = None,
        limit: int = 0,
        fields: Sequence[str] | None = None,
        paged: bool = False,
    ) -> list[MongoRow]:
        """Return the rows that match, in order; with `paged`, they end with the one that fills the page."""
        wanted = None if fields is None else [*fields, *(f"pieces.{name}" for name in fields)]
        cursor = self[table].find(where, wanted, sort=sort, limit=limit, session=self.session)
        if not paged:
            return await self.whole(await cursor.to_list())
        rows: list[MongoRow] = []
        async with cursor:
            async for row in cursor:
                rows += await self.whole([row])
                if self.page.add(row):
                    break
        return rows

    async def one(self, table: str, where: Where) -> MongoRow | None:
        """Return a row that matches, if any."""
        return next(iter(await self.find(table, where, limit=1)), None)

    async def get(self, table: str, key: object) -> list[MongoRow]:
        """Return the row with this key, or none."""
        return await self.find(table, {"_id": key}, limit=1)

    async def count(self, table: str, where: Where) -> int:
        """Return how many rows match."""
        return await self[table].count_documents(where, session=self.session)

    async def group(self, table: str, *stages: Mapping[str, Any]) -> list[MongoRow]:
        """Return the result of an aggregation of the table."""
        cursor = await self[table].aggregate(list(stages), session=self.session)
        return await cursor.to_list()

    async def insert(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows. A duplicate key aborts the transaction."""
        documents: list[MongoRow] = []
        pieces: list[MongoRow] = []
        for row in rows:
            document, own = _split(table, row)
            documents.append(document)
            pieces += own
        await self._add(table, documents)
        await self._add("pieces", pieces)

    def gather(self, table: str, row: Mapping[str, Any]) -> None:
        """Add a row together with the following ones, before any other statement runs."""
        self._gathered.setdefault(table, []).append(row)

    async def flush(self) -> None:
        """Add the gathered rows."""
        gathered, self._gathered = self._gathered, {}
        for table, rows in gathered.items():
            await self.insert(table, rows)

    async def _add(self, table: str, documents: list[MongoRow]) -> None:
        if not documents:
            return
        with plain_errors():
            await self[table].insert_many(documents, session=self.session)

    async def insert_new(self, table: str, row: Mapping[str, Any]) -> bool:
        """Add a row unless its key exists; return whether it was added."""
        document, pieces = _split(table, row)
        done = await self[table].update_one(
            {"_id": document["_id"]}, {"$setOnInsert": document}, upsert=True, session=self.session
        )
        if done.upserted_id is not None:
            await self._add("pieces", pieces)
        return done.upserted_id is not None

    async def change(self, table: str, row: MongoRow, **values: object) -> MongoRow:
        """Change some columns of a row that was read in this transaction; return the changed row."""
        changed = MongoRow({**row, **values})
        if "pieces" in row or any(isinstance(v, str) and len(v) > _LONGEST for v in values.values()):
            document, pieces = _split(table, changed, key=row["_id"])
            await self._drop_pieces([row])
            await self[table].replace_one({"_id": row["_id"]}, document, session=self.session)
            await self._add("pieces", pieces)
        else:
            await self[table].update_one({"_id": row["_id"]}, {"$set": values}, session=self.session)
        return changed

    async def change_at_once(
        self, table: str, key: str, stages: Sequence[Mapping[str, Any]], *, upsert: bool = False
    ) -> list[MongoRow]:
        """Change the row with this key by an update pipeline, in one command; return the changed row, if it exists."""
        row = await self[table].find_one_and_update(
            {"_id": key}, stages, upsert=upsert, return_document=ReturnDocument.AFTER, session=self.session
        )
        return [] if row is None else [row]

    async def change_where(self, table: str, where: Where, **values: object) -> list[MongoRow]:
        """Set columns of all rows that match to the same values; return the changed rows."""
        return [await self.change(table, row, **values) for row in await self.find(table, where)]

    async def put(
        self,
        table: str,
        rows: Sequence[Mapping[str, Any]],
        merge: Callable[[MongoRow, MongoRow], MongoRow | None],
    ) -> None:
        """Add rows. For an existing one, `merge` returns the new row from the old and the given one, or None to keep the old."""
        new = [MongoRow(row) for row in rows]
        keys = [_key(table, row) for row in new]
        result = await self.find(table, {"_id": {"$in": keys}})
        old = {_frozen(row["_id"]): row for row in result}
        changes: list[InsertOne[MongoRow] | ReplaceOne[MongoRow] | UpdateOne] = []
        pieces: list[MongoRow] = []
        replaced: list[MongoRow] = []
        for key, row in zip(keys, new, strict=True):
            before = old.get(_frozen(key))
            after = row if before is None else merge(before, row)
            if after is None:
                continue
            document, own = _split(table, after, key=key)
            pieces += own
            if before is None:
                changes.append(InsertOne(document))
            else:
                replaced.append(before)
                changes.append(ReplaceOne({"_id": key}, document))
        await self._drop_pieces(replaced)
        if changes:
            with plain_errors():
                await self[table].bulk_write(changes, session=self.session)
        await self._add("pieces", pieces)

    async def delete(
        self, table: str, where: Where, *, limit: int = 0, sort: Sort | None = None
    ) -> list[MongoRow]:
        """Delete at most `limit` rows that match; return their keys."""
        cursor = self[table].find(where, ["pieces"], sort=sort, limit=limit, session=self.session)
        rows = await cursor.to_list()
        if rows:
            await self._drop_pieces(rows)
            await self[table].delete_many({"_id": {"$in": [r["_id"] for r in rows]}}, session=self.session)
        return rows

    async def whole(self, rows: list[MongoRow]) -> list[MongoRow]:
        """Join the long texts of these rows."""
        for row in rows:
            for column, of in _pieces(row).items():
                cursor = self["pieces"].find(
                    {"_id": {"$gt": {"of": of}, "$lt": {"of": of, "number": MaxKey()}}},
                    sort=[("_id", 1)],
                    session=self.session,
                )
                row[column] = "".join([piece["body"] async for piece in cursor])
        return rows

    async def _drop_pieces(self, rows: Iterable[MongoRow]) -> None:
        for of in [of for row in rows for of in _pieces(row).values()]:
            await self["pieces"].delete_many(
                {"_id": {"$gt": {"of": of}, "$lt": {"of": of, "number": MaxKey()}}}, session=self.session
            )


def is_long(value: object) -> bool:
    """Return whether a text is too long for its row's document."""
    return isinstance(value, str) and len(value) > _LONGEST


def as_document(table: str, row: Mapping[str, Any]) -> MongoRow:
    """Return the document of a row without long texts."""
    document, _ = _split(table, row)
    return document


def _pieces(row: MongoRow) -> dict[str, ObjectId]:
    return row["pieces"] or {}


def _key(table: str, row: Mapping[str, Any]) -> Any:
    columns = KEYS[table]
    return row[columns[0]] if len(columns) == 1 else {column: row[column] for column in columns}


def _frozen(key: Any) -> Any:
    return tuple(key.values()) if isinstance(key, dict) else key  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _split(table: str, row: Mapping[str, Any], *, key: Any = None) -> tuple[MongoRow, list[MongoRow]]:
    """Return the document of a row, and the pieces of its long texts."""
    document = MongoRow(
        {name: value for name, value in row.items() if value is not None and name != "pieces"}
    )
    document["_id"] = _key(table, row) if key is None else key
    pieces: list[MongoRow] = []
    for column in [c for c, v in document.items() if isinstance(v, str) and len(v) > _LONGEST]:
        text, of = document.pop(column), ObjectId()
        document.setdefault("pieces", {})[column] = of
        pieces += [
            MongoRow(
                _id={"of": of, "number": n},
                table=table,
                row=document["_id"],
                body=text[start : start + _PIECE],
            )
            for n, start in enumerate(range(0, len(text), _PIECE))
        ]
    return document, pieces
