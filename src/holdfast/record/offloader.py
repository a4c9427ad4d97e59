"""Large content on its way between messages and rows: out to the media store before a write, back after a read.

What is short is not looked at: for it nothing here costs more than asking for its length.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from holdfast.errors import BadInput, MediaCollected
from holdfast.media import MediaStore, open_media, to_uri, walker
from holdfast.media.base import add_to
from holdfast.record.loading import admit
from holdfast.store import Store
from holdfast.types import Batch, Effect, Json

_BESIDE = 1024 * 1024
"""Texts of this size are taken apart and put together beside the event loop."""
_AT_ONCE = 4
_PUTS = 3
_LEAST = 128
"""A reference is not much shorter than this."""


class MediaOffloader:
    """Moves large content out of the texts of one store, and back. By default where, and from what size, its settings say."""

    def __init__(self, store: Store, media: MediaStore | None = None, threshold: int | None = None) -> None:
        self._store = store
        self._media = media
        self._threshold = store.settings.media_threshold_bytes if threshold is None else threshold
        if self._threshold < _LEAST:
            raise BadInput(problem=f"the threshold for media is at least {_LEAST} bytes, not {threshold}")
        self._referred: set[str] = set()  # by the session that is written to

    @property
    def media(self) -> MediaStore:
        """The media store, opened when it is first needed."""
        if self._media is None:
            self._media = open_media(store=self._store)
        return self._media

    def concerns(self, batch: Batch) -> bool:
        """Say whether anything in a batch may have to change before it is written."""
        threshold = self._threshold
        for message in batch.messages:
            if walker.is_touched(message.body, threshold):
                return True
        for effect in batch.effects:
            if effect.result is not None and walker.is_touched(effect.result, threshold):
                return True
        return False

    async def move_out(self, batch: Batch) -> None:
        """Put what is large into the media store, durably, and leave references to it in the batch."""
        digests: dict[str, None] = dict.fromkeys(batch.blobs)
        batch.messages = [
            replace(message, body=await self._out(message.body, digests)) for message in batch.messages
        ]
        batch.effects = [
            effect
            if effect.result is None
            else replace(effect, result=await self._out(effect.result, digests))
            for effect in batch.effects
        ]
        batch.blobs = list(digests)

    async def write(self, batch: Batch, write: Callable[[Batch], Awaitable[object]]) -> None:
        """Put what is large into the media store, then write. What was deleted in between is put again.

        That happens when another session that referred to the same content is erased at this moment.
        """
        for left in reversed(range(_PUTS)):
            whole = replace(batch)
            await self.move_out(batch)
            try:
                await write(batch)
            except MediaCollected:
                if not left:
                    raise
                batch.messages, batch.effects, batch.blobs = whole.messages, whole.effects, whole.blobs
                if batch.chain is not None:
                    batch.chain.failed = None
            else:
                return

    def written(self, batch: Batch) -> None:
        """Note what the session refers to: it is not put again, since it cannot be collected now."""
        self._referred.update(batch.blobs)

    async def _out(self, text: Json, digests: dict[str, None]) -> Json:
        if not walker.is_touched(text, self._threshold):
            return text
        work = walker.take_out
        pieces = (
            work(text, self._threshold)
            if len(text) < _BESIDE
            else await asyncio.to_thread(work, text, self._threshold)
        )
        written: list[str] = []
        for piece in pieces:
            if isinstance(piece, str):
                written.append(piece)
                continue
            digest = hashlib.sha256()
            await add_to(digest, piece.data)
            uri = to_uri(digest.hexdigest())
            if digest.hexdigest() not in self._referred:
                uri = await self.media.put(piece.data, piece.context)
                digests[digest.hexdigest()] = None
            written.append(walker.reference(uri, piece.form))
        return "".join(written)

    async def back(self, texts: Iterable[Json]) -> list[Json]:
        """Return the texts with all that was moved out, to the letter.

        Raises `MediaNotFound`, `MediaDamaged`, and `HistoryTooLarge` before anything is fetched.
        """
        texts = list(texts)
        if not any(map(walker.is_changed, texts)):
            return texts
        wanted = walker.references(texts)
        places = asyncio.Semaphore(_AT_ONCE)

        async def measure(digest: str) -> int:
            async with places:
                return (await self.media.metadata(to_uri(digest))).size

        async def fetch(digest: str) -> bytes:
            async with places:
                return await self.media.get(to_uri(digest))

        sizes = await asyncio.gather(*map(measure, wanted))
        moved = sum(size * count for size, count in zip(sizes, wanted.values(), strict=True))
        await admit(self._store, sum(map(len, texts)) + moved)

        contents = dict(zip(wanted, await asyncio.gather(*map(fetch, wanted)), strict=True))
        if sum(map(len, contents.values())) < _BESIDE:
            return [walker.put_back(text, contents) for text in texts]
        return await asyncio.to_thread(lambda: [walker.put_back(text, contents) for text in texts])

    async def effects_back(self, effects: Sequence[Effect]) -> list[Effect]:
        """Return the effects with the whole of their results, and of the messages that these moved into."""
        results = await self.back(effect.result or "" for effect in effects)
        bodies = await self.back(effect.body or "" for effect in effects)
        return [
            effect
            if result == (effect.result or "") and body == (effect.body or "")
            else replace(effect, result=result or None, body=body or None)
            for effect, result, body in zip(effects, results, bodies, strict=True)
        ]
