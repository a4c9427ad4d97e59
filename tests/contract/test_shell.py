import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest

from holdfast.commands import Command, Output
from holdfast.errors import (
    BadCursor,
    BadInput,
    BadText,
    BadUuid,
    CommandLost,
    Conflict,
    NotFound,
    SessionCleaned,
    SessionNotFound,
)
from holdfast.ids import new_id
from holdfast.store import Store, open_store
from holdfast.store.transactions import PAGE_BYTES
from tests.builders import held_session, new_session
from tests.conftest import Engine


def line(text: str = "x", **more: object) -> Output:
    return Output(id=new_id(), stdout=text, **more)  # pyright: ignore[reportArgumentType]


async def started(store: Store, text: str = "ls", **more: object) -> Command:
    command = Command(id=new_id(), command=text, owner="ada", holder="service", host="here", pid=1)
    return await store.start_command(replace(command, **more))  # pyright: ignore[reportArgumentType]


async def ended(store: Store, lines: int = 1, session_id: str | None = None) -> Command:
    command = await started(store, session_id=session_id)
    if lines:
        command = await store.write_outputs(command, [line(str(n)) for n in range(lines)])
    last = Output(id=new_id(), exit_code=0)
    return await store.write_outputs(replace(command, state="done", exit_code=0), [last])


async def search(store: Store, **filters: object) -> list[Command | Output]:
    """Return the events of all pages."""
    found: list[Command | Output] = []
    cursor = None
    while True:
        page = await store.shell_events(cursor=cursor, **{"limit": 3, **filters})  # pyright: ignore[reportArgumentType]
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


def ids(events: Sequence[Command | Output | None]) -> list[str]:
    return [event.id for event in events if event is not None]


async def test_a_command_and_its_output_are_on_record(store: Store):
    session_id = await new_session(store)
    command = await started(store, "make", cwd="/src", timeout=1.5, session_id=session_id, pid_started=7)
    assert (command.state, command.outputs, command.exit_code, command.ended_at) == ("running", 0, None, None)
    command = await store.write_outputs(
        replace(command, stdout_bytes=5, stderr_bytes=3, damaged=True),
        [line("a é"), Output(id=new_id(), stderr="�", damaged=True)],
    )
    command = await store.write_outputs(
        replace(command, state="done", exit_code=2, left_out_bytes=9), [line("end", exit_code=2)]
    )
    assert command == await store.command(command.id.replace("-", ""))
    assert (command.cwd, command.timeout, command.session_id, command.pid_started) == (
        "/src",
        1.5,
        session_id,
        7,
    )
    assert (command.stdout_bytes, command.stderr_bytes, command.left_out_bytes) == (5, 3, 9)
    assert (command.exit_code, command.outputs, command.damaged) == (2, 3, True)
    outputs = await store.outputs(command.id)
    assert [(o.order, o.stdout, o.stderr, o.exit_code, o.damaged) for o in outputs] == [
        (0, "a é", None, None, False),
        (1, None, "�", None, True),
        (2, "end", None, 2, False),
    ]
    assert [o.order for o in await store.outputs(command.id, after=0, limit=1)] == [1]
    times = [command.started_at, *(o.at for o in outputs)]
    assert all(a and b and a < b for a, b in pairwise(times))


async def test_writing_twice_is_writing_once(store: Store):
    wanted = Command(id=new_id(), command="ls", owner="ada", holder="service", host="here", pid=1)
    command = await store.start_command(wanted)
    assert await store.start_command(wanted) == command
    with pytest.raises(Conflict):
        await store.start_command(replace(wanted, holder="other"))
    outputs = [line("a"), line("b")]
    once = await store.write_outputs(command, outputs)
    assert (await store.write_outputs(command, outputs)).outputs == once.outputs == 2
    final = replace(once, state="done", exit_code=0)
    last = [line("c", exit_code=0)]
    await store.write_outputs(final, last)
    assert (await store.write_outputs(final, last)).state == "done"
    assert [o.stdout for o in await store.outputs(command.id)] == ["a", "b", "c"]


