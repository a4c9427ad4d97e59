"""The statements of schedules.sql."""

from typing import Any

from holdfast.store.mongo.documents import Documents, MongoRow


async def schedules(
    db: Documents, *, limit: int, id: str | None = None, owner: str | None = None, after: str | None = None
) -> list[MongoRow]:
    where: dict[str, Any] = {} if owner is None else {"owner": owner}
    if id is not None:
        where["_id"] = id
    elif after is not None:
        where["_id"] = {"$gt": after}
    rows = await db.find("schedules", where, sort=[("_id", 1)], limit=limit, paged=True)
    wanted = [row["last_submission_id"] for row in rows if row["last_submission_id"]]
    found = (
        await db.find("submissions", {"id": {"$in": wanted}}, fields=["id", "state", "reason"])
        if wanted
        else []
    )
    last = {row["id"]: row for row in found}
    for row in rows:
        submission = last.get(row["last_submission_id"], MongoRow())
        row |= {"last_state": submission["state"], "last_reason": submission["reason"]}
    return rows
