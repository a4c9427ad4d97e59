"""The live feed of a session, which a process reads once for all clients.

A channel keeps the latest events as encoded bytes. A client that is further behind reads pages from the store until it has caught
up. Clients do not wait for each other: one that does not read is dropped, and can resume from its last event.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeAlias

from holdfast.api.models import event_json
from holdfast.errors import EventNotFound, HoldfastError, SessionNotFound
from holdfast.store import Store
from holdfast.tasks import end
from holdfast.types import Draft, Event

if TYPE_CHECKING:
    from starlette.types import Send

_MAX_EVENTS = 512
_MAX_BYTES = 4 * 1024 * 1024
_PAGE = 500
_PAGE_BYTES = 256 * 1024
"""The size of a write. About this much stays in memory for a client that does not read; it is similar to a socket's buffer."""
_MAX_READS = 8
"""The number of pages that a process reads and encodes at once, so that other requests are not delayed."""
_MAX_RUNS = 32
"""The number of runs whose last message is remembered. Their drafts may still arrive."""
_REPLACE_DRAFTS = frozenset({"message", "partial_response", "run_failed", "run_interrupted", "handover"})
"""The kinds of events after which earlier drafts of the same run are outdated."""
_PAUSE_SECONDS = 0.5
PATIENCE_SECONDS = 30.0
"""A client that reads nothing for this long is dropped. It can resume from its last event."""
TICK_SECONDS = 1.0
_log = logging.getLogger(__name__)

DraftTexts: TypeAlias = dict[tuple[str, int, int], str]
"""The text that a client has of each draft, by run, part, and the event that the draft follows."""


def encode(event: Event) -> bytes:
    """Return an event as a block of the stream. Its number is the id to resume from."""
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
    """Return the last block of a stream: why it ends, and when to reconnect."""
    return b"retry: 500\n" + block(json.dumps({"reason": reason}), "end")


class Subscriber:
    """A stream to one client. Deliveries must be cheap, so they have no timers and share the clock of the channels."""

    __slots__ = (
        "_clock",
        "_send",
        "_since",
        "_wakeup",
        "dropped",
        "gone",
        "refused",
        "sending",
        "silent",
        "task",
    )

    def __init__(self, send: "Send", clock: "StreamClock") -> None:
        self.task = asyncio.current_task()
        self.gone = False
        self.dropped = False
        self.refused = False
        self.silent = False
        self.sending = False
        self._send = send
        self._clock = clock
        self._since = clock.now
        self._wakeup: asyncio.Future[None] | None = None

    async def send(self, chunk: bytes, *, more: bool = True) -> None:
        """Send bytes. Returns when the client can take more."""
        self.sending = True
        for start in range(0, len(chunk) or 1, _PAGE_BYTES):
            self._since = self._clock.now
            piece = chunk if len(chunk) <= _PAGE_BYTES else chunk[start : start + _PAGE_BYTES]
            is_last = start + _PAGE_BYTES >= len(chunk)
            await self._send({"type": "http.response.body", "body": piece, "more_body": more or not is_last})
        self.sending = False

    async def wait(self) -> None:
        """Wait until there may be something to send."""
        self._wakeup = asyncio.get_running_loop().create_future()
        await self._wakeup

    def wake(self) -> None:
        """Wake the stream, because there may be something to send."""
        wakeup = self._wakeup
        if wakeup is not None and not wakeup.done():
            wakeup.set_result(None)

    def leave(self) -> None:
        """End the stream: the client has disconnected."""
        self.gone = True
        self.wake()

    def refuse(self) -> None:
        """End the stream before anything else is sent: the client no longer has access."""
        self.refused = True
        self.wake()

    def check(self, comment_seconds: float) -> None:
        """Request a keep-alive comment after a silence. Drop a client that reads nothing."""
        waited = self._clock.now - self._since
        if self.sending:
            if waited >= PATIENCE_SECONDS and self.task is not None and not self.dropped:
                self.dropped = True
                self.task.cancel()
        elif waited >= comment_seconds - TICK_SECONDS:
            self.silent = True
            self.wake()


class StreamClock:
    """The time of the last tick."""

    now = 0.0


