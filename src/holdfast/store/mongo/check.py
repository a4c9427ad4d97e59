"""The statements of check.sql: every invariant as a search for what breaks it, in one session if it is named. Reads only."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from holdfast.store.mongo.documents import Documents, MongoRow
from holdfast.store.mongo.retention import of_session
from holdfast.store.retention import CONTENT

_OPEN = ["queued", "claimed", "waiting"]


def _found(rows: list[MongoRow], detail: Callable[[MongoRow], str]) -> list[MongoRow]:
    return [MongoRow(session_id=row["session_id"] or "none", detail=detail(row)) for row in rows]


def _of(table: str, session_id: str | None, **where: Any) -> dict[str, Any]:
    """Return what finds the rows to look at: those of one session, if it is named."""
    return where if session_id is None else {**of_session(table, session_id), **where}


def _look(
    table: str, key: Any, into: str, *, foreign: str = "_id", where: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the stages that find what a row refers to, as the list `into`."""
    stages: list[dict[str, Any]] = [{"$match": where}] if where else []
    stages += [{"$limit": 1}, {"$unset": ["body", "payload", "metadata", "pieces"]}]
    name = f"key_of_{into}"  # of its own: setting a document into one that is there would merge the two
    return [
        {"$set": {name: key}},
        {
            "$lookup": {
                "from": table,
                "localField": name,
                "foreignField": foreign,
                "pipeline": stages,
                "as": into,
            }
        },
    ]


async def _lacking(
    db: Documents,
    table: str,
    of: str,
    key: Any,
    detail: Callable[[MongoRow], str],
    *,
    limit: int,
    where: Mapping[str, Any] | None = None,
    foreign: str = "_id",
    of_where: Mapping[str, Any] | None = None,
) -> list[MongoRow]:
    """Find the rows that refer to what is not there."""
    rows = await db.group(
        table,
        {"$match": where or {}},
        {"$unset": ["body", "payload", "metadata", "result"]},
        *_look(of, key, "found", foreign=foreign, where=of_where),
        {"$match": {"found": []}},
        {"$limit": limit},
    )
    return _found(rows, detail)


async def _joined(
    db: Documents,
    table: str,
    where: Mapping[str, Any],
    of: str,
    key: Any,
    broken: Mapping[str, Any],
    limit: int,
) -> list[MongoRow]:
    """Find the rows of which something does not hold together with the one row they refer to, as `other`."""
    return await db.group(
        table,
        {"$match": where},
        {"$unset": ["body", "payload", "metadata", "result"]},
        *_look(of, key, "other"),
        {"$unwind": "$other"},
        {"$match": broken},
        {"$limit": limit},
    )


async def _places(
    db: Documents, table: str, column: str, where: Mapping[str, Any]
) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Return for each session and segment the least and the greatest value of a column, and of how many rows."""
    groups = await db.group(
        table,
        {"$match": where},
        {
            "$group": {
                "_id": {"session_id": "$session_id", "segment": "$segment"},
                "first": {"$min": f"${column}"},
                "last": {"$max": f"${column}"},
                "number": {"$sum": 1},
            }
        },
        {"$sort": {"_id": 1}},
    )
    return {
        (group["_id"]["session_id"], group["_id"]["segment"]): (
            group["first"],
            group["last"],
            group["number"],
        )
        for group in groups
    }


async def _messages(db: Documents, session_id: str | None) -> dict[tuple[str, int], range | set[int]]:
    """Return where each segment has messages: a range, as it should be, or one by one."""
    places = await _places(db, "messages", "position", _of("messages", session_id))
    found: dict[tuple[str, int], range | set[int]] = {}
    for key, (first, last, number) in places.items():
        found[key] = range(first, last + 1)
        if number != len(found[key]):
            rows = await _in_segment(db, "messages", key, ["position"])
            found[key] = {row["position"] for row in rows}
    return found


async def _in_segment(db: Documents, table: str, key: tuple[str, int], fields: list[str]) -> list[MongoRow]:
    """Return a segment's rows. Asked only for one of which something is broken."""
    session_id, segment = key
    where = {**of_session(table, session_id), "segment": segment}
    return await db.find(table, where, fields=["session_id", "segment", *fields], sort=[("_id", 1)])