async def test_only_its_service_writes_to_a_running_command(store: Store):
    command = await started(store)
    with pytest.raises(CommandLost):
        await store.write_outputs(replace(command, holder="other"), [line()])
    with pytest.raises(CommandLost):
        await store.write_outputs(replace(command, outputs=1), [line()])
    with pytest.raises(CommandLost):
        await store.write_outputs(replace(command, id=new_id()), [line()])
    await store.write_outputs(replace(command, state="lost", exit_code=-1), [line(exit_code=-1)])
    with pytest.raises(CommandLost, match="it is already recorded as lost"):
        await store.write_outputs(replace(command, outputs=1), [line()])
    assert len(await store.outputs(command.id)) == 1


async def test_commands_of_a_session_go_with_it(store: Store):
    with pytest.raises(SessionNotFound):
        await started(store, session_id="nobody")
    lease, _ = await held_session(store)
    command = await started(store, session_id=lease.session_id)
    command = await store.write_outputs(command, [line(), line()])
    other = await ended(store)
    assert await store.delete_content(lease) == {"outputs": 2, "commands": 1}
    with pytest.raises(CommandLost, match="its record was deleted"):
        await store.write_outputs(command, [line()])
    with pytest.raises(SessionCleaned):
        await started(store, session_id=lease.session_id)
    with pytest.raises(NotFound):
        await store.outputs(command.id)
    assert len(await store.outputs(other.id)) == 2


async def test_commands_are_listed_newest_first(store: Store):
    session_id = await new_session(store)
    first = await ended(store)
    second = await started(store, session_id=session_id, holder=(await store.join("someone", ttl=60)).id)
    third = await started(store)
    page = await store.commands(limit=2)
    assert ids(page.items) == [third.id, second.id]
    assert page.next_cursor is not None
    last = await store.commands(limit=2, cursor=page.next_cursor)
    assert (ids(last.items), last.next_cursor) == ([first.id], None)
    assert ids((await store.commands(state="running")).items) == [third.id, second.id]
    assert ids((await store.commands(session_id=session_id)).items) == [second.id]
    assert ids((await store.commands(state="running", holder=second.holder)).items) == [second.id]
    # A running command is an orphan once nobody who lives runs it.
    assert [c.service for c in page.items] == [None, "someone"]


