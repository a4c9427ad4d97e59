"""The statements of submissions.sql."""

from holdfast.store.mongo.documents import Documents, MongoRow, span
from holdfast.store.mongo.leases import claim
from holdfast.tables import BY_NAME

_WITHOUT_PAYLOAD = [column for column in BY_NAME["submissions"].names if column != "payload"]
_OPEN = {"ended_at": None, "state": "queued"}
_QUEUE = [("lane", 1), ("position", 1)]  # 'control' sorts before 'main'


async def submission_by_id(db: Documents, *, id: str) -> list[MongoRow]:
    return await db.find("submissions", {"id": id})


async def submission_by_key(db: Documents, *, session_id: str, idempotency_key: str) -> list[MongoRow]:
    return await db.find("submissions", {"session_id": session_id, "idempotency_key": idempotency_key})


async def number_submission(db: Documents, *, session_id: str, ready: int) -> list[MongoRow]:
    (head,) = await db.head(session_id, inc={"seq": 1})
    if ready and head["ready_at"] is None:
        await db.head(session_id, values={"ready_at": await db.now()})
    return [head]


async def insert_submission(db: Documents, **row: object) -> list[MongoRow]:
    new = MongoRow(row, state="queued", attempts=0, created_at=await db.now())
    await db.insert("submissions", [new])
    return [new]


async def touch_session(db: Documents, *, session_id: str) -> list[MongoRow]:
    now = await db.now()
    await db["sessions"].update_one({"_id": session_id}, {"$set": {"active_at": now}}, session=db.session)
    return []


async def title_session(db: Documents, *, session_id: str, title: str, title_folded: str) -> list[MongoRow]:
    if await db.find("runs", {"session_id": session_id}, limit=1, fields=["_id"]):
        return []
    return await db.change_where("sessions", {"_id": session_id}, title=title, title_folded=title_folded)


async def next_submission(db: Documents, *, session_id: str, lane: str | None = None) -> list[MongoRow]:
    where = {"session_id": session_id, **_OPEN, **({} if lane is None else {"lane": lane})}
    return await db.find("submissions", where, sort=_QUEUE, limit=1)


async def urgent_submissions(db: Documents, *, session_id: str, limit: int) -> list[MongoRow]:
    urgent = [{"lane": "control"}, {"when_busy": {"$in": ["steer", "interrupt"]}}]
    where = {"session_id": session_id, **_OPEN, "$or": urgent}
    return await db.find("submissions", where, sort=_QUEUE, limit=limit, fields=_WITHOUT_PAYLOAD, paged=True)


async def queued_submission(db: Documents, *, session_id: str, id: str) -> list[MongoRow]:
    return await db.find("submissions", {"id": id, "session_id": session_id, **_OPEN})


async def claim_submission(db: Documents, **key: object) -> list[MongoRow]:
    return [await claim(db, row) for row in await db.find("submissions", {"_id": key, **_OPEN})]


async def uncount_attempt(db: Documents, **key: object) -> list[MongoRow]:
    rows = await db.find("submissions", {"_id": key, "ended_at": None, "attempts": {"$gt": 0}})
    return [await db.change("submissions", r, attempts=r["attempts"] - 1) for r in rows]


async def put_back(db: Documents, **key: object) -> list[MongoRow]:
    rows = await db.find("submissions", {"_id": key, "ended_at": None, "state": "claimed"})
    return [await db.change("submissions", r, state="queued", attempts=r["attempts"] - 1) for r in rows]


async def give_up_submission(db: Documents, *, reason: str, **key: object) -> list[MongoRow]:
    where = {"_id": key, "ended_at": None}
    now = await db.now()
    return await db.change_where("submissions", where, state="dead", reason=reason, ended_at=now)


async def give_up_run(db: Documents, *, reason: str, **key: object) -> list[MongoRow]:
    where = {"_id": key, "ended_at": None}
    return await db.change_where("runs", where, status="failed", error=reason, ended_at=await db.now())


async def fail_session(db: Documents, *, session_id: str, reason: str) -> list[MongoRow]:
    values = {"status": "failed", "waiting_for": reason, "active_at": await db.now()}
    return await db.change_where("sessions", {"_id": session_id}, **values)


async def submissions(
    db: Documents,
    *,
    session_id: str,
    limit: int,
    state: str | None = None,
    still_open: bool | None = None,
    payloads: bool | None = None,
    after: int | None = None,
) -> list[MongoRow]:
    where = span("submissions", session_id, after=None if after is None else {"position": after})
    if state is not None:
        where["state"] = state
    if still_open:
        where["ended_at"] = None
    fields = None if payloads else _WITHOUT_PAYLOAD
    return await db.find("submissions", where, sort=[("_id", 1)], limit=limit, fields=fields, paged=True)
