import asyncio
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo import AsyncMongoClient

from holdfast.config import load_settings
from holdfast.errors import BadInput, BadText, Conflict, LeaseLost, PayloadTooLarge, SessionNotFound
from holdfast.store import Store, open_store
from holdfast.types import (
    Batch,
    Chain,
    Checkpoint,
    Draft,
    Effect,
    Message,
    NewEvent,
    Run,
    Segment,
    SubmissionChange,
)
from tests.builders import held_session, new_session, ticks
from tests.conftest import Engine


async def test_events_are_numbered_without_holes(store: Store):
    lease, _ = await held_session(store)
    assert await store.write(lease, ticks(3)) == 3
    assert await store.write(lease, Batch()) == 3
    assert await store.write(lease, ticks(2)) == 5
    events = await store.events(lease.session_id)
    assert [event.seq for event in events] == [1, 2, 3, 4, 5]
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert [e.seq for e in await store.events(lease.session_id, after=2, limit=2)] == [3, 4]
    assert await store.events(lease.session_id, after=5) == []


async def test_an_event_comes_back_as_it_was(store: Store):
    lease, _ = await held_session(store)
    await store.write(
        lease, Batch(events=[NewEvent(kind="tick", payload='{"b":1,"a":2}', run_id="r", step=7)])
    )
    (event,) = await store.events(lease.session_id)
    assert (event.kind, event.payload, event.run_id, event.step) == ("tick", '{"b":1,"a":2}', "r", 7)
    assert await store.events(lease.session_id, run_id="r") == [event]
    assert await store.events(lease.session_id, run_id="other") == []


async def test_a_batch_is_written_whole_or_not_at_all(store: Store):
    lease, _ = await held_session(store)
    submission = await store.submit(lease.session_id, "message")
    await store.take(lease)
    await store.write(lease, Batch(segments=[Segment(number=1)]))
    before = await store.session(lease.session_id)
    with pytest.raises(Conflict):
        await store.write(
            lease,
            Batch(
                events=[NewEvent(kind="tick")],
                segments=[Segment(number=1)],  # exists already
                messages=[Message(segment=1, position=0, body="{}")],
                checkpoints=[Checkpoint(id="c", segment=1, length=1)],
                runs=[Run(id="r")],
                effects=[Effect(run_id="r", call_id="c", tool="t")],
                submissions=[SubmissionChange(id=submission.id, state="done")],
                status="failed",
            ),
        )
    assert await store.session(lease.session_id) == before
    assert await store.history(lease.session_id, segment=1, length=10) == []
    assert (await store.runs(session_id=lease.session_id)).items == []
    assert (await store.effects(lease.session_id)).items == []
    assert (await store.checkpoints(session_id=lease.session_id)).items == []
    # The lease is as good as before.
    await store.write(lease, ticks())


async def test_content_is_stored_once_and_joined_on_reading(store: Store):
    lease, _ = await held_session(store)
    body = json.dumps({"content": "x" * 100})
    await store.write(
        lease,
        Batch(
            segments=[Segment(number=1)],
            messages=[Message(segment=1, position=0, body=body)],
            events=[NewEvent(kind="message", message=(1, 0)), NewEvent(kind="tick")],
        ),
    )
    message, tick = await store.events(lease.session_id)
    assert (message.payload, message.message) == ("{}", body)
    assert tick.message is None


async def test_a_refused_batch_spoils_no_neighbour(store: Store):
    """Stale leases, broken batches and good ones, all waiting for the same group commit."""
    good = [(await held_session(store))[0] for _ in range(6)]
    stale, _ = await held_session(store)
    await store.release(stale)
    stale.lost = False
    broken, _ = await held_session(store)
    await store.write(broken, Batch(segments=[Segment(number=1)]))
    writes = [store.write(lease, ticks()) for lease in good[:3]]
    writes.append(store.write(stale, ticks()))
    writes.append(store.write(broken, Batch(segments=[Segment(number=1)], events=[NewEvent(kind="tick")])))
    writes += [store.write(lease, ticks()) for lease in good[3:]]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(r).__name__ for r in results] == [
        "int",
        "int",
        "int",
        "LeaseLost",
        "Conflict",
        "int",
        "int",
        "int",
    ]
    for lease in (*good, broken):
        assert (await store.session(lease.session_id)).seq == (0 if lease is broken else 1)
    assert await store.write(broken, ticks()) == 1


async def test_concurrent_writes_of_one_lease_keep_their_order(store: Store):
    lease, _ = await held_session(store)
    seqs = await asyncio.gather(
        *(store.write(lease, Batch(events=[NewEvent(kind=str(n))] * 2)) for n in range(30))
    )
    assert seqs == [2 * n + 2 for n in range(30)]
    events = await store.events(lease.session_id)
    assert [event.kind for event in events] == [str(n) for n in range(30) for _ in range(2)]


