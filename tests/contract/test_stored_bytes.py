"""Stored bytes: sessions are measured after they changed, and their sum for each owner follows cleans, erasures and imports at once."""

import asyncio
import io
import json
import random
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from holdfast.config import load_settings
from holdfast.errors import TooMuchStored
from holdfast.media import open_media
from holdfast.retention import clean, erase, import_archive, rehydrate
from holdfast.store import Store, open_store
from holdfast.types import Batch, NewEvent
from tests.builders import held_session, new_session
from tests.conftest import Engine
from tests.promises.sessions import fill
from tests.promises.test_exact_return import export

A_DAY = 86_400.0


@pytest.fixture
async def limited(engine: Engine) -> AsyncGenerator[Store, None]:
    settings = load_settings(store=engine.url, max_stored_bytes_per_owner=10_000_000)
    async with open_store(settings=settings) as store:
        yield store
        assert await store.check() == []


async def measure_all(store: Store) -> list[str]:
    """Measure all sessions that changed, and return them."""
    found = (await store.unmeasured(within=A_DAY)).session_ids
    for session_id in found:
        await store.measure(session_id)
    return sorted(found)


async def filled(store: Store, size: int, **options: Any) -> str:
    text = random.Random(size).randbytes(size // 2).hex()  # which no engine can compress much
    return await fill(store, open_media(store=store), ["hello", text], **options)


async def test_a_session_is_measured_when_it_changed(limited: Store):
    assert await limited.stored_bytes("ada") == 0
    lease, _ = await held_session(limited)
    await new_session(limited)
    assert await measure_all(limited) == [], "they have no events"
    payload = json.dumps("".join(map(str, range(10_000))))  # which no engine can compress much
    await limited.write(lease, Batch(events=[NewEvent(kind="tick", payload=payload)]))
    assert await measure_all(limited) == [lease.session_id]
    size = await limited.stored_bytes("ada")
    assert size == await limited.content_bytes(lease.session_id) > 10_000
    assert await measure_all(limited) == []
    await limited.write(lease, Batch(events=[NewEvent(kind="tick", payload=payload)]))
    assert await measure_all(limited) == [lease.session_id]
    assert 1.9 * size < await limited.stored_bytes("ada") < 2.1 * size
    await limited.measure(lease.session_id)
    assert 1.9 * size < await limited.stored_bytes("ada") < 2.1 * size
    assert await limited.stored_bytes("bo") == 0


async def test_media_counts_in_each_session_that_refers_to_it(limited: Store):
    picture = b"\x00" * 300_000
    for number in (1, 2):
        session_id = await filled(limited, 10, blobs=[picture], drafts=False)
        assert await measure_all(limited) == [session_id]
        assert number * 300_000 < await limited.stored_bytes("ada") < number * 320_000
    await erase(limited, open_media(store=limited), session_id, actor="test")
    assert 300_000 < await limited.stored_bytes("ada") < 320_000


async def test_an_owner_is_refused_from_the_limit_on(limited: Store):
    small, large, medium, tiny = [await filled(limited, n) for n in (20_000, 90_000, 50_000, 10)]
    await limited.refuse_full("ada", 1)
    await measure_all(limited)
    stored = await limited.stored_bytes("ada")
    await limited.refuse_full("ada", stored + 1)
    await limited.refuse_full("bo", 1)
    with pytest.raises(TooMuchStored) as caught:
        await limited.refuse_full("ada", stored)
    facts = caught.value.facts
    assert (facts["stored_bytes"], facts["limit_bytes"], facts["owner"]) == (stored, stored, "ada")
    sessions: Any = facts["sessions"]
    assert list(sessions) == [large, medium, small]
    assert tiny not in str(caught.value)
    assert "holdfast sessions erase" in str(caught.value)
    assert all(f"{session_id} (" in str(caught.value) for session_id in sessions)


async def test_clean_and_erase_lower_the_sum_at_once_and_rehydrate_raises_it(limited: Store):
    media = open_media(store=limited)
    first, second = await filled(limited, 20_000), await filled(limited, 30_000)
    await measure_all(limited)
    both = await limited.stored_bytes("ada")
    archive = await export(limited, first)
    await clean(limited, media, first, actor="test", force=True)
    rest = await limited.stored_bytes("ada")
    assert 0 < rest < both
    await limited.measure(first)  # as by a worker that had read it before
    assert await limited.stored_bytes("ada") == rest
    await rehydrate(limited, media, first, io.BytesIO(archive), actor="test")
    assert rest < await limited.stored_bytes("ada") <= both
    for session_id in (first, second):
        await erase(limited, media, session_id, actor="test")
    assert await limited.stored_bytes("ada") == 0
    await limited.measure(first)
    assert await limited.stored_bytes("ada") == 0
    assert await measure_all(limited) == []


async def test_an_imported_session_counts_at_once(limited: Store):
    async with open_store("sqlite://:memory:") as source:
        archive = await export(source, await filled(source, 20_000, drafts=False))
    archived = await import_archive(limited, open_media(store=limited), io.BytesIO(archive), actor="test")
    assert await limited.stored_bytes("ada") == await limited.content_bytes(archived.session_id) > 1000
    assert await measure_all(limited) == []


async def test_a_session_is_measured_again_after_a_part_was_deleted(limited: Store):
    session_id = await filled(limited, 20_000)
    await measure_all(limited)
    before = await limited.stored_bytes("ada")
    due = await limited.due("submissions", older_than=0)
    assert await limited.drop_submissions([each.submission_id for each in due.items if each.submission_id])
    while await limited.purge_commands(older_than=0):
        pass
    assert (await limited.unmeasured(within=0.0, after="~")).session_ids == [session_id]
    await limited.measure(session_id)
    assert await limited.stored_bytes("ada") < before
    assert (await limited.unmeasured(within=0.0, after="~")).session_ids == []


async def test_measurements_of_sessions_of_one_owner_add_up_at_any_time(limited: Store):
    sessions = [await filled(limited, 1000 * n, drafts=False) for n in range(1, 7)]
    media = open_media(store=limited)
    await asyncio.gather(
        *(limited.measure(session_id) for session_id in sessions for _ in range(3)),
        clean(limited, media, sessions[0], actor="test", force=True),
        erase(limited, media, sessions[1], actor="test"),
    )
    sizes = [await limited.content_bytes(session_id) for session_id in sessions[2:]]
    assert await limited.stored_bytes("ada") == sum(sizes)