async def _starts(db: Documents, session_id: str | None) -> dict[tuple[str, int], int]:
    rows = await db.find("segments", _of("segments", session_id), fields=["session_id", "number", "start"])
    return {(row["session_id"], row["number"]): row["start"] for row in rows}


async def _lacking_messages(
    db: Documents, table: str, session_id: str | None, detail: Callable[[MongoRow], str], limit: int
) -> list[MongoRow]:
    """Find the rows that refer to a message that is not there."""
    places = await _places(db, table, "position", _of(table, session_id, segment={"$ne": None}))
    messages = await _messages(db, session_id) if places else {}
    broken: list[MongoRow] = []
    for key, (first, last, _) in places.items():
        there = messages.get(key, range(0))
        if not (isinstance(there, range) and first in there and last in there):
            rows = await _in_segment(db, table, key, ["seq", "call_id", "position"])
            broken += [row for row in rows if row["position"] not in there]
    return _found(broken[:limit], detail)


async def _have_session(db: Documents, *, table: str, limit: int) -> list[MongoRow]:
    of = "sessions" if table == "credentials" else "heads"
    rows = await db.group(
        table,
        {"$match": {"session_id": {"$ne": None}}},
        {"$group": {"_id": "$session_id"}},
        *_look(of, "$_id", "found"),
        {"$match": {"found": []}},
        {"$limit": limit},
    )
    return [MongoRow(session_id=row["_id"], detail=f"rows in {table} have no session") for row in rows]


HAVE_SESSION = {f"check_{table}_have_session": partial(_have_session, table=table) for table in CONTENT}
"""`check_x_have_session` for every table with content."""


async def check_dense_events(db: Documents, *, limit: int, session_id: str | None = None) -> list[MongoRow]:
    numbers = {
        "_id": "$session_id",
        "first": {"$min": "$seq"},
        "last": {"$max": "$seq"},
        "number": {"$sum": 1},
    }
    events = await db.group("events", {"$match": _of("events", session_id)}, {"$group": numbers})
    groups = {group["_id"]: group for group in events}
    one = {} if session_id is None else {"_id": session_id}
    sessions = {row["_id"]: row for row in await db.find("sessions", one, fields=["status", "cleaned_at"])}
    found: list[MongoRow] = []
    for head in await db.find("heads", one, fields=["session_id", "seq"], sort=[("_id", 1)]):
        session, e = sessions.get(head["session_id"]), groups.get(head["session_id"])
        if session is None:
            continue
        holes = e is not None and (
            e["last"] != head["seq"] or e["first"] < 1 or e["number"] != e["last"] - e["first"] + 1
        )
        e = e or MongoRow(first=0, last=0, number=0)
        kept = session["cleaned_at"] is None and session["status"] not in {"cleaning", "cleaned"}
        if holes or (e["first"] != min(head["seq"], 1) and kept):
            detail = f"events {e['first']} to {e['last']}, {e['number']} of them; the head says {head['seq']}"
            found.append(MongoRow(session_id=head["session_id"], detail=detail))
    return found[:limit]


async def check_session_has_head(db: Documents, *, limit: int) -> list[MongoRow]:
    rows = await db.group(
        "sessions", *_look("heads", "$_id", "found"), {"$match": {"found": []}}, {"$limit": limit}
    )
    return [MongoRow(session_id=row["id"], detail="it has no head") for row in rows]


async def check_head_has_session(db: Documents, *, limit: int) -> list[MongoRow]:
    return await _lacking(db, "heads", "sessions", "$_id", lambda _: "its head has no session", limit=limit)


async def check_head_has_agent(db: Documents, *, limit: int) -> list[MongoRow]:
    foreign = {"$expr": {"$ne": ["$agent", "$other.agent"]}}
    rows = await _joined(db, "heads", {}, "sessions", "$_id", foreign, limit)
    return _found(rows, lambda r: f"its head has the agent {r['agent']}, it has {r['other']['agent']}")


async def check_running_has_lease(db: Documents, *, limit: int) -> list[MongoRow]:
    rows = await _joined(
        db, "sessions", {"status": "running"}, "heads", "$_id", {"other.holder": None}, limit
    )
    return [MongoRow(session_id=r["id"], detail="it is said to be running and nobody holds it") for r in rows]


