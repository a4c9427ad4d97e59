"""The statements of states.sql."""

from holdfast.store.mongo.documents import Documents, MongoRow, span


async def state(db: Documents, *, session_id: str) -> list[MongoRow]:
    return await db.get("states", session_id)


async def named_state(db: Documents, *, session_id: str, name: str) -> list[MongoRow]:
    return await db.get("named_states", {"session_id": session_id, "name": name})


async def set_named_state(db: Documents, **row: object) -> list[MongoRow]:
    await db.put("named_states", [{**row, "at": await db.now()}], lambda _, new: new)
    return []


async def state_versions(db: Documents, *, session_id: str) -> list[MongoRow]:
    plain = await db.get("states", session_id)
    named = await db.find("named_states", span("named_states", session_id), fields=["name", "version"])
    return [*(MongoRow(name=None, version=row["version"]) for row in plain), *named]


async def set_state(db: Documents, **row: object) -> list[MongoRow]:
    await db.put("states", [{**row, "at": await db.now()}], lambda _, new: new)
    return []


async def credentials(db: Documents, *, session_id: str) -> list[MongoRow]:
    rows = await db.find("credentials", span("credentials", session_id), sort=[("_id", 1)])
    now = await db.now() if rows else 0
    return [row for row in rows if row["expires_at"] is None or row["expires_at"] > now]


async def set_credential(db: Documents, *, ttl_us: int | None, **row: object) -> list[MongoRow]:
    expires_at = None if ttl_us is None else await db.now() + ttl_us
    await db.put("credentials", [{**row, "expires_at": expires_at}], lambda _, new: new)
    return []


async def drop_credentials(db: Documents, *, session_id: str, name: str) -> list[MongoRow]:
    gone = {"$or": [{"name": name}, {"expires_at": {"$lte": await db.now()}}]}
    return await db.delete("credentials", {**span("credentials", session_id), **gone})


async def set_cursor(db: Documents, **row: object) -> list[MongoRow]:
    def forward(old: MongoRow, new: MongoRow) -> MongoRow | None:
        return new if old["seq"] < new["seq"] else None

    await db.put("cursors", [{**row, "at": await db.now()}], forward)
    return []


async def cursor(db: Documents, *, session_id: str, consumer: str) -> list[MongoRow]:
    return await db.get("cursors", {"session_id": session_id, "consumer": consumer})


async def cursors(db: Documents, *, session_id: str, limit: int, after: str | None = None) -> list[MongoRow]:
    where = span("cursors", session_id, after=None if after is None else {"consumer": after})
    return await db.find("cursors", where, sort=[("_id", 1)], limit=limit)
