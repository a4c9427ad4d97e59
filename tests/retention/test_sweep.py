"""The sweep does what the policies say, to the sessions they name, behind the guards; everything else stays."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from io import BytesIO
from typing import IO, Any

import pytest

from holdfast.config import load_settings
from holdfast.errors import BadArchive, BadSettings, RetentionRefused, SessionErased
from holdfast.media import open_media
from holdfast.retention import (
    Outcome,
    Swept,
    clean,
    erase,
    import_archive,
    outlook,
    rehydrate,
    sweep,
    sweeper,
)
from holdfast.retention.archive import Archive, verify_archive
from holdfast.retention.sweep import is_configured
from holdfast.retention.sweeper import pause, sweeping
from holdfast.retention.sweeper import until as until_time
from holdfast.store import Store, open_store
from holdfast.types import Batch, Run
from holdfast.usage import Usage
from tests.builders import until
from tests.conftest import Engine
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export
from tests.promises.workers import worker
from tests.retention.test_bad_archives import remade
from tests.runtime.agents import ended, send

NOW = 1e-9
"""Days after which a session is due: at once."""


@asynccontextmanager
async def governed(engine: Engine, *policies: dict[str, Any], **more: Any) -> AsyncGenerator[Store, None]:
    settings = load_settings(store=engine.url, retention=list(policies), media_grace_seconds=0, **more)
    async with open_store(settings=settings) as store:
        yield store
        assert await store.check() == []


async def swept(store: Store, **options: Any) -> tuple[Swept, dict[str, Outcome]]:
    outcomes: dict[str, Outcome] = {}

    def on_outcome(outcome: Outcome) -> None:
        assert outcome.session_id not in outcomes, "each session once"
        outcomes[outcome.session_id] = outcome

    done = await sweep(store, open_media(store=store), actor="test", on_outcome=on_outcome, **options)
    assert done is not None
    return done, outcomes


async def test_each_session_gets_its_own_policy(engine: Engine):
    async with governed(
        engine,
        {"name": "case", "metadata": {"case": 1}, "hold": True},
        {"name": "keep", "agent": "archived", "idle_days": NOW, "action": "archive"},
        {"name": "gone", "agent": "erased", "max_age_days": NOW, "action": "erase"},
        {"name": "later", "agent": "late", "idle_days": 30, "max_age_days": 300, "action": "erase"},
        {"name": "rest", "agent": "scribe", "idle_days": NOW, "action": "clean"},
    ) as store:
        media = open_media(store=store)
        made = {
            agent: await fill(store, media, ["hello"], blobs=[agent.encode()], agent=agent)
            for agent in ("archived", "erased", "late", "scribe", "unnamed")
        }
        held = await fill(store, media, ["hello"], agent="erased")
        await store.update_session(held, metadata='{"case": 1, "more": 2}')
        on_hold = await fill(store, media, ["hello"])
        await store.update_session(on_hold, hold=True)
        before = {name: await export(store, session_id) for name, session_id in made.items()}

        done, told = await swept(store, dry_run=True)
        assert (done.dry_run, done.outcomes) == (True, {"dry_run": 3, "refused": 2})
        assert {told[session_id].guard for session_id in (held, on_hold)} == {"hold"}
        assert "the policy case holds it" in str(told[held].problem)
        assert "it is on hold" in str(told[on_hold].problem)
        assert {told[made[name]].policy for name in ("archived", "erased", "scribe")} == {
            "keep",
            "gone",
            "rest",
        }
        assert told[made["erased"]].deleted["messages"] == 2
        assert {name: await export(store, session_id) for name, session_id in made.items()} == before
        assert (await store.audit_log()).items == []

        done, told = await swept(store)
        assert done.outcomes == {"cleaned": 2, "erased": 1}
        assert {name: told[made[name]].action for name in ("archived", "erased", "scribe")} == {
            "archived": "archive",
            "erased": "erase",
            "scribe": "clean",
        }
        assert (await store.session(made["scribe"])).status == "cleaned"
        assert await store.erased_at(made["erased"]) is not None
        for kept in (made["late"], made["unnamed"], held, on_hold):
            assert (await store.session(kept)).status == "idle"
        await rehydrate(store, media, made["archived"], actor="test")
        assert await export(store, made["archived"]) == before["archived"]
        audit = {entry.session_id: json.loads(entry.detail) for entry in (await store.audit_log()).items}
        assert audit[made["scribe"]]["policy"] == "rest"
        assert audit[made["erased"]]["policy"] == "gone"
        left = {blob.sha256 for blob in (await media.list()).items}
        there = {name for name in made if sha256(name.encode()).hexdigest() in left}
        assert there == {"archived", "late", "unnamed"}, "media of what is gone is gone"

        done, told = await swept(store)
        assert told == {}, "what came back has a grace period"


async def test_guards_stand_and_are_named(engine: Engine):
    policies = [
        {"agent": "scribe", "idle_days": NOW, "action": "clean"},
        {"agent": "eraser", "max_age_days": NOW, "action": "erase"},
    ]
    async with governed(engine, *policies) as store:
        media = open_media(store=store)
        for agent in ("scribe", "eraser"):
            waiting = await fill(store, media, ["hello"], agent=agent)
            await store.submit(waiting, "message")
            behind = await fill(store, media, ["hello"], agent=agent)
            await store.set_cursor(behind, "slow", 1)
            running = await fill(store, media, ["hello"], agent=agent)
            holder = await store.join("worker", ttl=60)
            await store.acquire(running, holder)
            free = await fill(store, media, ["hello"], agent=agent)
            _, told = await swept(store)
            guards = {waiting: "pending", behind: "cursor", running: "running", free: None}
            assert {session_id: told[session_id].guard for session_id in guards} == guards
            for session_id in (waiting, behind, running):
                assert (await store.content_counts(session_id))["messages"] == 2
            await store.leave(holder)


async def test_one_that_was_active_meanwhile_stays(engine: Engine):
    """The clock is looked at again under the lock."""
    async with governed(engine, {"agent": "scribe", "idle_days": 1, "action": "erase"}) as store:
        session_id = await fill(store, open_media(store=store), ["hello"])
        with pytest.raises(RetentionRefused, match="active"):
            await erase(store, open_media(store=store), session_id, actor="test", idle_days=1)
        assert (await store.session(session_id)).status == "idle"


async def test_an_abandoned_session_is_not_exempt(engine: Engine):
    async with governed(engine, {"agent": "*", "idle_days": NOW, "action": "clean"}) as store:
        session_id = await fill(store, open_media(store=store), ["hello"])
        lease = await store.acquire(session_id, await store.join("worker", ttl=0.3))
        with pytest.raises(RetentionRefused):
            await clean(store, open_media(store=store), session_id, actor="test")
        del lease

        async def cleaned() -> bool:
            return (await swept(store))[0].outcomes == {"cleaned": 1}

        await until(cleaned)


async def test_a_policy_that_holds_holds_for_everyone(engine: Engine):
    async with governed(engine, {"name": "case", "agent": "scribe", "hold": True}) as store:
        media = open_media(store=store)
        session_id = await fill(store, media, ["hello"])
        for attempt in (
            clean(store, media, session_id, actor="root", force=True),
            clean(store, media, session_id, actor="root", force=True, dry_run=True),
            erase(store, media, session_id, actor="root"),
        ):
            with pytest.raises(RetentionRefused, match="the policy case holds it"):
                await attempt
        assert (await store.content_counts(session_id))["messages"] == 2


async def test_an_erasure_also_takes_what_was_cleaned(engine: Engine):
    async with governed(engine, {"agent": "scribe", "max_age_days": NOW, "action": "erase"}) as store:
        media = open_media(store=store)
        session_id = await fill(store, media, ["hello"])
        await clean(store, media, session_id, actor="test", force=True, archive="media")
        assert (await swept(store))[0].outcomes == {"erased": 1}
        assert (await media.list()).items == []
        with pytest.raises(SessionErased):
            await store.create_session(agent="scribe", owner="ada", id=session_id)


async def test_the_last_runs_are_kept(engine: Engine):
    policy = {"agent": "scribe", "idle_days": NOW, "action": "clean", "keep_last_runs": 3}
    async with governed(engine, policy) as store:
        media = open_media(store=store)
        others = [await fill(store, media, ["hello"], agent="other") for _ in range(3)]
        sessions = [await fill(store, media, ["hello"]) for _ in range(4)]  # two runs each
        empty = await store.create_session(agent="scribe", owner="ada")
        _, told = await swept(store)
        assert set(told) == {*sessions[:2], empty.id}, "the last two have the last four runs"
        holder = await store.join("worker", ttl=60)
        lease = await store.acquire(sessions[2], holder)
        await store.write(lease, Batch(runs=[Run(id="again", status="completed")], status="idle"))
        await store.leave(holder)
        _, told = await swept(store)
        assert set(told) == {sessions[3]}, "the one that went on has the last three"
        for kept in (*others, sessions[2]):
            assert (await store.session(kept)).status == "idle"


async def test_the_limit_bounds_it_and_more_says_so(engine: Engine):
    async with governed(engine, {"agent": "*", "idle_days": NOW, "action": "clean"}) as store:
        for _ in range(5):
            await fill(store, open_media(store=store), ["hello"])
        done, _ = await swept(store, limit=2)
        assert (done.outcomes, done.more) == ({"cleaned": 2}, True)
        done, _ = await swept(store, limit=3)
        assert done.outcomes == {"cleaned": 3}


async def test_finished_submissions_and_shell_output_go_too(engine: Engine):
    held = {"name": "case", "agent": "held", "hold": True}
    options = {"submission_retention_seconds": 1e-6, "shell_retention_seconds": 1e-6}
    async with governed(engine, held, **options) as store:
        media = open_media(store=store)
        session_id = await fill(store, media, ["hello"])
        kept = await fill(store, media, ["hello"], agent="held")
        queued = await store.submit(session_id, "message")
        done, told = await swept(store)
        assert (told, done.submissions, done.shell_events > 0) == ({}, 1, True)
        assert [s.id for s in (await store.submissions(session_id)).items] == [queued.id]
        assert len((await store.submissions(kept)).items) == 1
        counts = await store.content_counts(session_id)
        assert (counts.get("outputs"), counts["messages"]) == (None, 2)


async def test_one_sweep_at_a_time(engine: Engine):
    async with governed(engine, {"agent": "*", "idle_days": NOW, "action": "clean"}) as store:
        media = open_media(store=store)
        for _ in range(10):
            await fill(store, media, ["hello"])
        both = await asyncio.gather(
            sweep(store, media, actor="one"), sweep(store, media, actor="two"), return_exceptions=True
        )
        assert sorted(done is None for done in both) == [False, True]
        assert await sweep(store, media, actor="three", every=60) is None, "it was done a moment ago"
        duty = await store.duty("sweep")
        assert duty is not None
        assert (duty.holder, json.loads(duty.detail)["outcomes"]) == (None, {"cleaned": 10})
        assert await store.holders() == []


async def test_it_ends_early_when_everything_fails(engine: Engine):
    """Archives cannot be written: nothing is deleted, and it does not try them all."""
    async with governed(
        engine, {"agent": "*", "idle_days": NOW, "action": "archive"}, media="disk:///dev/null/media"
    ) as store:
        sessions = [await fill(store, open_media("database", store=store), ["hello"]) for _ in range(5)]
        done, told = await swept(store)
        assert done.outcomes == {"failed": 3}
        assert done.problem is not None
        assert all(outcome.problem for outcome in told.values())
        for session_id in sessions:
            assert (await store.session(session_id)).status == "idle"


def test_it_backs_off():
    assert [pause(n, 3600) for n in range(5)] == [3600, 5, 10, 20, 40]
    assert pause(100, 3600) == 3600
    assert pause(3, 2) == 2


@pytest.mark.processes
async def test_it_starts_at_once_and_goes_on(engine: Engine):
    policy = {"agent": "*", "idle_days": NOW, "action": "clean"}
    async with governed(engine, policy, retention_sweep_seconds=1) as store:
        media = open_media(store=store)

        async def cleaned(session_id: str) -> bool:
            return (await store.session(session_id)).status == "cleaned"

        first = await fill(store, media, ["hello"])
        async with sweeping(store):
            await until(lambda: cleaned(first))
            second = await fill(store, media, ["hello"])
            await until(lambda: cleaned(second))
        assert await store.holders() == []


async def test_it_is_off_unless_configured(engine: Engine):
    async with governed(engine, {"agent": "*", "hold": True}) as store, sweeping(store):
        assert await store.duty("sweep") is None
        assert await store.holders() == []


@pytest.mark.thorough("postgres")
@pytest.mark.processes
async def test_workers_sweep_and_one_that_is_killed_is_replaced(engine: Engine, long: bool):
    """Real workers: one is killed in the middle of its sweep, another finishes it; turns go on beside it."""
    policies = [{"agent": "scribe", "idle_days": NOW, "action": "archive"}]
    settings: dict[str, Any] = {"retention": json.dumps(policies), "retention_sweep_seconds": "1"}
    number = 12 if engine.name == "mongodb" and not long else 60
    async with open_store(engine.url) as store:
        media = open_media(store=store)
        due = [await fill(store, media, ["hello"] * 20, blobs=[b"x" * 1000]) for _ in range(number)]
        before = await export(store, due[-1])
        talk = (await store.create_session(agent="agent", owner="ada")).id

        async def cleaned(least: int) -> bool:
            return len((await store.sessions(status="cleaned", limit=1000)).items) >= least

        async with worker(engine.url, **settings) as first:
            await until(lambda: cleaned(3))
            first.signal(signal.SIGKILL)
            await first.ended()
        async with worker(engine.url, **settings), worker(engine.url, **settings):
            submission = await send(store, talk, "hello")
            assert (await ended(store, submission)).state == "done"
            await until(lambda: cleaned(len(due)), 240 if engine.name == "mongodb" else 60)
        assert (await store.session(talk)).status == "idle"
        audit = await store.audit_log(limit=1000)
        assert sorted(str(entry.session_id) for entry in audit.items) == sorted(due), "each once"
        await rehydrate(store, media, due[-1], actor="test")
        assert await export(store, due[-1]) == before
        assert await store.check() == []


async def test_sessions_that_cannot_be_archived_do_not_end_the_sweep(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    """Else an owner of three such sessions would keep the sessions of all others."""
    async with governed(engine, {"agent": "*", "idle_days": NOW, "action": "archive"}) as store:
        media = open_media(store=store)
        broken = [await fill(store, media, ["hello"]) for _ in range(4)]
        fine = await fill(store, media, ["hello"])

        def verify(file: IO[bytes], *, longest: int) -> Archive:
            archive = verify_archive(file, longest=longest)
            if archive.session_id in broken:
                raise BadArchive(problem="it cannot be read")
            return archive

        monkeypatch.setattr(sys.modules[clean.__module__], "verify_archive", verify)
        done, told = await swept(store)
        assert (done.outcomes, done.problem) == ({"failed": 4, "cleaned": 1}, None)
        assert told[fine].outcome == "cleaned"
        assert {(await store.session(session_id)).status for session_id in broken} == {"idle"}


async def test_a_session_that_came_back_has_a_grace_period(engine: Engine):
    policies = (
        {"name": "own", "agent": "own", "max_age_days": NOW, "action": "archive", "rehydrated_days": 0},
        {"name": "usual", "agent": "*", "idle_days": NOW, "action": "archive"},
    )
    async with governed(engine, *policies) as store:
        media = open_media(store=store)
        usual = await fill(store, media, ["hello"])
        own = await fill(store, media, ["hello"], agent="own")
        before = await store.session(usual)
        await swept(store)
        for session_id in (usual, own):
            await rehydrate(store, media, session_id, actor="test")
        back = await store.session(usual)
        assert back.active_at == before.active_at
        result = await outlook(store, usual)
        assert result.rehydrated_at is not None
        assert result.due_at == result.rehydrated_at + timedelta(days=7)
        with pytest.raises(RetentionRefused, match="restored from an archive"):
            await clean(store, media, usual, actor="test", idle_days=0, grace_days=7)
        _, told = await swept(store)
        assert set(told) == {own}, "the grace period of its policy is over"
        await clean(store, media, usual, actor="test", idle_days=0)


async def test_an_imported_session_has_a_grace_period_and_no_time_from_the_future(engine: Engine):
    later = 10**6 * 86400 * 365 * 200
    async with open_store("sqlite://:memory:") as source:
        session_id = await fill(source, open_media(store=source), ["hello"])
        archive = remade(
            await export(source, session_id),
            lambda records: records[1]["session"].update(active_at=later, created_at=later),
        )
    async with governed(engine, {"agent": "*", "idle_days": NOW, "action": "archive"}) as store:
        await import_archive(store, open_media(store=store), BytesIO(archive), actor="test")
        session, now = await store.session(session_id), await store.now()
        assert max(session.created_at, session.active_at) <= now
        assert (await outlook(store, session_id)).rehydrated_at is not None
        assert (await swept(store))[1] == {}


def test_the_next_sweep_is_at_the_time_of_day():
    now = datetime(2026, 3, 1, 10, 0, tzinfo=UTC)
    assert until_time("10:30", now) == 1800
    assert until_time("09:59", now) == 86400 - 60
    assert until_time("10:00", now) == 86400
    with pytest.raises(BadSettings, match="retention_sweep_at"):
        load_settings(retention_sweep_at="24:00")


async def test_a_sweep_at_a_time_of_day_waits_for_it(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    waits: list[float] = [1e6, 0.0]
    asked: list[str] = []

    def wait(at: str, now: datetime) -> float:
        asked.append(at)
        return waits.pop()

    monkeypatch.setattr(sweeper, "until", wait)
    policy = {"agent": "*", "idle_days": NOW, "action": "clean"}
    async with governed(engine, policy, retention_sweep_at="03:30") as store:
        session_id = await fill(store, open_media(store=store), ["hello"])
        async with sweeping(store):

            async def is_swept() -> bool:
                return len(asked) > 1

            await until(is_swept)
        assert asked == ["03:30", "03:30"]
        assert (await store.session(session_id)).status == "cleaned"


async def test_old_usage_goes_too(engine: Engine):
    async with governed(engine, usage_retention_days=30) as store:
        assert is_configured(store)
        session_id = await fill(store, open_media(store=store), ["hello"])
        holder = await store.join("worker", ttl=60)
        lease = await store.acquire(session_id, holder)
        await store.write(lease, Batch(usage=[Usage(agent="agent", model="m", requests=1)]))
        await store.leave(holder)
        (row,) = await store.shared_rows("usage")
        await store.add_shared_rows("usage", [{**row, "day": row["day"] - n} for n in (29, 31, 400)])
        done, _ = await swept(store)
        assert done.usage == 2
        assert len((await store.usage(["day"])).items) == 2
