"""The hot path: the fence and every arm of write.sql, each for all rows of its kind in a batch."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from pymongo import InsertOne, UpdateOne
from pymongo.errors import ClientBulkWriteException, OperationFailure, PyMongoError

from holdfast.store.mongo.budgets import charge
from holdfast.store.mongo.catalogue import plain
from holdfast.store.mongo.documents import Documents, MongoRow, as_document, is_long
from holdfast.store.mongo.journal import fence
from holdfast.store.mongo.leases import free_heads
from holdfast.store.transactions import lease_lost
from holdfast.store.write import ARMS, Writing, charged, missing, unstored
from holdfast.types import Lease
from holdfast.usage import DAY_US, USAGE_SUMS

Rows: TypeAlias = Sequence[MongoRow]
_ENDED = {"done", "failed", "dead"}
_PLAIN: Final = {"add_events": "events", "add_segments": "segments", "add_messages": "messages"}
"""Arms that only add rows, and their tables."""
_FEW = 10
_WRITE_CONFLICT = 112


async def write(db: Documents, lease: Lease, writing: Writing, *, at: int | None = None) -> tuple[int, bool]:
    """Write a batch. Return the session's event number, and whether the session was released with submissions pending.

    A small batch with only new rows is first tried in one command, if the server supports that and its time
    is known: an insert cannot use the server's time.
    """
    if at is not None and db.attempt == 1 and _is_plain(writing):
        return await _write_at_once(db, lease, writing, at), False
    heads = await fence(
        db,
        session_id=lease.session_id,
        epoch=lease.epoch,
        holder=lease.holder,
        count=writing.count,
        writes=lease.writes,
    )
    if not heads:
        raise lease_lost(lease, "another holder has acquired it, or it was released")
    seq: int = heads[0]["seq"]
    for arm in ARMS:
        if rows := writing.rows.get(arm):
            names = [name for name, _ in ARMS[arm]]
            result = await _WRITE[arm](db, seq, [MongoRow(zip(names, row, strict=True)) for row in rows])
            problem_of = _COUNTED.get(arm)
            if problem_of and (problem := problem_of(result, writing)):
                raise problem
    if writing.charges and (over := writing.over_budget(map(charged, await charge(db, writing.charges)))):
        raise over
    if not writing.release:
        return seq, False
    session_ids = [lease.session_id]
    await plain("requeue_all_claimed", db, session_ids=session_ids)
    (freed,) = await free_heads(db, session_ids=session_ids)
    return seq, freed["ready"]


def _is_plain(writing: Writing) -> bool:
    return (
        not writing.release
        and not writing.charges
        and writing.rows.keys() <= _PLAIN.keys()
        and sum(map(len, writing.rows.values())) <= _FEW
        and not any(is_long(value) for rows in writing.rows.values() for row in rows for value in row)
    )


async def _write_at_once(db: Documents, lease: Lease, writing: Writing, at: int) -> int:
    """Write under the numbers that the holder expects, which are usually right.

    Otherwise the transaction restarts with the fence first, which also finds the reason.
    """
    name = db.database.name
    fenced = {"epoch": lease.epoch, "holder": lease.holder, "writes": lease.writes, "seq": lease.seq}
    moved = {"$inc": {"seq": writing.count, "writes": 1}}
    seq = lease.seq + writing.count
    changes: list[InsertOne[MongoRow] | UpdateOne] = [
        UpdateOne({"_id": lease.session_id, **fenced}, moved, namespace=f"{name}.heads")
    ]
    for arm, rows in writing.rows.items():
        names = [column for column, _ in ARMS[arm]]
        for values in rows:
            row = MongoRow(zip(names, values, strict=True))
            if arm == "add_events":
                row.update(seq=seq - row.pop("later"), at=at)
            table = _PLAIN[arm]
            changes.append(InsertOne(as_document(table, row), namespace=f"{name}.{table}"))
    try:
        done = await db.database.client.bulk_write(changes, session=db.session)  # pyright: ignore[reportUnknownMemberType]
    except ClientBulkWriteException as error:
        if isinstance(error.error, PyMongoError):
            raise error.error from None
        raise OperationFailure("a row was refused", _WRITE_CONFLICT) from None
    if done.matched_count != 1:
        raise OperationFailure("another process has taken a number", _WRITE_CONFLICT)
    return seq


async def _add_events(db: Documents, seq: int, rows: Rows) -> int:
    now = await db.now()
    for row in rows:
        row.update(seq=seq - row.pop("later"), at=now)
    await db.insert("events", rows)
    return len(rows)


async def _add_notices(db: Documents, seq: int, rows: Rows) -> int:
    now = await db.now()
    for row in rows:
        row.update(seq=seq - row.pop("later"), at=now, detail=None)
    await db.insert("notices", rows)
    return len(rows)


async def _add(table: str, db: Documents, seq: int, rows: Rows) -> int:
    del seq
    await db.insert(table, rows)
    return len(rows)


async def _add_checkpoints(db: Documents, seq: int, rows: Rows) -> int:
    now = await db.now()
    await db.insert("checkpoints", [{**row, "seq": seq, "at": now} for row in rows])
    return len(rows)


async def _put_runs(db: Documents, seq: int, rows: Rows) -> int:
    now = await db.now()

    def merge(old: MongoRow, new: MongoRow) -> MongoRow | None:
        """Keep a run that has ended unchanged."""
        if old["ended_at"] is not None:
            return None
        return MongoRow(old, **{name: new[name] for name in ("status", "error", "metadata", "ended_at")})

    for row in rows:
        ended_at = None if row["status"] in {"running", "waiting"} else now
        row.update(first_seq=seq, started_at=now, ended_at=ended_at)
    await db.put("runs", rows, merge)
    return len(rows)


async def _put_effects(db: Documents, seq: int, rows: Rows) -> int:
    del seq
    now = await db.now()

    def merge(old: MongoRow, new: MongoRow) -> MongoRow:
        """Keep the outcome of an effect that has ended; its result may still move into a message."""
        merged = MongoRow(old)
        if old["ended_at"] is None:
            if old["result"] is not None and new["attempts"] > old["attempts"]:
                # An effect that waited for an answer starts when its tool runs.
                merged["started_at"] = new["started_at"]
            merged.update({name: new[name] for name in ("state", "error", "result", "attempts", "ended_at")})
        if new["segment"] is not None:
            merged["result"] = None
        for name in ("segment", "position", "idempotency_key", "summary"):
            if new[name] is not None:
                merged[name] = new[name]
        return merged

    for row in rows:
        row.update(started_at=now, ended_at=None if row["state"] == "started" else now)
    await db.put("effects", rows, merge)
    return len(rows)


async def _change_submissions(db: Documents, seq: int, rows: Rows) -> int:
    del seq
    now = await db.now()
    where = {"id": {"$in": [r["id"] for r in rows]}, "session_id": rows[0]["session_id"], "ended_at": None}
    results = {row["id"]: row for row in await db.find("submissions", where)}
    for change in rows:
        if (row := results.get(change["id"])) is None:
            continue
        state, reason = change["state"], change["reason"]
        await db.change(
            "submissions",
            row,
            state=state,
            reason=row["reason"]
            if reason is None and row["state"] != "waiting" and state != "done"
            else reason,
            run_id=change["run_id"] or row["run_id"],
            attempts=row["attempts"] if change["attempts"] is None else change["attempts"],
            deliver_at=_deliver_at(row, change),
            ended_at=now if state in _ENDED else None,
        )
    return len(results)


def _deliver_at(row: MongoRow, change: MongoRow) -> int | None:
    match change["state"]:
        case "queued":
            return change["deliver_at"] or 0
        case "waiting":
            return change["deliver_at"]
        case _:
            return row["deliver_at"]


async def _drop_drafts(db: Documents, seq: int, rows: Rows) -> int:
    del seq
    runs = [row["run_id"] for row in rows]
    return len(await db.delete("drafts", {"session_id": rows[0]["session_id"], "run_id": {"$in": runs}}))


async def _drop_records(db: Documents, seq: int, rows: Rows) -> int:
    del seq
    keys = [{"session_id": row["session_id"], "kind": row["kind"], "key": row["key"]} for row in rows]
    return len(await db.delete("records", {"_id": {"$in": keys}}))


async def _put_records(db: Documents, seq: int, rows: Rows) -> int:
    await db.put("records", [{**row, "seq": seq} for row in rows], lambda _, new: new)
    return len(rows)


async def _add_usage(db: Documents, seq: int, rows: Rows) -> int:
    del seq
    day = await db.now() // DAY_US
    (session,) = await db.get("sessions", rows[0]["session_id"])

    def add(old: MongoRow, new: MongoRow) -> MongoRow:
        return MongoRow(old, **{name: old[name] + new[name] for name in USAGE_SUMS})

    await db.put("usage", [{**row, "day": day, "owner": session["owner"]} for row in rows], add)
    return len(rows)


async def _refer_blobs(db: Documents, seq: int, rows: Rows) -> int:
    del seq
    stored = await lock_contents(db, [row["sha256"] for row in rows])
    for row in rows:
        if row["sha256"] in stored:
            await db.insert_new("blob_references", row)
    return len(stored)


async def lock_contents(db: Documents, digests: Sequence[str]) -> set[str]:
    """Return which of these contents are stored. They are changed, so that a concurrent collector restarts."""
    rows = await db.find("blobs", {"sha256": {"$in": list(digests)}, "state": "stored"})
    if rows:
        await db["blobs"].update_many(
            {"_id": {"$in": [row["_id"] for row in rows]}}, {"$inc": {"held": 1}}, session=db.session
        )
    return {row["sha256"] for row in rows}


async def _set_status(db: Documents, seq: int, rows: Rows) -> int:
    del seq
    now = await db.now()
    for row in rows:
        values: dict[str, Any] = {
            "status": row["status"],
            "waiting_for": row["waiting_for"],
            "active_at": now,
        }
        if row["status"] == "cleaned":
            values["cleaned_at"] = now
        await db.change_where("sessions", {"_id": row["session_id"]}, **values)
    return len(rows)


_WRITE: Final[Mapping[str, Callable[[Documents, int, Rows], Coroutine[Any, Any, int]]]] = {
    "add_events": _add_events,
    "add_notices": _add_notices,
    "add_segments": partial(_add, "segments"),
    "add_messages": partial(_add, "messages"),
    "add_checkpoints": _add_checkpoints,
    "put_runs": _put_runs,
    "put_effects": _put_effects,
    "change_submissions": _change_submissions,
    "drop_drafts": _drop_drafts,
    "drop_records": _drop_records,
    "put_records": _put_records,
    "add_usage": _add_usage,
    "refer_blobs": _refer_blobs,
    "set_status": _set_status,
}
_COUNTED: Final = {"change_submissions": missing, "refer_blobs": unstored}
"""Arms whose rows must all match an existing row."""
