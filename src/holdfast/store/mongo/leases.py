"""The statements of leases.sql, and those of work.sql that begin submissions. Changing a head locks it: of two concurrent transactions, the second restarts."""

from collections.abc import Sequence
from typing import Any

from holdfast.priority import RANKS
from holdfast.store.mongo.catalogue import plain
from holdfast.store.mongo.documents import NOW, Documents, MongoRow, span
from holdfast.store.mongo.sessions import by_key, live_holders, view
from holdfast.types import SUSPENDED


async def join(db: Documents, *, id: str, ttl_us: int, **row: object) -> list[MongoRow]:
    new = {"$literal": {"id": id, "ttl_us": ttl_us, **row}}
    before = [new, {"joined_at": NOW}, "$$ROOT"]  # existing values are kept
    stages = [{"$replaceWith": {"$mergeObjects": [*before, {"deadline": {"$add": [NOW, ttl_us]}}]}}]
    return await db.change_at_once("holders", id, stages, upsert=True)


async def renew(db: Documents, *, id: str) -> list[MongoRow]:
    return await db.change_at_once("holders", id, [{"$set": {"deadline": {"$add": [NOW, "$ttl_us"]}}}])


async def holders(db: Documents) -> list[MongoRow]:
    rows = await db.find("holders", {}, sort=[("_id", 1)])
    groups = await db.group(
        "heads", {"$match": {"holder": {"$gt": ""}}}, {"$group": {"_id": "$holder", "n": {"$sum": 1}}}
    )
    numbers = {group["_id"]: group["n"] for group in groups}
    return [MongoRow(row, sessions=numbers.get(row["id"], 0)) for row in rows]


async def lost_heads(db: Documents, *, limit: int) -> list[MongoRow]:
    alive = await db.find("holders", {"deadline": {"$gt": await db.now()}}, fields=["_id"])
    where = {"holder": {"$gt": "", "$nin": [row["_id"] for row in alive]}}
    return await db.find("heads", where, limit=limit)


async def name_head(db: Documents, *, session_id: str) -> list[MongoRow]:
    (session,) = await db.get("sessions", session_id)
    return await db.change_where("heads", {"_id": session_id}, agent=session["agent"])


async def expired_holders(db: Documents) -> list[MongoRow]:
    return await db.find("holders", {"deadline": {"$lte": await db.now()}}, limit=1)


async def remove_expired(db: Documents) -> list[MongoRow]:
    gone = await db.find("holders", {"deadline": {"$lte": await db.now()}})
    free = [row for row in gone if await db.one("heads", {"holder": row["id"]}) is None]
    for row in free:
        await db.delete("holders", {"_id": row["id"]})
    return free


async def lock_head(db: Documents, *, session_id: str) -> list[MongoRow]:
    return await db.head(session_id)


async def locked_head(db: Documents, *, session_id: str) -> list[MongoRow]:
    heads = [db.heads[session_id]]  # it was just locked
    sessions = await db.get("sessions", session_id)
    pending = await db.count("submissions", {"session_id": session_id, "ended_at": None})
    return [
        MongoRow(
            head,
            status=session["status"],
            pending=pending,
            untitled=not session["title"],
            names_framework='"framework"' in session["metadata"],
        )
        for head, session in zip(heads, sessions, strict=False)
    ]


async def lease_holder(db: Documents, *, session_id: str) -> list[MongoRow]:
    """Return the live holder of a session that is not being cleaned, without a lock."""
    live = await live_holders(db, [head["holder"] for head in await db.get("heads", session_id)])
    sessions = await db.get("sessions", session_id) if live else []
    return list(live.values()) if sessions and sessions[0]["status"] not in {"cleaning", "cleaned"} else []


async def due(db: Documents) -> dict[str, Any]:
    """Return the condition for heads that are ready now."""
    return {"ready_at": {"$gt": 0, "$lte": await db.now()}}


async def claim_lock(_: Documents, **__: object) -> list[MongoRow]:
    """Do nothing: a transaction that is tried again in its session aborts the previous one."""
    return []


async def take_lease(
    db: Documents, *, session_id: str, holder: str, tenure: str, dead: str | None = None, claimed: int = 0
) -> list[MongoRow]:
    if not await plain("live_holder", db, id=holder):
        return []
    values: dict[str, object] = {"holder": holder, "tenure": tenure, "writes": 0, "claimed": claimed}
    values |= {"ready_at": None, "place": None}
    if dead is not None:
        values["orphaned_by"] = dead
    return await db.head(session_id, inc={"epoch": 1}, values=values)


async def readiness(db: Documents, session_id: str, *, control_only: bool) -> dict[str, int | None]:
    """Return when the first pending submission of a session may start, if one may, and the highest priority of all of them."""
    where: dict[str, object] = {"session_id": session_id, "ended_at": None}
    rows = await db.find("submissions", where, fields=["deliver_at", "priority", "lane", "state"])
    times = [
        row["deliver_at"]
        for row in rows
        if row["deliver_at"] is not None
        and (not control_only or row["lane"] == "control" or row["state"] == "waiting")
    ]
    return {
        "ready_at": max(min(times), await db.now()) if times else None,
        "priority": max((RANKS[row["priority"]] for row in rows), default=0),
    }


async def free_head(
    db: Documents,
    *,
    session_id: str,
    orphaned_by: str | None,
    control_only: bool | None = None,
    moved: bool | None = None,
) -> list[MongoRow]:
    ready: dict[str, int | None] = {"ready_at": None}
    if not moved:
        ready = await readiness(db, session_id, control_only=bool(control_only))
    return await db.head(session_id, values={"holder": None, "orphaned_by": orphaned_by, **ready})