async def check_claimed_has_lease(db: Documents, *, limit: int) -> list[MongoRow]:
    where = {"ended_at": None, "state": "claimed"}
    rows = await _joined(db, "submissions", where, "heads", "$session_id", {"other.holder": None}, limit)
    return _found(rows, lambda r: f"submission {r['id']} is claimed and nobody holds the session")


async def check_ended_has_ended(
    db: Documents, *, limit: int, session_id: str | None = None
) -> list[MongoRow]:
    broken = [
        {"ended_at": {"$ne": None}, "state": {"$in": _OPEN}},
        {"ended_at": None, "state": {"$nin": _OPEN}},
    ]
    rows = await db.find("submissions", _of("submissions", session_id) | {"$or": broken}, limit=limit)
    return _found(rows, lambda r: f"submission {r['id']} is {r['state']} and has ended")


async def check_queued_is_ready(
    db: Documents, *, limit: int, session_id: str | None = None
) -> list[MongoRow]:
    rows = await db.group(
        "submissions",
        {"$match": _of("submissions", session_id, ended_at=None, state="queued")},
        *_look("heads", "$session_id", "head"),
        *_look("sessions", "$session_id", "session"),
        {"$match": {"head.holder": None, "head.ready_at": None, "head": {"$ne": []}, "session": {"$ne": []}}},
        {"$match": {"$or": [{"lane": "control"}, {"session.status": {"$ne": "waiting"}}]}},
        {"$limit": limit},
    )
    return _found(rows, lambda r: f"submission {r['id']} is queued in a free session that is not ready")


async def check_ready_is_free(db: Documents, *, limit: int) -> list[MongoRow]:
    rows = await db.find("heads", {"ready_at": {"$ne": None}, "holder": {"$ne": None}}, limit=limit)
    return _found(rows, lambda _: "it is ready and held at once")


async def check_message_has_segment(
    db: Documents, *, limit: int, session_id: str | None = None
) -> list[MongoRow]:
    starts = await _starts(db, session_id)
    outside: list[MongoRow] = []
    for key, (first, last, _) in (
        await _places(db, "messages", "position", _of("messages", session_id))
    ).items():
        start = starts.get(key, last + 1)
        if first < start:
            rows = await _in_segment(db, "messages", key, ["position"])
            outside += [row for row in rows if row["position"] < start]
    return _found(outside[:limit], _outside)


def _outside(row: MongoRow) -> str:
    return f"message {row['position']} lies outside of segment {row['segment']}"


async def check_segment_has_parent(
    db: Documents, *, limit: int, session_id: str | None = None
) -> list[MongoRow]:
    key = {"session_id": "$session_id", "number": "$parent"}
    rows = await db.group(
        "segments",
        {"$match": _of("segments", session_id, parent={"$ne": None})},
        *_look("segments", key, "found"),
        {"$match": {"$or": [{"found": []}, {"$expr": {"$gte": ["$parent", "$number"]}}]}},
        {"$limit": limit},
    )
    return _found(rows, lambda r: f"segment {r['number']} has no parent {r['parent']} before it")


async def check_segment_has_start(
    db: Documents, *, limit: int, session_id: str | None = None
) -> list[MongoRow]:
    fields = ["session_id", "number", "parent", "start"]
    rows = await db.find("segments", _of("segments", session_id), fields=fields, sort=[("_id", 1)])
    starts = {(row["session_id"], row["number"]): row["start"] for row in rows}
    places = await _places(db, "messages", "position", _of("messages", session_id))
    ends = {key: last + 1 for key, (_, last, _) in places.items()}
    cleaning = {row["_id"] for row in await db.find("sessions", {"status": "cleaning"}, fields=["_id"])}
    broken: list[MongoRow] = []
    for row in rows:
        parent = row["session_id"], row["parent"]
        if row["session_id"] not in cleaning and not 0 <= row["start"] <= ends.get(
            parent, starts.get(parent, 0)
        ):
            broken.append(row)
    return _found(
        broken[:limit],
        lambda r: f"segment {r['number']} begins at {r['start']}, where its parent has no messages",
    )


