"""The statements of journal.sql and history.sql."""

from collections.abc import Iterable, Sequence
from typing import Any

from bson import MaxKey

from holdfast.store.mongo.catalogue import plain
from holdfast.store.mongo.documents import Documents, MongoRow, PageSize, beyond, span
from holdfast.store.mongo.sessions import by_key, live_holders

_FEW = 8
_FOUND = 100
"""How many runs are examined at once, at least: most of them may be filtered out."""


async def fence(
    db: Documents, *, session_id: str, epoch: int, holder: str, count: int, writes: int | None = None
) -> list[MongoRow]:
    where: dict[str, object] = {"epoch": epoch, "holder": holder}
    inc = {"seq": count}
    if writes is not None:
        where["writes"] = writes
        inc["writes"] = 1
    return await db.head(session_id, where, inc=inc)


async def number_event(db: Documents, *, session_id: str) -> list[MongoRow]:
    return await db.head(session_id, inc={"seq": 1})


async def events(
    db: Documents, *, session_id: str, after: int, limit: int, run_id: str | None = None
) -> list[MongoRow]:
    where = span("events", session_id, after={"seq": after})
    if run_id is not None:
        where["run_id"] = run_id
    rows = await db.find("events", where, sort=[("_id", 1)], limit=limit, paged=True)
    return await _with_bodies(db, session_id, rows, "message")


async def _with_bodies(
    db: Documents, session_id: str, rows: Sequence[MongoRow], column: str
) -> list[MongoRow]:
    """Return these rows with the bodies of the messages that they refer to, up to a full page.

    It reads a few at first, and twice as many each time, so that a page of large ones does not read all of them.
    """
    joined: list[MongoRow] = []
    some = _FEW
    page = db.page.again()
    while len(joined) < len(rows):
        part = rows[len(joined) : len(joined) + some]
        bodies = await _bodies(db, session_id, part)
        for row in part:
            joined.append(MongoRow(row, **{column: bodies.get((row["segment"], row["position"]))}))
            if page.add(joined[-1]):
                return joined
        some *= 2
    return joined


async def _bodies(db: Documents, session_id: str, rows: Iterable[MongoRow]) -> dict[tuple[int, int], str]:
    """Return the bodies of the messages that these rows refer to."""
    places = {(row["segment"], row["position"]) for row in rows if row["segment"] is not None}
    if not places:
        return {}
    keys = [{"session_id": session_id, "segment": s, "position": p} for s, p in sorted(places)]
    messages = await db.find("messages", {"_id": {"$in": keys}})
    return {(message["segment"], message["position"]): message["body"] for message in messages}


async def put_draft(
    db: Documents, *, session_id: str, epoch: int, holder: str, **row: object
) -> list[MongoRow]:
    # Like every write it changes the head, since only changes of the same document conflict.
    head = await db.head(session_id, {"epoch": epoch, "holder": holder})
    if not head:
        return []
    draft = {"session_id": session_id, **row, "follows": head[0]["seq"], "at": await db.now()}
    await db.put("drafts", [draft], lambda old, new: MongoRow(new, follows=old["follows"]))
    return [MongoRow(row)]


async def history(
    db: Documents, *, session_id: str, segment: int, length: int, after: int, limit: int
) -> list[MongoRow]:
    """Walk from the segment to the root, and take from each the positions from its start up to the start of its child."""
    known = {row["number"]: row for row in await plain("segments", db, session_id=session_id)}
    ranges: list[dict[str, object]] = []
    stop, number = min(length, after + 1 + limit), segment
    while number is not None and number in known:
        start = known[number]["start"]
        low = max(start, after + 1)
        if low < stop:
            place = {"session_id": session_id, "segment": number}
            ranges.append({"_id": {"$gte": {**place, "position": low}, "$lt": {**place, "position": stop}}})
        stop, number = min(stop, start), known[number]["parent"]
    if not ranges:
        return []
    return await db.find("messages", {"$or": ranges}, sort=[("position", 1)], paged=True)


async def history_size(db: Documents, *, session_id: str, segment: int, length: int) -> list[MongoRow]:
    size, after = 0, -1
    while after + 1 < length:
        db.page = PageSize(["body"])
        rows = await history(
            db, session_id=session_id, segment=segment, length=length, after=after, limit=length
        )
        if not rows:
            break
        size += sum(len(row["body"].encode()) for row in rows)
        after = rows[-1]["position"]
    return [MongoRow(bytes=size)]


async def checkpoints(
    db: Documents,
    *,
    limit: int,
    id: str | None = None,
    session_id: str | None = None,
    run_id: str | None = None,
    kind: str | None = None,
    seq_after: int | None = None,
    seq_before: int | None = None,
    id_before: str | None = None,
) -> list[MongoRow]:
    if id is not None:
        return await db.find("checkpoints", {"id": id})
    before = None if seq_before is None else {"seq": seq_before, "id": id_before}
    after = None if seq_after is None else {"seq": seq_after, "id": MaxKey()}
    where = span("checkpoints", session_id or "", after=after, before=before)
    if run_id is not None:
        where["run_id"] = run_id
    if kind is not None:
        where["kind"] = kind
    return await db.find("checkpoints", where, sort=[("_id", -1)], limit=limit)


