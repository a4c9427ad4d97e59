import json

import pytest

from holdfast.errors import (
    BadCursor,
    BadInput,
    BadText,
    Conflict,
    EventNotFound,
    SessionExists,
    SessionNotFound,
    VersionConflict,
)
from holdfast.leases import why_waiting
from holdfast.media import open_media
from holdfast.retention import erase
from holdfast.store import Store
from holdfast.types import Batch, Run, Session, SubmissionChange
from tests.builders import brief, held_session, new_session, ticks, until


async def everything(store: Store, **filters: str) -> list[Session]:
    found: list[Session] = []
    cursor = None
    while True:
        page = await store.sessions(cursor=cursor, limit=3, **filters)  # pyright: ignore[reportArgumentType]
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


async def test_a_new_session_is_idle(store: Store):
    session = await store.create_session(
        agent="scribe", owner="ada", title="First words", metadata='{"team": "a"}'
    )
    assert session == await store.session(session.id)
    assert (session.agent, session.owner, session.title) == ("scribe", "ada", "First words")
    assert (session.status, session.seq, session.epoch, session.pending) == ("idle", 0, 0, 0)
    assert (session.holder, session.waiting_for, session.cleaned_at, session.hold) == (
        None,
        None,
        None,
        False,
    )
    assert json.loads(session.metadata) == {"team": "a"}
    assert session.created_at <= session.active_at


async def test_a_chosen_id_is_used_once(store: Store):
    first = await store.create_session(agent="scribe", owner="ada", id="conversation-1")
    with pytest.raises(SessionExists):
        await store.create_session(agent="scribe", owner="ada", id="conversation-1")
    same = await store.create_session(agent="other", owner="ada", id="conversation-1", exist_ok=True)
    assert same == first
    with pytest.raises(SessionNotFound):
        await store.create_session(agent="scribe", owner="bob", id="conversation-1", exist_ok=True)


async def test_an_unknown_session(store: Store):
    for ask in (store.session("nowhere"), store.state("nowhere"), store.update_session("nowhere", title="x")):
        with pytest.raises(SessionNotFound, match="nowhere"):
            await ask


async def test_list_is_paged_last_active_first(store: Store):
    ids = [await new_session(store) for _ in range(10)]
    await store.submit(ids[4], "message")
    listed = [session.id for session in await everything(store)]
    assert listed == [ids[4], *reversed(ids[:4] + ids[5:])]


async def test_list_filters(store: Store):
    await new_session(store, owner="ada", agent="scribe")
    await new_session(store, owner="bob", agent="scribe")
    await new_session(store, owner="bob", agent="coder")
    assert len(await everything(store, owner="bob")) == 2
    assert len(await everything(store, owner="bob", agent="coder")) == 1
    assert await everything(store, owner="carol") == []


async def test_search_finds_part_of_a_title_whatever_its_case(store: Store):
    for title in ("Überweisung prüfen", "100% done", "100 done", "a_b", "acb", "back\\slash"):
        await new_session(store, title=title)

    async def found(text: str) -> set[str]:
        return {session.title for session in await everything(store, search=text)}

    assert await found("ÜBERW") == {"Überweisung prüfen"}
    assert await found("PRÜF") == {"Überweisung prüfen"}
    assert await found("0%") == {"100% done"}
    assert await found("a_b") == {"a_b"}
    assert await found("k\\s") == {"back\\slash"}
    assert await found("nothing") == set()


async def test_list_by_status(store: Store):
    idle, queued = await new_session(store), await new_session(store)
    await store.submit(queued, "message")
    lease, _ = await held_session(store)
    await store.write(lease, Batch(status="running"))
    assert [s.id for s in await everything(store, status="running")] == [lease.session_id]
    assert [s.id for s in await everything(store, status="queued")] == [queued]
    assert [s.id for s in await everything(store, status="idle")] == [idle]


@pytest.mark.parametrize("cursor", ["", "x", "W10", "WzFd", "bnVsbA", "é", "eyJhIjoxfQ", "W1siYSJdLDFd"])
async def test_a_cursor_that_is_none(store: Store, cursor: str):
    with pytest.raises(BadCursor):
        await store.sessions(cursor=cursor)


@pytest.mark.parametrize("limit", [0, -1, 10_001])
async def test_a_page_is_bounded(store: Store, limit: int):
    with pytest.raises(BadInput, match="limit must be 1 to 10000"):
        await store.sessions(limit=limit)


async def test_update_changes_what_is_given(store: Store):
    session_id = await new_session(store, title="before")
    changed = await store.update_session(session_id, title="After", hold=True)
    assert (changed.title, changed.hold, changed.metadata) == ("After", True, "{}")
    changed = await store.update_session(session_id, metadata='{"a":1}', hold=False)
    assert (changed.title, changed.hold, changed.metadata) == ("After", False, '{"a":1}')
    assert [s.id for s in await everything(store, search="after")] == [session_id]