async def check_checkpoint_has_messages(
    db: Documents, *, limit: int, session_id: str | None = None
) -> list[MongoRow]:
    def detail(row: MongoRow) -> str:
        return f"checkpoint {row['id']} goes beyond the messages of segment {row['segment']}"

    starts = await _starts(db, session_id)
    messages = await _messages(db, session_id)
    broken: list[MongoRow] = []
    for key, (_, last, _) in (
        await _places(db, "checkpoints", "length", _of("checkpoints", session_id))
    ).items():
        start = starts.get(key, 0)
        there = messages.get(key, range(0))
        if last > start and not (isinstance(there, range) and start in there and last - 1 in there):
            rows = await _in_segment(db, "checkpoints", key, ["id", "length"])
            broken += [row for row in rows if row["length"] > start and row["length"] - 1 not in there]
    return _found(broken[:limit], detail)


async def check_dense_messages(db: Documents, *, limit: int, session_id: str | None = None) -> list[MongoRow]:
    numbers = {
        "_id": {"session_id": "$session_id", "number": "$segment"},
        "last": {"$max": "$position"},
        "count": {"$sum": 1},
    }
    rows = await db.group(
        "messages",
        {"$match": _of("messages", session_id)},
        {"$group": numbers},
        *_look("segments", "$_id", "other"),
        {"$unwind": "$other"},
        {"$match": {"$expr": {"$ne": ["$count", {"$subtract": [{"$add": ["$last", 1]}, "$other.start"]}]}}},
        {"$limit": limit},
    )
    return [
        MongoRow(
            session_id=row["_id"]["session_id"],
            detail=f"segment {row['_id']['number']} has {row['count']} messages up to position {row['last']}",
        )
        for row in rows
    ]


async def check_event_has_message(
    db: Documents, *, limit: int, session_id: str | None = None
) -> list[MongoRow]:
    def detail(row: MongoRow) -> str:
        return f"event {row['seq']} refers to a message that is not there"

    return await _lacking_messages(db, "events", session_id, detail, limit)


async def check_effect_has_message(
    db: Documents, *, limit: int, session_id: str | None = None
) -> list[MongoRow]:
    def detail(row: MongoRow) -> str:
        return f"effect {row['call_id']} refers to a message that is not there"

    return await _lacking_messages(db, "effects", session_id, detail, limit)


async def check_cursor_within_events(
    db: Documents, *, limit: int, session_id: str | None = None
) -> list[MongoRow]:
    past = {"$expr": {"$gt": ["$seq", "$other.seq"]}}
    rows = await _joined(db, "cursors", _of("cursors", session_id), "heads", "$session_id", past, limit)
    return _found(rows, lambda r: f"cursor {r['consumer']} is at {r['seq']}, past the last event")


async def check_reference_has_blob(
    db: Documents, *, limit: int, session_id: str | None = None
) -> list[MongoRow]:
    def detail(row: MongoRow) -> str:
        return f"it refers to media+sha256://{row['sha256']}, which is not stored"

    return await _lacking(
        db,
        "blob_references",
        "blobs",
        "$sha256",
        detail,
        limit=limit,
        where=_of("blob_references", session_id),
        foreign="sha256",
        of_where={"state": "stored"},
    )


_BY_COMMAND = {"_id": {"command_id": "$command_id", "session_id": "$session_id", "owner": "$owner"}}
"""A command has many outputs, and one look at it is enough."""


async def check_outputs_have_command(
    db: Documents, *, limit: int, session_id: str | None = None
) -> list[MongoRow]:
    def detail(row: MongoRow) -> str:
        return f"output of command {row['command_id']} has no command"

    rows = await db.group(
        "outputs",
        {"$match": _of("outputs", session_id)},
        {"$group": _BY_COMMAND},
        {"$replaceWith": "$_id"},
        *_look("commands", "$command_id", "found"),
        {"$match": {"found": []}},
        {"$limit": limit},
    )
    return _found(rows, detail)


async def check_commands_have_owner(
    db: Documents, *, limit: int, session_id: str | None = None
) -> list[MongoRow]:
    foreign = {"$expr": {"$ne": ["$owner", "$other.owner"]}}
    rows = await _joined(
        db, "commands", _of("commands", session_id), "sessions", "$session_id", foreign, limit
    )
    return _found(
        rows,
        lambda r: f"command {r['id']} belongs to {r['owner']}, its session to {r['other']['owner']}",
    )


