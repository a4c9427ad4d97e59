"""Pages are bounded in bytes: each ends with the row that reaches the limit, and says that there is more."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Store
from holdfast.errors import BadText
from holdfast.store.transactions import PAGE_BYTES
from holdfast.types import Batch, Checkpoint, Effect, Message, NewEvent, Page, Run, Segment
from tests.builders import held_session, new_session, within

LARGE = f'{{"a": "{"x" * (PAGE_BYTES * 3 // 8)}"}}'  # three of them fill a page
ALL = 7


async def sizes_of_pages(read: Callable[[str | None], Awaitable[Page[Any]]]) -> list[int]:
    page = await read(None)
    sizes = [len(page.items)]
    while page.next_cursor is not None:
        page = await read(page.next_cursor)
        sizes.append(len(page.items))
    return sizes


async def test_pages_of_events(store: Store):
    lease, _ = await held_session(store)
    await store.write(lease, Batch(segments=[Segment(number=1)]))
    for n in range(ALL):
        large = Message(segment=1, position=n, body=LARGE)
        await store.write(lease, Batch(messages=[large], events=[NewEvent(kind="said", message=(1, n))]))
    sizes: list[int] = []
    after = 0
    while page := await store.events(lease.session_id, after=after, limit=1000):
        after = page[-1].seq
        sizes.append(len(page))
    assert sizes == [3, 3, 1]
    sizes, after = [], -1
    while page := await store.history(lease.session_id, segment=1, length=ALL, after=after):
        assert [message.position for message in page] == list(range(after + 1, after + 1 + len(page)))
        after = page[-1].position
        sizes.append(len(page))
    assert sizes == [3, 3, 1]
    assert await store.history_size(lease.session_id, segment=1, length=ALL) == ALL * len(LARGE)
    assert await store.history_size(lease.session_id, segment=1, length=2) == 2 * len(LARGE)
    async with within(store, 20):
        seen = 0
        async for _ in store.watch(lease.session_id):
            seen += 1
            if seen == ALL:
                break


@pytest.mark.parametrize(
    "batch",
    [
        Batch(events=[NewEvent(kind="said", run_id="x" * 513)]),
        Batch(checkpoints=[Checkpoint(id="c", run_id="x" * 513, segment=1, length=0)]),
        Batch(effects=[Effect(run_id="x" * 513, call_id="c", tool="t")]),
    ],
)
async def test_ids_of_runs_are_short(store: Store, batch: Batch):
    lease, _ = await held_session(store)
    with pytest.raises(BadText, match="has more than 512 characters"):
        await store.write(lease, batch)
    await store.write(lease, Batch(events=[NewEvent(kind="said", run_id="ä" * 512)]))
    (event,) = await store.events(lease.session_id)
    assert event.run_id == "ä" * 512


async def test_pages_of_cursors(store: Store):
    lease, _ = await held_session(store)
    names = [f"reader-{n}" for n in range(ALL)]
    for name in names:
        await store.set_cursor(lease.session_id, name, 0)
    assert await sizes_of_pages(lambda c: store.cursors(lease.session_id, cursor=c, limit=3)) == [3, 3, 1]
    first = await store.cursors(lease.session_id, limit=3)
    rest = await store.cursors(lease.session_id, cursor=first.next_cursor)
    assert [cursor.consumer for cursor in (*first.items, *rest.items)] == names


async def test_pages_of_payloads(store: Store):
    lease, _ = await held_session(store)
    for n in range(ALL):
        await store.write(lease, Batch(events=[NewEvent(kind="said", payload=LARGE)]))
        await store.submit(lease.session_id, "message", LARGE, when_busy="steer")
        effect = Effect(run_id="r", call_id=str(n), tool="t", state="completed", result=LARGE)
        await store.write(lease, Batch(runs=[Run(id=f"r{n}", metadata=LARGE)], effects=[effect]))
    name = lease.session_id
    assert len(await store.events(name, limit=1000)) == 5  # with a short one after each
    assert await sizes_of_pages(lambda c: store.submissions(name, cursor=c, limit=100)) == [3, 3, 1]
    assert await sizes_of_pages(lambda c: store.runs(session_id=name, cursor=c, limit=100)) == [3, 3, 1]
    assert await sizes_of_pages(lambda c: store.effects(name, cursor=c, limit=100)) == [3, 3, 1]


async def test_submissions_are_listed_without_their_payloads(store: Store):
    session_id = await new_session(store)
    for _ in range(ALL):
        await store.submit(session_id, "message", LARGE, when_busy="steer")
    listed = await store.submissions(session_id, payloads=False, limit=100)
    assert [item.payload for item in listed.items] == [""] * ALL
    assert [item.payload for item in await store.urgent(session_id)] == [""] * ALL


async def test_signals_do_not_hide_an_interrupt(store: Store):
    session_id = await new_session(store)
    for _ in range(3):
        await store.submit(session_id, "signal", '{"name": "paid"}', lane="control")
    await store.submit(session_id, "interrupt", lane="control")
    assert [item.kind for item in await store.urgent(session_id, limit=2)] == ["interrupt"]


async def test_pages_of_metadata(store: Store):
    for _ in range(20):
        await store.create_session(agent="scribe", owner="ada", metadata=json.dumps({"a": "x" * 60_000}))
    for _ in range(ALL):
        await store.audit(actor="ada", action="test", session_id=None, detail=LARGE)
    assert await sizes_of_pages(lambda c: store.sessions(cursor=c, limit=100)) == [18, 2]
    assert await sizes_of_pages(lambda c: store.audit_log(cursor=c, limit=100)) == [3, 3, 1]