async def test_named_states_have_versions_of_their_own(store: Store):
    session_id = await new_session(store)
    await store.set_state(session_id, '"plain"', expected_version=0)
    await store.set_state(session_id, '"one"', expected_version=0, name="planner")
    await store.set_state(session_id, '"two"', expected_version=1, name="planner")
    await store.set_state(session_id, '"other"', expected_version=0, name="the writer")
    with pytest.raises(VersionConflict):
        await store.set_state(session_id, '"late"', expected_version=1, name="planner")
    with pytest.raises(BadText, match="state name"):
        await store.set_state(session_id, "1", expected_version=0, name="")
    states = {
        name: await store.state(session_id, name=name) for name in (None, "planner", "the writer", "none")
    }
    assert {name: (state.version, state.body) for name, state in states.items()} == {
        None: (1, '"plain"'),
        "planner": (2, '"two"'),
        "the writer": (1, '"other"'),
        "none": (0, "null"),
    }
    assert await store.state_versions(session_id) == {None: 1, "planner": 2, "the writer": 1}
    told = [json.loads(event.payload) for event in await store.events(session_id)]
    assert told[2] == {"version": 2, "name": "planner"}
    with pytest.raises(SessionNotFound):
        await store.state_versions("nowhere")


async def test_state_is_set_under_its_version(store: Store):
    session_id = await new_session(store)
    state = await store.state(session_id)
    assert (state.version, state.body) == (0, "null")
    assert (await store.set_state(session_id, '{"n": 1}', expected_version=0)).version == 1
    with pytest.raises(VersionConflict, match="at version 1, not 0"):
        await store.set_state(session_id, '{"n": 2}', expected_version=0)
    assert (await store.state(session_id)).body == '{"n": 1}'
    await store.set_state(session_id, '{"n": 2}', expected_version=1)
    events = await store.events(session_id)
    assert [(e.seq, e.kind, json.loads(e.payload)) for e in events] == [
        (1, "state_changed", {"version": 1}),
        (2, "state_changed", {"version": 2}),
    ]


async def test_cursors_only_move_forward(store: Store):
    lease, _ = await held_session(store)
    await store.write(lease, ticks(5))
    assert (await store.set_cursor(lease.session_id, "mailer", 3)).seq == 3
    assert (await store.set_cursor(lease.session_id, "mailer", 2)).seq == 3
    assert (await store.set_cursor(lease.session_id, "indexer", 5)).seq == 5
    assert [(c.consumer, c.seq) for c in (await store.cursors(lease.session_id)).items] == [
        ("indexer", 5),
        ("mailer", 3),
    ]
    for beyond in (6, -1, 2**70):
        with pytest.raises(EventNotFound):
            await store.set_cursor(lease.session_id, "mailer", beyond)


async def test_audit_is_listed_newest_first(store: Store):
    for number in range(5):
        await store.audit(
            actor="ada", action="clean", session_id=f"s{number % 2}", detail=f'{{"n":{number}}}'
        )
    page = await store.audit_log(limit=3)
    rest = await store.audit_log(limit=3, cursor=page.next_cursor)
    assert [json.loads(e.detail)["n"] for e in (*page.items, *rest.items)] == [4, 3, 2, 1, 0]
    assert rest.next_cursor is None
    assert len((await store.audit_log(session_id="s1")).items) == 2


async def test_a_delegates_session_names_the_session_that_delegated(store: Store):
    parent, _ = await held_session(store)
    await store.write(parent, Batch(runs=[Run(id="asking")]))
    child, _ = await held_session(store)
    await store.write(child, Batch(runs=[Run(id="asked", parent_id="asking")]))
    await store.write(child, Batch(runs=[Run(id="later")]))
    foreign = await store.create_session(agent="scribe", owner="somebody else")
    lease = await store.acquire(foreign.id, await store.join("test"))
    await store.write(lease, Batch(runs=[Run(id="foreign", parent_id="asking")]))
    assert (await store.session(child.session_id)).parent_id == parent.session_id
    listed = {session.id: session.parent_id for session in (await store.sessions()).items}
    assert listed == {parent.session_id: None, child.session_id: parent.session_id, foreign.id: None}


async def test_a_session_whose_agent_no_live_worker_serves_waits_for_a_worker(store: Store):
    session_id = await new_session(store, agent="scrbe")
    assert (await store.session(session_id)).waiting_for is None  # nothing was asked of it
    await store.submit(session_id, "message", "{}")
    alone = await store.session(session_id)
    assert (alone.status, alone.waiting_for) == ("queued", "worker")
    assert "holdfast worker" in (await why_waiting(store, alone) or "")
    await store.join("shell")  # holds leases, and serves no agent
    worker = await store.join("worker", agents=["clerk", "scribe"])
    (listed,) = (await store.sessions()).items
    assert listed.waiting_for == "worker"
    problem = await why_waiting(store, listed) or ""
    assert "'scrbe'" in problem
    assert "Did you mean 'scribe'?" in problem
    assert await store.ready_agents() == {"scrbe": 1}
    assert [holder.agents for holder in await store.holders()] == [(), ("clerk", "scribe")]
    late = await store.join("late", agents=["scrbe"])
    assert (await store.session(session_id)).waiting_for is None
    await store.leave(late)
    assert (await store.session(session_id)).waiting_for == "worker"
    await store.leave(worker)