async def check_outputs_have_owner(
    db: Documents, *, limit: int, session_id: str | None = None
) -> list[MongoRow]:
    rows = await db.group(
        "outputs",
        {"$match": _of("outputs", session_id)},
        {"$group": _BY_COMMAND},
        {"$replaceWith": "$_id"},
        *_look("commands", "$command_id", "other"),
        {"$unwind": "$other"},
        {"$match": {"$expr": {"$ne": ["$owner", "$other.owner"]}}},
        {"$limit": limit},
    )
    return _found(rows, lambda r: f"output of command {r['command_id']} belongs to {r['owner']}")


async def check_command_has_end(
    db: Documents, *, limit: int, session_id: str | None = None
) -> list[MongoRow]:
    broken = [
        {"state": "running", "ended_at": {"$ne": None}},
        {"state": {"$ne": "running"}, "ended_at": None},
        {"ended_at": None, "exit_code": {"$ne": None}},
        {"ended_at": {"$ne": None}, "exit_code": None},
        {"purged_at": {"$ne": None}, "ended_at": None},
    ]
    rows = await db.find("commands", _of("commands", session_id) | {"$or": broken}, limit=limit)
    return _found(rows, lambda r: f"command {r['id']} is {r['state']} and its end says otherwise")


async def check_dense_outputs(db: Documents, *, limit: int, session_id: str | None = None) -> list[MongoRow]:
    numbers = {
        "_id": "$command_id",
        "first": {"$min": "$number"},
        "last": {"$max": "$number"},
        "count": {"$sum": 1},
    }
    broken = {
        "$or": [
            {"$ne": ["$last", {"$subtract": ["$other.outputs", 1]}]},
            {"$ne": ["$count", {"$add": [{"$subtract": ["$last", "$first"]}, 1]}]},
            {"$and": [{"$ne": ["$first", 0]}, {"$lte": ["$other.ended_at", None]}]},
        ]
    }
    rows = await db.group(
        "outputs",
        {"$match": _of("outputs", session_id)},
        {"$group": numbers},
        *_look("commands", "$_id", "other"),
        {"$unwind": "$other"},
        {"$match": {"$expr": broken}},
        {"$limit": limit},
    )
    return [
        MongoRow(
            session_id=row["other"]["session_id"] or "none",
            detail=f"command {row['_id']} has outputs {row['first']} to {row['last']}, {row['count']} of them, "
            f"and says {row['other']['outputs']}",
        )
        for row in rows
    ]


async def check_archive_is_stored(db: Documents, *, limit: int) -> list[MongoRow]:
    rows = await db.group(
        "sessions",
        {"$match": {"archive": {"$gt": ""}}},
        *_look("blobs", "$archive", "found", foreign="sha256", where={"state": "stored"}),
        {"$match": {"found": []}},
        {"$limit": limit},
    )
    return [
        MongoRow(session_id=r["id"], detail=f"its archive media+sha256://{r['archive']} is not stored")
        for r in rows
    ]


async def check_erased_is_gone(db: Documents, *, limit: int) -> list[MongoRow]:
    there = {"other.status": {"$ne": "cleaning"}}
    rows = await _joined(db, "tombstones", {}, "sessions", "$_id", there, limit)
    return _found(rows, lambda r: f"it was erased and is there, {r['other']['status']}")


async def pass_over_empty(db: Documents) -> list[MongoRow]:
    await db.pass_over_empty()
    return []


async def loose_pieces(db: Documents, *, limit: int) -> list[MongoRow]:
    """Find pieces of long texts whose row does not refer to them: what only this engine has."""
    found: list[MongoRow] = []
    owners = await db.group(
        "pieces", {"$group": {"_id": "$_id.of", "table": {"$first": "$table"}, "row": {"$first": "$row"}}}
    )
    for piece in owners:
        rows = await db[piece["table"]].find({"_id": piece["row"]}, ["pieces"], session=db.session).to_list()
        if not rows or piece["_id"] not in (rows[0]["pieces"] or {}).values():
            key = piece["row"]
            session_id = key if isinstance(key, str) else key.get("session_id", "none")
            found.append(MongoRow(session_id=session_id, detail=f"a piece of {piece['table']} is nobody's"))
    return found[:limit]