async def test_large_outputs_and_commands_come_in_more_pages_and_none_is_left_out(store: Store):
    large = "x" * (PAGE_BYTES * 3 // 8)
    everything: list[str] = []
    for n in range(5):
        command = await started(store, large if n % 2 else "ls")
        outputs = [line(large), line("short"), line(large)]
        await store.write_outputs(command, outputs)
        everything += [command.id, *(output.id for output in outputs)]
        assert ids(await search(store, command_id=command.id)) == everything[-4:]
        assert ids(await search(store, command_id=command.id, newest_first=True)) == everything[-4:][::-1]
    assert len((await store.shell_events()).items) < len(everything)
    assert sorted(ids(await search(store))) == sorted(everything)
    assert ids(await search(store)) == ids(await search(store, newest_first=True))[::-1]
    assert len((await store.commands()).items) == 5


async def test_search_has_both_kinds_in_the_order_of_time(store: Store):
    a, b = await ended(store, 2), await ended(store, 2)
    of_a, of_b = ids(await store.outputs(a.id)), ids(await store.outputs(b.id))
    everything = [a.id, *of_a, b.id, *of_b]
    assert ids(await search(store)) == everything
    assert ids(await search(store, newest_first=True)) == everything[::-1]
    assert ids(await search(store, kind="command")) == [a.id, b.id]
    assert ids(await search(store, kind="output")) == of_a + of_b
    for limit in (1, 2, 3, 4, 100):
        assert ids(await search(store, command_id=b.id, limit=limit)) == [b.id, *of_b]
        assert ids(await search(store, command_id=b.id, newest_first=True, limit=limit)) == [
            *of_b[::-1],
            b.id,
        ]
    assert ids(await search(store, command_id=b.id.replace("-", ""), kind="output")) == of_b
    assert ids(await search(store, command_id=b.id, after_order=0)) == of_b[1:]
    assert ids(await search(store, command_id=b.id, after_order=0, newest_first=True)) == of_b[:0:-1]
    assert ids(await search(store, after_order=1)) == [of_a[2], of_b[2]]
    assert await search(store, command_id=b.id, after_order=2) == []
    assert await search(store, command_id=new_id()) == []


async def test_search_reads_more_than_a_hundred_chunks(store: Store):
    command = await ended(store, 250)
    found = await search(store, command_id=command.id, kind="output", limit=100)
    assert [o.order for o in found if isinstance(o, Output)] == list(range(251))
    # As a poller does it: by the highest number seen.
    seen: list[int] = []
    while page := (await store.shell_events(command_id=command.id, after_order=max(seen, default=-1))).items:
        seen += [o.order for o in page if isinstance(o, Output)]
    assert seen == list(range(251))


async def test_times_are_compared_as_instants(store: Store):
    command = await ended(store, 3)
    outputs = await store.outputs(command.id)
    at = outputs[1].at
    assert at is not None
    for zone in (UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-9))):
        for narrow in ({}, {"command_id": command.id}):
            local = at.astimezone(zone)
            assert ids(await search(store, since=local, **narrow)) == ids(outputs[1:])
            assert ids(await search(store, until=local, **narrow)) == [command.id, outputs[0].id]
    assert ids(await search(store, since=at.replace(tzinfo=None))) == ids(outputs[1:])
    assert await search(store, since=datetime.max.replace(tzinfo=UTC)) == []
    assert len(await search(store, since=datetime.min.replace(tzinfo=UTC))) == 5


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("one", [False, True])
async def test_a_cursor_stays_valid_when_its_event_is_purged(store: Store, newest_first: bool, one: bool):
    old = await ended(store, 2)
    new = await ended(store, 2)
    narrow = {"command_id": old.id} if one else {}
    page = await store.shell_events(newest_first=newest_first, limit=2, **narrow)  # pyright: ignore[reportArgumentType]
    assert page.next_cursor is not None
    assert await store.purge_commands(older_than=0, limit=4) == 4  # all of the old one
    rest = await store.shell_events(
        newest_first=newest_first,
        cursor=page.next_cursor,
        limit=100,
        **narrow,  # pyright: ignore[reportArgumentType]
    )
    of_new = [new.id, *ids(await store.outputs(new.id))]
    if one:
        assert rest.items == []
    elif newest_first:
        assert ids(rest.items) == of_new[-3::-1]
    else:
        assert ids(rest.items) == of_new


async def test_events_are_found_by_their_ids(store: Store):
    command = await ended(store)
    outputs = await store.outputs(command.id)
    wanted = [outputs[1].id.replace("-", "").upper(), new_id(), command.id]
    found = await store.shell_events_by_id(wanted)
    assert found == [outputs[1], None, command]
    assert await store.shell_events_by_id([]) == []


async def test_a_purge_leaves_results_and_what_runs(store: Store):
    running = await store.write_outputs(await started(store), [line()])
    session_id = await new_session(store)
    await store.update_session(session_id, hold=True)
    held = await ended(store, session_id=session_id)
    old = await ended(store, 5)
    assert await store.purge_commands(older_than=3600) == 0
    # In bounded batches: two outputs at a time, the command with the last of them.
    batches: list[int] = []
    while gone := await store.purge_commands(older_than=0, limit=2):
        batches.append(gone)
        assert await store.check() == []
    assert batches == [2, 2, 2, 1]
    result = await store.command(old.id)
    assert (result.command, result.cwd, result.exit_code, result.outputs) == ("", None, 0, 6)
    assert result.purged_at is not None
    assert result.ended_at == old.ended_at
    assert await store.outputs(old.id) == []
    assert await store.shell_events_by_id([old.id]) == [None]
    left = [held.id, running.id]
    assert sorted(ids(await search(store, kind="command"))) == sorted(left)
    assert len(await store.outputs(running.id)) == 1
    assert await store.purge_commands(older_than=0) == 0


