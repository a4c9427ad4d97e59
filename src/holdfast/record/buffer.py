"""Collect the changes of a run and write them as ordered batches.

A step is two batches: one when a model request begins and one before the first tool runs. All other changes are added to the
next batch. A timer writes them if none follows soon. The batch of a call that changes nothing is delayed for a moment: if the call ends
soon, the step is one batch. A batch can be started and waited for later: it is written while the model works on its response, and
nothing acts on the response before the batch is durable.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from pydantic_ai.messages import ModelMessage, ModelRequest, UserContent, UserPromptPart

from holdfast.errors import BudgetReached, Conflict, HoldfastError, MediaCollected
from holdfast.ids import new_id
from holdfast.jsontext import lenient_json
from holdfast.record import ledger
from holdfast.record.calls import Calls
from holdfast.record.history import RecordedHistory
from holdfast.record.offloader import MediaOffloader
from holdfast.record.open_calls import pending_calls
from holdfast.record.profiles import Profiles
from holdfast.record.run_host import RunHost
from holdfast.record.usage import Counted, UsageMeter
from holdfast.record.waits import Suspended, Wait, for_budget
from holdfast.store import Store
from holdfast.types import Batch, Chain, Checkpoint, CheckpointKind, Effect, Lease, NewEvent, Run

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestContext

    from holdfast.budgets import Account

_A_MOMENT = 0.005
"""How many seconds the end of a tool call, or the start of one that changes nothing, may wait for the next batch."""

_SETUP = 0.05
"""How many seconds the start of a run may wait for its first request, to be written with it."""


_PATIENCE = 0.5
"""How many seconds the end of a run waits for the writes before it."""


@dataclass(slots=True)
class Beginning:
    """The start of a run: its event, its messages and prompt, and the preceding run if that waited for this one."""

    event: NewEvent
    messages: list[ModelMessage]
    prompt: str | Sequence[UserContent] | None
    waited: Sequence[Run]


class BatchWriter(ABC):
    """Writes the batches of one run as one chain: after the first that fails, none is written."""

    def __init__(self, store: Store, lease: Lease, offloader: MediaOffloader) -> None:
        self.store = store
        self.lease = lease
        self._offloader = offloader
        self._chain = Chain()  # every batch builds on the previous ones
        self._order = asyncio.Lock()  # held while large content is stored, so that later batches wait
        self._started: list[asyncio.Task[None]] = []  # writes that are not waited for yet
        self._error: BaseException | None = None  # why one of them failed
        self._is_closed = False

    @property
    def failed(self) -> Exception | None:
        """Why a batch could not be written. Then no later batch of the history is written."""
        return self._chain.failed

    @property
    def is_durable(self) -> bool:
        """Whether no started write is under way or has failed."""
        return not self._started and self._error is None

    def start(self, batch: Batch) -> "asyncio.Task[None]":
        """Start to write a batch after the previous ones. `join` waits for it, and so does every later write."""
        task = asyncio.create_task(self._put_in_order(batch))
        self._started.append(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._started.remove(task)
        # Whether a cancelled write is durable is not known, so nothing may rely on it.
        self._error = self._error or (_given_up() if task.cancelled() else task.exception())

    async def join(self) -> None:
        """Wait until all started writes are durable. If one of them failed, raises its error to every caller."""
        if self._started:
            await asyncio.wait(self._started)
        if self._error is not None:
            raise self._error

    def caused(self, error: BaseException) -> bool:
        """Return whether an error comes from a failed write, and therefore not from the code that received it."""
        return any(cause in (self._error, self._chain.failed) for cause in _causes(error))

    async def finish(self) -> None:
        """Wait until no write is under way, because the run ends. Give up on a database that does not answer: the store keeps the order.

        Code that still waits in `join` does not continue: Pydantic AI runs each tool call in its own task, and cancels it only later.
        """
        self._error = self._error or _given_up()
        if self._started:
            _, late = await asyncio.wait(self._started, timeout=_PATIENCE)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def write(self, batch: Batch) -> None:
        """Write a batch after the previous ones, and wait until it is durable."""
        if not self._started:
            await self._put_in_order(batch)
            return
        self.start(batch)  # tasks begin in the order in which they were created
        await self.join()

    async def _put_in_order(self, batch: Batch) -> None:
        """Write a batch. Its large content is put into the media store first.

        The history counts as recorded as soon as a batch of it was created. If its content then cannot be stored, no later batch may be
        written: the run fails, and the next one continues from the recorded history.
        """
        if not self._offloader.concerns(batch) and not self._order.locked():
            await self._write(batch)
            return
        async with self._order:
            self._check()
            if (unput := await self._put_and_write(batch, self._write)) is not None:
                self._take_back(batch, unput)
                raise unput
            self._offloader.written(batch)

    async def _put_and_write(
        self, batch: Batch, write: Callable[[Batch], Awaitable[object]]
    ) -> BaseException | None:
        """Put large content into the media store, then write. Return the error if the content could not be put."""
        is_put = False

        async def put(batch: Batch) -> None:
            nonlocal is_put
            is_put = True
            try:
                await write(batch)
            except MediaCollected:
                is_put = False
                raise

        try:
            await self._offloader.write(batch, put)
        except BaseException as error:
            if is_put:
                raise
            return error
        return None

    async def write_failure(self, batch: Batch) -> None:
        """Write the failure of the run, even after a batch that could not be written."""
        await self.finish()
        batch.chain = self._chain if self._chain.failed is None else None
        write = partial(self.store.write, self.lease)
        if (unput := await self._put_and_write(batch, write)) is not None:
            if not isinstance(unput, HoldfastError):
                raise unput
            # The fact that a call was carried out matters more than its result.
            batch.effects = [ledger.without_result(effect) for effect in batch.effects]
            # Leave the history out: in messages that were not moved out, references are not escaped either.
            batch.segments, batch.messages, batch.checkpoints, batch.blobs = [], [], [], []
            for event in batch.events:
                event.message = None
            await write(batch)

    def _take_back(self, batch: Batch, error: BaseException) -> None:
        """Keep the part of a batch that can still be written although its content could not be stored."""
        self._keep(batch)
        if batch.messages or batch.segments:
            cut_off = Conflict(
                problem="the run was interrupted while its history was being put into the media store"
            )
            self._chain.failed = error if isinstance(error, HoldfastError) else cut_off

    @abstractmethod
    def _keep(self, batch: Batch) -> None:
        """Write the events, effects and usage of a batch, without its history, with the next batch."""

    async def _write(self, batch: Batch) -> None:
        self._check()
        chain = batch.chain = batch.chain or self._chain
        try:
            await self.store.write(self.lease, batch)
        except BudgetReached:
            raise  # nothing is lost: the run writes the rest of the batch
        except HoldfastError as error:
            chain.failed = chain.failed or error
            raise

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is written."""
        return self._is_closed

    def close(self) -> None:
        """Refuse to write anything more: nothing may follow the end of the run."""
        self._is_closed = True

    def _check(self) -> None:
        if self._is_closed:
            raise Conflict(problem="the run has ended")
        if self._chain.failed is not None:
            raise self._chain.failed