async def test_a_session_whose_run_ended_with_its_process_waits_to_be_resumed(store: Store):
    alive, _ = await held_session(store)
    await store.write(alive, Batch(runs=[Run(id="alive")], status="running"))
    assert (await store.session(alive.session_id)).waiting_for is None
    lease, _ = await held_session(store, ttl=brief(store))
    await store.write(lease, Batch(runs=[Run(id="cut-off")], status="running"))

    async def is_interrupted() -> bool:
        return (await store.session(lease.session_id)).waiting_for == "resume"

    await until(is_interrupted)
    assert (await store.session(lease.session_id)).status == "idle"
    await store.reclaim()
    assert await is_interrupted()
    again = await store.acquire(lease.session_id, await store.join("another"))
    assert not await is_interrupted()
    await store.release(again)
    assert not await is_interrupted()


async def test_a_failed_session_is_an_idle_one_with_the_reason_until_it_is_dismissed(store: Store):
    lease, holder = await held_session(store)
    session_id = lease.session_id
    await store.write(lease, Batch(status="failed", error="ValueError: " + "no " * 1000, release=True))
    failed = await store.session(session_id)
    assert (failed.status, failed.waiting_for, failed.pending) == ("failed", None, 0)
    assert failed.error == ("ValueError: " + "no " * 1000)[:1000]
    assert await everything(store, status="failed") == [failed]
    assert await everything(store, status="idle") == []
    await store.submit(session_id, "message", when_busy="reject")  # it is not busy
    queued = await store.session(session_id)
    assert (queued.status, queued.error, queued.waiting_for) == ("queued", None, "worker")
    (work,) = await store.next_work(holder)
    assert (work.session.status, work.session.error, work.session.waiting_for) == ("queued", None, None)
    assert work.submission is not None
    done = SubmissionChange(id=work.submission.id, state="done")
    await store.write(work.lease, Batch(submissions=[done], status="failed", error="again", release=True))
    assert (await store.dismiss(session_id)).status == "idle"
    dismissed = await store.dismiss(session_id)  # two people press the same button
    assert (dismissed.status, dismissed.error, dismissed.waiting_for) == ("idle", None, None)
    assert await everything(store, status="failed") == []


async def test_a_session_that_waits_is_not_dismissed(store: Store):
    lease, _ = await held_session(store)
    await store.write(lease, Batch(status="waiting", waiting_for="approval", release=True))
    found = await store.dismiss(lease.session_id)
    assert (found.status, found.waiting_for) == ("waiting", "approval")
    with pytest.raises(SessionNotFound):
        await store.dismiss("nowhere")


async def test_another_agent_continues_a_session(store: Store):
    session_id = await new_session(store, agent="scrbe")
    await store.submit(session_id, "message", "{}")
    for _ in range(2):
        await store.set_agent(session_id, "scribe", actor="ada")
    assert (await store.session(session_id)).agent == "scribe"
    assert await store.ready_agents() == {"scribe": 1}
    entries = (await store.audit_log(session_id=session_id)).items
    assert [(entry.actor, entry.action, json.loads(entry.detail)) for entry in entries] == [
        ("ada", "set agent", {"before": "scrbe", "after": "scribe"})
    ]
    assert await store.check() == []
    lease, _ = await held_session(store)
    with pytest.raises(Conflict, match="in use"):
        await store.set_agent(lease.session_id, "other", actor="ada")
    with pytest.raises(SessionNotFound):
        await store.set_agent("missing", "other", actor="ada")
    with pytest.raises(BadText):
        await store.set_agent(session_id, "", actor="ada")


async def test_a_numbered_session_is_found_among_those_of_others_and_erased_ones(store: Store):
    own = {"owner": "ada", "agent": "scribe"}
    assert await store.numbered_session("talk", **own) == ("talk", None)
    for other in ("talk", "talk-1", "talk-2", "talk-10", "talk-x", "talk-03", "talk.1", "talkative"):
        await new_session(store, id=other, owner="bob", agent="scribe")
    assert await store.numbered_session("talk", **own) == ("talk-3", None)
    await new_session(store, id="talk-3", owner="ada", agent="other")
    await new_session(store, id="talk-07", **own)
    await new_session(store, id="talk-12", **own)
    await new_session(store, id="talk-9", **own)
    session_id, session = await store.numbered_session("talk", **own)
    assert session is not None
    assert (session_id, session.id) == ("talk-9", "talk-9")
    await erase(store, open_media(store=store), "talk-9", actor="ada")
    await erase(store, open_media(store=store), "talk-12", actor="ada")
    assert await store.numbered_session("talk", **own) == ("talk-4", None)
    await erase(store, open_media(store=store), "talk-1", actor="ada")
    assert await store.numbered_session("talk", **own) == ("talk-4", None)
    with pytest.raises(BadInput):
        await store.numbered_session("a/b", **own)
