import asyncio
import json

import pytest

from holdfast.config import load_settings
from holdfast.errors import (
    BadInput,
    Conflict,
    KeyReused,
    LeaseLost,
    QueueFull,
    SessionCleaned,
    SessionNotFound,
)
from holdfast.store import Store, open_store
from holdfast.types import Batch, Lease, Run, Submission, SubmissionChange
from tests.builders import held_session, new_session, until
from tests.conftest import Engine


async def kinds(store: Store, session_id: str) -> list[str]:
    return [event.kind for event in await store.events(session_id)]


async def taken(store: Store, lease: Lease) -> Submission:
    submission = await store.take(lease)
    assert submission is not None
    return submission


async def test_taken_in_the_order_of_the_queue(store: Store):
    lease, _ = await held_session(store)
    sent = [await store.submit(lease.session_id, "message", json.dumps({"n": n})) for n in range(5)]
    got = [await taken(store, lease) for _ in range(5)]
    assert [s.id for s in got] == [s.id for s in sent]
    assert [s.payload for s in got] == [s.payload for s in sent]
    assert {(s.state, s.attempts) for s in got} == {("claimed", 1)}
    assert await store.take(lease) is None


async def test_the_control_lane_overtakes(store: Store):
    lease, _ = await held_session(store)
    first = await store.submit(lease.session_id, "message")
    interrupt = await store.submit(lease.session_id, "interrupt", lane="control")
    second = await store.submit(lease.session_id, "interrupt", lane="control")
    assert (await taken(store, lease)).id == interrupt.id
    only = await store.take(lease, lane="control")
    assert only is not None
    assert only.id == second.id
    assert await store.take(lease, lane="control") is None
    assert (await taken(store, lease)).id == first.id


async def test_every_step_of_a_submission_is_an_event(store: Store):
    lease, _ = await held_session(store)
    done, failed = [await store.submit(lease.session_id, "message") for _ in range(2)]
    for change in (
        SubmissionChange(id=done.id, state="done"),
        SubmissionChange(id=failed.id, state="failed", reason="no such file"),
    ):
        await taken(store, lease)
        await store.write(lease, Batch(submissions=[change]))
    events = await store.events(lease.session_id)
    assert [e.kind for e in events] == [
        "submission_queued",
        "submission_queued",
        "submission_started",
        "submission_done",
        "submission_started",
        "submission_failed",
    ]
    assert [json.loads(e.payload)["submission_id"] for e in events] == [
        done.id,
        failed.id,
        done.id,
        done.id,
        failed.id,
        failed.id,
    ]
    assert json.loads(events[-1].payload)["reason"] == "no such file"
    listed = (await store.submissions(lease.session_id)).items
    assert [(s.state, s.reason) for s in listed] == [("done", None), ("failed", "no such file")]
    assert all(s.ended_at is not None and s.started_at is not None for s in listed)
    assert (await store.session(lease.session_id)).pending == 0


async def test_an_idempotency_key_makes_one_submission(store: Store):
    session_id = await new_session(store)
    first = await store.submit(session_id, "message", '{"a":1}', idempotency_key="k1")
    again = await store.submit(session_id, "message", '{"a":1}', idempotency_key="k1")
    assert again == first
    with pytest.raises(KeyReused, match="'k1'"):
        await store.submit(session_id, "message", '{"a":2}', idempotency_key="k1")
    other = await store.submit(await new_session(store), "message", '{"a":2}', idempotency_key="k1")
    assert other.id != first.id
    assert await kinds(store, session_id) == ["submission_queued"]


async def test_an_id_makes_one_submission(store: Store):
    session_id = await new_session(store)
    first = await store.submit(session_id, "message", id="s-1")
    assert await store.submit(session_id, "message", id="s-1") == first
    with pytest.raises(Conflict, match="another session"):
        await store.submit(await new_session(store), "message", id="s-1")


async def test_the_same_key_at_the_same_time(store: Store):
    session_id = await new_session(store)
    answers = await asyncio.gather(
        *(store.submit(session_id, "message", idempotency_key="once") for _ in range(10))
    )
    assert len({answer.id for answer in answers}) == 1
    assert await kinds(store, session_id) == ["submission_queued"]


