"""Collect the changes of a run and write them as ordered batches.

A step is two batches: one when a model request begins and one before the first tool runs. All other changes are added to the
next batch. A timer writes them if none follows soon. The batch of a call that changes nothing is held for a moment: if the call ends
soon, the step is one batch.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from pydantic_ai.messages import ModelMessage, ModelRequest, UserContent, UserPromptPart

from holdfast.errors import HoldfastError
from holdfast.ids import new_id
from holdfast.jsontext import lenient_json
from holdfast.record import ledger
from holdfast.record.batches import BatchWriter
from holdfast.record.calls import Calls
from holdfast.record.history import RecordedHistory
from holdfast.record.offloader import MediaOffloader
from holdfast.record.open_calls import pending_calls
from holdfast.record.run_host import RunHost
from holdfast.store import Store
from holdfast.types import Batch, Chain, Checkpoint, CheckpointKind, Effect, Lease, NewEvent, Run

_A_MOMENT = 0.005
"""How many seconds the end of a tool call, or the start of one that changes nothing, may wait for the next batch."""

_SETUP = 0.05
"""How many seconds the start of a run may wait for its first request, to be written with it."""


@dataclass(slots=True)
class Beginning:
    """The start of a run: its event, its messages and prompt, and the preceding run if that waited for this one."""

    event: NewEvent
    messages: list[ModelMessage]
    prompt: str | Sequence[UserContent] | None
    waited: Sequence[Run]


class Buffer(BatchWriter):
    """Collects the changes of one run and writes them as batches."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        run: Run,
        *,
        host: RunHost,
        offloader: MediaOffloader,
        calls: Calls,
        history: RecordedHistory,
    ) -> None:
        super().__init__(store, lease, offloader)
        self.run = run
        self._host = host
        self._calls = calls  # has the effects for the next batch
        self._history = history
        self._events: list[NewEvent] = []  # for the next batch
        self._beginning: Beginning | None = None  # until a batch contains it
        self._held: Batch | None = None  # the next batch contains it
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None

    def begin(self, beginning: Beginning) -> None:
        """Write the start of the run with its first request, or shortly after."""
        self._beginning = beginning
        self._events.append(beginning.event)
        self._write_within(_SETUP)

    def add(self, event: NewEvent) -> None:
        """Write an event with the next batch."""
        self._events.append(event)

    async def write_soon(self) -> None:
        """Write the collected changes: at once while other calls run, else with the next batch or within milliseconds."""
        if self._calls.any_runs:
            await self.write(self.take_pending())
        else:
            self._write_within(_A_MOMENT)

    def take_step(
        self,
        messages: list[ModelMessage],
        kind: CheckpointKind,
        step: int | None,
        *last: NewEvent,
        effects: Sequence[Effect] = (),
        thorough: bool = False,
    ) -> Batch:
        """Return a batch of all collected changes and the new messages of the history, with these events at its end.

        Results that are now part of a message move into it.
        """
        growth = self._history.grow(messages, thorough=thorough)
        added: list[NewEvent] = []
        moved: list[Effect] = []
        responded = False
        for row, message in zip(growth.messages, growth.added, strict=True):
            at = row.segment, row.position
            added.append(NewEvent(kind="message", run_id=self.run.id, step=step, message=at))
            if isinstance(message, ModelRequest):
                moved += self._move_results(message, at)
            else:
                responded = True
        batch = self._take([*moved, *effects])
        batch.events = [*batch.events, *added, *last]
        batch.segments = [*batch.segments, *growth.segments]
        batch.messages = [*batch.messages, *growth.messages]
        beginning, self._beginning = self._beginning, None
        if beginning is not None:
            batch.runs, batch.status = [self.run, *beginning.waited], "running"
        if growth.added or growth.segments or beginning is not None:
            batch.checkpoints = [self._checkpoint(kind, step)]
        self._host.amend(batch, self.run, begins=beginning is not None, responded=responded)
        return batch

    def take_pending(self, effects: Sequence[Effect] = ()) -> Batch:
        """Return a batch of all collected changes and these effects. If the run has made no request yet, keep its prompt for `resume`."""
        beginning = self._beginning
        if beginning is None:
            return self._take(effects)
        kind: CheckpointKind = "interrupted" if pending_calls(beginning.messages) else "settled"
        batch = self.take_step(beginning.messages, kind, 0, effects=effects)
        if beginning.prompt is not None:
            prompt = ModelRequest(parts=[UserPromptPart(beginning.prompt)])
            segment, aside = self._history.set_aside(prompt)
            batch.segments, batch.messages = [*batch.segments, segment], [*batch.messages, aside]
            beginning.event.message = aside.segment, aside.position
        return batch

    def hold_step(
        self,
        messages: list[ModelMessage],
        kind: CheckpointKind,
        step: int | None,
        *last: NewEvent,
        effects: Sequence[Effect] = (),
    ) -> None:
        """Write a step with the next batch, or within milliseconds. Changes that already wait are not delayed further."""
        loop = asyncio.get_running_loop()
        due = loop.time() + _A_MOMENT
        if self._timer is not None:
            due = min(due, self._timer.when())
        self._held = self.take_step(messages, kind, step, *last, effects=effects)
        self._timer = loop.call_at(due, self._start_flush)

    def start_held(self) -> None:
        """Start to write the held changes, because a later change follows that must come after them."""
        if self._held is not None:
            self.start(self.take_pending())

    async def write_effects(self, effects: Sequence[Effect], *last: NewEvent) -> None:
        """Write these effects and events, and all collected changes before them."""
        batch = self.take_pending(effects)
        batch.events = [*batch.events, *last]
        await self.write(batch)

    def add_effect(self, effect: Effect) -> None:
        """Write the end of a step with the next batch, or within milliseconds."""
        self._calls.changed.append(effect)
        self._write_within(_A_MOMENT)

    async def write_note(self, effect: Effect) -> None:
        """Write an annotation of a running call. No other batch builds on it."""
        self.start_held()
        await self.write(Batch(effects=[effect], chain=Chain()))

    @asynccontextmanager
    async def waiting_for_thread(self, name: str, call_id: str) -> AsyncGenerator[None, None]:
        """Show that the run was stopped and waits for the thread of a tool or step. No other batch builds on it."""
        payload = lenient_json({"name": name, "call_id": call_id})
        event = NewEvent(kind="waiting_for_thread", run_id=self.run.id, payload=payload)
        thread = f"the thread of {name} ({call_id})"
        with suppress(HoldfastError):  # the wait is the same if it cannot be shown
            await self.write(Batch(events=[event], status="running", waiting_for=thread, chain=Chain()))
        yield
        with suppress(HoldfastError):
            await self.write(Batch(status="running", chain=Chain()))

    def _take(self, effects: Sequence[Effect] = ()) -> Batch:
        """Return a batch of the held changes, the collected events and effects, and these effects, each in its latest state."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._held = self._held or Batch(), None
        batch.events = [*batch.events, *self._events]
        self._calls.changed = [*batch.effects, *self._calls.changed]
        batch.effects = self._calls.take(effects)
        self._events = []
        return batch

    def _keep(self, batch: Batch) -> None:
        self._events = [*(event for event in batch.events if event.message is None), *self._events]
        ended = (
            effect
            if effect.message is None
            else ledger.without_result(replace(effect, message=None, result=""))
            for effect in batch.effects
            if effect.state != "started"
        )
        self._calls.changed = [*ended, *self._calls.changed]

    def _move_results(self, request: ModelRequest, message: tuple[int, int]) -> list[Effect]:
        """Return the effects whose results are now in this message. Add an event for each call that it answers."""
        moved, answered = self._calls.moved(request, message)
        for call_id, effect in answered.items():
            facts = {"tool": effect.tool, "call_id": call_id, "answered": True}
            kind = f"tool_call_{effect.state}"
            self.add(NewEvent(kind=kind, run_id=self.run.id, payload=lenient_json(facts)))
        return moved

    def _checkpoint(self, kind: CheckpointKind, step: int | None) -> Checkpoint:
        segment, length = self._history.segment, len(self._history)
        return Checkpoint(
            id=new_id(), segment=segment, length=length, kind=kind, run_id=self.run.id, step=step
        )

    def _write_within(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._start_flush)

    def _start_flush(self) -> None:
        self._timer = None
        self._flushing = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        with suppress(HoldfastError):  # the next write raises it
            if self._events or self._calls.changed or self._held is not None:
                await self.write(self.take_pending())