async def test_output_is_followed_until_the_end(store: Store):
    command = await started(store)
    heard: list[int] = []

    async def listen(after: int) -> None:
        async for output in store.watch_outputs(command.id.replace("-", ""), after=after):
            heard.append(output.order)

    listening = asyncio.create_task(listen(0))
    for number in range(3):
        command = await store.write_outputs(command, [line(str(number))])
    last = Output(id=new_id(), exit_code=0)
    await store.write_outputs(replace(command, state="done", exit_code=0), [last])
    await asyncio.wait_for(listening, 10)
    assert heard == [1, 2, 3]
    # Afterwards it ends at once: also beyond the end, and when nothing is left.
    await asyncio.wait_for(listen(3), 10)
    while await store.purge_commands(older_than=0):
        pass
    await asyncio.wait_for(listen(-1), 10)
    assert heard == [1, 2, 3]


@pytest.mark.processes
async def test_output_is_followed_from_another_store(store: Store, engine: Engine):
    command = await started(store)
    async with open_store(engine.url) as other:
        watching = other.watch_outputs(command.id)
        waiting = asyncio.ensure_future(anext(watching))
        await store.write_outputs(command, [line("hello")])
        assert (await asyncio.wait_for(waiting, 10)).stdout == "hello"
        await watching.aclose()


async def test_a_stop_is_asked_for_in_the_record(store: Store):
    command = await started(store)
    assert (await store.stop_command(command.id)).stop_requested
    assert (await store.command(command.id)).stop_requested
    done = await ended(store)
    assert not (await store.stop_command(done.id)).stop_requested
    with pytest.raises(NotFound):
        await store.stop_command(new_id())


async def test_bad_input_is_refused(store: Store):
    command = await started(store)
    for bad in ("", "7", "g" * 32, command.id[:-1], "0" * 33, f"{{{command.id}}}", f"urn:uuid:{command.id}"):
        with pytest.raises(BadUuid):
            await store.command(bad)
        with pytest.raises(BadUuid):
            await store.shell_events_by_id([bad])
        with pytest.raises(BadUuid):
            await store.shell_events(command_id=bad)
    for cursor in ("", "yesterday", command.id, "W10", "WzFd"):
        with pytest.raises(BadCursor):
            await store.shell_events(cursor=cursor)
    with pytest.raises(BadInput):
        await store.shell_events(kind="note")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput):
        await store.shell_events(limit=0)
    with pytest.raises(BadInput):
        await store.outputs(command.id, after=-2)
    with pytest.raises(BadInput):
        await store.shell_events(after_order=2**63)
    with pytest.raises(BadInput):
        await store.write_outputs(command, [])
    with pytest.raises(BadInput):
        await store.write_outputs(replace(command, state="done"), [line()])
    with pytest.raises(BadText):
        await store.write_outputs(command, [line("a\x00b")])
    with pytest.raises(BadText):
        await started(store, "a\x00b")
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(BadInput):
            await store.purge_commands(older_than=seconds)
    assert await store.purge_commands(older_than=1e300) == 0
    assert await store.outputs(command.id) == []


