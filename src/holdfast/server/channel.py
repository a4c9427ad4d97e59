"""The live feed of a session: read once per process, however many clients watch it.

A channel keeps the latest events as the bytes that go out. Who is further behind reads from the store, in pages, until
it has caught up. Nobody waits for anybody: a client that does not read is dropped, and resumes from its number.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

from starlette.types import Send

from holdfast.api.models import event_json
from holdfast.errors import HoldfastError, NotYet, SessionNotFound
from holdfast.store import Store
from holdfast.tasks import end
from holdfast.types import Draft, Event

_KEPT = 512
_KEPT_BYTES = 4 * 1024 * 1024
_PAGE = 500
_PAGE_BYTES = 256 * 1024
"""About as much as a client that does not read keeps in memory: what is sent at once, in the order of the socket's buffer."""
_READING = 8
"""How many pages a process reads and encodes at once, so that other requests get their turn in between."""
_RUNS = 32
"""Of so many runs it is known when they last said something: those whose drafts may be on their way."""
_PAUSE_SECONDS = 0.5
PATIENCE_SECONDS = 30.0
"""A client that takes nothing for so long is dropped; it resumes from its number."""
TICK_SECONDS = 1.0
_log = logging.getLogger(__name__)

DraftTexts: TypeAlias = dict[tuple[str, int, int], str]
"""What a client has of each draft: by its run, its part, and the event that it follows."""


def encode(event: Event) -> bytes:
    """Return an event as it goes over the stream; its number is the id to resume from."""
    return block(event_json(event), event.kind, event.seq)


def block(data: str, kind: str, number: int | None = None) -> bytes:
    """Return one block of an event stream."""
    lines = "\ndata: ".join(data.replace("\r", "\n").split("\n"))
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {' '.join(kind.split())}\ndata: {lines}\n\n".encode("utf-8", "replace")


COMMENT = b": still here\n\n"


REFUSED = "unauthenticated"
"""The reason that ends a stream whose client no longer has access."""


def ending(reason: str) -> bytes:
    """Return the last thing that a stream says: why it ends, and when to come back."""
    return b"retry: 500\n" + block(json.dumps({"reason": reason}), "end")


class Subscriber:
    """One stream to one client. A delivery must cost little: there is no timer for it, the clock is the channels'."""

    __slots__ = (
        "_bell",
        "_clock",
        "_send",
        "_since",
        "dropped",
        "gone",
        "refused",
        "sending",
        "silent",
        "task",
    )

    def __init__(self, send: Send, clock: "StreamClock") -> None:
        self.task = asyncio.current_task()
        self.gone = False
        self.dropped = False
        self.refused = False
        self.silent = False
        self.sending = False
        self._send = send
        self._clock = clock
        self._since = clock.now
        self._bell: asyncio.Future[None] | None = None

    async def send(self, chunk: bytes, *, more: bool = True) -> None:
        """Send some bytes; returns when the client takes more."""
        self.sending = True
        for start in range(0, len(chunk) or 1, _PAGE_BYTES):
            self._since = self._clock.now
            piece = chunk if len(chunk) <= _PAGE_BYTES else chunk[start : start + _PAGE_BYTES]
            is_last = start + _PAGE_BYTES >= len(chunk)
            await self._send({"type": "http.response.body", "body": piece, "more_body": more or not is_last})
        self.sending = False

    async def wait(self) -> None:
        """Wait until there may be something to say."""
        self._bell = asyncio.get_running_loop().create_future()
        await self._bell

    def ring(self) -> None:
        """Say that there may be something to say."""
        bell = self._bell
        if bell is not None and not bell.done():
            bell.set_result(None)

    def leave(self) -> None:
        """Note that nobody is there any more."""
        self.gone = True
        self.ring()

    def refuse(self) -> None:
        """End the stream before anything else is sent: the client no longer has access."""
        self.refused = True
        self.ring()

    def look(self, comment_seconds: float) -> None:
        """Have it say that it lives, if it was silent; give up who takes nothing."""
        waited = self._clock.now - self._since
        if self.sending:
            if waited >= PATIENCE_SECONDS and self.task is not None and not self.dropped:
                self.dropped = True
                self.task.cancel()
        elif waited >= comment_seconds - TICK_SECONDS:
            self.silent = True
            self.ring()


