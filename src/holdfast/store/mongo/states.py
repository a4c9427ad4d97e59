"""The statements of states.sql."""

from holdfast.store.mongo.documents import Documents, MongoRow, span


async def state_versions(db: Documents, *, session_id: str) -> list[MongoRow]:
    plain = await db.get("states", session_id)
    named = await db.find("named_states", span("named_states", session_id), fields=["name", "version"])
    return [*(MongoRow(name=None, version=row["version"]) for row in plain), *named]


async def credentials(db: Documents, *, session_id: str) -> list[MongoRow]:
    rows = await db.find("credentials", span("credentials", session_id), sort=[("_id", 1)])
    now = await db.now() if rows else 0
    return [row for row in rows if row["expires_at"] is None or row["expires_at"] > now]


async def drop_credentials(db: Documents, *, session_id: str, name: str) -> list[MongoRow]:
    gone = {"$or": [{"name": name}, {"expires_at": {"$lte": await db.now()}}]}
    return await db.delete("credentials", {**span("credentials", session_id), **gone})


async def set_cursor(db: Documents, **row: object) -> list[MongoRow]:
    def forward(old: MongoRow, new: MongoRow) -> MongoRow | None:
        return new if old["seq"] < new["seq"] else None

    await db.put("cursors", [{**row, "at": await db.now()}], forward)
    return []
