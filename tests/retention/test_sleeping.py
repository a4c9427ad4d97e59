"""A session that sleeps, and signals that nobody has received, are exported, cleaned, restored and moved like everything else."""

import io
import json

import pytest

from holdfast import FunctionAgent, Turn, agent
from holdfast.errors import RetentionRefused
from holdfast.media import open_media
from holdfast.retention import clean, copy, erase, import_archive, rehydrate
from holdfast.store import Store, open_store
from holdfast.types import Submission
from tests.builders import until
from tests.conftest import Engine
from tests.promises.test_exact_return import export
from tests.runtime.agents import ended, send, texts, working

SECRET = "a signal that no other row contains"


def napper(seconds: float) -> FunctionAgent:
    """Return an agent that sleeps, and then waits for a signal."""

    @agent("napper")
    async def nap(turn: Turn) -> str:
        await turn.sleep(seconds=seconds)
        return f"woken, and told {await turn.signal('told')}"

    return nap


async def asleep(store: Store, seconds: float) -> Submission:
    """Return the turn of a session that sleeps, which has an unreceived signal."""
    session = await store.create_session(agent="napper", owner="ada", id="s")
    async with working(store, napper(seconds)):
        sent = await send(store, session.id, "sleep")

        async def sleeps() -> bool:
            return (await store.session("s")).status == "sleeping"

        await until(sleeps)
        payload = json.dumps({"name": "told", "data": SECRET})
        signal = await store.submit("s", "signal", payload, lane="control", idempotency_key="told")
        await ended(store, signal)
        assert (await store.session("s")).status == "sleeping"
    return sent


async def wakes(store: Store, sent: Submission, seconds: float) -> None:
    async with working(store, napper(seconds)):
        done = await ended(store, sent)
    assert (done.state, done.reason) == ("done", None)
    assert f"woken, and told {SECRET}" in await texts(store, "s")
    events = await store.events("s", limit=1000)
    ends = [json.loads(event.payload)["ended_by"] for event in events if event.kind == "wait_ended"]
    assert ends == ["time", "signal"]
    assert await store.records("s", "signal") == []


@pytest.mark.parametrize("direction", ["into", "out of"])
async def test_a_sleeping_session_moves_and_wakes_in_the_other_store(engine: Engine, direction: str):
    urls = ["sqlite://:memory:", engine.url]
    async with (
        open_store(urls[direction == "out of"]) as source,
        open_store(urls[direction == "into"]) as target,
    ):
        sent = await asleep(source, 2.0)
        before = await export(source, "s")
        done = await copy(source, target, actor="ada")
        assert (done.failed, list(done.moved)) == ((), ["s"])
        assert await export(target, "s") == before
        moved = await target.session("s")
        assert moved.status == "sleeping"
        assert moved.waiting_for == (json.loads(before.splitlines()[1])["session"]["waiting_for"])
        await wakes(target, sent, 2.0)
        assert await source.check() == []
        assert await target.check() == []


async def test_an_archive_of_a_sleeping_session_wakes_where_it_is_imported(engine: Engine, store: Store):
    del engine
    async with open_store("sqlite://:memory:") as other:
        sent = await asleep(store, 1.0)
        archive = await export(store, "s")
        await import_archive(other, open_media(store=other), io.BytesIO(archive), actor="ada")
        assert await export(other, "s") == archive
        await wakes(other, sent, 1.0)
        assert await other.check() == []


async def test_a_clean_is_refused_while_a_session_sleeps_and_forced_it_returns_exactly(store: Store):
    media = open_media(store=store)
    sent = await asleep(store, 1.5)
    with pytest.raises(RetentionRefused, match="submissions have not ended"):
        await clean(store, media, "s", actor="ada", idle_days=0)
    before = await export(store, "s")
    await clean(store, media, "s", actor="ada", idle_days=0, force=True)
    assert await store.records("s", "signal") == []
    async with working(store, napper(1.5)):  # nothing of it wakes
        assert (await store.session("s")).status == "cleaned"
    await rehydrate(store, media, "s", io.BytesIO(before), actor="ada")
    assert await export(store, "s") == before
    assert (await store.session("s")).status == "sleeping"
    await wakes(store, sent, 1.5)


async def test_an_erased_session_leaves_no_signal(store: Store):
    await asleep(store, 600)
    await erase(store, open_media(store=store), "s", actor="ada")
    assert await store.content_counts("s") == {}
    holder = await store.join("worker")
    assert await store.ready_in(holder, agents=["napper"]) is None
    await store.leave(holder)
