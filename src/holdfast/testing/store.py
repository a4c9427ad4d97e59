"""The conformance suite of stores. Subclass `StoreConformance` in your tests and define the fixture `store`."""

import asyncio
import json
from contextlib import suppress
from dataclasses import replace

import pytest

from holdfast.errors import (
    BadInput,
    Conflict,
    HolderLost,
    LeaseLost,
    SessionBusy,
    SessionNotFound,
    TooMuchStored,
)
from holdfast.store import Store
from holdfast.types import (
    Batch,
    Checkpoint,
    Draft,
    Effect,
    Holder,
    Lease,
    Message,
    NewEvent,
    Run,
    Segment,
    SubmissionChange,
)


async def new_session(store: Store, **more: str) -> str:
    """Create a session and return its id."""
    return (await store.create_session(**{"agent": "scribe", "owner": "ada", **more})).id  # pyright: ignore[reportArgumentType]


async def held_session(store: Store, *, ttl: float = 60.0) -> tuple[Lease, Holder]:
    """Create a session and acquire its lease."""
    session_id = await new_session(store)
    while True:
        holder = await store.join("test", ttl=ttl)
        with suppress(HolderLost):  # on a busy machine, a short lifetime can end before the lease is acquired
            return await store.acquire(session_id, holder), holder


def ticks(count: int = 1) -> Batch:
    """Return a batch with this many events."""
    return Batch(events=[NewEvent(kind="tick")] * count)


def within(store: Store, seconds: float) -> asyncio.Timeout:
    """Return a timeout, which is longer for servers that may run in an emulator."""
    return asyncio.timeout(seconds * 5 if store.engine == "mongodb" else seconds)


async def collect(store: Store, session_id: str, *, after: int, upto: int) -> list[int]:
    """Watch a session and return the numbers of its events."""
    seen: list[int] = []
    watching = store.watch(session_id, after=after)
    async for event in watching:
        seen.append(event.seq)
        if event.seq >= upto:
            break
    await watching.aclose()
    return seen


