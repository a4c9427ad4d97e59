"""`check` finds what is broken: each invariant is broken by hand, behind the store's back."""

import re
import sqlite3
from pathlib import Path

import asyncpg
import pytest

from holdfast.store import open_store
from holdfast.tables import NUMBERED
from holdfast.types import Batch, Blob, Checkpoint, Effect, Message, NewEvent, Run, Segment
from tests import behind
from tests.builders import held_session, new_session
from tests.conftest import Engine

pytestmark = pytest.mark.processes

OUTPUT = "INSERT INTO outputs (owner, command_id, number, session_id, id, damaged, at)"
COMMAND = (
    "INSERT INTO commands (owner, command, holder, host, pid, stop_requested, stdout_bytes, stderr_bytes,"
    " left_out_bytes, damaged, started_at, last_at, id, session_id, state, exit_code, outputs, ended_at)"
    " VALUES ('o', 'ls', 'h', 'here', 1, 0, 0, 0, 0, 0, 0, 0, "
)

DAMAGE = {
    "dense events": "DELETE FROM events WHERE seq = 2",
    "session has head": "DELETE FROM heads WHERE session_id = 'other'",
    "head has session": "DELETE FROM sessions WHERE id = 'other'",
    "head has agent": "UPDATE heads SET agent = 'another' WHERE session_id = 'other'",
    "head has owner": "UPDATE heads SET owner = 'another' WHERE session_id = 'other'",
    "head has priority": "UPDATE heads SET priority = -1 WHERE session_id = 'other'",
    "held has holder": "DELETE FROM holders",
    "claim is counted": "UPDATE heads SET claimed = 2 WHERE session_id = 'other'",
    "place is ready": "UPDATE heads SET place = 7, last_place = 7, ready_at = NULL WHERE session_id = 'other'",
    "place is last": "UPDATE heads SET place = 7, last_place = 5 WHERE session_id = 'other'",
    "running has lease": "UPDATE sessions SET status = 'running' WHERE id = 'other'",
    "claimed has lease": "UPDATE submissions SET state = 'claimed'",
    "ended has ended": "UPDATE submissions SET ended_at = 1",
    "queued is ready": "UPDATE heads SET ready_at = NULL",
    "schedule has tick": "INSERT INTO schedules (id, owner, agent, title, text, cron, timezone, overlap, catch_up, catch_up_limit, paused, moved, next_at, created_at, version) VALUES ('d', 'o', 'a', '', 't', '* * * * *', 'UTC', 'skip', 'once', 1, 0, 0, NULL, 0, 0)",
    "ready is free": "UPDATE heads SET holder = 'ghost' WHERE session_id = 'other'",
    "message has segment": "DELETE FROM segments",
    "segment has parent": "UPDATE segments SET parent = 7",
    "segment has start": "UPDATE segments SET start = 1",
    "checkpoint has messages": "UPDATE checkpoints SET length = 9",
    "dense messages": "DELETE FROM messages WHERE position = 0",
    "event has message": "UPDATE events SET segment = 1, position = 9 WHERE seq = 1",
    "effect has message": "UPDATE effects SET segment = 1, position = 9",
    "cursor within events": "UPDATE cursors SET seq = 99",
    "drafts have session": "INSERT INTO drafts (session_id, run_id, part, kind, body, follows, at) VALUES ('ghost', 'r', 0, 'text', '', 0, 0)",
    "outputs have session": f"{OUTPUT} VALUES ('o', 'c', 0, 'ghost', 'o', 0, 0)",
    "commands have session": f"{COMMAND}'c', 'ghost', 'done', 0, 0, 1)",
    "outputs have command": f"{OUTPUT} VALUES ('o', 'c', 0, NULL, 'o', 0, 0)",
    "commands have owner": f"{COMMAND}'c', 'other', 'done', 0, 0, 1)",
    "outputs have owner": f"{COMMAND}'c', NULL, 'done', 0, 1, 1); {OUTPUT} VALUES ('p', 'c', 0, NULL, 'o', 0, 0)",
    "command has end": f"{COMMAND}'c', NULL, 'running', 0, 0, 1)",
    "dense outputs": f"{COMMAND}'c', NULL, 'done', 0, 2, 1); {OUTPUT} VALUES ('o', 'c', 0, NULL, 'o', 0, 0)",
    "effects have session": "UPDATE effects SET session_id = 'ghost'",
    "checkpoints have session": "UPDATE checkpoints SET session_id = 'ghost'",
    "events have session": "UPDATE events SET session_id = 'ghost' WHERE seq = 3",
    "messages have session": "UPDATE messages SET session_id = 'ghost' WHERE position = 1",
    "segments have session": "UPDATE segments SET session_id = 'ghost'",
    "runs have session": "UPDATE runs SET session_id = 'ghost'",
    "submissions have session": "UPDATE submissions SET session_id = 'ghost'",
    "cursors have session": "UPDATE cursors SET session_id = 'ghost'",
    "states have session": "UPDATE states SET session_id = 'ghost'",
    "named states have session": "INSERT INTO named_states (session_id, name, version, body, at) VALUES ('ghost', 'n', 1, '1', 0)",
    "records have session": "INSERT INTO records (session_id, kind, key, body, seq) VALUES ('ghost', 'k', 'n', '1', 0)",
    "record within events": "INSERT INTO records (session_id, kind, key, body, seq) VALUES ('other', 'k', 'n', '1', 99)",
    "credentials have session": "INSERT INTO credentials (session_id, name, sealed, expires_at) VALUES ('ghost', 'token', 'x', NULL)",
    "blob references have session": "INSERT INTO blob_references (session_id, sha256) VALUES ('ghost', 'abc')",
    "reference has blob": "UPDATE blobs SET state = 'deleting'",
    "archive is stored": "UPDATE sessions SET archive = 'def' WHERE id = 'other'",
    "stored bytes have session": "INSERT INTO stored_bytes (session_id, owner, bytes, seq) VALUES ('ghost', 'o', 0, 0)",
    "stored bytes add up": "INSERT INTO stored_bytes (session_id, owner, bytes, seq) VALUES ('', 'o', 7, 0)",
    "erased is gone": "INSERT INTO tombstones (session_id, at) VALUES ('other', 1)",
}


