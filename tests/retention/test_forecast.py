"""The forecast finds what the next sweep would find, with bounded work."""

from holdfast.media import open_media
from holdfast.retention import forecast, sweep
from tests.conftest import Engine
from tests.promises.sessions import fill
from tests.retention.test_sweep import NOW, governed


async def test_without_a_policy_there_is_no_forecast(engine: Engine):
    async with governed(engine) as store:
        await fill(store, open_media(store=store), ["hello"])
        assert await forecast(store) is None


async def test_due_sessions_are_counted_by_action(engine: Engine):
    async with governed(
        engine,
        {"name": "case", "metadata": {"case": 1}, "hold": True},
        {"name": "keep", "agent": "archived", "idle_days": NOW, "action": "archive"},
        {"name": "gone", "agent": "erased", "max_age_days": NOW, "idle_days": NOW, "action": "erase"},
        {"name": "later", "agent": "late", "idle_days": 30, "action": "erase"},
        {"name": "rest", "agent": "scribe", "idle_days": NOW, "action": "clean"},
    ) as store:
        media = open_media(store=store)
        agents = ("archived", "erased", "erased", "late", "scribe", "scribe", "scribe", "unnamed")
        made = [await fill(store, media, ["hello" * 100], agent=agent) for agent in agents]
        held = await fill(store, media, ["hello"], agent="erased")
        await store.update_session(held, metadata='{"case": 1}')
        await store.update_session(await fill(store, media, ["hello"]), hold=True)
        sizes = [await store.content_bytes(made[n]) for n in (0, 1, 2, 4, 5, 6)]

        found = await forecast(store)
        assert found is not None
        assert found.due == {"clean": 3, "archive": 1, "erase": 2}
        assert (found.more, found.sampled, found.bytes) == (False, 6, sum(sizes))

        sampled = await forecast(store, sample=2)
        assert sampled is not None
        assert (sampled.due, sampled.sampled) == (found.due, 2)
        assert min(sizes) * 6 <= sampled.bytes <= max(sizes) * 6

        part = await forecast(store, limit=2)
        assert part is not None
        assert (part.more, sum(part.due.values())) == (True, 2)

        await sweep(store, media, actor="test")
        after = await forecast(store)
        assert after is not None
        assert (set(after.due.values()), after.bytes, after.sampled, after.more) == ({0}, 0, 0, False)


async def test_the_last_runs_are_not_counted(engine: Engine):
    policy = {"agent": "scribe", "idle_days": NOW, "action": "clean", "keep_last_runs": 1}
    async with governed(engine, policy) as store:
        for _ in range(3):
            await fill(store, open_media(store=store), ["hello"])
        found = await forecast(store)
        assert found is not None
        assert found.due["clean"] == 2
