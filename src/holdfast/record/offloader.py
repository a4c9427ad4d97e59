"""Move large content from messages to the media store before a write, and back after a read.

Short texts are not inspected: they cost only a comparison of their length.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from holdfast.errors import BudgetReached, MediaCollected
from holdfast.media import MediaContext, MediaStore, open_media, walker
from holdfast.media.database import DatabaseMedia
from holdfast.media.messages import check_threshold, move_back, move_out
from holdfast.record.loading import admit
from holdfast.store import Store
from holdfast.types import Batch, Effect, Json

_PUTS = 3
COMPLETED: Final = "run_completed"
RESPONDED: Final = "model_request_completed"
_LARGE: Final = frozenset({COMPLETED, RESPONDED})
"""The kinds of events that may have a large payload: the output of the agent, and messages that only the model saw."""
_JSON: Final = MediaContext(media_type="application/json")
_stored: Final[WeakKeyDictionary[Store, set[str]]] = WeakKeyDictionary()
"""The digests of held content that this process has put."""


class MediaOffloader:
    """Moves large content out of the texts of one store, and back. The settings define the default media store and threshold."""

    def __init__(self, store: Store, media: MediaStore | None = None, threshold: int | None = None) -> None:
        self._store = store
        self._media = media
        self._threshold = check_threshold(
            store.settings.media_threshold_bytes if threshold is None else threshold
        )
        self._referred: set[str] = set()  # digests that the session already refers to
        self._held: dict[str, bytes] = {}
        self._stored = _stored.setdefault(store, set())

    @property
    def media(self) -> MediaStore:
        """The media store, opened when it is first needed."""
        if self._media is None:
            self._media = open_media(store=self._store)
        return self._media

    def concerns(self, batch: Batch) -> bool:
        """Return whether a batch may have to change before it is written."""
        threshold = self._threshold
        if batch.blobs:
            return True
        for message in batch.messages:
            if walker.is_touched(message.body, threshold):
                return True
        for effect in batch.effects:
            if any(text and walker.is_touched(text, threshold) for text in (effect.result, effect.undo)):
                return True
        return any(
            event.kind in _LARGE and walker.is_touched(event.payload, threshold) for event in batch.events
        )

    def hold(self, digest: str, data: bytes) -> None:
        """Keep content that the `blobs` of a later batch name, to be put with it: into the database, whatever the media store is."""
        self._held[digest] = data

    async def _put_held(self, digests: Iterable[str]) -> None:
        for digest in self._held.keys() & set(digests) - self._referred - self._stored:
            await DatabaseMedia(self._store).put(self._held[digest], _JSON)
            self._stored.add(digest)

    async def move_out(self, batch: Batch) -> None:
        """Put large content durably into the media store, and replace it in the batch by references."""
        await self._put_held(batch.blobs)
        digests: dict[str, None] = dict.fromkeys(batch.blobs)
        batch.messages = [
            replace(message, body=await self._out(message.body, digests)) for message in batch.messages
        ]
        batch.effects = [
            effect
            if effect.result is None and effect.undo is None
            else replace(
                effect,
                result=effect.result and await self._out(effect.result, digests),
                undo=effect.undo and await self._out(effect.undo, digests),
            )
            for effect in batch.effects
        ]
        batch.events = [
            replace(event, payload=await self._out(event.payload, digests)) if event.kind in _LARGE else event
            for event in batch.events
        ]
        batch.blobs = list(digests)

    async def write(self, batch: Batch, write: Callable[[Batch], Awaitable[object]]) -> None:
        """Put large content into the media store, then write. Repeat the upload of media that was deleted in between.

        That happens when another session that referred to the same content is erased at this moment.
        """
        for left in reversed(range(_PUTS)):
            whole = replace(batch)
            await self.move_out(batch)
            try:
                await write(batch)
            except (MediaCollected, BudgetReached) as error:
                if not left:
                    raise
                if isinstance(error, MediaCollected):
                    self._stored.difference_update(batch.blobs)
                batch.messages, batch.effects = whole.messages, whole.effects
                batch.events, batch.blobs = whole.events, whole.blobs
                if isinstance(error, BudgetReached):
                    raise  # without its last event, the batch is written again
                if batch.chain is not None:
                    batch.chain.failed = None
            else:
                return

    def written(self, batch: Batch) -> None:
        """Remember the media that the session refers to now: it cannot be collected, so it is not uploaded again."""
        self._referred.update(batch.blobs)

    async def _out(self, text: Json, digests: dict[str, None]) -> Json:
        return await move_out(text, lambda: self.media, self._threshold, digests, known=self._referred)

    async def back(self, texts: Iterable[Json]) -> list[Json]:
        """Return the texts with all moved content restored exactly.

        Raises `MediaNotFound`, `MediaDamaged`, and `HistoryTooLarge` before anything is fetched.
        """
        return await move_back(list(texts), lambda: self.media, partial(admit, self._store))

    async def effects_back(self, effects: Sequence[Effect]) -> list[Effect]:
        """Return the effects with their complete results and arguments, and with the complete messages that contain them."""
        results = await self.back(effect.result or "" for effect in effects)
        bodies = await self.back(effect.body or "" for effect in effects)
        undos = await self.back(effect.undo or "" for effect in effects)
        return [
            effect
            if (result, body, undo) == (effect.result or "", effect.body or "", effect.undo or "")
            else replace(effect, result=result or None, body=body or None, undo=undo or None)
            for effect, result, body, undo in zip(effects, results, bodies, undos, strict=True)
        ]