class Channel:
    """The latest events and drafts of a session."""

    def __init__(
        self,
        store: Store,
        session_id: str,
        after: int,
        grace: float | None = None,
        reading: asyncio.Semaphore | None = None,
    ) -> None:
        self._reading = reading or asyncio.Semaphore(_MAX_READS)
        self.clients: set[Subscriber] = set()
        self.ended: str | None = None
        self.drafts: dict[tuple[str, int], Draft] = {}
        self._last_message: dict[str, int] = {}  # by run, the number of the last event that replaces drafts
        self._store = store
        self._session_id = session_id
        self._base = after  # the ring holds the events after this number
        self._ring: list[bytes] = []
        self._bytes = 0
        self._tasks = [
            asyncio.create_task(self._follow_events()),
            asyncio.create_task(self._follow_drafts()),
        ]
        if grace is not None:
            self._tasks.append(asyncio.create_task(self._mark_watched(grace)))

    @property
    def latest(self) -> int:
        """The number of the last event in the channel."""
        return self._base + len(self._ring)

    async def close(self) -> None:
        """Stop following."""
        await end(*self._tasks)

    async def _mark_watched(self, grace: float) -> None:
        """Record that an attached session is watched, for its worker."""
        while True:
            with suppress(HoldfastError):  # the next attempt makes up for it
                await self._store.mark_watched([self._session_id])
            await asyncio.sleep(min(grace / 4, 30))

    def end(self, reason: str) -> None:
        """End the streams of all clients."""
        self.ended = self.ended or reason
        self._wake_all()

    async def feed(self, client: Subscriber, after: int) -> None:
        """Send all events after number `after` and then new ones, without a gap. Drafts are sent whole first, then as additions."""
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
        """Return events of the ring from an index on: at most a page, and at least one."""
        size, stop = len(self._ring[at]), at + 1
        while stop < len(self._ring) and size + len(self._ring[stop]) <= _PAGE_BYTES:
            size += len(self._ring[stop])
            stop += 1
        return self._ring[at:stop]

    def is_due(self, after: int) -> bool:
        """Return whether a client with the events up to a number has all events before the drafts."""
        return all(draft.follows <= after for draft in self.drafts.values())

    async def page(self, after: int) -> list[Event]:
        """Return a page of the events after a number, from the store."""
        async with self._reading:
            return await self._events(after)

    async def _encoded(self, after: int) -> tuple[int, bytes]:
        """Return the number of the last event of a page, and the page as encoded bytes."""
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
                    if event.kind in _REPLACE_DRAFTS and event.run_id is not None:
                        self._last_message[event.run_id] = event.seq
                        if self.drafts:
                            self._set_drafts(self.drafts.values())
            except SessionNotFound:
                self.end("erased")
            except EventNotFound:
                self.end("restored")  # clients that reconnect with a higher number are rejected
            except HoldfastError as error:
                if error.is_permanent:
                    self.end("failed")  # clients that reconnect get the error
                    return
                _log.warning("cannot follow session %s, retrying: %s", self._session_id, error)
                await asyncio.sleep(_PAUSE_SECONDS)

    def _add(self, encoded: bytes) -> None:
        self._ring.append(encoded)
        self._bytes += len(encoded)
        while self._ring and (len(self._ring) > 2 * _MAX_EVENTS or self._bytes > 2 * _MAX_BYTES):
            oldest = self._ring[: max(1, len(self._ring) // 2)]
            del self._ring[: len(oldest)]
            self._base += len(oldest)
            self._bytes -= sum(map(len, oldest))
        self._wake_all()

    async def _follow_drafts(self) -> None:
        while self.ended is None:
            try:
                async for drafts in self._store.watch_drafts(self._session_id):
                    self._set_drafts(drafts)
                    self._wake_all()
            except HoldfastError as error:
                if error.is_permanent:
                    return
                await asyncio.sleep(_PAUSE_SECONDS)  # following the events logs the problem

    def _set_drafts(self, drafts: Iterable[Draft]) -> None:
        """Keep the drafts that no event has replaced. Events and drafts are read separately."""
        self.drafts = {
            (d.run_id, d.part): d for d in drafts if d.follows >= self._last_message.get(d.run_id, 0)
        }
        for run_id in list(self._last_message)[:-_MAX_RUNS]:
            del self._last_message[run_id]

    def _wake_all(self) -> None:
        for client in self.clients:
            client.wake()


def gained(drafts: Mapping[tuple[str, int], Draft], shown: DraftTexts) -> bytes:
    """Return the additions to drafts since they were last shown, and update `shown`."""
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
    """The channels of all sessions with clients in this process, and the clock of the clients."""

    def __init__(self, store: Store, *, comment_seconds: float) -> None:
        self._store = store
        self._comment_seconds = comment_seconds
        self._open: dict[str, Channel] = {}
        self._clock = StreamClock()
        self._reading = asyncio.Semaphore(_MAX_READS)
        self._ticking: asyncio.Task[None] | None = None
        self.closing = False
        self.closed = asyncio.Event()

    @property
    def clients(self) -> int:
        """The number of open streams."""
        return sum(len(channel.clients) for channel in self._open.values())

    @asynccontextmanager
    async def join(
        self, session_id: str, seq: int, grace: float | None, send: "Send"
    ) -> AsyncGenerator[tuple[Channel, Subscriber], None]:
        """Yield the channel of a session whose last event has the number `seq`, and a new client of it.

        An attached session has a `grace`: the channel then records that the session is watched.
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
        """End all streams with a hint to reconnect. Another API server continues from the same number."""
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
                    client.check(self._comment_seconds)
