from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pymongo import AsyncMongoClient

from holdfast.errors import Conflict, LeaseLost, RetentionRefused, SessionCleaned
from holdfast.store import Store
from holdfast.store.mongo.schema import COLLECTIONS
from holdfast.store.retention import CONTENT, KEPT
from holdfast.tables import KEYS, SESSION, TABLES
from holdfast.types import (
    Batch,
    Blob,
    Checkpoint,
    Draft,
    Effect,
    Lease,
    Message,
    NewEvent,
    Record,
    Run,
    Segment,
    SubmissionChange,
)
from tests.builders import held_session, ticks
from tests.conftest import Engine

MARKER = "mark-of-content"
DERIVED = {"title_folded", "cleaned_at", "resting", "archive", "admin_hold", "rehydrated_at", "fingerprint"}


async def fill(store: Store, lease: Lease, rows: int = 20) -> None:
    submission = await store.submit(lease.session_id, "message", f'"{MARKER}"')
    await store.take(lease)
    await store.put_drafts(lease, [Draft(run_id="r", part=0, kind="text", text=MARKER)])
    await store.write(
        lease,
        Batch(
            events=[NewEvent(kind="message", payload=f'"{MARKER}"', message=(1, n)) for n in range(rows)],
            segments=[Segment(number=1)],
            messages=[Message(segment=1, position=n, body=f'"{MARKER}{n}"') for n in range(rows)],
            checkpoints=[Checkpoint(id=f"{lease.session_id}-c", segment=1, length=rows)],
            runs=[Run(id=f"{lease.session_id}-r", error=MARKER)],
            effects=[Effect(run_id="r", call_id="c", tool="t", state="completed", result=f'"{MARKER}"')],
            submissions=[SubmissionChange(id=submission.id, state="done")],
            records=[Record(kind=MARKER, key=MARKER, body=f'"{MARKER}"')],
        ),
    )
    await store.set_state(lease.session_id, f'"{MARKER}"', expected_version=0)
    await store.set_state(lease.session_id, f'"{MARKER}"', expected_version=0, name=MARKER)
    await store.set_cursor(lease.session_id, MARKER, 1)
    await store.set_credential(lease.session_id, MARKER, MARKER)


async def test_content_is_deleted_in_bounded_batches(store: Store):
    lease, holder = await held_session(store)
    other = await store.acquire((await store.create_session(agent="a", owner="o")).id, holder)
    for filled in (lease, other):
        await fill(store, filled)
    seq = (await store.session(lease.session_id)).seq
    deleted: dict[str, int] = {}
    while batch := await store.delete_content(lease, limit=7):
        assert sum(batch.values()) <= 7
        for table, count in batch.items():
            deleted[table] = deleted.get(table, 0) + count
    assert deleted == {
        "drafts": 1,
        "effects": 1,
        "checkpoints": 1,
        "events": seq,
        "messages": 20,
        "segments": 1,
        "runs": 1,
        "submissions": 1,
        "cursors": 1,
        "states": 1,
        "named_states": 1,
        "records": 1,
        "credentials": 1,
    }
    assert await store.events(lease.session_id) == []
    assert (await store.session(lease.session_id)).status == "cleaning"
    # Numbers are never used again.
    assert await store.write(lease, ticks()) == seq + 1
    assert len(await store.events(other.session_id)) == seq


async def test_deletion_needs_the_lease(store: Store):
    lease, _ = await held_session(store)
    await fill(store, lease)
    await store.release(lease)
    lease.lost = False
    with pytest.raises(LeaseLost):
        await store.delete_content(lease)
    assert len(await store.history(lease.session_id, segment=1, length=100)) == 20


async def test_a_session_on_hold_keeps_its_content(store: Store):
    lease, _ = await held_session(store)
    await fill(store, lease)
    await store.update_session(lease.session_id, hold=True)
    with pytest.raises(Conflict, match="on hold"):
        await store.delete_content(lease)
    await store.update_session(lease.session_id, hold=False)
    assert await store.delete_content(lease)


async def test_the_file_gives_space_back(engine: Engine, store: Store, tmp_path: Path):
    if engine.name != "sqlite":
        assert await store.shrink() == 0
        return
    lease, _ = await held_session(store)
    await store.write(lease, Batch(segments=[Segment(number=1)]))
    for n in range(50):
        await store.write(lease, Batch(messages=[Message(segment=1, position=n, body="x" * 100_000)]))
    while await store.delete_content(lease):
        pass
    file = tmp_path / "store.db"
    await store.shrink(limit=1)
    full = file.stat().st_size
    assert full > 5_000_000
    while await store.shrink(limit=500):
        pass
    assert file.stat().st_size < 500_000, "the tables and indexes of an empty file have about 440 KB"
    assert (tmp_path / "store.db-wal").stat().st_size == 0


