"""A session has its priority also where it is restored, imported or copied."""

import io

import pytest

from holdfast.media import open_media
from holdfast.retention import clean, copy, import_archive, rehydrate
from holdfast.store import Store, open_store
from holdfast.types import Batch, SubmissionChange
from tests.conftest import Engine
from tests.promises.test_exact_return import export

MEMORY = "sqlite://:memory:"


async def queued(store: Store, session_id: str, **options: str) -> None:
    await store.create_session(agent="bot", owner="you", id=session_id, exist_ok=True)
    await store.submit(session_id, "message", '{"text": "hello"}', **options)  # pyright: ignore[reportArgumentType]


async def urgent(store: Store, status: str) -> None:
    """Create a session with a message of high priority, which is queued or waits for a person."""
    await queued(store, "urgent", priority="high")
    if status == "waiting":
        holder = await store.join("worker", ttl=60)
        (work,) = await store.next_work(holder)
        assert work.submission is not None
        waits = SubmissionChange(id=work.submission.id, state="waiting", reason="approval")
        await store.write(work.lease, Batch(submissions=[waits], status="waiting", release=True))
        await store.leave(holder)


async def starts_first(store: Store, status: str) -> None:
    """Claim one of several sessions of an owner: it must be the urgent one, although it is ready last."""
    for number in range(2):
        await queued(store, f"normal-{number}")
    if status == "waiting":
        await store.submit("urgent", "approval", "{}", lane="control")
    else:
        await queued(store, "urgent")
    holder = await store.join("worker", ttl=60)
    assert [work.session.id for work in await store.next_work(holder)] == ["urgent"]
    await store.leave(holder)
    assert await store.check() == []


@pytest.mark.parametrize("status", ["queued", "waiting"])
async def test_a_restored_session_has_its_priority(store: Store, status: str):
    media = open_media(store=store)
    for number in range(2):
        await queued(store, f"earlier-{number}")
    await urgent(store, status)
    archive = await export(store, "urgent")
    await clean(store, media, "urgent", actor="ada", idle_days=0, force=True)
    await rehydrate(store, media, "urgent", io.BytesIO(archive), actor="ada")
    await starts_first(store, status)


@pytest.mark.parametrize("status", ["queued", "waiting"])
@pytest.mark.parametrize("direction", ["into", "out of"])
async def test_an_imported_or_copied_session_has_its_priority(engine: Engine, direction: str, status: str):
    urls = [MEMORY, engine.url] if direction == "into" else [engine.url, MEMORY]
    async with open_store(urls[0]) as source, open_store(urls[1]) as target, open_store(MEMORY) as third:
        for store in (target, third):
            for number in range(2):
                await queued(store, f"earlier-{number}")
        await urgent(source, status)
        archive = await export(source, "urgent")
        await import_archive(third, open_media(store=third), io.BytesIO(archive), actor="ada")
        await starts_first(third, status)
        await copy(source, target, actor="ada")
        await starts_first(target, status)
