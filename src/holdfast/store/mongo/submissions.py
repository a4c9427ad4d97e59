"""The statements of submissions.sql."""

from holdfast.store.mongo.documents import Documents, MongoRow
from holdfast.tables import BY_NAME

_WITHOUT_PAYLOAD = [column for column in BY_NAME["submissions"].names if column != "payload"]
_OPEN = {"ended_at": None, "state": "queued"}
_QUEUE = [("lane", 1), ("position", 1)]  # 'control' sorts before 'main'


async def number_submission(
    db: Documents, *, session_id: str, ready: int, deliver_at: int, rank: int, pending: int
) -> list[MongoRow]:
    (head,) = await db.head(session_id, inc={"seq": 1})
    values: dict[str, int] = {}
    ready_at = max(deliver_at, await db.now())
    if ready and (head["ready_at"] is None or head["ready_at"] > ready_at):
        values["ready_at"] = ready_at
    priority = max(head["priority"], rank) if pending else rank
    if priority != head["priority"]:
        values["priority"] = priority
    if values:
        await db.head(session_id, values=values)
    return [head]


async def title_session(db: Documents, *, session_id: str, title: str, title_folded: str) -> list[MongoRow]:
    if await db.find("runs", {"session_id": session_id}, limit=1, fields=["_id"]):
        return []
    return await db.change_where("sessions", {"_id": session_id}, title=title, title_folded=title_folded)


async def urgent_submissions(db: Documents, *, session_id: str, limit: int) -> list[MongoRow]:
    urgent = [{"lane": "control", "kind": {"$ne": "signal"}}, {"when_busy": {"$in": ["steer", "interrupt"]}}]
    where = {"session_id": session_id, **_OPEN, "deliver_at": {"$lte": await db.now()}, "$or": urgent}
    return await db.find("submissions", where, sort=_QUEUE, limit=limit, fields=_WITHOUT_PAYLOAD, paged=True)
