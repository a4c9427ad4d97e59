import asyncio

import pytest

from holdfast.errors import Conflict, HolderLost, LeaseLost, SessionBusy, SessionNotFound
from holdfast.store import Store
from holdfast.types import Batch, Draft, Effect, Holder, NewEvent, Run, Segment, SubmissionChange
from tests.builders import brief, claim, held_session, new_session, ticks, until


async def expired(store: Store, holder: Holder) -> bool:
    """Say whether the database sees the holder past its deadline."""
    return (await store.schema()).expired_holders > 0 and any(
        h.id == holder.id for h in await store.holders()
    )


async def test_a_stale_epoch_is_refused_everywhere_and_changes_nothing(store: Store):
    """Two writers, one of them stale: every method that takes a lease refuses the old one."""
    old, paused = await held_session(store, ttl=brief(store))
    await store.submit(old.session_id, "message")
    await until(lambda: expired(store, paused))
    fresh = await store.join("fresh", ttl=60)
    lease = await store.acquire(old.session_id, fresh)
    assert (lease.epoch, lease.taken_from) == (2, paused.id)
    await store.write(lease, ticks(3))
    before = await store.session(old.session_id)

    stale_writes = (
        lambda: store.write(old, ticks()),
        lambda: store.write(old, Batch(status="failed")),
        lambda: store.take(old),
        lambda: store.put_drafts(old, [Draft(run_id="r", part=0, kind="text", text="stale")]),
        lambda: store.delete_content(old),
    )
    for write in stale_writes:
        old.lost = False  # as a process would see it that was paused before it could notice
        with pytest.raises(LeaseLost, match=f"session {old.session_id} with epoch 1"):
            await write()
        assert old.lost
    old.lost = False
    await store.release(old)
    assert await store.session(old.session_id) == before
    assert await store.drafts(old.session_id) == []
    assert await store.write(lease, ticks()) == 5


async def test_nobody_takes_from_a_live_holder(store: Store):
    ttl = 4 * brief(store)
    lease, holder = await held_session(store, ttl=ttl)
    other = await store.join("other", ttl=60)
    for _ in range(6):
        await asyncio.sleep(ttl / 5)
        holder = await store.renew(holder)
        assert await store.reclaim() == []
        with pytest.raises(SessionBusy):
            await store.acquire(lease.session_id, other)
    await store.write(lease, ticks())


async def test_one_renewal_covers_all_sessions(store: Store):
    first, holder = await held_session(store, ttl=30)
    second = await store.acquire(await new_session(store), holder)
    renewed = await store.renew(holder)
    assert renewed.deadline > holder.deadline
    for lease in (first, second):
        assert (await store.session(lease.session_id)).held_until == renewed.deadline
    (listed,) = await store.holders()
    assert (listed.id, listed.sessions, listed.deadline) == (holder.id, 2, renewed.deadline)


async def test_a_holder_past_its_deadline_goes_on_if_nobody_took_over(store: Store):
    lease, holder = await held_session(store, ttl=brief(store))
    await until(lambda: expired(store, holder))
    assert await store.write(lease, ticks()) == 1
    await store.renew(holder)
    assert await store.reclaim() == []


async def test_reclaim_frees_the_sessions_of_the_dead_only(store: Store):
    dead_lease, dead = await held_session(store, ttl=brief(store))
    live_lease, _ = await held_session(store)
    for lease in (dead_lease, live_lease):
        await store.submit(lease.session_id, "message")
        assert await store.take(lease) is not None
        await store.write(lease, Batch(status="running"))
    await until(lambda: expired(store, dead))
    # Even before anyone reclaims, nothing is shown as running without a live lease.
    assert (await store.session(dead_lease.session_id)).status == "queued"
    assert await store.reclaim() == [dead_lease.session_id]
    assert await store.reclaim() == []
    freed, kept = await store.session(dead_lease.session_id), await store.session(live_lease.session_id)
    assert (freed.status, freed.holder) == ("queued", None)
    assert (kept.status, kept.holder) == ("running", "test")
    states = {
        lease.session_id: [s.state for s in (await store.submissions(lease.session_id)).items]
        for lease in (dead_lease, live_lease)
    }
    assert states == {dead_lease.session_id: ["queued"], live_lease.session_id: ["claimed"]}
    assert dead.id not in {h.id for h in await store.holders()}
    with pytest.raises(HolderLost):
        await store.renew(dead)
    with pytest.raises(LeaseLost):
        await store.write(dead_lease, ticks())
    successor = await claim(store, await store.join("next", ttl=60))
    assert successor is not None
    assert (successor.session_id, successor.taken_from) == (dead_lease.session_id, dead.id)


