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
from holdfast.errors import BadInput, BadText, Conflict, PayloadTooLarge
from holdfast.store import Store, open_store
from holdfast.types import (
    Batch,
    Chain,
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
    await store.set_state(lease.session_id, body, expected_version=0)
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
