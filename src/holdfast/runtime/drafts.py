"""Store the text that the model is streaming as drafts, at most every 50 ms, for watchers in any process."""

import asyncio
import logging
from collections.abc import AsyncIterable
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


class Drafting:
    """The event stream handler of one run."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self._store = store
        self._lease = lease
        self._parts: dict[int, Draft] = {}
        self._changed: set[int] = set()
        self._bell = asyncio.Event()
        self._over = False

    async def __call__(self, ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        """Follow one stream. When it ends, no write is in progress: the message replaces the drafts."""
        self._parts, self._changed, self._over = {}, set(), False
        writing: asyncio.Task[None] | None = None
        try:
            async for event in events:
                if self._note(ctx.run_id or "", event):
                    self._bell.set()
                    writing = writing or asyncio.create_task(self._write())
        finally:
            self._over = True
            self._bell.set()
            if writing is not None:
                await writing

    def _note(self, run_id: str, event: AgentStreamEvent) -> bool:
        match event:
            case PartStartEvent(index=index, part=TextPart() | ThinkingPart() as part):
                kind = "text" if isinstance(part, TextPart) else "thinking"
                self._parts[index] = Draft(run_id=run_id, part=index, kind=kind, text=part.content)
            case PartDeltaEvent(index=index, delta=TextPartDelta() | ThinkingPartDelta() as delta):
                before = self._parts.get(index)
                if before is None or not delta.content_delta:
                    return False
                text = before.text + delta.content_delta
                self._parts[index] = Draft(run_id=run_id, part=index, kind=before.kind, text=text)
            case _:
                return False
        self._changed.add(index)
        return True

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
                return  # drafts may be lost; if the lease is lost, the next write fails
            await self._pause()

    async def _pause(self) -> None:
        for _ in range(5):
            if self._over:
                return
            await asyncio.sleep(_SECONDS / 5)
