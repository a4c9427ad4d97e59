"""Store the text that the model is streaming as drafts, at most every 50 ms, for watchers in any process."""

import asyncio
import logging
from collections.abc import AsyncIterable
from dataclasses import replace
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import (
    AgentStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
)

from holdfast.errors import HoldfastError
from holdfast.store import Store
from holdfast.types import Draft, Lease

_SECONDS = 0.05
_log = logging.getLogger(__name__)


class Drafts:
    """Writes the drafts of one run. A failed write loses nothing important: the complete message follows."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self._store = store
        self._lease = lease
        self._parts: dict[int, Draft] = {}
        self._changed: set[int] = set()
        self._bell = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._over = False

    def put(self, draft: Draft) -> None:
        """Replace a part with this one, and write it soon."""
        self._parts[draft.part] = draft
        self._changed.add(draft.part)
        self._bell.set()
        self._over = False
        self._writing = self._writing or asyncio.create_task(self._write())

    def get(self, part: int) -> Draft | None:
        """Return a part as it is now."""
        return self._parts.get(part)

    async def close(self) -> None:
        """Forget all parts. When this returns, no write is in progress: the message replaces the drafts."""
        self._over = True
        self._bell.set()
        if self._writing is not None:
            await self._writing
        self._writing = None
        self._parts, self._changed = {}, set()

    async def _write(self) -> None:
        while not self._over:
            await self._bell.wait()
            self._bell.clear()
            changed, self._changed = self._changed, set()
            if self._over or not changed:
                continue
            try:
                await self._store.put_drafts(self._lease, [self._parts[index] for index in sorted(changed)])
            except HoldfastError as error:
                _log.info("a draft of session %s was not written: %s", self._lease.session_id, error)
                return  # if the lease is lost, the next write fails
            await self._pause()

    async def _pause(self) -> None:
        for _ in range(5):
            if self._over:
                return
            await asyncio.sleep(_SECONDS / 5)


class Drafting:
    """The event stream handler of one run of a Pydantic AI agent."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self._drafts = Drafts(store, lease)

    async def __call__(self, ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        """Follow one stream."""
        try:
            async for event in events:
                if (draft := self._draft(ctx.run_id or "", event)) is not None:
                    self._drafts.put(draft)
        finally:
            await self._drafts.close()

    def _draft(self, run_id: str, event: AgentStreamEvent) -> Draft | None:
        match event:
            case PartStartEvent(index=index, part=TextPart() | ThinkingPart() as part):
                kind = "text" if isinstance(part, TextPart) else "thinking"
                return Draft(run_id=run_id, part=index, kind=kind, text=part.content)
            case PartDeltaEvent(index=index, delta=TextPartDelta() | ThinkingPartDelta() as delta):
                before = self._drafts.get(index)
                if before is None or not delta.content_delta:
                    return None
                return replace(before, text=before.text + delta.content_delta)
            case _:
                return None