class StreamClock:
    """The time, as of the last tick."""

    now = 0.0


class Channel:
    """What is new in one session."""

    def __init__(
        self,
        store: Store,
        session_id: str,
        after: int,
        grace: float | None = None,
        reading: asyncio.Semaphore | None = None,
    ) -> None:
        self._reading = reading or asyncio.Semaphore(_READING)
        self.clients: set[Subscriber] = set()
        self.ended: str | None = None
        self.drafts: dict[tuple[str, int], Draft] = {}
        self._said: dict[str, int] = {}  # the number of a run's last message: drafts from before it are over
        self._store = store
        self._session_id = session_id
        self._base = after  # the ring holds what follows
        self._ring: list[bytes] = []
        self._bytes = 0
        self._tasks = [
            asyncio.create_task(self._follow_events()),
            asyncio.create_task(self._follow_drafts()),
        ]
        if grace is not None:
            self._tasks.append(asyncio.create_task(self._say_watched(grace)))

    @property
    def latest(self) -> int:
        """The number of the last event that is known here."""
        return self._base + len(self._ring)

    async def close(self) -> None:
        """Stop following."""
        await end(*self._tasks)

    async def _say_watched(self, grace: float) -> None:
        """Let whoever runs an attached session know that it is watched."""
        while True:
            with suppress(HoldfastError):  # the next time makes up for it
                await self._store.watched([self._session_id])
            await asyncio.sleep(min(grace / 4, 30))

    def end(self, reason: str) -> None:
        """Tell all clients that this is it."""
        self.ended = self.ended or reason
        self._ring_all()

    async def feed(self, client: Subscriber, after: int) -> None:
        """Send what follows number `after`, without a gap, then what comes; drafts whole first, then what they gain."""
        shown: DraftTexts = {}
        seen: object = None
        while not client.gone:
            at = after - self._base
            if client.refused:
                await client.send(ending(REFUSED))
                return
            if 0 <= at < len(self._ring):
                new = self._next(at)
                after += len(new)
                await client.send(new[0] if len(new) == 1 else b"".join(new))
            elif at < 0 and (behind := await self._encoded(after))[1]:
                after, encoded = behind
                await client.send(encoded)
            elif seen is not self.drafts and self.is_due(after):
                seen = self.drafts
                if text := gained(self.drafts, shown):
                    await client.send(text)
            elif self.ended is not None:
                await client.send(ending(self.ended))
                return
            elif client.silent:
                client.silent = False
                await client.send(COMMENT)
            else:
                await client.wait()

    def _next(self, at: int) -> list[bytes]:
        """Return events of the ring from a place on, as many as a page may have, but at least one."""
        size, stop = len(self._ring[at]), at + 1
        while stop < len(self._ring) and size + len(self._ring[stop]) <= _PAGE_BYTES:
            size += len(self._ring[stop])
            stop += 1
        return self._ring[at:stop]

    def is_due(self, after: int) -> bool:
        """Say whether who has the events up to a number has all that came before the drafts."""
        return all(draft.follows <= after for draft in self.drafts.values())

    async def page(self, after: int) -> list[Event]:
        """Return some of the events that follow a number, from the store."""
        async with self._reading:
            return await self._events(after)

    async def _encoded(self, after: int) -> tuple[int, bytes]:
        """Return some of the events that follow a number as the bytes that go out, and the number of the last one."""
        async with self._reading:
            events = await self._events(after)
            return (events[-1].seq if events else after), b"".join(map(encode, events))

    async def _events(self, after: int) -> list[Event]:
        return await self._store.events(self._session_id, after=after, limit=_PAGE, max_bytes=_PAGE_BYTES)

    async def _follow_events(self) -> None:
        while self.ended is None:
            try:
                async for event in self._store.watch(self._session_id, after=self.latest):
                    self._add(encode(event))
                    if event.kind == "message" and event.run_id is not None:
                        self._said[event.run_id] = event.seq
                        if self.drafts:
                            self._draw(self.drafts.values())
            except SessionNotFound:
                self.end("erased")
            except NotYet:
                self.end("restored")  # clients that come back with a higher number are refused
            except HoldfastError as error:
                _log.warning("session %s cannot be followed, trying again: %s", self._session_id, error)
                await asyncio.sleep(_PAUSE_SECONDS)

    def _add(self, encoded: bytes) -> None:
        self._ring.append(encoded)
        self._bytes += len(encoded)
        while self._ring and (len(self._ring) > 2 * _KEPT or self._bytes > 2 * _KEPT_BYTES):
            gone = self._ring[: max(1, len(self._ring) // 2)]
            del self._ring[: len(gone)]
            self._base += len(gone)
            self._bytes -= sum(map(len, gone))
        self._ring_all()

    async def _follow_drafts(self) -> None:
        while self.ended is None:
            try:
                async for drafts in self._store.watch_drafts(self._session_id):
                    self._draw(drafts)
                    self._ring_all()
            except HoldfastError:
                await asyncio.sleep(_PAUSE_SECONDS)  # the events tell what is wrong

    def _draw(self, drafts: Iterable[Draft]) -> None:
        """Keep those drafts that no message has taken the place of: events and drafts are read apart."""
        self.drafts = {(d.run_id, d.part): d for d in drafts if d.follows >= self._said.get(d.run_id, 0)}
        for run_id in list(self._said)[:-_RUNS]:
            del self._said[run_id]

    def _ring_all(self) -> None:
        for client in self.clients:
            client.ring()


def gained(drafts: Mapping[tuple[str, int], Draft], shown: DraftTexts) -> bytes:
    """Return what the drafts have gained since they were shown, and note that they are."""
    blocks: list[bytes] = []
    texts: DraftTexts = {}
    for draft in drafts.values():
        key = draft.run_id, draft.part, draft.follows
        texts[key] = draft.text
        before = shown.get(key, "")
        if draft.text == before and key in shown:
            continue
        start = len(before) if draft.text.startswith(before) else 0
        facts = {
            "run_id": draft.run_id,
            "part": draft.part,
            "kind": draft.kind,
            "offset": start,
            "text": draft.text[start:],
        }
        blocks.append(block(json.dumps(facts), "draft"))
    shown.clear()
    shown.update(texts)
    return b"".join(blocks)


class Channels:
    """The channels of all sessions that somebody watches here, and the clock of their clients."""

    def __init__(self, store: Store, *, comment_seconds: float) -> None:
        self._store = store
        self._comment_seconds = comment_seconds
        self._open: dict[str, Channel] = {}
        self._clock = StreamClock()
        self._reading = asyncio.Semaphore(_READING)
        self._ticking: asyncio.Task[None] | None = None
        self.closing = False
        self.closed = asyncio.Event()

    @property
    def clients(self) -> int:
        """How many streams are open."""
        return sum(len(channel.clients) for channel in self._open.values())

    @asynccontextmanager
    async def join(
        self, session_id: str, seq: int, grace: float | None, send: Send
    ) -> AsyncGenerator[tuple[Channel, Subscriber], None]:
        """Hand out the channel of a session whose last event has this number, and a client of it.

        An attached session has its `grace`: it is noted that somebody watches.
        """
        channel = self._open.get(session_id)
        if channel is None or channel.ended is not None:
            channel = self._open[session_id] = Channel(self._store, session_id, seq, grace, self._reading)
        if self.closing:
            channel.end("closing")
        if self._ticking is None or self._ticking.done():
            self._clock.now = asyncio.get_running_loop().time()
            self._ticking = asyncio.create_task(self._tick())
        client = Subscriber(send, self._clock)
        channel.clients.add(client)
        try:
            yield channel, client
        finally:
            channel.clients.discard(client)
            if not channel.clients:
                if self._open.get(session_id) is channel:
                    del self._open[session_id]
                await channel.close()

    def close(self) -> None:
        """End all streams with a hint to come back: another front goes on from the same number."""
        self.closing = True
        self.closed.set()
        for channel in self._open.values():
            channel.end("closing")

    async def _tick(self) -> None:
        while self._open:
            await asyncio.sleep(min(TICK_SECONDS, self._comment_seconds / 2))
            self._clock.now = asyncio.get_running_loop().time()
            for channel in self._open.values():
                for client in channel.clients:
                    client.look(self._comment_seconds)
