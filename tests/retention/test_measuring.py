"""Stored bytes are measured by one worker at a time, about once a minute, and never without the setting."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest

from holdfast.config import load_settings
from holdfast.errors import BadSettings
from holdfast.media import open_media
from holdfast.retention import measuring
from holdfast.retention.measuring import DUTY, keep_measuring, measure_changed
from holdfast.store import Store, open_store
from holdfast.types import Holder
from tests.builders import until
from tests.conftest import Engine
from tests.promises.sessions import fill


def limited(engine: Engine, **more: Any) -> Store:
    return open_store(settings=load_settings(store=engine.url, max_stored_bytes_per_owner=10_000_000, **more))


async def filled(store: Store, number: int = 1) -> list[str]:
    return [await fill(store, open_media(store=store), ["hello"], drafts=False) for _ in range(number)]


async def join(store: Store) -> Holder:
    return await store.join("worker", ttl=60)


@pytest.mark.parametrize("value", ["-1", "0", "1.5", "much", ""])
def test_a_limit_that_is_no_number_of_bytes_is_refused(monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("HOLDFAST_MAX_STORED_BYTES_PER_OWNER", value)
    with pytest.raises(BadSettings, match=r"(?i)max_stored_bytes_per_owner"):
        load_settings()


async def test_without_the_setting_nothing_is_measured(store: Store):
    await filled(store)
    holder = await join(store)
    async with asyncio.timeout(5):
        await keep_measuring(store, holder)
    assert await store.stored_bytes("ada") == 0
    assert await store.duty(DUTY) is None


async def test_one_holder_measures_and_the_next_one_waits_for_the_interval(engine: Engine):
    async with limited(engine) as store:
        (session_id,) = await filled(store)
        first, second = await join(store), await join(store)
        assert await measure_changed(store, first) >= 60
        assert await store.stored_bytes("ada") == await store.content_bytes(session_id)
        await filled(store)
        one = await store.stored_bytes("ada")
        assert await measure_changed(store, second) >= 60
        assert await store.stored_bytes("ada") == one, "not before a minute has passed"
        await measure_changed(store, second, at_once=True)
        assert await store.stored_bytes("ada") > 1.9 * one


async def test_after_the_limit_is_set_all_sessions_are_measured_soon(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    """Page by page, also those that were active long ago, and by another worker if the first one ends."""
    find = Store.unmeasured

    async def small_pages(self: Store, *, within: float, after: str = "") -> Any:
        del within
        return await find(self, within=0.0, after=after, limit=2)

    monkeypatch.setattr(Store, "unmeasured", small_pages)
    async with limited(engine) as store:
        sessions = await filled(store, 5)
        pauses = [await measure_changed(store, await join(store), at_once=True) for _ in range(3)]
        assert all(pause < 30 for pause in pauses[:2])
        assert pauses[2] >= 60
        sizes = [await store.content_bytes(session_id) for session_id in sessions]
        assert await store.stored_bytes("ada") == sum(sizes)


async def test_the_pause_is_longer_than_the_measurement(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    async with limited(engine) as store:
        await filled(store)
        moments = iter([0.0, 30.0])
        monkeypatch.setattr(measuring, "monotonic", lambda: next(moments))
        assert await measure_changed(store, await join(store)) == 270
        duty = await store.duty(DUTY)
        assert duty is not None
        assert json.loads(duty.detail)["seconds"] == 30


async def test_a_worker_measures_until_it_ends(engine: Engine):
    async with limited(engine) as store:
        await filled(store)

        async def is_measured() -> bool:
            return await store.stored_bytes("ada") > 0

        task = asyncio.create_task(keep_measuring(store, await join(store)))
        await until(is_measured)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
