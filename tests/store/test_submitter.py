"""Submissions to PostgreSQL: those of a process are queued in groups, and one that needs more than an insert on its own."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from holdfast import open_store
from holdfast.config import load_settings
from holdfast.errors import (
    Conflict,
    HoldfastError,
    KeyReused,
    QueueFull,
    SessionCleaned,
    SessionNotFound,
    StoreUnavailable,
)
from holdfast.store import Store
from holdfast.store.postgres import connections, submitter
from holdfast.store.postgres.settings import SETTINGS
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.rows import Rows
from holdfast.store.sql import library
from holdfast.store.submissions import NewSubmission
from holdfast.types import Batch, Submission, SubmissionChange
from tests.builders import held_session, new_session

EPOCH = datetime.fromtimestamp(0, UTC)
_HELLO = '{"text": "Hello"}'
_COUNT = """
CREATE TABLE public.seen (transaction bigint);
CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO public.seen VALUES (txid_current()); RETURN NEW; END $$;
CREATE TRIGGER see BEFORE INSERT ON holdfast.submissions FOR EACH ROW EXECUTE FUNCTION public.see();
"""


def _submitter(store: Store) -> Any:
    assert isinstance(store, PostgresStore)
    return store._submitter


@pytest.fixture
async def store(postgres_url: str) -> AsyncGenerator[Store, None]:
    async with open_store(postgres_url, settings=load_settings(max_pending=3)) as store:
        yield store


@pytest.mark.new_database
async def test_submissions_that_arrive_together_share_a_transaction(store: Store, postgres_url: str):
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(_COUNT)
    sessions = [await new_session(store) for _ in range(50)]
    sent = await asyncio.gather(
        *(store.submit(session_id, "message", json.dumps({"text": session_id})) for session_id in sessions)
    )
    assert [submission.session_id for submission in sent] == sessions
    transactions = await connection.fetchval("SELECT count(DISTINCT transaction) FROM public.seen")
    await connection.close()
    assert 1 <= transactions <= 3
    for submission in sent:
        assert await store.submission(submission.id) == submission
        (event,) = await store.events(submission.session_id)
        assert (event.kind, event.seq) == ("submission_queued", submission.position)
        assert (await store.session(submission.session_id)).title == submission.session_id
    assert await store.check() == []


async def test_submissions_to_one_session_are_queued_in_the_order_of_the_calls(store: Store):
    session_id = await new_session(store)
    sent = await asyncio.gather(*(store.submit(session_id, "compact") for _ in range(3)))
    assert [submission.position for submission in sent] == [1, 2, 3]


async def test_a_group_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(submitter, "_LARGEST_GROUP_CHARACTERS", 20)
    sessions = [await new_session(store) for _ in range(9)]
    sizes: list[int] = []
    write = _submitter(store)._write

    async def counted(group: Sequence[NewSubmission]) -> Rows:
        sizes.append(len(group))
        return await write(group)

    monkeypatch.setattr(_submitter(store), "_write", counted)
    await asyncio.gather(*(store.submit(session_id, "message", _HELLO) for session_id in sessions))
    assert sum(sizes) == 9
    assert max(sizes) == 2


async def test_nobody_waits_for_the_lock_of_another_session(store: Store, postgres_url: str):
    locked, free = await new_session(store), await new_session(store)
    connection = await asyncpg.connect(postgres_url)
    async with connection.transaction():
        await connection.execute("SELECT 1 FROM holdfast.heads WHERE session_id = $1 FOR UPDATE", locked)
        waiting = asyncio.create_task(store.submit(locked, "message", _HELLO))
        await store.submit(free, "message", _HELLO)
        await asyncio.sleep(0.05)
        assert not waiting.done()
    await connection.close()
    assert (await waiting).position == 1


async def test_a_submission_sees_what_the_holder_of_the_lock_changed(store: Store, postgres_url: str):
    """A group never acts on what it read before it had the lock."""
    session_id = await new_session(store)
    connection = await asyncpg.connect(postgres_url)
    async with connection.transaction():
        await connection.execute("SELECT 1 FROM holdfast.heads WHERE session_id = $1 FOR UPDATE", session_id)
        waiting = asyncio.create_task(store.submit(session_id, "message", _HELLO))
        await asyncio.sleep(0.05)
        await connection.execute("UPDATE holdfast.sessions SET status = 'cleaning' WHERE id = $1", session_id)
    await connection.close()
    with pytest.raises(SessionCleaned):
        await waiting


async def test_one_that_is_refused_does_not_affect_the_others(store: Store):
    good, full, closed = await new_session(store), await new_session(store), await held_session(store)
    others = [await new_session(store) for _ in range(3)]
    first = [await store.submit(full, "message") for _ in range(3)]
    known = await store.submit(good, "message", _HELLO, idempotency_key="once")
    await store.write(closed[0], Batch(status="cleaning"))
    outcomes = await asyncio.gather(
        *(store.submit(session_id, "message", _HELLO) for session_id in others),
        store.submit(full, "message"),
        store.submit(closed[0].session_id, "message"),
        store.submit("missing", "message"),
        store.submit(good, "message", _HELLO, idempotency_key="once"),
        store.submit(good, "message", "{}", idempotency_key="once"),
        store.submit(await new_session(store), "message", id=first[0].id),
        return_exceptions=True,
    )
    assert all(isinstance(outcome, Submission) for outcome in outcomes[:3])
    assert [type(outcome) for outcome in outcomes[3:6]] == [QueueFull, SessionCleaned, SessionNotFound]
    assert outcomes[6] == known
    assert [type(outcome) for outcome in outcomes[7:]] == [KeyReused, Conflict]
    assert await store.check() == []


@pytest.mark.parametrize("committed", [True, False])
async def test_a_group_whose_outcome_is_unknown(
    store: Store, monkeypatch: pytest.MonkeyPatch, committed: bool
):
    """Each submission then exists once, whether the group was committed or not."""
    write = _submitter(store)._write

    async def lost(group: Sequence[NewSubmission]) -> Rows:
        if committed:
            await write(group)
        raise ConnectionError("the response was lost")

    monkeypatch.setattr(_submitter(store), "_write", lost)
    sessions = [await new_session(store) for _ in range(5)]
    sent = await asyncio.gather(*(store.submit(session_id, "message", _HELLO) for session_id in sessions))
    for submission in sent:
        assert (await store.submissions(submission.session_id)).items == [submission]
        assert len(await store.events(submission.session_id)) == 1


async def test_a_cancelled_caller_does_not_stop_the_group(store: Store):
    sessions = [await new_session(store) for _ in range(3)]
    calls = [asyncio.create_task(store.submit(session_id, "message", _HELLO)) for session_id in sessions]
    await asyncio.sleep(0)
    calls[0].cancel()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError)
    assert all(isinstance(each, Submission) for each in done[1:])


@pytest.mark.parametrize("ticks", range(6))
async def test_nobody_waits_for_a_writer_that_was_cancelled(store: Store, ticks: int):
    """As the end of a program does it: with all tasks, while some of them still submit."""
    sessions = [await new_session(store) for _ in range(3)]
    calls = [asyncio.create_task(store.submit(session_id, "message", _HELLO)) for session_id in sessions]
    for _ in range(ticks):
        await asyncio.sleep(0)
    for task in asyncio.all_tasks():
        if "_write_waiting" in repr(task):
            task.cancel()
    async with asyncio.timeout(10):
        sent = await asyncio.gather(*calls)
        later = await store.submit(sessions[0], "message", _HELLO)
    assert later.position == 2
    for submission in sent:
        assert (await store.submissions(submission.session_id)).items[0] == submission


async def test_closing_queues_what_was_accepted(postgres_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(submitter, "_LARGEST_GROUP", 5)
    async with open_store(postgres_url) as store:
        sessions = [await new_session(store) for _ in range(20)]
        calls = [asyncio.create_task(store.submit(session_id, "message", _HELLO)) for session_id in sessions]
        await asyncio.sleep(0)
    assert all(isinstance(submission, Submission) for submission in await asyncio.gather(*calls))


async def test_no_connection_is_free(postgres_url: str, monkeypatch: pytest.MonkeyPatch):
    """Nobody waits longer than for one connection, however many groups there are."""
    monkeypatch.setattr(submitter, "_LARGEST_GROUP", 5)
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.5)
    async with (
        asyncpg.create_pool(postgres_url, min_size=0, max_size=5) as pool,
        open_store(pool=pool) as store,
    ):
        sessions = [await new_session(store) for _ in range(20)]
        async with AsyncExitStack() as stack:
            while True:
                try:
                    await stack.enter_async_context(pool.acquire(timeout=0.2))
                except TimeoutError:
                    break
            began = asyncio.get_running_loop().time()
            failed = await asyncio.gather(
                *(store.submit(session_id, "message", _HELLO) for session_id in sessions),
                return_exceptions=True,
            )
            took = asyncio.get_running_loop().time() - began
        assert {type(each) for each in failed} == {StoreUnavailable}
        assert took < 1.5  # three more groups, and each submission on its own, would take 4 s
        assert (await store.submit(sessions[0], "message", _HELLO)).position == 1


@pytest.mark.new_database
async def test_the_plan_reads_no_other_submissions(store: Store, postgres_url: str):
    """Even one that was made when the table was empty, and before it was analyzed."""
    session_id = await new_session(store)
    await store.submit(session_id, "message", _HELLO)
    connection = await asyncpg.connect(postgres_url, server_settings=SETTINGS)
    text, names = library.numbered(library.text("queue_submissions", "postgres"))
    values = ", ".join("NULL" for _ in names)
    await connection.execute(f"PREPARE queue AS {text}")
    plan = [row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE queue ({values})")]
    await connection.close()
    assert not [line for line in plan if "Anti Join" in line or "Seq Scan" in line], plan


async def _waiting(store: Store) -> str:
    lease, _ = await held_session(store)
    asked = await store.submit(lease.session_id, "message")
    await store.take(lease)
    waits = SubmissionChange(id=asked.id, state="waiting", reason="approval")
    await store.write(lease, Batch(submissions=[waits], status="waiting", waiting_for="approval"))
    await store.release(lease)
    return lease.session_id


async def _held(store: Store) -> str:
    return (await held_session(store))[0].session_id


@pytest.mark.parametrize("kind", ["message", "approval"])
@pytest.mark.parametrize("make", [new_session, _held, _waiting])
async def test_both_ways_write_the_same(store: Store, monkeypatch: pytest.MonkeyPatch, make: Any, kind: str):
    found: list[object] = []
    for alone in (False, True):
        session_id = await make(store)
        with monkeypatch.context() as patched:
            if alone:
                patched.setattr(_submitter(store), "_write", _nothing)
            options: dict[str, Any] = {"idempotency_key": "k", "trace": "00-1-2-01", "when_busy": "steer"}
            options["lane"] = "control" if kind == "approval" else "main"
            sent = await store.submit(session_id, kind, _HELLO, **options)
        session = await store.session(session_id)
        ready = await store.ready_agents()
        holder = await store.join("next", ttl=60)
        claimed = [work.lease.session_id == session_id for work in await store.next_work(holder)]
        await store.leave(holder)
        same = replace(sent, id="", session_id="", created_at=EPOCH)
        found.append((same, session.title, session.status, session.pending, session.seq, ready, claimed))
        if claimed == [True]:  # leave nothing for the second way
            await _end(store, session_id)
    assert found[0] == found[1]


async def _nothing(group: Sequence[NewSubmission]) -> Rows:
    del group
    return ()


async def _end(store: Store, session_id: str) -> None:
    holder = await store.join("end", ttl=60)
    lease = await store.acquire(session_id, holder)
    while taken := await store.take(lease):
        await store.write(lease, Batch(submissions=[SubmissionChange(id=taken.id, state="done")]))
    await store.leave(holder)


async def test_a_closed_store_refuses(postgres_url: str):
    async with open_store(postgres_url) as store:
        session_id = await new_session(store)
    with pytest.raises(HoldfastError, match="is not open"):
        await store.submit(session_id, "message")