@pytest.mark.asyncio
class StoreConformance:
    """The tests of the core promises: dense order, one writer, atomic batches, readers that miss nothing.

    A subclass defines the fixture `store`, which returns an open, empty store.
    """

    async def test_one_holder_at_a_time(self, store: Store) -> None:
        lease, holder = await held_session(store)
        other = await store.join("other", ttl=60)
        with pytest.raises(SessionBusy, match=r"in use by test until 20\d\d-") as refused:
            await store.acquire(lease.session_id, other)
        assert refused.value.facts["holder"] == "test"
        with pytest.raises(SessionBusy):
            await store.acquire(lease.session_id, holder)

    async def test_the_epoch_grows_with_each_lease(self, store: Store) -> None:
        lease, holder = await held_session(store)
        epochs = [lease.epoch]
        for _ in range(3):
            await store.release(lease)
            lease = await store.acquire(lease.session_id, holder)
            epochs.append(lease.epoch)
        assert epochs == [1, 2, 3, 4]

    async def test_session_shows_its_holder(self, store: Store) -> None:
        lease, holder = await held_session(store)
        session = await store.session(lease.session_id)
        assert (session.holder, session.held_until, session.epoch) == ("test", holder.deadline, 1)
        await store.release(lease)
        session = await store.session(lease.session_id)
        assert (session.holder, session.held_until) == (None, None)

    async def test_a_released_lease_writes_nothing(self, store: Store) -> None:
        lease, _ = await held_session(store)
        await store.write(lease, ticks(2))
        await store.release(lease)
        with pytest.raises(LeaseLost):
            await store.write(lease, ticks())
        assert (await store.session(lease.session_id)).seq == 2

    async def test_release_is_idempotent_and_never_frees_another_lease(self, store: Store) -> None:
        lease, holder = await held_session(store)
        await store.release(lease)
        newer = await store.acquire(lease.session_id, holder)
        await store.release(lease)
        assert await store.write(newer, ticks()) == 1

    async def test_events_are_numbered_without_holes(self, store: Store) -> None:
        lease, _ = await held_session(store)
        assert await store.write(lease, ticks(3)) == 3
        assert await store.write(lease, Batch()) == 3
        assert await store.write(lease, ticks(2)) == 5
        events = await store.events(lease.session_id)
        assert [event.seq for event in events] == [1, 2, 3, 4, 5]
        assert [event.at for event in events] == sorted(event.at for event in events)
        assert [e.seq for e in await store.events(lease.session_id, after=2, limit=2)] == [3, 4]
        assert await store.events(lease.session_id, after=5) == []

    async def test_an_event_comes_back_as_it_was(self, store: Store) -> None:
        lease, _ = await held_session(store)
        await store.write(
            lease, Batch(events=[NewEvent(kind="tick", payload='{"b":1,"a":2}', run_id="r", step=7)])
        )
        (event,) = await store.events(lease.session_id)
        assert (event.kind, event.payload, event.run_id, event.step) == ("tick", '{"b":1,"a":2}', "r", 7)
        assert await store.events(lease.session_id, run_id="r") == [event]
        assert await store.events(lease.session_id, run_id="other") == []

    async def test_a_batch_is_written_whole_or_not_at_all(self, store: Store) -> None:
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
        # The lease is still valid.
        await store.write(lease, ticks())

    async def test_content_is_stored_once_and_joined_on_reading(self, store: Store) -> None:
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

    async def test_a_refused_batch_does_not_affect_others_in_its_group(self, store: Store) -> None:
        """Mix stale leases, broken batches and good ones in the same group commit."""
        good = [(await held_session(store))[0] for _ in range(6)]
        stale, _ = await held_session(store)
        await store.release(stale)
        stale.lost = False
        broken, _ = await held_session(store)
        await store.write(broken, Batch(segments=[Segment(number=1)]))
        writes = [store.write(lease, ticks()) for lease in good[:3]]
        writes.append(store.write(stale, ticks()))
        writes.append(
            store.write(broken, Batch(segments=[Segment(number=1)], events=[NewEvent(kind="tick")]))
        )
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

    async def test_concurrent_writes_of_one_lease_keep_their_order(self, store: Store) -> None:
        lease, _ = await held_session(store)
        seqs = await asyncio.gather(
            *(store.write(lease, Batch(events=[NewEvent(kind=str(n))] * 2)) for n in range(30))
        )
        assert seqs == [2 * n + 2 for n in range(30)]
        events = await store.events(lease.session_id)
        assert [event.kind for event in events] == [str(n) for n in range(30) for _ in range(2)]

    async def test_many_sessions_at_once(self, store: Store) -> None:
        leases = [(await held_session(store))[0] for _ in range(40)]

        async def work(number: int) -> None:
            for _ in range(10):
                await store.write(leases[number], ticks())

        await asyncio.gather(*(work(number) for number in range(40)))
        assert {(await store.session(lease.session_id)).seq for lease in leases} == {10}

    async def test_a_cancelled_writer_leaves_the_lease_usable(self, store: Store) -> None:
        lease, _ = await held_session(store)
        for turn in range(1, 20):
            writing = asyncio.create_task(store.write(lease, ticks()))
            for _ in range(turn % 4):
                await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait([writing])
            seq = await store.write(lease, ticks())
            assert [e.seq for e in await store.events(lease.session_id)] == list(range(1, seq + 1))

    async def test_drafts_are_replaced_and_gone_with_the_message(self, store: Store) -> None:
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

    async def test_a_draft_says_which_event_it_follows(self, store: Store) -> None:
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

    async def test_the_stored_bytes_of_an_owner(self, store: Store) -> None:
        lease, _ = await held_session(store)
        await store.write(lease, ticks(3))
        assert lease.session_id in (await store.unmeasured(within=3600)).session_ids
        await store.measure(lease.session_id)
        assert lease.session_id not in (await store.unmeasured(within=3600)).session_ids
        stored = await store.stored_bytes("ada")
        assert stored == await store.content_bytes(lease.session_id) > 0
        await store.refuse_full("ada", stored + 1)
        with pytest.raises(TooMuchStored):
            await store.refuse_full("ada", stored)
        await store.write(lease, ticks(1))
        assert lease.session_id in (await store.unmeasured(within=3600)).session_ids

    async def test_an_unknown_session(self, store: Store) -> None:
        with pytest.raises(SessionNotFound):
            await store.events("nowhere")

    async def test_numbers_beyond_64_bits_are_refused(self, store: Store) -> None:
        lease, _ = await held_session(store)
        with pytest.raises(BadInput):
            await store.write(lease, Batch(events=[NewEvent(kind="tick", step=2**63)]))
        assert await store.write(lease, ticks()) == 1

    async def test_a_batch_names_each_noun_once(self, store: Store) -> None:
        lease, _ = await held_session(store)
        with pytest.raises(BadInput, match="the same run twice"):
            await store.write(lease, Batch(runs=[Run(id="r"), Run(id="r", status="completed")]))

    async def test_a_lease_of_the_wrong_holder(self, store: Store) -> None:
        lease, _ = await held_session(store)
        stranger = await store.join("stranger", ttl=60)
        lease.holder = stranger.id
        with pytest.raises(LeaseLost):
            await store.write(lease, ticks())

    async def test_replay_then_live_without_gap_or_duplicate(self, store: Store) -> None:
        lease, _ = await held_session(store)
        await store.write(lease, ticks(1200))  # more than a page
        watching = asyncio.create_task(collect(store, lease.session_id, after=0, upto=1300))
        for _ in range(100):
            await store.write(lease, ticks())
        async with within(store, 20):
            assert await watching == list(range(1, 1301))

    async def test_many_watchers_of_a_busy_session(self, store: Store) -> None:
        lease, _ = await held_session(store)
        await store.write(lease, ticks(100))
        watching = [
            asyncio.create_task(collect(store, lease.session_id, after=after, upto=300))
            for after in range(0, 100, 5)
        ]
        for _ in range(100):
            await store.write(lease, ticks(2))
        async with within(store, 20):
            for task, after in zip(watching, range(0, 100, 5), strict=True):
                assert await task == list(range(after + 1, 301))

    async def test_a_change_wakes_watchers_however_its_arguments_are_passed(self, store: Store) -> None:
        """The memory store does not poll, so a missing hint is never made up for."""
        session_id = await new_session(store)
        watching = store.watch(session_id)
        coming = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0)
        await store.set_state(session_id=session_id, body="1", expected_version=0)
        async with within(store, 5):
            assert (await coming).kind == "state_changed"
        await watching.aclose()