async def test_reclaim_is_bounded(store: Store):
    ids = [await new_session(store) for _ in range(5)]
    holder = await store.join("busy", ttl=2 * brief(store))
    leases = [await store.acquire(session_id, holder) for session_id in ids]
    await until(lambda: expired(store, holder))
    freed = [await store.reclaim(limit=2) for _ in range(4)]
    assert [len(batch) for batch in freed] == [2, 2, 1, 0]
    assert {s for batch in freed for s in batch} == {lease.session_id for lease in leases}
    assert await store.holders() == []


async def test_leave_releases_everything_at_once(store: Store):
    lease, holder = await held_session(store)
    other = await store.acquire(await new_session(store), holder)
    await store.submit(lease.session_id, "message")
    await store.leave(holder)
    await store.leave(holder)
    assert await store.holders() == []
    successor = await claim(store, await store.join("next", ttl=60))
    assert successor is not None
    # A clean stop is no take-over.
    assert (successor.session_id, successor.taken_from) == (lease.session_id, None)
    with pytest.raises(LeaseLost):
        await store.write(other, ticks())


async def test_claim_takes_the_session_that_is_ready_longest(store: Store):
    ids = [await new_session(store) for _ in range(4)]
    for session_id in (ids[2], ids[0], ids[3], ids[2]):
        await store.submit(session_id, "message")
    holder = await store.join("worker", ttl=60)
    claimed = [await claim(store, holder) for _ in range(4)]
    assert [lease and lease.session_id for lease in claimed] == [ids[2], ids[0], ids[3], None]


async def test_claim_only_for_the_agents_one_has(store: Store):
    coder = await new_session(store, agent="coder")
    scribe = await new_session(store, agent="scribe")
    for session_id in (coder, scribe):
        await store.submit(session_id, "message")
    holder = await store.join("worker", ttl=60)
    lease = await claim(store, holder, agents=["scribe", "painter"])
    assert lease is not None
    assert lease.session_id == scribe
    assert await claim(store, holder, agents=["scribe"]) is None
    assert await claim(store, holder, agents=[]) is None


async def test_concurrent_claims_never_share_a_session(store: Store):
    ids = {await new_session(store) for _ in range(20)}
    for session_id in ids:
        await store.submit(session_id, "message")
    holders = [await store.join(f"worker-{n}", ttl=60) for n in range(8)]

    async def drain(holder: Holder) -> list[str]:
        claimed: list[str] = []
        while lease := await claim(store, holder):
            claimed.append(lease.session_id)
        return claimed

    taken = [s for claimed in await asyncio.gather(*map(drain, holders)) for s in claimed]
    assert sorted(taken) == sorted(ids)


