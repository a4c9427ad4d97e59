"""What is said in which order: events and drafts are read apart, and must not contradict each other."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from holdfast.operations.channel import Channel, StreamClock, Subscriber, block
from holdfast.store import Store
from holdfast.types import Batch, Draft, Event, NewEvent
from tests.builders import held_session, until

AT = datetime(2026, 1, 1, tzinfo=UTC)


class Slow:
    """A store whose reads come when the test says so."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.drafts: asyncio.Queue[list[Draft]] = asyncio.Queue()

    async def watch(self, session_id: str, *, after: int) -> AsyncGenerator[Event, None]:
        del session_id, after
        while True:
            yield await self.events.get()

    async def watch_drafts(self, session_id: str) -> AsyncGenerator[list[Draft], None]:
        del session_id
        while True:
            yield await self.drafts.get()


class Reader:
    """What one client is sent."""

    def __init__(self, store: Slow) -> None:
        self.told: list[tuple[Any, ...]] = []
        self._channel = Channel(cast("Store", store), "s", 0, None)
        self._client = Subscriber(self._take, StreamClock())
        self._channel.clients.add(self._client)
        self._feeding = asyncio.create_task(self._channel.feed(self._client, 0))

    async def _take(self, message: Any) -> None:
        for text in message["body"].decode().split("\n\n"):
            if data := next((line[6:] for line in text.splitlines() if line.startswith("data: ")), None):
                facts = json.loads(data)
                self.told.append((facts["seq"],) if "seq" in facts else (facts["offset"], facts["text"]))

    async def has(self, *told: tuple[Any, ...]) -> None:
        """Wait until it was told so much, and nothing else."""

        async def enough() -> bool:
            return len(self.told) >= len(told)

        await until(enough, 5)
        for _ in range(5):
            await asyncio.sleep(0)  # whatever else would be said
        assert self.told == [*told]

    async def close(self) -> None:
        self._client.leave()
        await self._feeding
        await self._channel.close()


def event(seq: int, kind: str = "message") -> Event:
    return Event(session_id="s", seq=seq, kind=kind, at=AT, run_id="r", step=None, payload="{}")


def draft(text: str, follows: int) -> list[Draft]:
    return [Draft(run_id="r", part=0, kind="text", text=text, follows=follows)]


async def test_a_draft_that_comes_after_its_message_is_not_said():
    store = Slow()
    reader = Reader(store)
    store.events.put_nowait(event(1))
    store.drafts.put_nowait(draft("Hel", 1))
    await reader.has((1,), (0, "Hel"))
    store.events.put_nowait(event(2))
    await reader.has((1,), (0, "Hel"), (2,))
    store.drafts.put_nowait(draft("Hello", 1))  # read before the message was there
    store.drafts.put_nowait([])
    store.drafts.put_nowait(draft("Hello again", 2))  # the next answer begins in the same way: it is whole
    await reader.has((1,), (0, "Hel"), (2,), (0, "Hello again"))
    store.drafts.put_nowait(draft("Hello again!", 2))
    await reader.has((1,), (0, "Hel"), (2,), (0, "Hello again"), (11, "!"))
    await reader.close()


async def test_a_draft_waits_for_the_events_before_it():
    store = Slow()
    reader = Reader(store)
    store.events.put_nowait(event(1))
    await reader.has((1,))
    store.drafts.put_nowait(draft("Next", 2))
    for _ in range(5):
        await asyncio.sleep(0)
    assert reader.told == [(1,)]
    store.events.put_nowait(event(2))
    await reader.has((1,), (2,), (0, "Next"))
    await reader.close()


def test_a_kind_cannot_split_a_block():
    assert (
        block("{}", "said\r\nid: 9\ndata: forged", 1)
        == b"id: 1\nevent: said id: 9 data: forged\ndata: {}\n\n"
    )


async def test_a_client_that_is_behind_has_a_small_page_in_memory(store: Store):
    """A client that does not read keeps its page, and there may be hundreds of them."""
    lease, _ = await held_session(store)
    await store.write(lease, Batch(events=[NewEvent(kind="tick", payload=json.dumps("x" * 60_000))] * 50))
    reads: list[int] = []
    events = store.events

    async def counted(session_id: str, **options: Any) -> list[Event]:
        page = await events(session_id, **options)
        reads.append(len(page))
        return page

    store.events = counted  # pyright: ignore[reportAttributeAccessIssue]
    channel = Channel(store, lease.session_id, 50)
    stuck = asyncio.Event()

    async def send(_: Any) -> None:
        await stuck.wait()

    clients = [Subscriber(send, StreamClock()) for _ in range(20)]
    feeding = [asyncio.create_task(channel.feed(client, 0)) for client in clients]

    async def all_read() -> bool:
        return len(reads) >= 20

    await until(all_read, 5)
    await asyncio.sleep(0.1)
    assert reads == [5] * 20
    for client in clients:
        client.leave()
    stuck.set()
    await asyncio.gather(*feeding)
    await channel.close()


async def test_a_client_that_stops_reading_keeps_a_small_piece_of_what_is_new():
    store = Slow()
    channel = Channel(store, "s", 0)  # pyright: ignore[reportArgumentType]
    sizes: list[int] = []
    stuck = asyncio.Event()

    async def send(message: Any) -> None:
        sizes.append(len(message["body"]))
        if len(sizes) == 1:
            await stuck.wait()

    for number in range(1, 40):
        large = event(number)
        store.events.put_nowait(
            replace(large, payload=json.dumps("x" * (2_000_000 if number == 39 else 60_000)))
        )

    async def all_there() -> bool:
        return channel.latest == 39

    await until(all_there, 5)
    client = Subscriber(send, StreamClock())
    feeding = asyncio.create_task(channel.feed(client, 0))

    async def is_stuck() -> bool:
        return len(sizes) == 1

    await until(is_stuck, 5)
    assert sizes[0] <= 256 * 1024
    stuck.set()

    async def all_sent() -> bool:
        return sum(sizes) > 38 * 60_000 + 2_000_000

    await until(all_sent, 5)
    assert max(sizes) <= 256 * 1024
    client.leave()
    await feeding
    await channel.close()
