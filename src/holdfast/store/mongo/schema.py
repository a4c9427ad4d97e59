"""The collections and their indexes, created by numbered migrations with the same numbers as those of store/sql.

Every step of a migration can be repeated, so that several processes may start at once.
"""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bson import MaxKey, MinKey
from pymongo import IndexModel
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import CollectionInvalid, DuplicateKeyError, OperationFailure
from pymongo.read_concern import ReadConcern

from holdfast.store.mongo.documents import Documents, MongoRow
from holdfast.store.schema import FIRST
from holdfast.tables import KEYS

_OWNER = 0
"""The `_id` of the document in `migrations` that marks this database as ours."""
_NAMESPACE_EXISTS = 48
_PATIENCE = 20
_PAUSE_SECONDS = 0.1


def _index(*columns: str, **options: Any) -> IndexModel:
    return IndexModel([(column, 1) for column in columns], **options)


_INDEXES: Final[Mapping[str, Sequence[IndexModel]]] = {
    "sessions": [
        _index("active_at", "id"),
        _index("agent", "active_at", "id"),
        _index("owner", "active_at", "id"),
        _index("archive", partialFilterExpression={"archive": {"$gt": ""}}),
        _index("agent", "hold", "status", "active_at", "id"),
        _index("agent", "hold", "status", "created_at", "id"),
        _index("status", "active_at", "id"),
    ],
    "heads": [
        _index("agent", "place", "ready_at", partialFilterExpression={"ready_at": {"$gt": 0}}),
        _index("agent", "priority", partialFilterExpression={"ready_at": {"$gt": 0}}),
        _index("agent", "owner", "last_place", partialFilterExpression={"last_place": {"$gt": 0}}),
        IndexModel(
            [("agent", 1), ("owner", 1), ("priority", -1), ("ready_at", 1)],
            partialFilterExpression={"place": {"$gte": -1}},
        ),
        _index("ready_at", partialFilterExpression={"ready_at": {"$gt": 0}}),
        _index("holder", "tenure", partialFilterExpression={"holder": {"$gt": ""}}),
    ],
    "submissions": [
        _index("id", unique=True),
        _index(
            "session_id",
            "idempotency_key",
            unique=True,
            partialFilterExpression={"idempotency_key": {"$gt": ""}},
        ),
        _index("session_id", "ended_at", "lane", "position"),
        _index("ended_at", "session_id", "position", partialFilterExpression={"ended_at": {"$gt": 0}}),
    ],
    "schedules": [
        _index("moved", "next_at", partialFilterExpression={"next_at": {"$gt": 0}}),
        _index("owner", "_id"),
        _index("session_id", partialFilterExpression={"session_id": {"$gt": ""}}),
    ],
    "usage": [_index("day", "owner"), _index("owner", "day")],
    "budgets": [_index("per", "name", "daily"), _index("changed_at")],
    "subscriptions": [
        _index("owner", "_id"),
        _index("everyone", partialFilterExpression={"everyone": 1}),
        _index("due_at", partialFilterExpression={"due_at": {"$gt": 0}}),
    ],
    "deliveries": [
        _index("subscription_id", "due_at", partialFilterExpression={"due_at": {"$gt": 0}}),
        _index("subscription_id", "session_id", "seq", "_id", partialFilterExpression={"state": "pending"}),
        _index("subscription_id", "_id"),
        _index("ended_at", partialFilterExpression={"ended_at": {"$gt": 0}}),
    ],
    "mirrored": [
        _index("session_id"),
        _index("mirror", "session_id", partialFilterExpression={"deleting": 1}),
    ],
    "stored_bytes": [
        _index("session_id"),
        IndexModel([("owner", 1), ("bytes", -1)]),
        _index("seq", partialFilterExpression={"seq": {"$lt": 0}}),
    ],
    "runs": [
        _index("id", unique=True),
        _index("session_id", "first_seq", "id"),
        _index("parent_id", "started_at", "id", partialFilterExpression={"parent_id": {"$gt": ""}}),
        _index("started_at", "id"),
        _index("status", "started_at", "id"),
    ],
    "checkpoints": [_index("id", unique=True)],
    "effects": [
        _index("session_id", "started_at", "run_id", "call_id"),
        _index("state", "run_id", partialFilterExpression={"state": "started"}),
    ],
    "audit": [_index("session_id", "id"), _index("id")],
    "tokens": [_index("digest", unique=True)],
    "blobs": [
        _index("sha256", "location", unique=True, partialFilterExpression={"state": "stored"}),
        _index("sha256"),
        _index("location", "_id"),
    ],
    "blob_references": [_index("sha256")],
    "commands": [
        _index("started_at", "id"),
        _index("owner", "started_at", "id"),
        _index("ended_at", "id"),
        _index("session_id", "_id"),
    ],
    "outputs": [
        _index("id", unique=True),
        _index("at", "id"),
        _index("owner", "at", "id"),
        _index("session_id", "_id"),
    ],
}

COLLECTIONS: Final = frozenset({*KEYS, "pieces", "migrations"})


async def _schema(database: AsyncDatabase[MongoRow]) -> None:
    """Create every collection, even those without an index, so that no transaction on a new database has to."""
    there = set(await database.list_collection_names())
    await asyncio.gather(*(database[name].create_indexes(indexes) for name, indexes in _INDEXES.items()))
    plain = {*KEYS, "pieces"} - set(_INDEXES) - there
    await asyncio.gather(*(_create(database, name) for name in sorted(plain)))