async def test_concurrent_acquires_have_one_winner(store: Store):
    session_id = await new_session(store)
    holders = [await store.join(f"worker-{n}", ttl=60) for n in range(8)]
    results = await asyncio.gather(
        *(store.acquire(session_id, holder) for holder in holders), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["Lease", *["SessionBusy"] * 7]


async def test_a_submission_during_release_is_never_forgotten(store: Store):
    """A wake-up must not be lost between the last look into the queue and letting go."""
    holder = await store.join("worker", ttl=60)
    session_id = await new_session(store)
    for _ in range(25):
        lease = await store.acquire(session_id, holder)
        await asyncio.gather(store.release(lease), store.submit(session_id, "message"))
        (work,) = await store.next_work(holder)
        assert work.submission is not None
        done = SubmissionChange(id=work.submission.id, state="done")
        await store.write(work.lease, Batch(submissions=[done]))
        await store.release(work.lease)
        assert await claim(store, holder) is None


async def test_an_unknown_session_or_holder(store: Store):
    holder = await store.join("worker", ttl=60)
    with pytest.raises(SessionNotFound):
        await store.acquire("nowhere", holder)
    session_id = await new_session(store)
    await store.leave(holder)
    with pytest.raises(HolderLost):
        await store.acquire(session_id, holder)
    assert (await store.session(session_id)).epoch == 0


async def test_a_dead_holder_takes_nothing(store: Store):
    session_id = await new_session(store)
    await store.submit(session_id, "message")
    holder = await store.join("late", ttl=0.02)
    await until(lambda: expired(store, holder))
    with pytest.raises(HolderLost):
        await claim(store, holder)
    lease = await claim(store, await store.join("alive", ttl=60))
    assert lease is not None
    await store.write(lease, Batch(events=[NewEvent(kind="tick")]))


async def test_a_cancelled_claim_holds_nothing_in_secret(store: Store):
    session_id = await new_session(store)
    await store.submit(session_id, "message")
    holder = await store.join("worker", ttl=60)
    for turn in range(30):
        claiming = asyncio.create_task(claim(store, holder))
        for _ in range(turn % 6):
            await asyncio.sleep(0)
        if turn % 2:
            await asyncio.sleep(0.001 * (turn % 5))
        claiming.cancel()
        claiming.cancel()
        await asyncio.wait([claiming])
        if not claiming.cancelled():
            lease = claiming.result()
            assert lease is not None
            await store.release(lease)

        async def free() -> bool:
            return (await store.session(session_id)).holder is None

        await until(free)
    assert await claim(store, holder) is not None


async def test_a_stale_lease_beside_the_new_one_of_the_same_process(store: Store):
    """A worker that was paused, reclaimed, and has claimed the session again, while its old run still writes."""
    old, paused = await held_session(store, ttl=brief(store))
    await until(lambda: expired(store, paused))
    new = await store.acquire(old.session_id, await store.join("again", ttl=60))
    stale = Batch(
        status="failed",
        runs=[Run(id="stale")],
        events=[NewEvent(kind="stale")],
        effects=[Effect(run_id="stale", call_id="c", tool="t", state="completed", result='"stale"')],
    )
    for fresh in (Batch(), ticks()):
        old.lost = False
        results = await asyncio.gather(
            store.write(new, fresh), store.write(old, stale), return_exceptions=True
        )
        assert isinstance(results[0], int)
        assert isinstance(results[1], LeaseLost)
    assert (await store.session(old.session_id)).status == "idle"
    assert (await store.runs(session_id=old.session_id)).items == []
    assert (await store.effects(old.session_id)).items == []
    assert [event.kind for event in await store.events(old.session_id)] == ["tick"]


async def test_a_cancelled_release_is_done_all_the_same(store: Store):
    for turn in range(12):
        lease, _ = await held_session(store)
        releasing = asyncio.create_task(store.release(lease))
        for _ in range(1 + turn % 4):
            await asyncio.sleep(0)
        releasing.cancel()
        await asyncio.wait([releasing])

        async def free(session_id: str = lease.session_id) -> bool:
            return (await store.session(session_id)).holder is None

        await until(free)


async def test_status_and_freeing_at_once_leave_nothing_stuck(store: Store):
    """Whoever frees a session must see the status that was committed just before."""
    for _ in range(25):
        lease, holder = await held_session(store)
        await store.submit(lease.session_id, "message")
        await store.write(lease, Batch(status="waiting", waiting_for="a person"))
        await asyncio.gather(
            store.write(lease, Batch(status="idle")), store.leave(holder), return_exceptions=True
        )
    assert await store.check() == []


async def test_a_good_write_beside_a_release_and_a_bad_neighbour(store: Store):
    """A group that is run again after a failure is run again as it was."""
    for _ in range(10):
        lease, _ = await held_session(store)
        broken, _ = await held_session(store)
        await store.write(broken, Batch(segments=[Segment(number=1)]))
        written, released, refused = await asyncio.gather(
            store.write(lease, ticks()),
            store.release(lease),
            store.write(broken, Batch(segments=[Segment(number=1)])),
            return_exceptions=True,
        )
        assert isinstance(refused, Conflict)
        assert released is None
        # PostgreSQL may release first, on another connection; then the write is refused as it must be.
        assert written == 1 or isinstance(written, LeaseLost)
        assert (await store.session(lease.session_id)).seq == (1 if written == 1 else 0)
