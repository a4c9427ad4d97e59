"""The statements of sweep.sql."""

from collections.abc import Sequence
from typing import Any, Final

from holdfast.store.mongo.documents import Documents, MongoRow, Where, beyond
from holdfast.store.mongo.sessions import by_key, live_holders
from holdfast.types import STATUSES

_NOT_CLEANED: Final[Where] = {"$in": [status for status in STATUSES if status != "cleaned"]}
"""By name, so that the index is read once for each of them, in order, and the results are merged."""


async def agents(db: Documents) -> list[MongoRow]:
    groups = await db.group("sessions", {"$sort": {"agent": 1}}, {"$group": {"_id": "$agent"}})
    return [MongoRow(agent=name) for name in sorted(group["_id"] for group in groups)]


async def due_idle(db: Documents, **params: Any) -> list[MongoRow]:
    return await _due(db, "active_at", _NOT_CLEANED, **params)


async def due_age(db: Documents, **params: Any) -> list[MongoRow]:
    return await _due(db, "created_at", _NOT_CLEANED, **params)


async def due_cleaned(db: Documents, **params: Any) -> list[MongoRow]:
    return await _due(db, "created_at", "cleaned", **params)


async def _due(
    db: Documents,
    column: str,
    status: Where | str,
    *,
    agent: str | None,
    older_us: int,
    limit: int,
    after: int | None = None,
    after_id: str | None = None,
    after_position: int | None = None,
    free: bool | None = True,
) -> list[MongoRow]:
    del after_position  # for submissions only
    now = await db.now()
    until: dict[str, int] = {"$lte": now - older_us}
    where: dict[str, Any] = {"agent": agent, "status": status, column: until}
    if free:
        where["hold"] = 0
    if after is not None:
        until["$gte"] = after
        where |= beyond("$gt", **{column: after, "id": after_id})
    rows = await db.find("sessions", where, sort=[(column, 1), ("id", 1)], limit=limit)
    return [MongoRow(row, place=row[column], now=now) for row in rows]


async def due_submissions(
    db: Documents,
    *,
    older_us: int,
    limit: int,
    agent: str | None = None,
    after: int | None = None,
    after_id: str | None = None,
    after_position: int | None = None,
    free: bool | None = True,
) -> list[MongoRow]:
    """Find submissions that ended long enough ago, oldest first, page by page, skipping sessions on hold."""
    del agent, free  # covers all agents, and never sessions on hold
    now = await db.now()
    place = None if after is None else (after, after_id, after_position)
    rows: list[MongoRow] = []
    while len(rows) < limit:
        ended: dict[str, int] = {"$gt": 0, "$lte": now - older_us}
        where: dict[str, Any] = {"ended_at": ended}
        if place is not None:
            ended["$gte"] = place[0]
            where |= beyond("$gt", ended_at=place[0], session_id=place[1], position=place[2])
        page = await db.find(
            "submissions",
            where,
            sort=[("ended_at", 1), ("session_id", 1), ("position", 1)],
            limit=limit,
            fields=["id", "session_id", "position", "ended_at"],
        )
        sessions = await by_key(db, "sessions", [row["session_id"] for row in page])
        for row in page:
            session = sessions.get(row["session_id"])
            if session is not None and not session["hold"]:
                own = {"submission_id": row["id"], "position": row["position"], "place": row["ended_at"]}
                rows.append(MongoRow(session, **own, now=now))
        if len(page) < limit:
            break
        place = (page[-1]["ended_at"], page[-1]["session_id"], page[-1]["position"])
    return rows[:limit]


async def drop_submissions(db: Documents, *, ids: Sequence[str]) -> list[MongoRow]:
    where = {"id": {"$in": ids}, "ended_at": {"$gt": 0}}
    rows = await db.find("submissions", where, fields=["session_id"])
    sessions = await by_key(db, "sessions", [row["session_id"] for row in rows])
    free = [r["_id"] for r in rows if not sessions.get(r["session_id"], MongoRow())["hold"]]
    gone = await db.delete("submissions", {"_id": {"$in": free}}) if free else []
    return [MongoRow(session_id=row["_id"]["session_id"]) for row in gone]


async def take_duty(db: Documents, *, name: str, holder: str, every_us: int) -> list[MongoRow]:
    now = await db.now()
    new = MongoRow(name=name, holder=holder, taken_at=now, detail="{}")
    if await db.insert_new("duties", new):
        return [new]
    (duty,) = await db.get("duties", name)
    free = duty["holder"] == holder or not await live_holders(db, [duty["holder"]])
    rested = duty["done_at"] is None or duty["done_at"] <= now - every_us
    return [await db.change("duties", duty, holder=holder, taken_at=now)] if free and rested else []


async def duty(db: Documents, *, name: str) -> list[MongoRow]:
    rows = await db.get("duties", name)
    live = await live_holders(db, [row["holder"] for row in rows])
    return [MongoRow(row, holder=live.get(row["holder"], MongoRow())["name"]) for row in rows]
