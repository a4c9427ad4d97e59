"""The statements of retention.sql and archive.sql."""

from collections.abc import Mapping, Sequence
from typing import Any

from bson import MaxKey

from holdfast.store.mongo.documents import Documents, MongoRow, span
from holdfast.store.mongo.leases import readiness
from holdfast.store.mongo.sessions import create_head, live_holders
from holdfast.store.mongo.write import lock_contents
from holdfast.store.retention import CONTENT
from holdfast.tables import KEYS
from holdfast.types import SUSPENDED


def of_session(table: str, session_id: str) -> dict[str, Any]:
    """Return a filter for a session's rows in a table, by its key or by an index."""
    if KEYS[table][0] != "session_id":
        return {"session_id": session_id}
    return {"_id": session_id} if len(KEYS[table]) == 1 else span(table, session_id)


async def retention_state(db: Documents, *, session_id: str) -> list[MongoRow]:
    sessions = await db.get("sessions", session_id)
    heads = await db.get("heads", session_id)
    if not sessions or not heads:
        return []
    running = await db.find("commands", {"session_id": session_id, "ended_at": None})
    live = await live_holders(db, [heads[0]["holder"], *(command["holder"] for command in running)])
    holder = live.get(heads[0]["holder"]) or MongoRow()
    return [
        MongoRow(
            sessions[0],
            seq=heads[0]["seq"],
            now=(now := await db.now()),
            idle_us=now - sessions[0]["active_at"],
            holder=holder["id"],
            holder_name=holder["name"],
            pending=await db.count("submissions", {"session_id": session_id, "ended_at": None}),
            commands=sum(command["holder"] in live for command in running),
        )
    ]


async def cursors_behind(db: Documents, *, session_id: str) -> list[MongoRow]:
    (head,) = await db.get("heads", session_id)
    where = {**span("cursors", session_id), "seq": {"$lt": head["seq"]}}
    return await db.find("cursors", where, sort=[("_id", 1)], limit=100)


async def begin_cleaning(db: Documents, *, session_id: str) -> list[MongoRow]:
    rows = await db.find("sessions", {"_id": session_id, "hold": 0})
    return [await db.change("sessions", row, status="cleaning", resting=_resting(row)) for row in rows]


def _resting(row: MongoRow) -> str | None:
    return row["resting"] if row["status"] == "cleaning" else row["status"]


async def begin_deleting(db: Documents, *, session_id: str, fingerprint: str | None = None) -> list[MongoRow]:
    rows = await db.find("sessions", {"_id": session_id, "hold": 0})
    return [
        await db.change(
            "sessions",
            row,
            status="cleaning",
            resting=_resting(row),
            cleaned_at=await db.now() if row["cleaned_at"] is None else row["cleaned_at"],
            fingerprint=row["fingerprint"] if fingerprint is None else fingerprint,
        )
        for row in rows
    ]


async def stop_cleaning(db: Documents, *, session_id: str) -> list[MongoRow]:
    rows = await db.find("sessions", {"_id": session_id, "status": "cleaning", "cleaned_at": None})
    for row in rows:
        status = "idle" if row["resting"] in {None, "running"} else row["resting"]
        await db.change("sessions", row, status=status, resting=None, archive=None)
    return rows


async def content_counts(db: Documents, *, session_id: str) -> list[MongoRow]:
    return [
        MongoRow(kind=table, number=await db.count(table, of_session(table, session_id)))
        for table in CONTENT
        if table != "credentials"
    ]


async def content_sizes(db: Documents, *, session_id: str) -> list[MongoRow]:
    """Return the bytes of a session's documents in each collection, with the pieces of long texts."""
    size = {"$sum": {"$bsonSize": "$$ROOT"}}
    rows: list[MongoRow] = []
    for table in CONTENT:
        group = {"_id": None, "bytes": size, "pieces": {"$push": "$pieces"}}
        rows += await db.group(table, {"$match": of_session(table, session_id)}, {"$group": group})
    for of in [of for row in rows for pieces in row["pieces"] for of in pieces.values()]:
        within = {"$gt": {"of": of}, "$lt": {"of": of, "number": MaxKey()}}
        rows += await db.group(
            "pieces", {"$match": {"_id": within}}, {"$group": {"_id": None, "bytes": size}}
        )
    return rows


async def child_sessions(
    db: Documents, *, session_id: str, limit: int, after: str | None = None
) -> list[MongoRow]:
    owners = [session["owner"] for session in await db.get("sessions", session_id)]
    runs = await db.find("runs", span("runs", session_id), fields=["id"])
    others: dict[str, str] = {"$ne": session_id} if after is None else {"$ne": session_id, "$gt": after}
    groups = await db.group(
        "runs",
        {"$match": {"parent_id": {"$in": [r["id"] for r in runs]}, "session_id": others}},
        {"$group": {"_id": "$session_id"}},
        {"$lookup": {"from": "sessions", "localField": "_id", "foreignField": "_id", "as": "session"}},
        {"$match": {"session.owner": {"$in": owners}}},
        {"$sort": {"_id": 1}},
        {"$limit": limit},
    )
    return [MongoRow(session_id=group["_id"]) for group in groups]


async def export_session(db: Documents, *, session_id: str) -> list[MongoRow]:
    """Return the session with its status at rest: nothing runs in an archive, and being cleaned or moved is not part of its content."""
    sessions = await db.get("sessions", session_id)
    heads = await db.get("heads", session_id)
    rows: list[MongoRow] = []
    for session, head in zip(sessions, heads, strict=False):
        status = session["status"]
        if status == "cleaning" and session["cleaned_at"] is not None:
            status = "cleaned"
        elif status in {"cleaning", "moved"} and session["resting"] in {*SUSPENDED, "failed"}:
            status = session["resting"]
        elif status in {"cleaning", "moved", "running", "queued"}:
            status = "idle"
        rows.append(MongoRow(session, status=status, seq=head["seq"]))
    return rows


async def import_session(
    db: Documents, *, seq: int, archived: bool | None, created_at: int, active_at: int, **row: object
) -> list[MongoRow]:
    """Add the session. A time in an archive that is later than now is set to now: retention would wait for it."""
    del seq  # belongs to the head
    now = await db.now()
    new = {**row, "created_at": min(created_at, now), "active_at": min(active_at, now)}
    if archived:
        new["rehydrated_at"] = now
    return [MongoRow(new)] if await db.insert_new("sessions", new) else []


async def import_head(db: Documents, *, id: str, agent: str, owner: str, seq: int) -> list[MongoRow]:
    return await create_head(db, id=id, agent=agent, owner=owner, seq=seq)


async def ready_if_work(
    db: Documents, *, session_id: str, control_only: bool | None = None
) -> list[MongoRow]:
    ready = await readiness(db, session_id, control_only=bool(control_only))
    return await db.head(session_id, {"holder": None, "ready_at": None}, values=ready)


async def lock_stored(db: Documents, *, sha256: str) -> list[MongoRow]:
    return [MongoRow(sha256=each) for each in await lock_contents(db, [sha256])]


async def taken_ids(db: Documents, *, table: str, column: str, ids: Sequence[str]) -> list[MongoRow]:
    rows = await db.find(table, {column: {"$in": list(ids)}}, limit=1)
    return [MongoRow(id=row[column]) for row in rows]


async def import_rows(db: Documents, *, table: str, rows: Sequence[Mapping[str, Any]]) -> list[MongoRow]:
    await db.insert(table, rows)
    return []
