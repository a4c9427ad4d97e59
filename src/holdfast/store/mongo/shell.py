"""The statements of shell.sql."""

from collections.abc import Sequence
from typing import Any

from holdfast.store.mongo.documents import Documents, MongoRow, beyond, span
from holdfast.store.mongo.sessions import live_holders


async def insert_command(db: Documents, **row: object) -> list[MongoRow]:
    zero = dict.fromkeys(
        ("stop_requested", "outputs", "stdout_bytes", "stderr_bytes", "left_out_bytes", "damaged", "last_at"),
        0,
    )
    session_id = row["session_id"]
    if session_id is not None:  # a session's command belongs to the session's owner
        for session in await db.get("sessions", session_id):
            row["owner"] = session["owner"]
    new = {**row, **zero, "state": "running", "started_at": await db.now()}
    await db.insert_new("commands", new)
    return []


async def number_outputs(
    db: Documents,
    *,
    id: str,
    holder: str,
    before: int,
    count: int,
    ends: bool | None = None,
    **values: object,
) -> list[MongoRow]:
    rows = await db.find("commands", {"_id": id, "holder": holder, "outputs": before, "ended_at": None})
    now = await db.now() if rows else 0
    return [
        await db.change(
            "commands",
            row,
            **values,
            outputs=before + count,
            last_at=count + max(now, row["last_at"], row["started_at"]),
            ended_at=now if ends else None,
        )
        for row in rows
    ]


async def commands(
    db: Documents,
    *,
    limit: int,
    id: str | None = None,
    session_id: str | None = None,
    owner: str | None = None,
    holder: str | None = None,
    state: str | None = None,
    still_running: bool | None = None,
    id_before: str | None = None,
) -> list[MongoRow]:
    given = {"_id": id, "session_id": session_id, "owner": owner, "holder": holder, "state": state}
    where: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if still_running:
        where["ended_at"] = None
    if id_before is not None:
        where["_id"] = {"$lt": id_before}
    rows = await db.find("commands", where, sort=[("_id", -1)], limit=limit)
    live = await live_holders(db, [row["holder"] for row in rows if row["ended_at"] is None])
    none = MongoRow()
    return [
        MongoRow(row, service=live.get(row["holder"], none)["name"] if row["ended_at"] is None else None)
        for row in rows
    ]


def _between(column: str, since: int | None, until: int | None) -> dict[str, Any]:
    bounds = {name: value for name, value in (("$gte", since), ("$lt", until)) if value is not None}
    return {column: bounds} if bounds else {}


def _owned(owner: str | None) -> dict[str, Any]:
    return {} if owner is None else {"owner": owner}


async def outputs(
    db: Documents,
    *,
    command_id: str,
    limit: int,
    owner: str | None = None,
    after: int | None = None,
    before: int | None = None,
    since: int | None = None,
    until: int | None = None,
    newest_first: bool | None = None,
    **_: object,
) -> list[MongoRow]:
    where = span(
        "outputs",
        command_id,
        after=None if after is None else {"number": after},
        before=None if before is None else {"number": before},
    )
    where |= _between("at", since, until) | _owned(owner)
    return await db.find("outputs", where, sort=[("_id", -1 if newest_first else 1)], limit=limit)


async def _log(
    db: Documents,
    table: str,
    column: str,
    where: dict[str, Any],
    *,
    limit: int,
    owner: str | None = None,
    since: int | None = None,
    until: int | None = None,
    later_at: int | None = None,
    later_id: str | None = None,
    earlier_at: int | None = None,
    earlier_id: str | None = None,
    newest_first: bool | None = None,
    **_: object,
) -> list[MongoRow]:
    where |= _between(column, since, until) | _owned(owner)
    if later_at is not None:
        where |= beyond("$gt", **{column: later_at, "id": later_id})
    if earlier_at is not None:
        where |= beyond("$lt", **{column: earlier_at, "id": earlier_id})
    way = -1 if newest_first else 1
    return await db.find(table, where, sort=[(column, way), ("id", way)], limit=limit)


async def log_of_commands(db: Documents, **filters: Any) -> list[MongoRow]:
    return await _log(db, "commands", "started_at", {"purged_at": None}, **filters)


async def log_of_outputs(db: Documents, *, after: int | None = None, **filters: Any) -> list[MongoRow]:
    where = {} if after is None else {"number": {"$gt": after}}
    return await _log(db, "outputs", "at", where, **filters)


async def commands_by_id(db: Documents, *, ids: Sequence[str], owner: str | None = None) -> list[MongoRow]:
    where = {"_id": {"$in": ids}, "purged_at": None, **_owned(owner)}
    return await db.find("commands", where)


async def commands_to_purge(
    db: Documents, *, older_than_us: int, limit: int, owner: str | None = None
) -> list[MongoRow]:
    """Find commands that ended long enough ago, oldest first, skipping sessions on hold."""
    until = await db.now() - older_than_us
    place: tuple[int, str] | None = None
    rows: list[MongoRow] = []
    while len(rows) < limit:
        where: dict[str, Any] = {"purged_at": None, "ended_at": {"$gt": 0, "$lte": until}, **_owned(owner)}
        if place is not None:
            where = {"$and": [where, beyond("$gt", ended_at=place[0], id=place[1])]}
        page = await db.find(
            "commands",
            where,
            sort=[("ended_at", 1), ("id", 1)],
            limit=limit,
            fields=["id", "ended_at", "session_id"],
        )
        ids = [row["session_id"] for row in page if row["session_id"] is not None]
        held = await db.find("sessions", {"_id": {"$in": ids}, "hold": 1}, fields=["_id"]) if ids else []
        on_hold = {row["_id"] for row in held}
        rows += [row for row in page if row["session_id"] not in on_hold]
        if len(page) < limit:
            break
        place = (page[-1]["ended_at"], page[-1]["id"])
    return rows[:limit]
