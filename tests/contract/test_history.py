import asyncio
from typing import Any

import pytest

from holdfast.errors import BadId, BadInput, Conflict, NotFound
from holdfast.ids import new_id
from holdfast.store import Store
from holdfast.types import Batch, Checkpoint, Effect, Lease, Message, NewEvent, Run, Segment
from tests.builders import brief, held_session, new_session, until


def messages(segment: int, start: int, *bodies: str) -> list[Message]:
    return [Message(segment=segment, position=start + n, body=body) for n, body in enumerate(bodies)]


async def read(store: Store, session_id: str, segment: int, length: int, page: int = 1000) -> str:
    """Return the bodies of a history, read in pages."""
    found: list[Message] = []
    while True:
        after = found[-1].position if found else -1
        more = await store.history(session_id, segment=segment, length=length, after=after, limit=page)
        found += more
        if len(more) < page:
            assert [m.position for m in found] == list(range(len(found)))
            return "".join(m.body for m in found)


async def test_a_history_is_a_path_through_the_tree(store: Store):
    lease, _ = await held_session(store)
    sid = lease.session_id
    await store.write(lease, Batch(segments=[Segment(number=1)], messages=messages(1, 0, *"abcdef")))
    # Rewind to 4, go on differently; from there compact: a new start that shares nothing; and once more from the root.
    await store.write(
        lease, Batch(segments=[Segment(number=2, parent=1, start=4)], messages=messages(2, 4, *"XYZ"))
    )
    await store.write(
        lease, Batch(segments=[Segment(number=3, parent=2, start=5)], messages=messages(3, 5, "!"))
    )
    await store.write(lease, Batch(segments=[Segment(number=4)], messages=messages(4, 0, *"sum")))
    await store.write(lease, Batch(messages=messages(1, 6, "g")))
    for page in (1000, 2):
        assert await read(store, sid, 1, 7, page) == "abcdefg"
        assert await read(store, sid, 1, 3, page) == "abc"
        assert await read(store, sid, 2, 7, page) == "abcdXYZ"
        assert await read(store, sid, 3, 6, page) == "abcdX!"
        # A checkpoint may end before its own segment begins: the shared prefix only.
        assert await read(store, sid, 3, 2, page) == "ab"
        assert await read(store, sid, 4, 3, page) == "sum"
    assert await store.segments(sid) == [
        Segment(number=1),
        Segment(number=2, parent=1, start=4),
        Segment(number=3, parent=2, start=5),
        Segment(number=4),
    ]


async def test_a_message_is_never_overwritten(store: Store):
    lease, _ = await held_session(store)
    await store.write(lease, Batch(segments=[Segment(number=1)], messages=messages(1, 0, "a")))
    with pytest.raises(Conflict):
        await store.write(lease, Batch(messages=messages(1, 0, "b")))
    assert await read(store, lease.session_id, 1, 1) == "a"


async def test_checkpoints_newest_first(store: Store):
    lease, _ = await held_session(store)
    await store.write(
        lease, Batch(segments=[Segment(number=1)], messages=messages(1, 0, *"abcde"), runs=[Run(id="run-a")])
    )
    for n in range(5):
        kind = "interrupted" if n % 2 else "settled"
        checkpoint = Checkpoint(id=f"c{n}", segment=1, length=n + 1, kind=kind, run_id="run-a", step=n)
        await store.write(lease, Batch(checkpoints=[checkpoint], events=[NewEvent(kind="tick")]))
    page = await store.checkpoints(session_id=lease.session_id, limit=3)
    rest = await store.checkpoints(session_id=lease.session_id, limit=3, cursor=page.next_cursor)
    assert [c.id for c in (*page.items, *rest.items)] == ["c4", "c3", "c2", "c1", "c0"]
    assert [c.id for c in (await store.checkpoints(run_id="run-a", kind="settled")).items] == [
        "c4",
        "c2",
        "c0",
    ]
    one = await store.checkpoint("c3")
    assert (one.segment, one.length, one.kind, one.run_id, one.step, one.seq) == (
        1,
        4,
        "interrupted",
        "run-a",
        3,
        4,
    )
    with pytest.raises(NotFound, match="no checkpoint c9"):
        await store.checkpoint("c9")
    with pytest.raises(BadInput):
        await store.checkpoints()


async def test_runs_in_the_order_in_which_they_began(store: Store):
    lease, _ = await held_session(store)
    names = ["zeta", "alpha", "mid", "beta"]
    for name in names:
        await store.write(
            lease, Batch(runs=[Run(id=name, agent="scribe")], events=[NewEvent(kind="run_started")])
        )
    page = await store.runs(session_id=lease.session_id, limit=3)
    rest = await store.runs(session_id=lease.session_id, limit=3, cursor=page.next_cursor)
    assert [run.id for run in (*page.items, *rest.items)] == names