async def test_every_owner_has_their_own_log(store: Store):
    """Filters come before paging, and what is somebody else's is not there."""
    other = await started(store, "theirs", owner="bob", call_id="call-7")
    for n in range(3):
        await ended(store, 2)  # ada's
        other = await started(store, "theirs", owner="bob", call_id="call-7") if n else other
        other = await store.write_outputs(other, [line("b")])
        await store.write_outputs(replace(other, state="done", exit_code=0), [line("end", exit_code=0)])
    assert other.call_id == "call-7"
    everything = await search(store)
    ada, bob = await search(store, owner="ada"), await search(store, owner="bob")
    assert sorted(ids(ada) + ids(bob)) == sorted(ids(everything))
    assert (len(ada), len(bob)) == (12, 9)
    assert ids(await search(store, owner="bob", newest_first=True)) == ids(bob)[::-1]
    assert [event for event in bob if isinstance(event, Command)] == await search(
        store, owner="bob", kind="command"
    )
    assert await search(store, owner="ada", command_id=other.id) == []
    assert len(await search(store, owner="bob", command_id=other.id)) == 3
    assert {command.owner for command in (await store.commands(owner="bob")).items} == {"bob"}
    assert await store.shell_events_by_id(ids(bob), owner="ada") == [None] * len(bob)
    assert ids(await store.shell_events_by_id(ids(bob), owner="bob")) == ids(bob)
    assert await store.purge_commands(older_than=0, owner="bob") == len(bob)
    assert ids(await search(store)) == ids(ada)
    assert await store.purge_commands(older_than=0, owner="nobody") == 0


async def test_a_sessions_commands_belong_to_its_owner(store: Store):
    session_id = await new_session(store, owner="eve")
    command = await started(store, owner="ada", session_id=session_id)
    assert command.owner == "eve"
    await store.write_outputs(command, [line("x")])
    assert len(await search(store, owner="eve")) == 2
    assert await search(store, owner="ada") == []


def elsewhere(text: str = "make", outputs: int = 2, **more: object) -> tuple[Command, list[Output]]:
    """A command that ended elsewhere, a while ago."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    command_id = new_id()
    written = [
        Output(
            id=new_id(),
            stdout=str(n),
            command_id=command_id,
            order=n,
            at=began + timedelta(seconds=n + 1),
            exit_code=3 if n == outputs - 1 else None,
        )
        for n in range(outputs)
    ]
    command = Command(
        id=command_id,
        command=text,
        owner="ada",
        holder="there",
        host="there",
        state="done",
        exit_code=3,
        outputs=outputs,
        stdout_bytes=outputs,
        started_at=began,
        ended_at=began + timedelta(seconds=outputs + 1),
    )
    return replace(command, **more), written  # pyright: ignore[reportArgumentType]


async def test_commands_come_in_as_they_were(store: Store):
    session_id = await new_session(store, owner="bob")
    mine, theirs = elsewhere(), elsewhere("ls", session_id=session_id)
    assert sorted(await store.import_commands([mine, theirs])) == sorted([mine[0].id, theirs[0].id])
    assert await store.command(mine[0].id) == mine[0]
    assert await store.outputs(mine[0].id) == mine[1]
    assert (
        await store.command(theirs[0].id)
    ).owner == "bob"  # what belongs to a session belongs to its owner
    assert ids(await search(store, owner="ada")) == [mine[0].id, *ids(mine[1])]
    other = elsewhere("new")
    assert await store.import_commands([mine, other, theirs]) == [other[0].id]
    assert await store.import_commands([]) == []
    assert await store.purge_commands(older_than=3600) == 9
    assert await store.import_commands([mine]) == []  # it was here, and was purged


async def test_commands_come_in_together_or_not_at_all(store: Store):
    first, second = elsewhere(), elsewhere()
    await store.import_commands([first])
    fresh, taken = elsewhere(), (second[0], [replace(output, id=first[1][0].id) for output in second[1][:1]])
    with pytest.raises(Conflict):
        await store.import_commands([fresh, taken])
    running = elsewhere(state="running", exit_code=None, ended_at=None)
    backwards = (second[0], [replace(output, at=second[0].started_at) for output in second[1]])
    for bad in (running, backwards, elsewhere(id="no-uuid"), elsewhere(owner=""), elsewhere("nul \x00")):
        with pytest.raises(BadInput):
            await store.import_commands([fresh, bad])
    with pytest.raises(SessionNotFound):
        await store.import_commands([fresh, elsewhere(session_id="nobody")])
    assert ids((await store.commands()).items) == [first[0].id]