async def test_every_table_that_names_a_session_is_covered(engine: Engine, store: Store):
    """A new table with a session's content must be deleted with it: this fails until it is listed."""
    if engine.name == "postgres":
        connection = await asyncpg.connect(engine.url)
        rows = await connection.fetch(
            "SELECT table_name FROM information_schema.columns"
            " WHERE table_schema = 'holdfast' AND column_name IN ('session', 'session_id')"
        )
        await connection.close()
        found = {row["table_name"] for row in rows}
    elif engine.name == "mongodb":
        # A collection that is not in the list cannot be used; one that names no session in its key does so in a row.
        found = {name for name, key in KEYS.items() if "session_id" in key} | {
            *("commands", "outputs", "audit", "schedules", "deliveries")
        }
        async with AsyncMongoClient[dict[str, Any]](engine.url) as client:
            made = set(await client.get_default_database().list_collection_names())
        assert made == COLLECTIONS == {*KEYS, "migrations", "pieces"}
    else:
        writer = store._writer  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
        rows = await writer.submit(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            lambda connection: connection.execute(  # pyright: ignore[reportUnknownLambdaType, reportUnknownMemberType]
                "SELECT m.name FROM sqlite_master m JOIN pragma_table_info(m.name) c"
                " WHERE m.type = 'table' AND c.name IN ('session', 'session_id')"
            ).fetchall()
        )
        found = {row["name"] for row in rows}  # pyright: ignore[reportUnknownVariableType]
    numbers = (
        set[str]() if engine.name == "mongodb" else {"run_numbers"}
    )  # deleted with the content, and not archived
    assert found == {*CONTENT, *KEPT, *numbers}


async def test_every_column_of_a_session_is_archived(engine: Engine, store: Store):
    """A new table or column must be in the archive: this fails until it is listed. Credentials never leave the store."""
    lease, _ = await held_session(store)
    await fill(store, lease)
    found = await columns(engine, store)
    assert {table.name for table in TABLES} == {*CONTENT} - {"drafts", "credentials"}
    for table in TABLES:
        assert set(table.names) == {_IDS.get(column, column) for column in found[table.name]}
    assert {*SESSION.names, *DERIVED} == {*found["sessions"], "seq"}


_IDS = {"session": "session_id", "run": "run_id"}
"""Columns with a number, and those of the archive with its id."""


async def columns(engine: Engine, store: Store) -> dict[str, set[str]]:
    if engine.name == "postgres":
        connection = await asyncpg.connect(engine.url)
        rows = await connection.fetch(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'holdfast'"
        )
        await connection.close()
        pairs = [(row["table_name"], row["column_name"]) for row in rows]
    elif engine.name == "mongodb":
        # What is NULL is not there: so this finds what is stored and was not listed.
        pairs = [(table.name, column) for table in TABLES for column in table.names]
        pairs += [("sessions", column) for column in (*SESSION.names, *DERIVED) if column != "seq"]
        async with AsyncMongoClient[dict[str, Any]](engine.url) as client:
            for name in (*CONTENT, "sessions"):
                async for document in client.get_default_database()[name].find({}):
                    pairs += [(name, column) for column in document if column != "_id"]
    else:
        writer = store._writer  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
        rows = await writer.submit(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            lambda connection: connection.execute(  # pyright: ignore[reportUnknownLambdaType, reportUnknownMemberType]
                "SELECT m.name AS t, c.name AS c FROM sqlite_master m JOIN pragma_table_info(m.name) c"
                " WHERE m.type = 'table'"
            ).fetchall()
        )
        pairs = [(row["t"], row["c"]) for row in rows]  # pyright: ignore[reportUnknownVariableType]
    found: dict[str, set[str]] = {}
    for table, column in pairs:  # pyright: ignore[reportUnknownVariableType]
        found.setdefault(table, set()).add(column)  # pyright: ignore[reportUnknownArgumentType]
    return found


async def test_a_hold_ends_a_clean_that_has_not_deleted_anything(store: Store):
    lease, _ = await held_session(store)
    await fill(store, lease)
    await store.write(lease, Batch(status="idle"))
    await store.begin_cleaning(lease, idle=0, force=True)
    assert (await store.update_session(lease.session_id, hold=True)).status == "idle"
    await store.put_blob(Blob(id="b", location="database", sha256="0" * 64), body=b"")
    for refused in (
        store.keep_archive(lease, "0" * 64),
        store.delete_content(lease),
        store.drop_references(lease),
    ):
        with pytest.raises(RetentionRefused, match="on hold"):
            await refused
    await store.submit(lease.session_id, "message")


async def test_a_hold_that_comes_too_late_is_refused(store: Store):
    lease, _ = await held_session(store)
    await fill(store, lease)
    await store.delete_content(lease, limit=1)
    with pytest.raises(SessionCleaned):
        await store.update_session(lease.session_id, hold=True)
    while await store.delete_content(lease):
        pass
    await store.finish_cleaning(lease, actor="test")
    assert (await store.session(lease.session_id)).status == "cleaned"