async def test_delegates_of_a_run(store: Store):
    lease, holder = await held_session(store)
    await store.write(lease, Batch(runs=[Run(id="parent")]))
    for name in ("d2", "d1", "d3"):
        other = await store.acquire(await new_session(store), holder)
        await store.write(other, Batch(runs=[Run(id=name, parent_id="parent")]))
    page = await store.runs(parent_id="parent", limit=2)
    rest = await store.runs(parent_id="parent", limit=2, cursor=page.next_cursor)
    assert [run.id for run in (*page.items, *rest.items)] == ["d2", "d1", "d3"]
    with pytest.raises(BadInput):
        await store.runs()


async def test_a_run_stays_as_it_ended(store: Store):
    lease, _ = await held_session(store)
    await store.write(lease, Batch(runs=[Run(id="r", agent="scribe", metadata='{"a":1}')]))
    assert (await store.run("r")).status == "running"
    await store.write(lease, Batch(runs=[Run(id="r", status="failed", error="boom", metadata='{"a":2}')]))
    await store.write(lease, Batch(runs=[Run(id="r", status="completed")]))
    run = await store.run("r")
    assert (run.status, run.error, run.agent, run.metadata) == ("failed", "boom", "scribe", '{"a":2}')
    assert run.ended_at is not None
    assert run.session_id == lease.session_id
    with pytest.raises(NotFound, match="no run q"):
        await store.run("q")


async def test_a_run_id_belongs_to_one_session(store: Store):
    lease, holder = await held_session(store)
    await store.write(lease, Batch(runs=[Run(id="r")]))
    other = await store.acquire(await new_session(store), holder)
    with pytest.raises(Conflict):
        await store.write(other, Batch(runs=[Run(id="r")]))
    assert (await store.run("r")).session_id == lease.session_id


async def test_a_run_without_a_live_holder_is_not_running(store: Store):
    lease, holder = await held_session(store, ttl=brief(store))
    await store.write(lease, Batch(runs=[Run(id="r")], status="running"))

    async def gone() -> bool:
        return (await store.session(lease.session_id)).holder is None

    await until(gone)
    assert (await store.run("r")).status == "interrupted"
    assert (await store.session(lease.session_id)).status == "idle"
    await store.renew(holder)
    assert (await store.run("r")).status == "running"


async def test_the_life_of_an_effect(store: Store):
    lease, _ = await held_session(store)

    async def put(**more: object) -> None:
        effect = Effect(run_id="r", call_id="call-1", tool="pay", **more)  # pyright: ignore[reportArgumentType]
        await store.write(lease, Batch(effects=[effect]))

    async def get():
        (effect,) = (await store.effects(lease.session_id, run_id="r", call_id="call-1")).items
        return effect

    await put(step=1, arguments_digest="d", idempotency_key="k", undo='{"undo":"refund"}')
    effect = await get()
    assert (effect.state, effect.step, effect.arguments_digest, effect.attempts) == ("started", 1, "d", 1)
    assert len((await store.effects(lease.session_id, unresolved=True)).items) == 1
    await put(summary="paid 10")
    await put(attempts=2)
    assert (await get()).attempts == 2
    await put(state="completed", result='"ok"', attempts=2)
    # What has ended never changes; a summary given earlier survives.
    await put(state="failed", error="late", result='"other"', undo='{"undo":"other"}')
    effect = await get()
    assert (effect.state, effect.result, effect.error) == ("completed", '"ok"', None)
    assert (effect.summary, effect.idempotency_key, effect.attempts) == ("paid 10", "k", 2)
    assert effect.undo == '{"undo":"refund"}'
    assert effect.ended_at is not None
    assert (await store.effects(lease.session_id, unresolved=True)).items == []


async def test_a_result_moves_into_its_message(store: Store):
    lease, _ = await held_session(store)
    done = Effect(run_id="r", call_id="c", tool="t", state="completed", result='"big"')
    await store.write(lease, Batch(effects=[done], segments=[Segment(number=1)]))
    moved = Effect(run_id="r", call_id="c", tool="t", state="completed", message=(1, 0))
    await store.write(lease, Batch(messages=messages(1, 0, '{"parts":["big"]}'), effects=[moved]))
    (effect,) = (await store.effects(lease.session_id)).items
    assert (effect.state, effect.result, effect.message, effect.body) == (
        "completed",
        None,
        (1, 0),
        '{"parts":["big"]}',
    )


async def test_the_same_call_id_in_two_runs(store: Store):
    lease, _ = await held_session(store)
    for run_id in ("r1", "r2"):
        await store.write(
            lease,
            Batch(
                effects=[
                    Effect(run_id=run_id, call_id="same", tool="t", state="completed", result=f'"{run_id}"')
                ]
            ),
        )
    page = await store.effects(lease.session_id, limit=1)
    rest = await store.effects(lease.session_id, limit=1, cursor=page.next_cursor)
    assert [e.result for e in (*page.items, *rest.items)] == ['"r1"', '"r2"']
    assert [e.result for e in (await store.effects(lease.session_id, run_id="r2")).items] == ['"r2"']