def _given_up() -> Conflict:
    return Conflict(problem="the run ended while one of its steps was being written")


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and its causes."""
    found: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        cause = left.pop()
        if cause is None or cause in found:
            continue
        found.append(cause)
        left += [cause.__cause__, cause.__context__]
        if isinstance(cause, BaseExceptionGroup):
            left += cast("BaseExceptionGroup[BaseException]", cause).exceptions
    return found


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
        self.meter = UsageMeter(run.agent, store.settings.prices)
        self.accounts: Sequence[Account] = host.accounts
        """What the run counts towards."""
        self._events: list[NewEvent] = []  # for the next batch
        self._blobs: list[str] = []  # to which these events refer
        self._profiles = Profiles(self._refer)
        self.receiving = asyncio.Lock()
        """Held while a wait receives a signal, so that no other one receives it."""
        self._beginning: Beginning | None = None  # until a batch contains it
        self._delayed: Batch | None = None  # the next batch contains it
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

    def responded(
        self, event: NewEvent, counted: Counted, request: "ModelRequestContext", history: list[ModelMessage]
    ) -> None:
        """Write with the next batch what a model request used, and this event with the facts about it."""
        self.meter.add(counted)
        event.payload = lenient_json({**counted.facts, **self._profiles.facts(request, history)})
        self.add(event)

    def _refer(self, digest: str, data: bytes) -> None:
        """Let the next batch refer to some content, which is put into the media store with it."""
        self._offloader.hold(digest, data)
        self._blobs.append(digest)

    def keep_undoable(self) -> None:
        """Remember that the run has a step that can be undone."""
        self._host.undoable = True

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

    def delay_step(
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
        self._delayed = self.take_step(messages, kind, step, *last, effects=effects)
        self._timer = loop.call_at(due, self._start_flush)

    def start_delayed(self) -> None:
        """Start to write the delayed changes, because a later change follows that must come after them."""
        if self._delayed is not None:
            self.start(self.take_pending())

    async def write_effects(self, effects: Sequence[Effect], *last: NewEvent) -> None:
        """Write these effects and events, and all collected changes before them."""
        batch = self.take_pending(effects)
        batch.events = [*batch.events, *last]
        await self.write(batch)

    async def ask(self, batch: Batch, asks: NewEvent, effect: Effect | None = None) -> None:
        """Write a batch with the event, and the ledger entry of a step, that may ask a model, before it is asked.

        If a budget is used up, the batch is written without these, and this raises `BudgetReached`.
        """
        if not self.accounts:
            self.start(batch)
            return
        batch.asks = True
        try:
            await self.write(batch)
        except BudgetReached:
            batch.asks = False
            batch.events = [event for event in batch.events if event is not asks]
            if effect is not None:
                batch.effects = [each for each in batch.effects if each.call_id != effect.call_id]
            if isinstance(self._error, BudgetReached):
                self._error = None
            await self.write(batch)
            raise

    async def start_step(self, effect: Effect, started: NewEvent, waits: list[Wait] | None) -> None:
        """Write the start of a step. One of a plain agent, which has `waits`, may ask a model: if a budget is used up, the turn is suspended."""
        if waits is None or not self.accounts:
            await self.write_effects([effect], started)
            return
        batch = self.take_pending([effect])
        batch.events = [*batch.events, started]
        try:
            await self.ask(batch, started, effect)
        except BudgetReached as reached:
            waits.append(for_budget(reached, effect.run_id, await self.store.now()))
            raise Suspended from None

    def add_effect(self, effect: Effect) -> None:
        """Write the end of a step with the next batch, or within milliseconds."""
        self._calls.changed.append(effect)
        self._write_within(_A_MOMENT)

    async def write_note(self, effect: Effect) -> None:
        """Write an annotation of a running call. No other batch builds on it."""
        self.start_delayed()
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
        batch, self._delayed = self._delayed or Batch(), None
        batch.events = [*batch.events, *self._events]
        self._calls.changed = [*batch.effects, *self._calls.changed]
        batch.effects = self._calls.take(effects)
        batch.usage = self.meter.take(batch.usage)
        batch.accounts = self.accounts
        batch.blobs = [*batch.blobs, *self._blobs]
        self._events, self._blobs = [], []
        return batch

    def _keep(self, batch: Batch) -> None:
        self.meter.give_back(batch.usage)
        self._events = [*(event for event in batch.events if event.message is None), *self._events]
        self._blobs = [*batch.blobs, *self._blobs]
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
            if self._events or self._calls.changed or self._delayed is not None:
                await self.write(self.take_pending())
