"""The statements of sessions.sql and tokens.sql."""

import json
from collections import Counter
from collections.abc import Sequence

from holdfast.store.mongo.documents import NOW, Documents, MongoRow, beyond


async def create_head(db: Documents, *, id: str, agent: str, owner: str, seq: int = 0) -> list[MongoRow]:
    head = {
        "session_id": id,
        "agent": agent,
        "owner": owner,
        "epoch": 0,
        "seq": seq,
        "writes": 0,
        "priority": 0,
    }
    await db.insert("heads", [head])
    return []


async def sessions(
    db: Documents,
    *,
    limit: int,
    id: str | None = None,
    owner: str | None = None,
    agent: str | None = None,
    status: str | None = None,
    stored: str | None = None,
    queued: bool | None = None,
    search: str | None = None,
    active_before: int | None = None,
    id_before: str | None = None,
) -> list[MongoRow]:
    """Find sessions. Their status depends on leases and queues, so it is filtered page by page."""
    if id is not None:
        return await _with_parents(db, await view(db, await db.get("sessions", id)))
    del queued  # a list of all queued sessions could be too long for a query
    where: dict[str, object] = {}
    if stored is not None:
        where["status"] = stored
    if owner is not None:
        where["owner"] = owner
    if agent is not None:
        where["agent"] = agent
    if search is not None:
        where["$expr"] = {"$gte": [{"$indexOfCP": ["$title_folded", {"$literal": search}]}, 0]}
    rows: list[MongoRow] = []
    place = None if active_before is None else (active_before, id_before)
    while len(rows) < limit:
        further = {} if place is None else beyond("$lt", active_at=place[0], id=place[1])
        page = await db.find(
            "sessions", {**where, **further}, sort=[("active_at", -1), ("id", -1)], limit=limit
        )
        rows += [row for row in await view(db, page) if status in {None, row["status"]}]
        if len(page) < limit:
            break
        place = (page[-1]["active_at"], page[-1]["id"])
    return await _with_parents(db, rows[:limit])


async def _with_parents(db: Documents, rows: list[MongoRow]) -> list[MongoRow]:
    """Add the session that delegated to each: that of the parent of its first run, if it has the same owner."""
    first = {
        "from": "runs",
        "localField": "_id",
        "foreignField": "session_id",
        "pipeline": [{"$sort": {"first_seq": 1, "id": 1}}, {"$limit": 1}, {"$project": {"parent_id": 1}}],
        "as": "first",
    }
    found = await db.group(
        "sessions", {"$match": {"_id": {"$in": [row["id"] for row in rows]}}}, {"$lookup": first}
    )
    runs = {one["_id"]: one["first"][0].get("parent_id") for one in found if one["first"]}
    wanted = [parent for parent in runs.values() if parent is not None]
    parents = await db.find("runs", {"id": {"$in": wanted}}) if wanted else []
    sessions = await by_key(db, "sessions", [parent["session_id"] for parent in parents])
    owned = {parent["id"]: sessions.get(parent["session_id"], MongoRow()) for parent in parents}
    for row in rows:
        parent = owned.get(runs.get(row["id"]), MongoRow())
        if parent["owner"] == row["owner"] and parent["id"] != row["id"]:
            row["parent_id"] = parent["id"]
    return rows


async def view(db: Documents, sessions: Sequence[MongoRow]) -> list[MongoRow]:
    """Return sessions as they are shown.

    One that is recorded as running without a live holder is not: it is queued if submissions are pending, else idle.
    One that failed stays failed while all its submissions are for later.
    """
    ids = [row["id"] for row in sessions]
    heads = await by_key(db, "heads", ids)
    live = await live_holders(db, [head["holder"] for head in heads.values()])
    pending, active, due = await open_submissions(db, ids)
    served, now = await _served(db), await db.now()
    rows: list[MongoRow] = []
    for session in sessions:
        head = heads.get(session["id"])
        if head is None:
            continue
        holder = live.get(head["holder"]) or MongoRow()
        status = session["status"]
        if not (status == "running" and holder) and status in {"running", "idle", "failed"}:
            if (due if status == "failed" else active)[session["id"]]:
                status = "queued"
            elif status == "running":
                status = "idle"
        failed = session["status"] == "failed"  # the reason is in the same column
        waiting_for = None if failed else session["waiting_for"]
        if not holder and status == "queued" and (head["ready_at"] or 0) > now:
            waiting_for = "timer"
        elif not holder and ((head["ready_at"] or now + 1) <= now or status == "queued"):
            if session["agent"] not in served:
                waiting_for = "worker"
            elif (head["place"] or 0) < 0:
                waiting_for = "limit"
        elif not holder and status == "idle" and (head["orphaned_by"] or head["holder"]):
            where = {"session_id": session["id"], "status": "running"}
            waiting_for = "resume" if await db.one("runs", where) is not None else waiting_for
        rows.append(
            MongoRow(
                session,
                status=status,
                waiting_for=waiting_for,
                error=session["waiting_for"] if status == "failed" else None,
                epoch=head["epoch"],
                seq=head["seq"],
                orphaned_by=head["orphaned_by"],
                holder=holder["name"],
                held_until=holder["deadline"],
                pending=pending[session["id"]],
            )
        )
    return rows


