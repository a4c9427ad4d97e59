"""The statements of budgets.sql."""

from collections.abc import Sequence
from typing import Any

from holdfast.budgets import MEASURES
from holdfast.store.mongo.documents import Documents, MongoRow, beyond
from holdfast.usage import DAY_US

_LIMITS = tuple(f"most_{measure}" for measure in MEASURES)


async def session_budgets(db: Documents, *, session_id: str, owner: str, agent: str) -> list[MongoRow]:
    pairs = {"turn": session_id, "session": session_id, "owner": owner, "agent": agent, "store": ""}
    where = {"$or": [{"per": per, "name": name} for per, name in pairs.items()]}
    return await _today(db, await db.find("budgets", where))


async def budgets(
    db: Documents,
    *,
    per: str | None,
    name: str | None,
    paged: bool | None,
    limit: int,
    after_per: str | None,
    after_name: str | None,
    after_daily: int | None,
) -> list[MongoRow]:
    given = {"per": per, "name": name}
    where: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    where["set_at"] = {"$gt": 0}
    if paged:
        where |= beyond("$gt", per=after_per, name=after_name, daily=after_daily)
    order = [("per", 1), ("name", 1), ("daily", 1)]
    return await _today(db, await db.find("budgets", where, sort=order, limit=limit, paged=True))


async def open_budget(
    db: Documents,
    *,
    per: str,
    name: str,
    daily: int,
    turn: str,
    of_day: bool | None,
    of_turn: bool | None,
    of_session: str | None,
    of_owner: str | None,
    of_agent: str | None,
) -> list[MongoRow]:
    now = await db.now()
    given = {"session_id": of_session, "owner": of_owner, "agent": of_agent}
    where: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if of_day:
        where["day"] = {"$gte": now // DAY_US}
    tokens = {"$add": ["$input_tokens", "$output_tokens"]}
    sums = {
        "requests": "$requests",
        "tokens": tokens,
        "cost_nanos": "$cost_nanos",
        "working_us": "$working_us",
    }
    group = {"_id": None, **{measure: {"$sum": value} for measure, value in sums.items()}}
    rows = [] if of_turn else await db.group("usage", {"$match": where}, {"$group": group})
    used = rows[0] if rows else dict.fromkeys(MEASURES, 0)
    period = str(now // DAY_US) if daily else turn
    key = {"per": per, "name": name, "daily": daily}
    new = {**key, "period": period, **{measure: used[measure] for measure in MEASURES}, "changed_at": now}
    await db.insert_new("budgets", new)
    return []


async def set_budget(
    db: Documents, *, per: str, name: str, daily: int, is_set: int, **most: int | None
) -> list[MongoRow]:
    now = await db.now()
    rows = await db.get("budgets", {"per": per, "name": name, "daily": daily})
    changed = [
        await db.change("budgets", row, **most, changed_at=now, set_at=now if is_set else None)
        for row in rows
    ]
    return await _today(db, changed)


async def waiting_for_budgets(
    db: Documents,
    *,
    after_at: int,
    after_id: str,
    before: int,
    limit: int,
    of_session: str | None,
    of_owner: str | None,
    of_agent: str | None,
) -> list[MongoRow]:
    given = {"_id": of_session, "owner": of_owner, "agent": of_agent}
    where: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    where |= {"status": {"$in": ["sleeping", "waiting"]}, "waiting_for": {"$regex": "budget of"}}
    where["active_at"] = {"$lte": before}
    where["$and"] = [beyond("$gt", active_at=after_at, id=after_id)]
    return await db.find("sessions", where, sort=[("active_at", 1), ("id", 1)], limit=limit)


async def wake_turn(db: Documents, *, session_id: str) -> list[MongoRow]:
    where = {"session_id": session_id, "ended_at": None, "state": "waiting"}
    return await db.change_where("submissions", where, deliver_at=await db.now())


async def wake_head(db: Documents, *, session_id: str) -> list[MongoRow]:
    where = {"_id": session_id, "holder": None}
    return await db.change_where("heads", where, ready_at=await db.now())


async def drop_budgets(db: Documents, *, days: int, limit: int) -> list[MongoRow]:
    old = {"set_at": None, "changed_at": {"$lt": await db.now() - days * DAY_US}}
    return await db.delete("budgets", old, sort=[("changed_at", 1)], limit=limit)


async def charge(db: Documents, charges: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Add to the sums of budgets; return their rows. Sums of another day or turn begin again."""
    now = await db.now()

    def add(old: MongoRow, new: MongoRow) -> MongoRow:
        before = old if old["period"] == new["period"] else MongoRow.fromkeys(MEASURES, 0)
        return MongoRow(old, **{**new, **{name: before[name] + new[name] for name in MEASURES}})

    keys: list[dict[str, Any]] = []
    for per, name, daily, turn, *added in sorted(charges, key=lambda charge: charge[:3]):
        key = {"per": per, "name": name, "daily": daily}
        sums = dict(zip(MEASURES, added, strict=True))
        period = str(now // DAY_US) if daily else turn
        await db.put("budgets", [{**key, "period": period, **sums, "changed_at": now}], add)
        keys.append(key)
    rows = await db.find("budgets", {"_id": {"$in": keys}})
    names = ("per", "name", "daily", *MEASURES, *_LIMITS)
    return [tuple(row[name] for name in names) for row in rows]


async def _today(db: Documents, rows: list[MongoRow]) -> list[MongoRow]:
    today = await db.now() // DAY_US
    return [MongoRow(row, today=today) for row in rows]