async def test_what_a_dead_holder_had_claimed_is_taken_again_first(store: Store):
    lease, holder = await held_session(store)
    first, second = [await store.submit(lease.session_id, "message") for _ in range(2)]
    assert (await taken(store, lease)).id == first.id
    await store.write(
        lease,
        Batch(
            runs=[Run(id="run-1")],
            submissions=[SubmissionChange(id=first.id, state="claimed", run_id="run-1")],
        ),
    )
    await store.leave(holder)
    lease = await store.acquire(lease.session_id, await store.join("next", ttl=60))
    again = await taken(store, lease)
    # Whoever takes over learns which run to resume.
    assert (again.id, again.attempts, again.run_id) == (first.id, 2, "run-1")
    assert (await taken(store, lease)).id == second.id


async def test_given_back_to_the_queue(store: Store):
    lease, _ = await held_session(store)
    submission = await store.submit(lease.session_id, "message")
    await taken(store, lease)
    change = SubmissionChange(id=submission.id, state="queued", reason="model unavailable")
    await store.write(lease, Batch(submissions=[change]))
    again = await taken(store, lease)
    assert (again.id, again.attempts, again.reason) == (submission.id, 2, "model unavailable")


async def test_an_attempt_that_does_not_count(store: Store):
    lease, holder = await held_session(store)
    submission = await store.submit(lease.session_id, "message")
    first = await taken(store, lease)
    change = SubmissionChange(id=submission.id, state="queued", attempts=first.attempts - 1)
    await store.write(lease, Batch(submissions=[change]))
    again = await taken(store, lease)
    assert again.attempts == 1
    await store.leave(holder)
    await store.uncount_attempt(again)  # without the lease, which another worker may have
    lease = await store.acquire(lease.session_id, await store.join("next", ttl=60))
    last = await taken(store, lease)
    assert last.attempts == 1
    await store.write(lease, Batch(submissions=[SubmissionChange(id=submission.id, state="done")]))
    await store.uncount_attempt(last)
    ended = (await store.submissions(lease.session_id)).items[0]
    assert (ended.state, ended.attempts) == ("done", 1)


async def test_a_poison_submission_ends_as_a_dead_letter(store: Store):
    session_id = await new_session(store)
    poison, healthy = [await store.submit(session_id, "message") for _ in range(2)]
    for attempt in range(1, 4):
        holder = await store.join("doomed", ttl=60)
        (work,) = await store.next_work(holder, max_attempts=3)
        submission = work.submission
        assert submission is not None
        assert (submission.id, submission.attempts) == (poison.id, attempt)
        await store.leave(holder)
    (work,) = await store.next_work(await store.join("next", ttl=60), max_attempts=3)
    assert work.submission is None
    submission = await store.take(work.lease, max_attempts=3)
    assert submission is not None
    assert submission.id == healthy.id
    (dead,) = (await store.submissions(session_id, state="dead")).items
    assert dead.id == poison.id
    assert dead.reason == "gave up after 3 attempts that did not end"
    assert (await kinds(store, session_id))[-2:] == ["submission_failed", "submission_started"]


async def test_a_session_whose_last_turn_was_given_up_is_failed(store: Store):
    session_id = await new_session(store)
    await store.submit(session_id, "message")
    holder = await store.join("doomed", ttl=60)
    await store.next_work(holder)
    await store.leave(holder)
    (work,) = await store.next_work(await store.join("next", ttl=60), max_attempts=1)
    assert await store.take(work.lease, max_attempts=1) is None
    await store.release(work.lease)
    session = await store.session(session_id)
    assert (session.status, session.error) == ("failed", "gave up after 1 attempts that did not end")


async def test_an_ended_submission_stays_as_it_ended(store: Store):
    lease, _ = await held_session(store)
    submission = await store.submit(lease.session_id, "message")
    await taken(store, lease)
    await store.write(lease, Batch(submissions=[SubmissionChange(id=submission.id, state="done")]))
    for state in ("done", "failed", "queued"):
        with pytest.raises(Conflict, match=submission.id):
            await store.write(lease, Batch(submissions=[SubmissionChange(id=submission.id, state=state)]))
    assert [s.state for s in (await store.submissions(lease.session_id)).items] == ["done"]
    assert await store.take(lease) is None


