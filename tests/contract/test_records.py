"""Records: small rows of a session with a kind and a key, which a batch puts and drops."""

import json

import pytest

from holdfast.errors import BadInput, LeaseLost, PayloadTooLarge, SessionNotFound
from holdfast.store import Store
from holdfast.types import Batch, Lease, NewEvent, Record


@pytest.fixture
async def lease(store: Store) -> Lease:
    session = await store.create_session(agent="clerk", owner="you")
    return await store.acquire(session.id, await store.join("test"))


def record(key: str, body: object = 1, kind: str = "item") -> Record:
    return Record(kind=kind, key=key, body=json.dumps(body))


async def keys(store: Store, session_id: str, kind: str = "item", **options: object) -> list[str]:
    return [found.key for found in await store.records(session_id, kind, **options)]  # pyright: ignore[reportArgumentType]


async def test_records_are_listed_by_kind_prefix_and_key(store: Store, lease: Lease):
    session = lease.session_id
    puts = [
        record("b/1"),
        record("a/2", {"n": [1, None]}),
        record("a/1"),
        record("a"),
        record("x", kind="other"),
    ]
    await store.write(lease, Batch(records=puts))
    assert await keys(store, session) == ["a", "a/1", "a/2", "b/1"]
    assert await keys(store, session, prefix="a/") == ["a/1", "a/2"]
    assert await keys(store, session, prefix="a/", after="a/1") == ["a/2"]
    assert await keys(store, session, before="a/2") == ["a", "a/1"]
    assert await keys(store, session, reverse=True, limit=2) == ["b/1", "a/2"]
    assert await keys(store, session, kind="other") == ["x"]
    assert await keys(store, session, kind="none") == []
    (found,) = await store.records(session, "item", prefix="a/2")
    assert json.loads(found.body) == {"n": [1, None]}
    assert [each.body for each in await store.records(session, "item", bodies=False)] == [""] * 4


async def test_a_record_is_replaced_and_dropped_in_one_write_with_events(store: Store, lease: Lease):
    session = lease.session_id
    await store.write(lease, Batch(records=[record("a", 1), record("b", 2)]))
    seq = await store.write(
        lease,
        Batch(
            events=[NewEvent(kind="x")],
            records=[record("a", 3)],
            records_dropped=[("item", "b"), ("item", "c")],
        ),
    )
    (found,) = await store.records(session, "item")
    assert (found.key, found.body, found.seq) == ("a", "3", seq)


async def test_keys_sort_by_their_code_points(store: Store, lease: Lease):
    given = ["Z", "a", "ä", "漢", "\U0001f600", "0"]
    await store.write(lease, Batch(records=[record(key) for key in given]))
    assert await keys(store, lease.session_id) == sorted(given)
    assert await keys(store, lease.session_id, prefix="\U0001f600") == ["\U0001f600"]


async def test_a_page_ends_with_the_record_that_fills_it(store: Store, lease: Lease):
    large = "x" * (3 * 1024 * 1024)
    await store.write(lease, Batch(records=[record("1", large), record("2", large), record("3", large)]))
    assert await keys(store, lease.session_id) == ["1", "2"]
    assert await keys(store, lease.session_id, after="2") == ["3"]
    assert await keys(store, lease.session_id, bodies=False) == ["1", "2", "3"]


async def test_bad_records_are_refused(store: Store, lease: Lease):
    for bad in (
        Record(kind="item", key="", body="1"),
        Record(kind="", key="a", body="1"),
        Record(kind="item", key="a\n", body="1"),
        Record(kind="item", key="a", body="{"),
    ):
        with pytest.raises(BadInput):
            await store.write(lease, Batch(records=[bad]))
    with pytest.raises(BadInput, match="the same record twice"):
        await store.write(lease, Batch(records=[record("a"), record("a", 2)]))
    with pytest.raises(BadInput, match="the same record twice"):
        await store.write(lease, Batch(records=[record("a")], records_dropped=[("item", "a")]))
    with pytest.raises(PayloadTooLarge):
        await store.write(lease, Batch(records=[record("a", "x" * store.settings.max_payload_bytes)]))
    assert await keys(store, lease.session_id) == []
    with pytest.raises(SessionNotFound):
        await store.records("nothing", "item")


async def test_a_lost_lease_writes_no_records(store: Store, lease: Lease):
    await store.release(lease)
    with pytest.raises(LeaseLost):
        await store.write(lease, Batch(records=[record("a")], records_dropped=[("item", "b")]))
    assert await keys(store, lease.session_id) == []