async def free_heads(db: Documents, *, session_ids: Sequence[str]) -> list[MongoRow]:
    rows: list[MongoRow] = []
    for session in (await by_key(db, "sessions", session_ids)).values():
        waiting = session["status"] in SUSPENDED
        for head in await free_head(db, session_id=session["id"], orphaned_by=None, control_only=waiting):
            rows.append(MongoRow(session_id=session["id"], ready=head["ready_at"] is not None))
    return rows


async def ready_agents(db: Documents) -> list[MongoRow]:
    groups = await db.group(
        "heads", {"$match": await due(db)}, {"$group": {"_id": "$agent", "n": {"$sum": 1}}}
    )
    return [MongoRow(agent=group["_id"], sessions=group["n"]) for group in groups]


async def latest_ready(db: Documents, *, limited: bool | None = None) -> list[MongoRow]:
    del limited  # the change stream contains the ends
    rows = await db.find("heads", await due(db), sort=[("ready_at", -1)], limit=1)
    return [MongoRow(number=rows[0]["ready_at"] if rows else 0)]


async def watched_heads(db: Documents, *, session_ids: Sequence[str]) -> list[MongoRow]:
    heads = await by_key(db, "heads", session_ids)
    return [MongoRow(session_id=key, number=head["seq"]) for key, head in heads.items()]


async def watched_inboxes(db: Documents, *, session_ids: Sequence[str]) -> list[MongoRow]:
    where = {"session_id": {"$in": session_ids}, "ended_at": None}
    return await _latest(db, "submissions", where, "position")


async def watched_drafts(db: Documents, *, session_ids: Sequence[str]) -> list[MongoRow]:
    return await _latest(db, "drafts", {"session_id": {"$in": session_ids}}, "at")


async def watched_commands(db: Documents, *, session_ids: Sequence[str]) -> list[MongoRow]:
    commands = await by_key(db, "commands", session_ids)
    return [MongoRow(session_id=key, number=command["outputs"] - 1) for key, command in commands.items()]


async def _latest(db: Documents, table: str, where: dict[str, Any], column: str) -> list[MongoRow]:
    groups = await db.group(
        table, {"$match": where}, {"$group": {"_id": "$session_id", "number": {"$max": f"${column}"}}}
    )
    return [MongoRow(session_id=group["_id"], number=group["number"]) for group in groups]


async def begin_submissions(db: Documents, *, max_attempts: int, **ours: object) -> list[MongoRow]:
    begun: list[MongoRow] = []
    heads = await plain("tenure", db, **ours)
    sessions = await by_key(db, "sessions", [head["session_id"] for head in heads])
    for session in sessions.values():
        queued: dict[str, Any] = {"state": "queued"}
        if session["status"] in SUSPENDED:
            queued["lane"] = "control"
        where = {"session_id": session["id"], "ended_at": None, "$or": [{"state": "waiting"}, queued]}
        due: dict[str, Any] = {**where, "deliver_at": {"$gte": 0, "$lte": await db.now()}}
        if await plain("begun_turn", db, session_id=session["id"]):
            due["$and"] = [{"$or": [{"deliver_at": 0}, {"run_id": {"$ne": None}}]}]
        first = await db.find("submissions", due, sort=[("lane", 1), ("position", 1)], limit=1)
        begun += [
            await claim(db, r) for r in first if r["state"] == "waiting" or r["attempts"] < max_attempts
        ]
    return begun


async def claim(db: Documents, row: MongoRow) -> MongoRow:
    """Mark a submission as claimed, with one more attempt unless it waited."""
    waited = row["state"] == "waiting"
    values = {"attempts": row["attempts"] + (not waited), "reason": None if waited else row["reason"]}
    return await db.change("submissions", row, state="claimed", started_at=await db.now(), **values)


async def begun_submissions(db: Documents, **ours: object) -> list[MongoRow]:
    ids = [head["session_id"] for head in await plain("tenure", db, **ours)]
    return await db.find("submissions", {"session_id": {"$in": ids}, "ended_at": None, "state": "claimed"})


async def number_begun(db: Documents, *, session_ids: Sequence[str]) -> list[MongoRow]:
    return [row for session_id in session_ids for row in await db.head(session_id, inc={"seq": 1})]


async def insert_begun_events(db: Documents, *, events: Sequence[Sequence[object]]) -> list[MongoRow]:
    now = await db.now()
    columns = ("session_id", "seq", "run_id", "payload")
    rows = [dict(zip(columns, event, strict=True)) for event in events]
    await db.insert("events", [{**row, "kind": "submission_started", "at": now} for row in rows])
    return []


async def claimed_sessions(db: Documents, **ours: object) -> list[MongoRow]:
    heads = await plain("tenure", db, **ours)
    result = await by_key(db, "sessions", [head["session_id"] for head in heads])
    budgeted = bool(await db.find("budgets", {"set_at": {"$gt": 0}}, limit=1, fields=["_id"]))
    rows: list[MongoRow] = []
    for row in await view(db, list(result.values())):
        status = result[row["id"]]["status"]
        fresh = not await db.find("checkpoints", span("checkpoints", row["id"]), limit=1, fields=["_id"])
        status = "queued" if status in {"idle", "failed"} else status
        rows.append(MongoRow(row, status=status, fresh=fresh, budgeted=budgeted))
    return sorted(rows, key=lambda row: (row["active_at"], row["id"]))
