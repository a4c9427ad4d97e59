"""The statements of line.sql, and those of work.sql that claim sessions.

Changing a head locks it: of two concurrent claims of it, the second starts again, and then chooses at random among more sessions.
"""

import random
from collections.abc import Sequence
from typing import Any

from holdfast.store.mongo.catalogue import plain
from holdfast.store.mongo.documents import Documents, MongoRow, Sort
from holdfast.store.mongo.leases import due as due_now
from holdfast.store.mongo.leases import take_lease

_READY = {"ready_at": {"$gt": 0}}
_IN_LINE = {**_READY, "place": {"$gte": 0}}
_PARKED = {"place": -1}
_BY_PLACE = [("place", 1), ("ready_at", 1)]
_BY_PRIORITY = [("priority", -1), ("ready_at", 1)]
_CROWD = 8
"""From how many more sessions a claim chooses after each conflict with another worker."""


async def first_ready(db: Documents, *, holder: str, agents: Sequence[str] | None = None) -> list[MongoRow]:
    live = await plain("live_holder", db, id=holder)
    if agents is None:
        first = await _heads(db, _READY, [("ready_at", 1)], 1)
    else:
        first = [
            row
            for agent in agents
            for where in ({**_READY, "place": None}, _IN_LINE)
            for row in await _heads(db, {"agent": agent, **where}, _BY_PLACE, 1)
        ]
    at = min((row["ready_at"] for row in first), default=None)
    return [MongoRow(ready_in=None if at is None else at - await db.now(), live=bool(live))]


async def line_state(db: Documents, *, holder: str, agents: Sequence[str], limit: int) -> list[MongoRow]:
    live = await plain("live_holder", db, id=holder)
    ours: dict[str, Any] = {"agent": {"$in": list(agents)}}
    due = {**ours, **await due_now(db), "place": None}
    prioritized = {**ours, **_READY, "priority": {"$in": [-1, 1]}}
    return [
        MongoRow(
            live=bool(live),
            due=len(await _heads(db, due, None, limit + 1)),
            in_line=bool(await _heads(db, {**ours, **_IN_LINE}, None, 1)),
            parked=bool(await _heads(db, {**ours, **_PARKED}, None, 1)),
            prioritized=bool(await _heads(db, prioritized, None, 1)),
        )
    ]


async def lock_line(db: Documents) -> list[MongoRow]:
    """Change a document that all claims change."""
    return await db.change_at_once("duties", "claim", [{"$set": {"taken_at": "$$NOW"}}], upsert=True)


async def running(db: Documents) -> list[MongoRow]:
    by = {"agent": "$agent", "owner": "$owner"}
    match = {"$match": {"holder": {"$gt": ""}, "claimed": 1}}
    groups = await db.group("heads", match, {"$group": {"_id": by, "n": {"$sum": 1}}})
    return [MongoRow(**group["_id"], sessions=group["n"]) for group in groups]


async def newly_ready(db: Documents, *, agents: Sequence[str], limit: int) -> list[MongoRow]:
    rows: list[MongoRow] = []
    for agent in agents:
        ours = {"agent": agent}
        heads = await _heads(db, {**ours, **await due_now(db), "place": None}, [("ready_at", 1)], limit)
        if not heads:
            continue
        ends = [await _heads(db, {**ours, **_IN_LINE}, [("place", way)], 1) for way in (1, -1)]
        lowest, highest = (end[0]["place"] if end else None for end in ends)
        latest: dict[str, int | None] = {}
        for owner in {head["owner"] for head in heads}:
            where = {**ours, "owner": owner, "last_place": {"$gt": 0}}
            last = await _heads(db, where, [("last_place", -1)], 1)
            latest[owner] = last[0]["last_place"] if last else None
        rows += [
            MongoRow(head, now=await db.now(), lowest=lowest, highest=highest, latest=latest[head["owner"]])
            for head in heads
        ]
    return sorted(rows, key=lambda row: row["ready_at"])


async def set_places(
    db: Documents, *, session_ids: Sequence[str], places: Sequence[int], moves: Sequence[object]
) -> list[MongoRow]:
    del moves
    for session_id, place in zip(session_ids, places, strict=True):
        await db.head(session_id, values={"place": place, "last_place": place})
    return []


async def line(db: Documents, *, agents: Sequence[str], limit: int) -> list[MongoRow]:
    return await _first(db, _IN_LINE, agents, limit)


async def best_of_owner(db: Documents, *, agent: str, owner: str, limit: int) -> list[MongoRow]:
    return await _heads(db, {"agent": agent, "owner": owner, **_IN_LINE}, _BY_PRIORITY, limit)


async def park(db: Documents, *, agent: str, owner: str, kept: Sequence[str], limit: int) -> list[MongoRow]:
    where = {"agent": agent, "owner": owner, **_IN_LINE, "_id": {"$nin": list(kept)}}
    return await _set_place(db, await _heads(db, where, _BY_PRIORITY, limit), -1)


async def parked_owners(db: Documents, *, agents: Sequence[str]) -> list[MongoRow]:
    match = {"$match": {"agent": {"$in": list(agents)}, **_PARKED}}
    groups = await db.group("heads", match, {"$group": {"_id": {"agent": "$agent", "owner": "$owner"}}})
    return [MongoRow(group["_id"]) for group in groups]


async def unpark(db: Documents, *, agent: str, owner: str, limit: int) -> list[MongoRow]:
    where = {"agent": agent, "owner": owner, **_PARKED}
    return await _set_place(db, await _heads(db, where, _BY_PRIORITY, limit), None)


async def claim_ready(
    db: Documents,
    *,
    agents: Sequence[str],
    limit: int,
    due: bool | None = None,
    placed: bool | None = None,
    **ours: str,
) -> list[MongoRow]:
    del due
    where = _IN_LINE if placed else {**await due_now(db), "place": None}
    crowd = (db.attempt - 1) * _CROWD
    ids = [row["session_id"] for row in await _first(db, where, agents, limit + crowd)][: limit + crowd]
    ids = random.sample(ids, min(limit, len(ids))) if crowd else ids
    return await claim_sessions(db, session_ids=ids, **ours)


async def claim_sessions(db: Documents, *, session_ids: Sequence[str], **ours: str) -> list[MongoRow]:
    return [row for each in session_ids for row in await take_lease(db, session_id=each, claimed=1, **ours)]


async def _first(db: Documents, where: dict[str, Any], agents: Sequence[str], limit: int) -> list[MongoRow]:
    """Return the first sessions of each agent: the first of each, then the second of each."""
    lines = [await _heads(db, {"agent": agent, **where}, _BY_PLACE, limit) for agent in agents]
    return [rows[nth] for nth in range(limit) for rows in lines if nth < len(rows)]


async def _set_place(db: Documents, heads: Sequence[MongoRow], place: int | None) -> list[MongoRow]:
    return [row for head in heads for row in await db.head(head["session_id"], values={"place": place})]


async def _heads(db: Documents, where: dict[str, Any], sort: Sort | None, limit: int) -> list[MongoRow]:
    return await db.find("heads", where, sort=sort, limit=limit)