async def damage(engine: Engine, folder: Path, statement: str) -> None:
    if engine.name != "mongodb":
        statement = _with_numbers(statement)
    if engine.name == "sqlite":
        connection = sqlite3.connect(folder / "store.db")
        connection.executescript(statement)
        connection.commit()
        connection.close()
    elif engine.name == "mongodb":
        await behind.execute(engine.url, statement)
    else:
        server = await asyncpg.connect(engine.url, server_settings={"search_path": "holdfast"})
        await server.execute(statement)
        await server.close()


def _with_numbers(statement: str) -> str:
    """Return a statement for a SQL engine, whose tables of content have the session's number instead of its id."""
    if not re.match(rf"(UPDATE|INSERT INTO|DELETE FROM) ({'|'.join(NUMBERED)})\b", statement):
        return statement
    number = r"coalesce((SELECT number FROM heads WHERE session_id = \1), 99)"
    statement = statement.replace("(session_id,", "(session,")
    statement = re.sub(r"session_id = ('[^']*')", rf"session = {number}", statement)
    return re.sub(r"VALUES \(('[^']*')", f"VALUES ({number}", statement)


@pytest.mark.parametrize("invariant", DAMAGE)
async def test_damage_is_found(engine: Engine, tmp_path: Path, invariant: str):
    async with open_store(engine.url) as store:
        lease, _ = await held_session(store)
        await store.put_blob(Blob(id="b", location="database", sha256="abc"), body=b"")
        await store.write(
            lease,
            Batch(
                blobs=["abc"],
                events=[NewEvent(kind="tick")] * 3,
                segments=[Segment(number=1)],
                messages=[Message(segment=1, position=n, body="{}") for n in range(2)],
                checkpoints=[Checkpoint(id="c", segment=1, length=2)],
                runs=[Run(id="r")],
                effects=[Effect(run_id="r", call_id="c", tool="t")],
            ),
        )
        await store.set_state(lease.session_id, "{}", expected_version=0)
        await store.set_cursor(lease.session_id, "reader", 1)
        other = await new_session(store, id="other")
        await store.submit(other, "message")
        assert await store.check() == []
        await damage(engine, tmp_path, DAMAGE[invariant])
        found = await store.check()
        assert invariant in {violation.invariant for violation in found}
        assert all(violation.session_id and violation.detail for violation in found)


async def test_every_invariant_is_tried(engine: Engine):
    from holdfast.store.sql.check import invariants

    checks = {name for name, _ in invariants("sqlite", of_session=False)}
    assert checks == set(DAMAGE)


async def test_progress_names_every_invariant_once_and_in_order(engine: Engine):
    from holdfast.store.sql.check import invariants

    shown: list[tuple[str, int, int]] = []

    def progress(name: str, number: int, total: int) -> None:
        shown.append((name, number, total))

    async with open_store(engine.url) as store:
        await store.check(progress=progress)
    steps = list(dict.fromkeys(shown))
    assert [number for _, number, _ in steps] == list(range(1, len(steps) + 1))
    assert {total for _, _, total in steps} == {len(steps)}
    assert {name for name, _ in invariants("sqlite", of_session=False)} <= {name for name, _, _ in steps}
