"""A handle on one run."""

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast.api.models import CheckpointInfo, EffectInfo, EventInfo, RunInfo
from holdfast.client.stream import journal, read
from holdfast.client.transport import Transport
from holdfast.ids import check_id
from holdfast.types import CheckpointKind

if TYPE_CHECKING:
    from holdfast.events import SessionEvent


class RunHandle:
    """One run: one execution of the agent loop."""

    def __init__(self, transport: Transport, id: str) -> None:
        self._transport = transport
        self._path = f"/api/runs/{check_id(id, 'run id')}"
        self.id: str = id

    def __repr__(self) -> str:
        return f"RunHandle(id={self.id!r})"

    async def info(self) -> RunInfo:
        """Return the run as it is now."""
        return await self._transport.call(RunInfo, "GET", self._path)

    def delegates(self) -> AsyncGenerator[RunInfo, None]:
        """Yield the runs that tools of this run started."""
        return self._transport.items(RunInfo, f"{self._path}/runs", {})

    def events(self, *, after: int = 0) -> "AsyncGenerator[SessionEvent, None]":
        """Yield the recorded events of the run."""
        return read(self._transport, f"{self._path}/events", after=after)

    def journal(self, *, after: int = 0) -> AsyncGenerator[EventInfo, None]:
        """Yield the events of the run as they are stored, without a class for each kind."""
        return journal(self._transport, f"{self._path}/events", after=after, follow=False)

    def checkpoints(self, *, kind: CheckpointKind | None = None) -> AsyncGenerator[CheckpointInfo, None]:
        """Yield the checkpoints of the run, newest first."""
        return self._transport.items(CheckpointInfo, f"{self._path}/checkpoints", {"kind": kind})

    def effects(self, *, unresolved: bool = False) -> AsyncGenerator[EffectInfo, None]:
        """Yield the ledger entries of the run's tool calls, or only those whose outcome is unknown."""
        return self._transport.items(EffectInfo, f"{self._path}/effects", {"unresolved": unresolved})

    async def settle(self, call_id: str, *, result: Any = None, error: str | None = None) -> EffectInfo:
        """Record the outcome of a tool call whose outcome is unknown: its result, or its error."""
        body = {"result": result} if error is None else {"error": error}
        path = f"{self._path}/effects/{quote(call_id, safe='', errors='replace')}"
        return await self._transport.call(EffectInfo, "POST", path, json=body)
