"""The statements of copying.sql."""

from collections.abc import Mapping
from typing import Any

from holdfast.store.mongo.documents import Documents, MongoRow
from holdfast.tables import KEYS


async def move_session(db: Documents, *, session_id: str) -> list[MongoRow]:
    where = {"_id": session_id, "status": {"$nin": ["cleaning", "cleaned", "moved"]}}
    rows = await db.find("sessions", where)
    return [
        await db.change(
            "sessions", row, status="moved", resting="idle" if row["status"] == "running" else row["status"]
        )
        for row in rows
    ]


async def park_head(db: Documents, *, session_id: str) -> list[MongoRow]:
    return await db.head(session_id, values={"holder": None, "ready_at": None, "place": None})


async def reopen_session(db: Documents, *, session_id: str) -> list[MongoRow]:
    rows = await db.find("sessions", {"_id": session_id, "status": "moved"})
    return [await db.change("sessions", row, status=row["resting"] or "idle", resting=None) for row in rows]


async def shared_rows(
    db: Documents, *, table: str, only: Mapping[str, Any], after: tuple[Any, ...] | None, limit: int
) -> list[MongoRow]:
    """Return rows of a table in the order of its key."""
    where: dict[str, Any] = dict(only)
    if after is not None:
        key = after[0] if len(after) == 1 else dict(zip(KEYS[table], after, strict=True))
        where["_id"] = {"$gt": key}
    return await db.find(table, where, sort=[("_id", 1)], limit=limit)


async def add_shared_row(db: Documents, *, table: str, row: Mapping[str, Any]) -> list[MongoRow]:
    """Add a row unless its key exists."""
    await db.insert_new(table, row)
    return []