async def test_a_session_that_waits_is_ready_for_the_control_lane_only(store: Store):
    lease, holder = await held_session(store)
    asking = await store.submit(lease.session_id, "message")
    await taken(store, lease)
    await store.write(
        lease,
        Batch(
            submissions=[SubmissionChange(id=asking.id, state="waiting", reason="approval")],
            status="waiting",
            waiting_for="approval of call-1",
        ),
    )
    await store.release(lease)
    session = await store.session(lease.session_id)
    assert (session.status, session.waiting_for, session.pending) == ("waiting", "approval of call-1", 1)
    await store.submit(lease.session_id, "message")
    assert await store.next_work(holder) == []
    await store.submit(lease.session_id, "approval", lane="control")
    (work,) = await store.next_work(holder)
    assert work.submission is not None
    assert work.submission.kind == "approval"


async def test_a_dead_worker_leaves_a_waiting_session_waiting(store: Store):
    lease, holder = await held_session(store)
    await store.submit(lease.session_id, "message")
    await store.write(lease, Batch(status="waiting", waiting_for="a person"))
    await store.leave(holder)
    assert (await store.session(lease.session_id)).status == "waiting"
    assert await store.next_work(await store.join("next", ttl=60)) == []


async def test_the_queue_is_bounded(engine: Engine):
    async with open_store(engine.url, settings=load_settings(max_pending=3)) as store:
        session_id = await new_session(store)
        for _ in range(3):
            await store.submit(session_id, "message")
        with pytest.raises(QueueFull, match="has 3 pending submissions"):
            await store.submit(session_id, "message")
        await store.submit(session_id, "interrupt", lane="control")
        assert (await store.session(session_id)).pending == 4


async def test_a_cleaned_session_takes_nothing(store: Store):
    lease, _ = await held_session(store)
    await store.write(lease, Batch(status="cleaning"))
    with pytest.raises(SessionCleaned, match="rehydrate the session first"):
        await store.submit(lease.session_id, "message")
    with pytest.raises(SessionCleaned):
        await store.set_state(lease.session_id, "{}", expected_version=0)
    assert (await store.session(lease.session_id)).seq == 0


async def test_an_unknown_session(store: Store):
    with pytest.raises(SessionNotFound):
        await store.submit("nowhere", "message")


async def test_take_needs_the_lease(store: Store):
    lease, _ = await held_session(store)
    await store.submit(lease.session_id, "message")
    await store.release(lease)
    with pytest.raises(LeaseLost):
        await store.take(lease)
    assert [s.state for s in (await store.submissions(lease.session_id)).items] == ["queued"]


async def test_list_is_paged_in_the_order_of_the_queue(store: Store):
    session_id = await new_session(store)
    sent = [(await store.submit(session_id, "message")).id for _ in range(7)]
    page = await store.submissions(session_id, limit=4)
    rest = await store.submissions(session_id, limit=4, cursor=page.next_cursor)
    assert [s.id for s in (*page.items, *rest.items)] == sent
    assert rest.next_cursor is None


async def test_only_what_is_there_can_end(store: Store):
    """A wrong id, or another session's submission, changes nothing and tells nobody a lie."""
    lease, _ = await held_session(store)
    other = await store.submit(await new_session(store), "message")
    neighbour, _ = await held_session(store)
    for wrong in ("no-such-submission", other.id):
        change = Batch(submissions=[SubmissionChange(id=wrong, state="done")])
        refused, fine = await asyncio.gather(
            store.write(lease, change), store.write(neighbour, Batch(status="idle")), return_exceptions=True
        )
        assert isinstance(refused, Conflict)
        assert fine == 0
    assert await store.events(lease.session_id) == []
    assert [s.state for s in (await store.submissions(other.session_id)).items] == ["queued"]


