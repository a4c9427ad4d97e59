"""The live feed of a session: read once per process, however many clients watch it.

A channel keeps the latest events as the bytes that go out. Who is further behind reads from the store, in pages, until
it has caught up. Nobody waits for anybody: a client that does not read is dropped, and resumes from its number.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from holdfast.errors import HoldfastError, SessionNotFound
from holdfast.server.wire import event_json
from holdfast.store import Store
from holdfast.types import Draft, Event

_KEPT = 512
_KEPT_BYTES = 4 * 1024 * 1024
_PAGE = 500
_PAUSE_SECONDS = 0.5
_log = logging.getLogger(__name__)


def encode(event: Event) -> bytes:
    """Return an event as it goes over the stream; its number is the id to resume from."""
    return block(event_json(event), event.kind, event.seq)


def block(data: str, kind: str, number: int | None = None) -> bytes:
    """Return one block of an event stream."""
    lines = "\ndata: ".join(data.replace("\r", "\n").split("\n"))
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {kind}\ndata: {lines}\n\n".encode("utf-8", "replace")


COMMENT = b": still here\n\n"


def ending(reason: str) -> bytes:
    """Return the last thing that a stream says: why it ends, and when to come back."""
    return b"retry: 500\n" + block(json.dumps({"reason": reason}), "end")


class Channel:
    """What is new in one session."""

    def __init__(self, store: Store, session_id: str, after: int) -> None:
        self.clients = 0
        self.ended: str | None = None
        self._store = store
        self._session_id = session_id
        self._base = after  # the ring holds what follows
        self._ring: list[bytes] = []
        self._bytes = 0
        self._drafts: dict[tuple[str, int], Draft] = {}
        self._bells: set[asyncio.Event] = set()
        self._tasks = [
            asyncio.create_task(self._follow_events()),
            asyncio.create_task(self._follow_drafts()),
        ]

    async def close(self) -> None:
        """Stop following."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def end(self, reason: str) -> None:
        """Tell all clients that this is it."""
        self.ended = self.ended or reason
        self._ring_bells()

    async def feed(self, after: int, *, comment_seconds: float) -> AsyncGenerator[bytes, None]:
        """Yield what follows number `after`, without a gap, then what comes; drafts whole first, then what they gain."""
        loop = asyncio.get_running_loop()
        bell = asyncio.Event()
        shown: dict[tuple[str, int], str] = {}
        self._bells.add(bell)
        try:
            while True:
                bell.clear()
                if after < self._base:
                    page = await self._store.events(self._session_id, after=after, limit=_PAGE)
                    if page:
                        after = page[-1].seq
                        yield b"".join(map(encode, page))
                        continue
                if new := self._ring[after - self._base :] if after >= self._base else []:
                    after += len(new)
                    yield new[0] if len(new) == 1 else b"".join(new)
                    continue
                if text := self._gained(shown):
                    yield text
                if self.ended is not None:
                    yield ending(self.ended)
                    return
                timer = loop.call_later(comment_seconds, bell.set)
                await bell.wait()
                if loop.time() >= timer.when():
                    yield COMMENT
                timer.cancel()
        finally:
            self._bells.discard(bell)

    def _gained(self, shown: dict[tuple[str, int], str]) -> bytes:
        """Return what the drafts have gained since they were shown."""
        blocks: list[bytes] = []
        for key, draft in self._drafts.items():
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
        shown.update({key: draft.text for key, draft in self._drafts.items()})
        return b"".join(blocks)

    async def _follow_events(self) -> None:
        while self.ended is None:
            try:
                async for event in self._store.watch(self._session_id, after=self._base + len(self._ring)):
                    self._add(encode(event))
            except SessionNotFound:
                self.end("erased")
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
        self._ring_bells()

    async def _follow_drafts(self) -> None:
        while self.ended is None:
            try:
                async for drafts in self._store.watch_drafts(self._session_id):
                    self._drafts = {(draft.run_id, draft.part): draft for draft in drafts}
                    self._ring_bells()
            except HoldfastError:
                await asyncio.sleep(_PAUSE_SECONDS)  # the events tell what is wrong

    def _ring_bells(self) -> None:
        for bell in self._bells:
            bell.set()


class Channels:
    """The channels of all sessions that somebody watches here."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[str, Channel] = {}
        self.closing = False
        self.closed = asyncio.Event()

    @property
    def clients(self) -> int:
        """How many streams are open."""
        return sum(channel.clients for channel in self._open.values())

    @asynccontextmanager
    async def join(self, session_id: str, seq: int) -> AsyncGenerator[Channel, None]:
        """Hand out the channel of a session whose last event has this number."""
        channel = self._open.get(session_id)
        if channel is None or channel.ended is not None:
            channel = self._open[session_id] = Channel(self._store, session_id, seq)
        if self.closing:
            channel.end("closing")
        channel.clients += 1
        try:
            yield channel
        finally:
            channel.clients -= 1
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
