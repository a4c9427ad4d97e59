"""A whole store is copied into another one, on any engine, and nothing is lost, changed or carried out twice."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.commands import Command, Output
from holdfast.config import load_settings
from holdfast.errors import BadInput, RetentionRefused, SessionMoved, StoreInUse
from holdfast.media import open_media
from holdfast.retention import Copied, clean, copy, erase, rehydrate, undo_copy
from holdfast.schedules import ScheduleTerms
from holdfast.store import Store, open_store
from holdfast.tables import SHARED
from holdfast.types import Batch, SubmissionChange
from holdfast.usage import Usage
from tests.builders import claim, held_session
from tests.conftest import Engine
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export

MEMORY = "sqlite://:memory:"


@asynccontextmanager
async def two_stores(engine: Engine, direction: str) -> AsyncGenerator[tuple[Store, Store], None]:
    urls = [MEMORY, engine.url] if direction == "into" else [engine.url, MEMORY]
    async with open_store(urls[0]) as source, open_store(urls[1]) as target:
        yield source, target
        assert await source.check() == []
        assert await target.check() == []


async def waiting_session(store: Store) -> tuple[str, str]:
    """Make a session that waits for a person, and return it with the submission that waits."""
    lease, holder = await held_session(store)
    submission = await store.submit(lease.session_id, "message", '{"text": "pay"}')
    await store.take(lease)
    change = SubmissionChange(id=submission.id, state="waiting", reason="approval")
    await store.write(lease, Batch(submissions=[change], status="waiting", waiting_for="approval"))
    await store.leave(holder)
    return lease.session_id, submission.id


async def all_shared(store: Store, name: str) -> list[dict[str, object]]:
    return await store.shared_rows(name, limit=10_000)


@pytest.mark.parametrize("direction", ["into", "out of"])
async def test_a_failed_session_is_failed_in_the_copy(engine: Engine, direction: str):
    async with two_stores(engine, direction) as (source, target):
        lease, holder = await held_session(source)
        await source.write(lease, Batch(status="failed", error="ValueError: no", release=True))
        await source.leave(holder)
        await copy(source, target, actor="ada")
        session = await target.session(lease.session_id)
        assert (session.status, session.error) == ("failed", "ValueError: no")


@pytest.mark.thorough("postgres")
@pytest.mark.parametrize("direction", ["into", "out of"])
async def test_everything_is_in_the_copy(engine: Engine, direction: str):
    async with two_stores(engine, direction) as (source, target):
        media, copied_to = open_media(store=source), open_media(store=target)
        full = await fill(source, media, ["hello"] * 20, blobs=[b"picture", b"x" * 3_000_000])
        held = await fill(source, media, ["keep"])
        await source.update_session(held, hold=True, actor="ada")
        archived = await fill(source, media, ["archived"], blobs=[b"old"])
        before_clean = await export(source, archived)
        await clean(source, media, archived, actor="ada", force=True, archive="media")
        gone = await fill(source, media, ["gone"])
        await erase(source, media, gone, actor="ada")
        token = await source.add_token("0" * 64, owner="ada", lifetime=3600)
        await source.set_credential(full, "mail", "sealed")
        many = [(await source.create_session(agent="a", owner="o", id=f"many-{n}")).id for n in range(60)]
        before = {session_id: await export(source, session_id) for session_id in (full, held, *many)}
        told: list[Copied] = []

        done = await copy(source, target, actor="ada", progress=told.append)

        assert (done.failed, done.copied, done.cleaned, done.moved) == ((), 62, 1, ())
        assert len(told) == 63
        assert {session_id: await export(target, session_id) for session_id in before} == before
        assert (await target.session(held)).hold
        assert await target.erased_at(gone) == await source.erased_at(gone)
        assert (await target.token("0" * 64)) == token
        assert [each.sealed for each in await target.credentials(full)] == ["sealed"]
        actions = {entry.action for entry in (await target.audit_log(limit=1000)).items}
        assert actions == {"hold", "clean", "erase", "copy"}
        assert (await target.session(archived)).status == "cleaned"
        await rehydrate(target, copied_to, archived, actor="ada")
        assert await export(target, archived) == before_clean
        assert (await source.session(full)).status == "idle", "a copy leaves the source as it is"

        again = await copy(source, target, actor="ada")
        assert (again.failed, again.copied, again.already_present) == ((), 0, 63)


async def test_a_session_that_waits_for_an_approval_moves_and_is_answered_once(engine: Engine):
    async with two_stores(engine, "out of") as (source, target):
        session_id, submission_id = await waiting_session(source)
        queued = (await source.create_session(agent="scribe", owner="ada")).id
        await source.submit(queued, "message", '{"text": "hello"}')
        before = await export(source, session_id)
        done = await copy(source, target, actor="ada")
        assert (done.failed, set(done.moved)) == ((), {session_id, queued})
        assert await export(target, session_id) == before
        assert (await target.session(session_id)).status == "waiting"
        for moved in (session_id, queued):
            assert (await source.session(moved)).status == "moved"
            with pytest.raises(SessionMoved):
                await source.submit(moved, "approval", "{}", lane="control")
            with pytest.raises(SessionMoved):
                await source.set_state(moved, "1", expected_version=0)
            holder = await source.join("worker", ttl=60)
            with pytest.raises(SessionMoved):
                await source.acquire(moved, holder)
            assert await claim(source, holder) is None, "no worker of the source carries it out"
            await source.leave(holder)
            with pytest.raises(RetentionRefused, match="moved"):
                await clean(source, open_media(store=source), moved, actor="ada", idle_days=0)
            holder = await source.join("worker", ttl=60)
            assert await claim(source, holder) is None, "also after a clean was refused"
            await source.leave(holder)
        await target.submit(session_id, "approval", "{}", lane="control")
        holder = await target.join("worker", ttl=60)
        claimed = {work.lease.session_id for work in await target.next_work(holder, limit=8)}
        assert claimed == {session_id, queued}
        await target.leave(holder)
        again = await copy(source, target, actor="ada")
        assert (again.failed, again.moved, again.already_present) == ((), (), 2), "it continues in the target"
        assert submission_id in {each.id for each in (await target.submissions(session_id)).items}


async def test_a_store_in_use_is_not_copied(engine: Engine):
    async with two_stores(engine, "out of") as (source, target):
        holder = await source.join("a worker", ttl=60)
        with pytest.raises(StoreInUse, match="a worker"):
            await copy(source, target, actor="ada")
        await source.leave(holder)
        assert (await copy(source, target, actor="ada")).failed == ()
        with pytest.raises(BadInput, match="both the source and the target"):
            await copy(source, source, actor="ada")


async def test_a_session_that_cannot_be_imported_is_reported_and_stays_open(engine: Engine, tmp_path: Path):
    async with open_store(engine.url) as source:
        session_id, _ = await waiting_session(source)
        other = await fill(source, open_media(store=source), ["hello"], blobs=[b"picture"])
        await source.submit(other, "message", "{}")
        (tmp_path / "file").write_text("not a folder")
        settings = load_settings(store=MEMORY, media=f"disk://{tmp_path}/file")
        async with open_store(settings=settings) as target:
            done = await copy(source, target, actor="ada")
            assert (done.copied, done.moved, len(done.failed)) == (1, (session_id,), 1)
            assert other in done.failed[0]
        assert (await source.session(other)).status == "queued"
        holder = await source.join("worker", ttl=60)
        assert [work.lease.session_id for work in await source.next_work(holder)] == [other]
        await source.leave(holder)


async def test_a_copy_that_is_given_up_is_undone(engine: Engine):
    async with two_stores(engine, "out of") as (source, target):
        arrived, _ = await waiting_session(source)
        await copy(source, target, actor="ada")
        lost, _ = await waiting_session(source)
        holder = await source.join("copy", ttl=60)
        await source.move_session(await source.acquire(lost, holder), actor="ada")
        await source.leave(holder)
        assert await undo_copy(source, target) == [lost]
        assert (await source.session(lost)).status == "waiting"
        assert (await source.session(arrived)).status == "moved"


async def test_a_session_that_changed_since_it_was_copied_is_reported(engine: Engine):
    async with two_stores(engine, "out of") as (source, target):
        session_id = await fill(source, open_media(store=source), ["hello"])
        await copy(source, target, actor="ada")
        await source.set_state(session_id, '"later"', expected_version=1)
        (problem,) = (await copy(source, target, actor="ada")).failed
        assert f"session {session_id}: it differs" in problem


async def test_shell_commands_without_a_session_are_copied(engine: Engine):
    async with two_stores(engine, "into") as (source, target):
        holder = await source.join("shell", ttl=60)
        started = await source.start_command(
            Command(id="0" * 32, command="ls", cwd="/", owner="ada", holder=holder.id, host="here")
        )
        await source.write_outputs(started, [Output(id="1" * 32, stdout="a file", stderr=None)])
        await source.leave(holder)
        assert (await copy(source, target, actor="ada")).failed == ()
        for name in ("commands", "outputs"):
            assert await all_shared(target, name) == await all_shared(source, name) != []


@pytest.mark.parametrize("direction", ["into", "out of"])
async def test_schedules_continue_only_in_the_copy(engine: Engine, direction: str):
    async with two_stores(engine, direction) as (source, target):
        terms = ScheduleTerms(cron="0 9 * * *", text="report")
        running, paused = [
            await source.create_schedule(terms, owner="ada", agent="scribe", actor="ada") for _ in range(2)
        ]
        await source.change_schedule(paused.id, paused=True, actor="ada")
        for _ in range(2):
            done = await copy(source, target, actor="ada")
            assert (done.failed, done.records["schedules"]) == ((), 2)
        assert (await source.upcoming_schedules())[0] == []
        assert (await source.schedule(running.id)).moved
        copied = await target.schedule(running.id)
        assert (copied.moved, copied.next_at, copied.text) == (False, running.next_at, "report")
        assert (await target.schedule(paused.id)).paused
        await undo_copy(source, target)
        assert (await source.schedule(running.id)).moved
        await target.delete_schedule(running.id, actor="ada")
        await undo_copy(source, target)
        assert not (await source.schedule(running.id)).moved
        assert (await source.schedule(paused.id)).moved


async def test_usage_is_copied_before_a_session_continues(engine: Engine):
    async with two_stores(engine, "out of") as (source, target):
        session_id, _ = await waiting_session(source)
        await use(source, session_id)
        assert (await copy(source, target, actor="ada")).failed == ()
        await use(target, session_id)
        assert (await copy(source, target, actor="ada")).failed == (), "it continues in the target"
        assert [row["requests"] for row in await all_shared(target, "usage")] == [2]
        assert [row["requests"] for row in await all_shared(source, "usage")] == [1]
        (row,) = await all_shared(source, "usage")
        await source.add_shared_rows("usage", [{**row, "session_id": "later"}])
        await target.add_shared_rows("usage", [{**row, "session_id": "later", "requests": 0}])
        assert (await copy(source, target, actor="ada")).failed == (), "an earlier copy had less"
        assert [row["requests"] for row in await all_shared(target, "usage")] == [2, 1]


async def use(store: Store, session_id: str) -> None:
    holder = await store.join("worker", ttl=60)
    lease = await store.acquire(session_id, holder)
    await store.write(lease, Batch(usage=[Usage(agent="scribe", model="m", requests=1)]))
    await store.leave(holder)


async def test_every_table_is_copied(store: Store):
    """What no archive has is one of the records, or belongs to the store itself."""
    from holdfast.tables import KEYS, TABLES

    own = {
        "heads",
        "holders",
        "duties",
        "drafts",
        "blobs",
        "blob_chunks",
        "notices",
        "deliveries",
        "mirrored",
        "stored_bytes",
    }
    copied = {table.name for table in (*TABLES, *SHARED.values())}
    assert copied | own == set(KEYS)
    for name in SHARED:
        assert json.dumps(await all_shared(store, name)) == "[]"
