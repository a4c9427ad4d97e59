"""The statements of usage.sql."""

from typing import Any

from holdfast.store.mongo.documents import Documents, MongoRow, beyond
from holdfast.usage import DAY_US, USAGE_GROUPS, USAGE_SUMS


async def usage(
    db: Documents, *, first: int, end: int, limit: int, paged: bool | None, **given: Any
) -> list[MongoRow]:
    where = {
        name: given[name] for name in ("owner", "session_id", "agent", "model") if given[name] is not None
    }
    by = [name for name in USAGE_GROUPS if given[f"by_{name}"]]
    if paged and by:
        where |= beyond("$gt", **{name: given[f"after_{name}"] for name in by})
    rows = await db.group(
        "usage",
        {"$match": {"day": {"$gte": first, "$lt": end}, **where}},
        {
            "$group": {
                "_id": {name: f"${name}" for name in by},
                **{name: {"$sum": f"${name}"} for name in USAGE_SUMS},
            }
        },
        {"$sort": {"_id": 1}},
        {"$limit": limit},
    )
    return [MongoRow(row, **row["_id"]) for row in rows]


async def drop_usage(db: Documents, *, days: int, limit: int) -> list[MongoRow]:
    old = {"day": {"$lt": await db.now() // DAY_US - days}}
    return await db.delete("usage", old, sort=[("day", 1)], limit=limit)


async def merge_usage(db: Documents, **row: Any) -> list[MongoRow]:
    def greater(old: MongoRow, new: MongoRow) -> MongoRow:
        return MongoRow(old, **{name: max(old[name], new[name]) for name in USAGE_SUMS})

    await db.put("usage", [row], greater)
    return []