async def test_a_word_that_is_none(store: Store):
    lease, _ = await held_session(store)
    submission = await store.submit(lease.session_id, "message")
    wrong: list[Batch] = [
        Batch(submissions=[SubmissionChange(id=submission.id, state="completed")]),  # pyright: ignore[reportArgumentType]
        Batch(status="finished"),  # pyright: ignore[reportArgumentType]
        Batch(runs=[Run(id="r", status="done")]),  # pyright: ignore[reportArgumentType]
    ]
    for batch in wrong:
        with pytest.raises(BadInput, match="use one of"):
            await store.write(lease, batch)
    for attempt in (
        store.submit(lease.session_id, "message", lane="fast"),  # pyright: ignore[reportArgumentType]
        store.submit(lease.session_id, "message", when_busy="wait"),  # pyright: ignore[reportArgumentType]
        store.sessions(status="busy"),  # pyright: ignore[reportArgumentType]
        store.submissions(lease.session_id, state="open"),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(BadInput, match="use one of"):
            await attempt
    assert (await store.session(lease.session_id)).seq == 1


async def test_two_takes_at_once_never_get_the_same(store: Store):
    for _ in range(15):
        lease, _ = await held_session(store)
        await store.submit(lease.session_id, "interrupt", lane="control")
        both = await asyncio.gather(store.take(lease, lane="control"), store.take(lease))
        assert sorted(taken is None for taken in both) == [False, True]


async def test_taking_what_is_being_ended(store: Store):
    for _ in range(15):
        lease, _ = await held_session(store)
        submission = await store.submit(lease.session_id, "message")
        ending = Batch(submissions=[SubmissionChange(id=submission.id, state="failed", reason="withdrawn")])
        await asyncio.gather(store.take(lease), store.write(lease, ending))
        (ended,) = (await store.submissions(lease.session_id)).items
        assert (ended.state, ended.ended_at is None) == ("failed", False)


async def test_a_cancelled_take_has_taken_nothing(store: Store):
    lease, _ = await held_session(store)
    submission = await store.submit(lease.session_id, "message")
    for turn in range(16):
        taking = asyncio.create_task(store.take(lease))
        for _ in range(turn % 6):
            await asyncio.sleep(0)
        taking.cancel()
        await asyncio.wait([taking])
        if not taking.cancelled():
            break

        async def queued() -> bool:
            return [s.state for s in (await store.submissions(lease.session_id)).items] == ["queued"]

        await until(queued)
    else:
        again = await taken(store, lease)
        assert (again.id, again.attempts) == (submission.id, 1)


@pytest.mark.parametrize(
    ("payload", "title"),
    [
        ({"text": "\n  Write to Ada.\nSoon."}, "Write to Ada."),
        ({"text": "word " * 100}, f"{('word ' * 100)[:79].rstrip()}…"),
        ({"text": "a\x00b\ud800c"}, "a b c"),
        (
            {"content": [{"kind": "image-url", "url": "https://example.org/a.png"}, "What is this?"]},
            "What is this?",
        ),
        ({"content": [{"type": "text", "text": "As OpenAI sends it"}]}, "As OpenAI sends it"),
        ({"content": [{"kind": "text-content", "content": "As written"}]}, "As written"),
        ({"text": " \n"}, ""),
        ({"n": 1}, ""),
        (["text"], ""),
    ],
)
async def test_the_first_message_becomes_the_title_of_a_session_without_one(
    store: Store, payload: object, title: str
):
    session_id = await new_session(store)
    await store.submit(session_id, "message", json.dumps(payload))
    assert (await store.session(session_id)).title == title
    if title:
        await store.submit(session_id, "message", '{"text": "Second"}')
        assert [s.title for s in (await store.sessions(search=title[:5].upper())).items] == [title]


async def test_a_title_that_a_person_gave_or_took_off_stays(store: Store):
    given = await new_session(store, title="Mine")
    await store.submit(given, "message", '{"text": "Hello"}')
    assert (await store.session(given)).title == "Mine"
    lease, _ = await held_session(store)
    await store.write(lease, Batch(runs=[Run(id="run-1")]))
    await store.update_session(lease.session_id, title="")
    await store.submit(lease.session_id, "message", '{"text": "Later"}')
    await store.submit(given, "compact", '{"text": "no message"}')
    assert (await store.session(lease.session_id)).title == ""