async def _served(db: Documents) -> set[str]:
    """Return the agents that live workers serve."""
    live = await db.find("holders", {"deadline": {"$gt": await db.now()}}, fields=["agents"])
    return {agent for row in live for agent in json.loads(row["agents"])}


async def by_key(db: Documents, table: str, keys: Sequence[str | None]) -> dict[str, MongoRow]:
    """Return the rows with these keys, by key."""
    wanted = [key for key in dict.fromkeys(keys) if key is not None]
    if not wanted:
        return {}
    return {row["_id"]: row for row in await db.find(table, {"_id": {"$in": wanted}})}


async def live_holders(db: Documents, ids: Sequence[str | None]) -> dict[str | None, MongoRow]:
    """Return those of these holders whose deadline has not passed."""
    result = await by_key(db, "holders", ids)
    now = await db.now() if result else 0
    return {key: row for key, row in result.items() if row["deadline"] > now}


async def open_submissions(
    db: Documents, ids: Sequence[str]
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Count, by session, the submissions that have not ended, those whose turn does not wait, and those of them that are due."""
    later = {"$gt": ["$deliver_at", await db.now()]}
    groups = await db.group(
        "submissions",
        {"$match": {"session_id": {"$in": list(ids)}, "ended_at": None}},
        {
            "$group": {
                "_id": {"s": "$session_id", "w": {"$eq": ["$state", "waiting"]}, "l": later},
                "n": {"$sum": 1},
            }
        },
    )
    pending: Counter[str] = Counter()
    active: Counter[str] = Counter()
    due: Counter[str] = Counter()
    for group in groups:
        key = group["_id"]
        pending[key["s"]] += group["n"]
        active[key["s"]] += 0 if key["w"] else group["n"]
        due[key["s"]] += 0 if key["w"] or key["l"] else group["n"]
    return pending, active, due


async def mark_watched(db: Documents, *, session_ids: Sequence[str]) -> list[MongoRow]:
    """Update each head on its own, outside the transaction: within it, one busy session would delay all others, and vice versa."""
    where = {"_id": {"$in": session_ids}}
    await db["heads"].update_many(where, [{"$set": {"watched_at": NOW}}])
    return []


async def seconds_unwatched(db: Documents, *, id: str) -> list[MongoRow]:
    sessions, heads = await db.get("sessions", id), await db.get("heads", id)
    now = await db.now() if sessions else 0
    return [
        MongoRow(microseconds=now - max(head["watched_at"] or 0, session["active_at"]))
        for session, head in zip(sessions, heads, strict=False)
    ]


async def numbered_sessions(db: Documents, *, low: str, high: str) -> list[MongoRow]:
    between = {"_id": {"$gte": low, "$lt": high}}
    found = await db.find("sessions", between, fields=["owner", "agent"])
    erased = await db.find("tombstones", between, fields=["_id"])
    return [
        *(MongoRow(id=row["_id"], owner=row["owner"], agent=row["agent"]) for row in found),
        *(MongoRow(id=row["_id"], owner=None, agent=None) for row in erased),
    ]


async def audit(
    db: Documents, *, limit: int, session_id: str | None = None, id_before: str | None = None
) -> list[MongoRow]:
    where: dict[str, object] = {} if session_id is None else {"session_id": session_id}
    if id_before is not None:
        where["id"] = {"$lt": id_before}
    return await db.find("audit", where, sort=[("id", -1)], limit=limit)


async def add_token(db: Documents, *, lifetime_us: int | None, **row: object) -> list[MongoRow]:
    now = await db.now()
    expires_at = None if lifetime_us is None else now + lifetime_us
    await db.insert_new("tokens", {**row, "created_at": now, "expires_at": expires_at})
    return await db.get("tokens", row["id"])


async def valid_token(db: Documents, *, digest: str) -> list[MongoRow]:
    rows = await db.find("tokens", {"digest": digest, "revoked_at": None})
    now = await db.now() if rows else 0
    return [row for row in rows if row["expires_at"] is None or row["expires_at"] > now]


async def revoke_token(db: Documents, *, id: str) -> list[MongoRow]:
    rows = await db.get("tokens", id)
    if rows and rows[0]["revoked_at"] is None:
        return [await db.change("tokens", rows[0], revoked_at=await db.now())]
    return rows


async def totals(db: Documents) -> list[MongoRow]:
    now = await db.now()
    ready = await db.find("heads", {"ready_at": {"$gt": 0, "$lte": now}}, sort=[("ready_at", 1)], limit=1)
    return [
        MongoRow(
            sessions=await db.count("sessions", {}),
            events=await db.count("events", {}),
            pending=await db.count("submissions", {"ended_at": None}),
            holders=await db.count("holders", {"deadline": {"$gt": now}}),
            expired_holders=await db.count("holders", {"deadline": {"$lte": now}}),
            leases=await db.count("heads", {"holder": {"$gt": ""}}),
            queue_wait=now - ready[0]["ready_at"] if ready else 0,
        )
    ]


async def some_sessions(db: Documents, *, owner: str, limit: int) -> list[MongoRow]:
    where = {"owner": owner, "status": {"$ne": "cleaned"}}
    return [MongoRow(number=len(await db.find("sessions", where, limit=limit, fields=["_id"])))]