async def _create(database: AsyncDatabase[MongoRow], name: str) -> None:
    try:
        await database.create_collection(name)
    except CollectionInvalid:
        return
    except OperationFailure as error:
        if error.code != _NAMESPACE_EXISTS:
            raise


MIGRATIONS: Final = ((1, FIRST, _schema),)


async def upgrade(db: Documents, version: int) -> None:
    """Apply the migrations after `version`. The first write marks the database as ours."""
    await _claim(db)
    for number, name, migrate in MIGRATIONS:
        if number > version:
            await migrate(db.database)
            try:
                await db["migrations"].insert_one(MongoRow(_id=number, name=name, applied_at=await db.now()))
            except DuplicateKeyError:
                continue  # another process was faster


async def _claim(db: Documents) -> None:
    try:
        await db["migrations"].insert_one(MongoRow(_id=_OWNER, name="holdfast", database=uuid.uuid4().hex))
    except DuplicateKeyError:
        return


async def identity(db: Documents) -> str:
    """Return an id of this database that does not depend on how it is reached."""
    (owner,) = await db["migrations"].find({"_id": _OWNER}).to_list()
    return owner["database"]


async def has_migrations(db: Documents) -> list[MongoRow]:
    return await db["migrations"].find({"_id": _OWNER, "name": "holdfast"}).to_list()


async def other_tables(db: Documents) -> list[MongoRow]:
    """Return a collection of another application that has one of our names. Other collections are ignored."""
    results: list[str] = []
    for _ in range(_PATIENCE):
        results = sorted(COLLECTIONS.intersection(await db.database.list_collection_names()))
        if results != ["migrations"] or await db["migrations"].find_one({}) is not None:
            break
        await asyncio.sleep(_PAUSE_SECONDS)  # another process is about to mark the database as ours
    if await has_migrations(db):
        return []
    return [MongoRow(name=name) for name in results[:1]]


async def schema_version(db: Documents) -> list[MongoRow]:
    newest = await db["migrations"].find({}, sort=[("_id", -1)], limit=1).to_list()
    first = await db["migrations"].find({"_id": 1}).to_list()
    return [MongoRow(version=newest[0]["_id"], first=first[0]["name"] if first else None)]


async def now(db: Documents) -> list[MongoRow]:
    return [MongoRow(now=await db.now())]


async def sizes(db: Documents) -> list[MongoRow]:
    """Return the size of each collection with its indexes. A sharded collection has statistics for each shard."""
    rows: list[MongoRow] = []
    for name in sorted(COLLECTIONS):
        row = MongoRow(name=name, bytes=0, free_bytes=0, number=0)
        # Statistics belong to no snapshot.
        collection = db[name].with_options(read_concern=ReadConcern("local"))
        async for shard in await collection.aggregate([{"$collStats": {"storageStats": {}}}]):
            part = shard["storageStats"]
            row["bytes"] += part["storageSize"] + part["totalIndexSize"]
            row["free_bytes"] += part.get("freeStorageSize", 0)
            row["number"] += part["count"]
        rows.append(row)
    return sorted(rows, key=lambda row: -row["bytes"])


async def growth(db: Documents, *, period_us: int) -> list[MongoRow]:
    """Count on the server what the statement of the same name counts, in the order of the same indexes."""
    start = await db.now() - period_us
    is_new = {"$gt": ["$created_at", start]}
    head = {"from": "heads", "localField": "_id", "foreignField": "_id", "as": "head"}
    seq = {"$first": "$head.seq"}
    kept = {"$subtract": [{"$first": "$oldest._id.seq"}, 1]}
    seq_before = {"$cond": [is_new, 0, {"$ifNull": [{"$first": "$before._id.seq"}, kept, seq]}]}
    groups = await db.group(
        "sessions",
        {"$match": {"active_at": {"$gt": start}}},
        {"$project": {"created_at": 1}},
        {"$lookup": head},
        {"$lookup": _one_event("before", -1, start, {"at": {"$lte": start}})},
        {"$lookup": _one_event("oldest", 1, start, {})},
        {
            "$group": {
                "_id": None,
                "sessions": {"$sum": {"$cond": [is_new, 1, 0]}},
                "events": {"$sum": {"$subtract": [seq, seq_before]}},
            }
        },
    )
    return groups or [MongoRow(sessions=0, events=0)]


def _one_event(name: str, order: int, start: int, where: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lookup of the first event that matches, in the order of the numbers, if the session is older than the period."""
    return {
        "from": "events",
        "let": {
            "low": {"session_id": "$_id"},
            "high": {
                "session_id": "$_id",
                "seq": {"$cond": [{"$gt": ["$created_at", start]}, MinKey(), MaxKey()]},
            },
        },
        "pipeline": [
            {"$match": {"$expr": {"$and": [{"$gt": ["$_id", "$$low"]}, {"$lt": ["$_id", "$$high"]}]}}},
            {"$match": where},
            {"$sort": {"_id": order}},
            {"$limit": 1},
            {"$project": {"_id": 1}},
        ],
        "as": name,
    }