async def before_run(db: Documents, *, session_id: str, run_id: str) -> list[MongoRow]:
    run = await db.find("runs", {"_id": {"session_id": session_id, "id": run_id}}, fields=["first_seq"])
    if not run:
        return []
    earlier = {"session_id": session_id, "first_seq": {"$lt": run[0]["first_seq"]}}
    return await db.find("runs", earlier, sort=[("first_seq", -1)], limit=1, fields=["first_seq"])


async def runs(
    db: Documents,
    *,
    limit: int,
    id: str | None = None,
    session_id: str | None = None,
    parent_id: str | None = None,
    first_seq: int | None = None,
    started_at: int | None = None,
    after_id: str | None = None,
) -> list[MongoRow]:
    order = "first_seq" if parent_id is None else "started_at"
    given = {"id": id, "session_id": session_id, "parent_id": parent_id}
    where = {name: value for name, value in given.items() if value is not None}
    place = first_seq if parent_id is None else started_at
    if place is not None:
        where |= beyond("$gt", **{order: place, "id": after_id})
    return await _seen(db, await db.find("runs", where, sort=[(order, 1), ("id", 1)], limit=limit))


async def _seen(db: Documents, rows: list[MongoRow]) -> list[MongoRow]:
    """Return runs as they are shown: one that is recorded as running without a live holder was interrupted."""
    heads = await by_key(db, "heads", [row["session_id"] for row in rows if row["status"] == "running"])
    live = await live_holders(db, [head["holder"] for head in heads.values()])
    for row in rows:
        if row["status"] == "running" and heads.get(row["session_id"], MongoRow())["holder"] not in live:
            row["status"] = "interrupted"
    return rows


async def find_runs(
    db: Documents,
    *,
    limit: int,
    owner: str | None = None,
    session_id: str | None = None,
    parent_id: str | None = None,
    interrupted: bool | None = None,
    unresolved: bool | None = None,
    started_before: int | None = None,
    id_before: str | None = None,
) -> list[MongoRow]:
    """Find runs of all sessions, newest first. Their status depends on leases, so they are filtered page by page."""
    given = {"session_id": session_id, "parent_id": parent_id}
    where: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if interrupted:
        where["status"] = {"$in": ["running", "interrupted"]}
    if unresolved:
        calls = await db.find("effects", {"state": "started", "result": None}, fields=["run_id"])
        where["id"] = {"$in": sorted({call["run_id"] for call in calls})}
    rows: list[MongoRow] = []
    place = None if started_before is None else (started_before, id_before)
    while len(rows) < limit:
        further = {} if place is None else beyond("$lt", started_at=place[0], id=place[1])
        page = await db.find(
            "runs", {**where, **further}, sort=[("started_at", -1), ("id", -1)], limit=max(limit, _FOUND)
        )
        sessions = await by_key(db, "sessions", [row["session_id"] for row in page])
        for row in await _seen(db, page):
            is_theirs = owner in {None, sessions.get(row["session_id"], MongoRow())["owner"]}
            is_ended = not unresolved or row["status"] != "running"
            if is_theirs and is_ended and (not interrupted or await _can_resume(db, row)):
                rows.append(row)
        if len(page) < max(limit, _FOUND):
            break
        place = (page[-1]["started_at"], page[-1]["id"])
    return rows[:limit]


async def _can_resume(db: Documents, row: MongoRow) -> bool:
    """Return whether a run was interrupted and only its own delegates followed it in its session."""
    later = {
        "session_id": row["session_id"],
        "first_seq": {"$gt": row["first_seq"]},
        "parent_id": {"$ne": row["id"]},
    }
    return row["status"] == "interrupted" and await db.one("runs", later) is None


async def records(
    db: Documents,
    *,
    session_id: str,
    kind: str,
    low: str,
    high: str,
    limit: int,
    after: str | None = None,
    before: str | None = None,
    bodies: bool | None = None,
    ascending: bool | None = None,
    descending: bool | None = None,
) -> list[MongoRow]:
    del descending

    def place(key: str) -> dict[str, str]:
        return {"session_id": session_id, "kind": kind, "key": key}

    where: dict[str, object] = {
        "$gte": place(low),
        "$lt": place(high if before is None else min(high, before)),
    }
    if after is not None:
        where["$gt"] = place(after)
    fields = ["kind", "key", "seq", *(["body"] if bodies else [])]
    order = [("_id", 1 if ascending else -1)]
    return await db.find(
        "records", {"_id": where}, sort=order, limit=limit, fields=fields, paged=bool(bodies)
    )


async def effects(
    db: Documents,
    *,
    session_id: str,
    limit: int,
    run_id: str | None = None,
    call_id: str | None = None,
    unresolved: bool | None = None,
    started_at: int | None = None,
    after_run: str | None = None,
    after_call: str | None = None,
) -> list[MongoRow]:
    where: dict[str, object] = {"session_id": session_id}
    if run_id is not None:
        where["run_id"] = run_id
    if call_id is not None:
        where["call_id"] = call_id
    if unresolved:
        where["ended_at"] = None
    if started_at is not None:
        place = beyond("$gt", started_at=started_at, run_id=after_run, call_id=after_call)
        where = {"$and": [where, place]}
    order = [("started_at", 1), ("run_id", 1), ("call_id", 1)]
    rows = await db.find("effects", where, sort=order, limit=limit, paged=True)
    return await _with_bodies(db, session_id, rows, "body")