async def test_many_sessions_at_once(store: Store):
    leases = [(await held_session(store))[0] for _ in range(40)]

    async def work(number: int) -> None:
        for _ in range(10):
            await store.write(leases[number], ticks())

    await asyncio.gather(*(work(number) for number in range(40)))
    assert {(await store.session(lease.session_id)).seq for lease in leases} == {10}


async def test_a_cancelled_writer_leaves_the_lease_usable(store: Store):
    lease, _ = await held_session(store)
    for turn in range(1, 20):
        writing = asyncio.create_task(store.write(lease, ticks()))
        for _ in range(turn % 4):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
        seq = await store.write(lease, ticks())
        assert [e.seq for e in await store.events(lease.session_id)] == list(range(1, seq + 1))


async def test_drafts_are_replaced_and_gone_with_the_message(store: Store):
    lease, _ = await held_session(store)
    await store.put_drafts(lease, [Draft(run_id="r", part=0, kind="text", text="Hel")])
    await store.put_drafts(
        lease,
        [
            Draft(run_id="r", part=0, kind="text", text="Hello"),
            Draft(run_id="q", part=1, kind="thinking", text="?"),
        ],
    )
    assert [(d.run_id, d.part, d.kind, d.text) for d in await store.drafts(lease.session_id)] == [
        ("q", 1, "thinking", "?"),
        ("r", 0, "text", "Hello"),
    ]
    await store.write(lease, Batch(events=[NewEvent(kind="message")], drafts_done=["r"]))
    assert [d.run_id for d in await store.drafts(lease.session_id)] == ["q"]
    assert (await store.session(lease.session_id)).seq == 1


async def test_a_draft_says_which_event_it_follows(store: Store):
    lease, _ = await held_session(store)
    await store.write(lease, Batch(events=[NewEvent(kind="tick")]))
    first = Draft(run_id="r", part=0, kind="text", text="Hel")
    await store.put_drafts(lease, [first])
    await store.write(lease, Batch(events=[NewEvent(kind="tick")]))
    await store.put_drafts(lease, [replace(first, text="Hello")])
    assert [draft.follows for draft in await store.drafts(lease.session_id)] == [1]  # it has grown since
    await store.write(lease, Batch(events=[NewEvent(kind="message")], drafts_done=["r"]))
    await store.put_drafts(lease, [first])
    assert [draft.follows for draft in await store.drafts(lease.session_id)] == [3]


async def test_an_unknown_session(store: Store):
    with pytest.raises(SessionNotFound):
        await store.events("nowhere")


@pytest.mark.parametrize("after", [-1, 2**63])
async def test_a_number_that_is_none(store: Store, after: int):
    with pytest.raises(BadInput):
        await store.events(await new_session(store), after=after)


text = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=200)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=50),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=10), children, max_size=4)
    ),
    max_leaves=20,
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    value=json_values,
    raw=text,
    ascii_only=st.booleans(),
    spaces=st.sampled_from([None, (", ", ": "), (",", ":")]),
)
async def test_exact_bytes(
    store: Store, value: object, raw: str, ascii_only: bool, spaces: tuple[str, str] | None
):
    """What was serialized comes back as the same text: order, spaces, escapes, NUL, surrogates and huge numbers."""
    body = json.dumps(value, ensure_ascii=ascii_only, separators=spaces)
    try:
        body.encode()
    except UnicodeEncodeError:
        body = json.dumps(value)
    lease, _ = await held_session(store)
    effect = Effect(run_id="r", call_id="c", tool="t", state="completed", result=body, summary=raw)
    await store.write(
        lease,
        Batch(
            events=[NewEvent(kind="tick", payload=body)],
            segments=[Segment(number=1)],
            messages=[Message(segment=1, position=0, body=body), Message(segment=1, position=1, body=raw)],
            effects=[effect],
        ),
    )
    assert [e.payload for e in await store.events(lease.session_id)] == [body]
    assert [m.body for m in await store.history(lease.session_id, segment=1, length=2)] == [body, raw]
    (found,) = (await store.effects(lease.session_id)).items
    assert (found.result, found.summary) == (body, raw)
    submission = await store.submit(lease.session_id, "message", body)
    assert (await store.submissions(lease.session_id)).items[0].payload == submission.payload == body
    await store.set_state(lease.session_id, body, expected=0)
    assert (await store.state(lease.session_id)).body == body