async def test_a_call_that_waited_for_an_answer_starts_when_it_is_run(store: Store):
    lease, _ = await held_session(store)

    async def written(**facts: Any) -> Effect:
        await store.write(lease, Batch(effects=[Effect(run_id="r", call_id="c", tool="pay", **facts)]))
        (effect,) = (await store.effects(lease.session_id)).items
        return effect

    asked = await written(attempts=0, result='{"waits": "approval"}')
    await asyncio.sleep(0.002)
    begun = await written(attempts=1)
    assert begun.started_at is not None
    assert asked.started_at is not None
    assert begun.started_at > asked.started_at
    again = await written(attempts=2)  # a repetition after a crash is part of the same call
    assert again.started_at == begun.started_at
    ended = await written(attempts=2, state="completed", result="1")
    assert ended.started_at == begun.started_at


async def test_runs_are_found_over_all_sessions(store: Store):
    """One completed, one cut off and followed by another, one cut off last, one with a call of unknown outcome."""
    lost: list[Lease] = []
    for name in ("done", "resumed", "cut"):
        await store.create_session(agent="a", owner="ada" if name == "cut" else "bob", id=name)
    holder = await store.join("gone", ttl=60)
    for name in ("done", "resumed", "cut"):
        lease = await store.acquire(name, holder)
        await store.write(
            lease, Batch(runs=[Run(id=f"{name}-1", status="running")], events=[NewEvent(kind="x")])
        )
        lost.append(lease)
    done, resumed, cut = lost
    await store.write(done, Batch(runs=[Run(id="done-1", status="completed")]))
    await store.write(
        resumed, Batch(runs=[Run(id="resumed-1", status="interrupted")], events=[NewEvent(kind="x")])
    )
    await store.write(resumed, Batch(runs=[Run(id="resumed-2", status="completed")]))
    asked = Effect(run_id="cut-1", call_id="asked", tool="pay", attempts=0, result='{"waits": "approval"}')
    await store.write(cut, Batch(runs=[Run(id="cut-child", parent_id="cut-1")], effects=[asked]))

    async def ids(**filters: Any) -> list[str]:
        found: list[str] = []
        cursor = None
        while True:
            page = await store.find_runs(cursor=cursor, limit=2, **filters)
            found += [run.id for run in page.items]
            cursor = page.next_cursor
            if cursor is None:
                return found

    assert sorted(await ids()) == ["cut-1", "cut-child", "done-1", "resumed-1", "resumed-2"]
    assert (await ids())[-1] == "done-1"  # newest first
    assert await ids(interrupted=True) == []  # it runs, as far as anybody knows
    await store.leave(holder)
    assert sorted(await ids(interrupted=True)) == ["cut-1", "cut-child"]
    assert sorted(await ids(interrupted=True, owner="bob")) == []
    assert await ids(session_id="cut", parent_id="cut-1") == ["cut-child"]
    assert await ids(unresolved=True) == []  # it waits for an answer
    again = await store.acquire("cut", await store.join("later"))
    unknown = Effect(run_id="cut-1", call_id="unknown", tool="pay")
    await store.write(again, Batch(effects=[unknown]))
    await store.release(again)
    assert await ids(unresolved=True) == ["cut-1"]
    assert await ids(unresolved=True, owner="bob") == []


async def test_the_events_and_checkpoints_of_a_run(store: Store):
    """Among those of other runs, also after it ended, and of a run that the session has no row for."""
    lease, _ = await held_session(store)

    async def write(run_id: str | None, *, begins: bool = False) -> None:
        batch = Batch(
            runs=[Run(id=run_id)] if begins and run_id else [],
            events=[NewEvent(kind="tick", run_id=run_id)] * 2,
            checkpoints=[Checkpoint(id=new_id(), segment=1, length=0, run_id=run_id)],
        )
        await store.write(lease, batch)

    await store.write(lease, Batch(segments=[Segment(number=1)]))
    await write(None)
    await write("imported")
    for run_id in ("first", "second", "third"):
        await write(run_id, begins=True)
        await write(None)
    await store.write(lease, Batch(runs=[Run(id="second", status="completed")]))
    await write("second")
    expected = {"imported": [3, 4], "first": [5, 6], "second": [9, 10, 17, 18], "third": [13, 14], "none": []}
    for run_id, numbers in expected.items():
        events = await store.events(lease.session_id, run_id=run_id)
        assert [event.seq for event in events] == numbers
        assert [event.seq for event in await store.events(lease.session_id, run_id=run_id, after=4)] == [
            number for number in numbers if number > 4
        ]
        found = await store.checkpoints(session_id=lease.session_id, run_id=run_id)
        assert [checkpoint.seq for checkpoint in found.items] == numbers[1::2][::-1]


async def test_a_run_whose_parent_is_no_id_is_refused_as_in_an_archive(store: Store):
    lease, _ = await held_session(store)
    for parent in ("", "a b", "../x", "p" * 129):
        with pytest.raises(BadId, match="parent run id"):
            await store.write(lease, Batch(runs=[Run(id="run", parent_id=parent)]))
    await store.write(lease, Batch(runs=[Run(id="run", parent_id="elsewhere")]))
    assert (await store.run("run")).parent_id == "elsewhere"
