"""The statements of media.sql."""

from collections import Counter
from collections.abc import Sequence

from holdfast.store.mongo.documents import Documents, MongoRow, span


async def lock_content(_: Documents, **__: object) -> list[MongoRow]:
    """Do nothing: of concurrent uploads of the same content, all but the first restart, and find it."""
    return []


async def add_blob(db: Documents, **row: object) -> list[MongoRow]:
    new = MongoRow(row, at=await db.now())
    if await db.insert_new("blobs", new):
        return [new]
    return await db.change_where("blobs", {"_id": row["id"], "state": "storing"}, at=new["at"])


async def _references(db: Documents, rows: Sequence[MongoRow]) -> dict[str, int]:
    groups = await db.group(
        "blob_references",
        {"$match": {"sha256": {"$in": [row["sha256"] for row in rows]}}},
        {"$group": {"_id": "$sha256", "n": {"$sum": 1}}},
    )
    return {group["_id"]: group["n"] for group in groups}


async def _archives(db: Documents, rows: Sequence[MongoRow]) -> list[MongoRow]:
    """Return the sessions whose archive is one of these blobs."""
    digests = [row["sha256"] for row in rows]
    return await db.find("sessions", {"archive": {"$in": digests, "$gt": ""}}, fields=["archive"])


async def _counted(db: Documents, rows: list[MongoRow]) -> list[MongoRow]:
    numbers = Counter(await _references(db, rows))
    numbers.update(row["archive"] for row in await _archives(db, rows))
    return [MongoRow(row, refs=numbers[row["sha256"]]) for row in rows]


async def blob(db: Documents, *, sha256: str, location: str | None = None) -> list[MongoRow]:
    where = {"sha256": sha256, "state": "stored"} | ({} if location is None else {"location": location})
    return await _counted(db, await db.find("blobs", where, sort=[("_id", -1)]))


async def blobs(
    db: Documents,
    *,
    limit: int,
    location: str | None = None,
    state: str | None = None,
    after: str | None = None,
) -> list[MongoRow]:
    where = _page(location, after) | ({} if state is None else {"state": state})
    return await _counted(db, await db.find("blobs", where, sort=[("_id", 1)], limit=limit))


def _page(location: str | None, after: str | None) -> dict[str, object]:
    where: dict[str, object] = {} if location is None else {"location": location}
    return where | ({} if after is None else {"_id": {"$gt": after}})


async def unneeded_blobs(
    db: Documents, *, location: str, limit: int, grace_us: int, dead_us: int, after: str | None = None
) -> list[MongoRow]:
    page = await db.find("blobs", _page(location, after), sort=[("_id", 1)], limit=limit)
    unneeded = {row["id"] for row in await _unneeded(db, page, grace_us, dead_us)}
    return [
        MongoRow(row, looked=page[-1]["id"], seen=len(page), unneeded=int(row["id"] in unneeded))
        for row in page
    ]


async def _unneeded(db: Documents, rows: list[MongoRow], grace_us: int, dead_us: int) -> list[MongoRow]:
    """Return the unneeded blobs."""
    now = await db.now()
    needed = set(await _references(db, rows))
    needed |= {row["archive"] for row in await _archives(db, rows)}

    def is_unneeded(row: MongoRow) -> bool:
        match row["state"]:
            case "deleting":
                return True
            case "storing":
                return row["at"] <= now - dead_us
            case _:
                return row["at"] <= now - grace_us and row["sha256"] not in needed

    return [row for row in rows if is_unneeded(row)]


async def lock_blobs(_: Documents, **__: object) -> list[MongoRow]:
    """Do nothing: adding a reference to a blob changes it, and so does marking it for deletion."""
    return []


async def mark_blobs_for_deletion(
    db: Documents, *, ids: Sequence[str], grace_us: int, dead_us: int
) -> list[MongoRow]:
    rows = await db.find("blobs", {"_id": {"$in": ids}}, sort=[("_id", 1)])
    return [
        await db.change("blobs", row, state="deleting", held=0)
        for row in await _unneeded(db, rows, grace_us, dead_us)
    ]


async def owned_reference(db: Documents, *, owner: str, sha256: str) -> list[MongoRow]:
    return await db.group(
        "sessions",
        {"$match": {"owner": owner}},
        {"$sort": {"active_at": -1, "id": -1}},
        {"$project": {"id": 1, "key": {"session_id": "$id", "sha256": {"$literal": sha256}}}},
        {
            "$lookup": {
                "from": "blob_references",
                "localField": "key",
                "foreignField": "_id",
                "as": "references",
            }
        },
        {"$match": {"references": {"$ne": []}}},
        {"$limit": 1},
        {"$project": {"_id": 0, "id": 1}},
    )


async def media_bytes(db: Documents, *, session_id: str) -> list[MongoRow]:
    """Add up the media of a session. While media is moved, the same content can be in two locations: it counts once."""
    references = await db.find("blob_references", span("blob_references", session_id), fields=["sha256"])
    where = {"sha256": {"$in": [row["sha256"] for row in references]}, "state": "stored"}
    sizes = {row["sha256"]: row["size"] for row in await db.find("blobs", where, fields=["sha256", "size"])}
    return [MongoRow(bytes=sum(sizes.values()))]