@pytest.mark.parametrize("bad", ["\x00", "a\x00b", "\ud800", "x\udfffy"])
async def test_text_that_cannot_be_stored_exactly_is_refused(store: Store, bad: str):
    lease, _ = await held_session(store)
    for batch in (
        Batch(events=[NewEvent(kind="tick", payload=bad)]),
        Batch(segments=[Segment(number=1)], messages=[Message(segment=1, position=0, body=bad)]),
        Batch(effects=[Effect(run_id="r", call_id=bad, tool="t")]),
        Batch(effects=[Effect(run_id="r", call_id="c", tool="t", result=bad)]),
        Batch(runs=[Run(id="r", error=bad)]),
        Batch(submissions=[SubmissionChange(id="s", state="failed", reason=bad)]),
        Batch(status="waiting", waiting_for=bad),
    ):
        with pytest.raises(BadText):
            await store.write(lease, batch)
    with pytest.raises(BadText):
        await store.put_drafts(lease, [Draft(run_id="r", part=0, kind="text", text=bad)])
    assert await store.write(lease, ticks()) == 1


async def test_a_payload_over_the_limit_is_refused(engine: Engine):
    async with open_store(engine.url, settings=load_settings(max_payload_bytes=1000)) as store:
        lease, _ = await held_session(store)
        assert await store.write(lease, Batch(events=[NewEvent(kind="tick", payload=f'"{"é" * 499}"')])) == 1
        with pytest.raises(PayloadTooLarge, match="has 1002 bytes; the limit is 1000"):
            await store.write(lease, Batch(events=[NewEvent(kind="tick", payload=f'"{"é" * 500}"')]))
        with pytest.raises(PayloadTooLarge):
            await store.submit(lease.session_id, "message", json.dumps("x" * 1000))
        assert await store.write(lease, ticks()) == 2


async def test_a_large_payload_within_the_limit(store: Store):
    lease, _ = await held_session(store)
    body = json.dumps("ü" * 6_000_000, ensure_ascii=False)
    await store.write(lease, Batch(events=[NewEvent(kind="tick", payload=body)]))
    (event,) = await store.events(lease.session_id)
    assert event.payload == body


async def test_numbers_beyond_64_bits_are_refused(store: Store):
    lease, _ = await held_session(store)
    with pytest.raises(BadInput):
        await store.write(lease, Batch(events=[NewEvent(kind="tick", step=2**63)]))
    assert await store.write(lease, ticks()) == 1


async def test_a_batch_names_each_noun_once(store: Store):
    lease, _ = await held_session(store)
    with pytest.raises(BadInput, match="the same run twice"):
        await store.write(lease, Batch(runs=[Run(id="r"), Run(id="r", status="completed")]))


async def test_a_lease_of_the_wrong_holder(store: Store):
    lease, _ = await held_session(store)
    stranger = await store.join("stranger", ttl=60)
    lease.holder = stranger.id
    with pytest.raises(LeaseLost):
        await store.write(lease, ticks())


@pytest.mark.processes
async def test_payloads_are_readable_in_the_database(engine: Engine, store: Store, tmp_path: Path):
    """Exact bytes also for those who look with their own tools: text, not an encoding of ours."""
    lease, _ = await held_session(store)
    await store.write(lease, Batch(events=[NewEvent(kind="tick", payload='{"z": "ü", "a": 1}')]))
    if engine.name == "sqlite":
        connection = sqlite3.connect(tmp_path / "store.db")
        (row,) = connection.execute("SELECT payload FROM events").fetchall()
        connection.close()
    elif engine.name == "mongodb":
        async with AsyncMongoClient[dict[str, Any]](engine.url) as client:
            row = [(await client.get_default_database()["events"].find_one({}) or {})["payload"]]
    else:
        server = await asyncpg.connect(engine.url)
        (row,) = await server.fetch("SELECT payload FROM holdfast.events")
        await server.close()
    assert row[0] == '{"z": "ü", "a": 1}'


@pytest.mark.parametrize("cancelled", [False, True])
async def test_nothing_is_written_behind_a_batch_that_failed(store: Store, cancelled: bool):
    """Also if nobody heard of it: whoever waited for it may have been cancelled, and go on with what builds on it."""
    lease, _ = await held_session(store)
    first = Batch(segments=[Segment(number=1)], messages=[Message(segment=1, position=0, body="{}")])
    await store.write(lease, first)
    chain = Chain()
    failing = replace(first, chain=chain)
    behind = Batch(events=[NewEvent(kind="behind")], chain=chain)
    writing = [asyncio.create_task(store.write(lease, batch)) for batch in (failing, behind)]
    await asyncio.sleep(0)
    if cancelled:
        writing[0].cancel()
    found = await asyncio.gather(*writing, return_exceptions=True)
    assert isinstance(found[0], Conflict | asyncio.CancelledError)
    assert isinstance(found[1], Conflict)
    with pytest.raises(Conflict):
        await store.write(lease, replace(behind))
    assert await store.events(lease.session_id) == []

    await store.write(lease, Batch(events=[NewEvent(kind="of_its_own")]))
    assert [event.kind for event in await store.events(lease.session_id)] == ["of_its_own"]
