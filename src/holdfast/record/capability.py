"""The Pydantic AI capability that records every run of an agent: its steps as events, its history, its tool calls.

It writes twice per step: when a model request begins (what came before is settled), and before the first tool runs
(the response is the frontier). A tool's end is written at once while others run; the last one's is part of the write
that follows, which is at most a moment away. So is the beginning of a run: its prompt is in the first request, and is
set aside with the beginning if no request comes in that moment. It never runs a tool twice by itself.
"""

import asyncio
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai import CallToolsNode, RunContext
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailedError, ToolRetryError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import ToolDefinition

from holdfast.errors import AgentExited, Conflict, HoldfastError, NotFound, StoreError
from holdfast.ids import new_id
from holdfast.jsontext import lenient_json
from holdfast.leases import held
from holdfast.media import MediaStore
from holdfast.record import ledger
from holdfast.record.calls import Calls
from holdfast.record.history import History, load, read_history
from holdfast.record.ledger import Policy
from holdfast.record.offloader import MediaOffloader
from holdfast.record.turn import Turn
from holdfast.record.validity import pending_calls
from holdfast.store import Store
from holdfast.types import (
    Batch,
    Chain,
    Checkpoint,
    CheckpointKind,
    Effect,
    Lease,
    NewEvent,
    Run,
    SubmissionChange,
)

_run: ContextVar[str | None] = ContextVar("holdfast_run", default=None)
"""The run that is going on here: the parent of any run that a tool of it starts."""

_recorder: ContextVar["_Recorder | None"] = ContextVar("holdfast_recorder", default=None)
_A_MOMENT = 0.005
"""How long the end of a tool call may wait for the write that comes next."""

_SETUP = 0.05
"""How long the beginning of a run may wait for its first request, which is written with it."""


async def annotate_effect(
    ctx: RunContext[Any], *, summary: str | None = None, key: str | None = None
) -> None:
    """Note on the ledger entry of the running tool call what it did, or the key it used. Survives the call's end.

    Does nothing where no run is recorded, so that tools can be tested on their own.
    """
    recorder = _recorder.get()
    if recorder is not None and ctx.tool_call_id is not None:
        await recorder.annotate(ctx.tool_call_id, summary, key)


class Holdfast(AbstractCapability[Any]):
    """Record every run of the agent in a store. The session is the run's `conversation_id`.

    `policies` says by tool name what becomes of a call whose outcome is unknown after a crash; a tool may say it
    itself with `metadata={"recovery": "retry"}`. New sessions belong to `owner`; by default to the owner of the run whose tool
    starts this one, else to `local`. A session of another owner does not exist for this agent. Content of at least `media_threshold` bytes goes to the `media` store;
    both are those of the store's settings unless they are given. `run_id` names the run; a second one with that name is refused. The
    capability given for a run stands in for the agent's own.
    """

    def __init__(
        self,
        store: Store,
        *,
        agent: str | None = None,
        owner: str | None = None,
        run_id: str | None = None,
        parent_run_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        policies: Mapping[str, Policy] | None = None,
        lease_ttl: float | None = None,
        turn: Turn | None = None,
        media: MediaStore | None = None,
        media_threshold: int | None = None,
    ) -> None:
        self.id = "holdfast"
        self.media = media
        self.media_threshold = media_threshold
        self.store = store
        self.lease_ttl = lease_ttl
        self.agent = agent
        self.owner = owner
        self.run_id = run_id
        self.parent_run_id = parent_run_id
        self.metadata = dict(metadata or {})
        self.policies: dict[str, Policy] = dict(policies or {})
        self.turn = turn

    def get_ordering(self) -> CapabilityOrdering:
        """Stand outside of all others: what they change is what is recorded."""
        return CapabilityOrdering(position="outermost")

    def get_default_run_id(self) -> str | None:
        """Return the id that was asked for."""
        return self.run_id

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:
        """Return what records this one run."""
        del ctx
        outer = _recorder.get()
        if outer is None or not outer.is_active:  # a task that it started may outlive it
            return _Recorder(self, parent=self.parent_run_id, owner=self.owner or "local")
        return _Recorder(self, parent=self.parent_run_id or _run.get(), owner=self.owner or outer.owner)


@dataclass(slots=True)
class _Beginning:
    """How a run began: the event that says so, and what it was given."""

    event: NewEvent
    messages: list[ModelMessage]
    prompt: str | Sequence[UserContent] | None


class _Recorder(AbstractCapability[Any]):
    """Records one run."""

    def __init__(self, settings: Holdfast, *, parent: str | None, owner: str) -> None:
        self.id = settings.id
        self.owner = owner
        self.is_active = False
        self._caller: asyncio.Task[Any] | None = None  # runs the agent; `wrap_run` has a task of its own
        self._settings = settings
        self._turn = settings.turn
        self._steered: list[str] = []
        self._store = settings.store
        self._offloader = MediaOffloader(settings.store, settings.media, settings.media_threshold)
        self._order = asyncio.Lock()  # while something large is put, what comes after it waits
        self._parent = parent
        self._history = History()
        self._calls = Calls(settings.policies)
        self._events: list[NewEvent] = []  # told with the next write
        self._guard: asyncio.TimerHandle | None = None  # makes it come soon
        self._late: asyncio.Task[None] | None = None
        self._chain = Chain()  # every batch builds on those before it
        self._unsaid: _Beginning | None = None  # how the run began, until a write has said so
        self._waited: list[Run] = []  # the run before, if it waited for an answer
        self._lease: Lease | None = None
        self._row = Run(id="")
        self._run_id = ""

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="outermost")

    def _prepare_run_context(self, ctx: RunContext[Any]) -> None:
        # The one hook that Pydantic AI calls in the task of the run before it starts another for `wrap_run`.
        del ctx
        self._caller = asyncio.current_task()

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> AgentRunResult[Any]:
        if ctx.run_id is None or ctx.conversation_id is None:
            message = "a run without an id cannot be recorded"
            raise RuntimeError(message)
        self._run_id, session_id = ctx.run_id, ctx.conversation_id
        self._calls.run_id = self._run_id
        agent = self._settings.agent or getattr(ctx.agent, "name", None) or "agent"
        if self._turn is None:
            await self._store.create_session(agent=agent, owner=self.owner, id=session_id, exist_ok=True)
            with suppress(NotFound):
                run = await self._store.run(self._run_id)
                raise Conflict(problem=f"run {run.id} is on record already; an explicit run id is used once")
        else:
            self._turn.recording = asyncio.current_task()
        with _ended_with(self._caller):
            return await self._record(ctx, session_id, agent, handler)

    async def _record(
        self, ctx: RunContext[Any], session_id: str, agent: str, handler: Any
    ) -> AgentRunResult[Any]:
        async with self._leased(session_id) as lease:
            self._lease = lease
            await self._begin(ctx, agent)
            token, recorder = _run.set(self._run_id), _recorder.set(self)
            self.is_active = True
            try:
                result: AgentRunResult[Any] = await handler()
            except SystemExit as error:  # out of this task it would end the event loop
                exited = AgentExited(what="The agent", error=_said(error))
                await self._fail(exited)
                raise exited from error
            except BaseException as error:
                await self._fail(error)
                raise
            finally:
                self.is_active = False
                with suppress(ValueError):  # a stream may end in another context
                    _run.reset(token)
                    _recorder.reset(recorder)
            await self._end(result)
            return result

    def _leased(self, session_id: str) -> AbstractAsyncContextManager[Lease]:
        if self._turn is not None:
            return nullcontext(self._turn.lease)
        return held(self._store, session_id, ttl=self._settings.lease_ttl)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        if self._turn is not None:
            for message in await self._turn.steered():
                ctx.enqueue(*message.content)
                self._steered.append(message.submission_id)
        return request_context

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        # Pydantic AI tells the model that there is no such tool, also of a call that was begun: it would be forgotten.
        if self._calls.inherited and isinstance(node, CallToolsNode):
            self._calls.inherited = False
            known = ctx.tool_manager and ctx.tool_manager.tools
            missing = sorted(self._calls.tools - set(known or ()))
            if known is not None and missing:
                raise Conflict(problem=gone(missing))
        return node  # pyright: ignore[reportUnknownVariableType]

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: Any
    ) -> ModelResponse:
        # Every tool call is answered here: this is a point to go on from.
        await self._write(ctx, ctx.messages, "settled", self._event(ctx, "model_request_started"))
        if (turn := self._turn) is not None and (turn.draining or turn.stop):
            turn.cancel(turn.stop or "handover")  # once more, if a tool swallowed it
            await asyncio.sleep(0)
        try:
            response: ModelResponse = await handler(request_context)
        except BaseException as error:
            self._events.append(self._event(ctx, "model_request_failed", error=_said(error)))
            raise
        facts = {"model": response.model_name, "usage": _usage(response), "cost": _cost(response)}
        self._events.append(self._event(ctx, "model_request_completed", **facts))
        self._calls.made_by(response)
        return response

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Any,
    ) -> Any:
        facts = {"tool": call.tool_name, "call_id": call.tool_call_id}
        ref = self._calls.ref(ctx.messages, call.tool_call_id)
        known = self._calls.entry(ref)
        if known is not None and (answer := self._calls.answer(ctx, known, tool_def)) is not None:
            if not self._calls.waits(ref):
                told = {} if ledger.is_known(known) else {"outcome": "unknown"}
                self._events.append(self._event(ctx, "tool_call_completed", **facts, **told))
            return answer()
        effect = self._calls.begin(ref, call.tool_name, ctx.run_step, args)
        # The response, with all its calls, is durable before the first of them runs.
        await self._write(
            ctx, ctx.messages, "interrupted", self._event(ctx, "tool_call_started", **facts), effects=[effect]
        )
        token = ledger.current_call.set(ref)
        task = asyncio.current_task()
        try:
            value = await handler(args)
        except (ToolRetryError, ToolFailedError) as told:
            await self._settle(ctx, effect, "tool_call_completed", result=ledger.raised(told))
            raise
        except (ApprovalRequired, CallDeferred) as later:
            # It ends when it is answered, in whatever run.
            kind = "approval" if isinstance(later, ApprovalRequired) else "external"
            await self._note(effect, result=ledger.deferred(kind, later.metadata))
            raise
        except asyncio.CancelledError:
            raise  # whether it took effect is not known
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not _is_current(task):
                raise  # the event loop is gone and this coroutine is being closed
            await self._settle(ctx, effect, "tool_call_failed", error=_said(error))
            if self._ends_process(error):
                raise AgentExited(what=f"The tool {call.tool_name}", error=_said(error)) from error
            raise
        finally:
            ledger.current_call.reset(token)  # a delegate's calls are not the caller's
        self._calls.returns(ref, ToolReturnPart(call.tool_name, value, call.tool_call_id))
        await self._settle(ctx, effect, "tool_call_completed")
        return value

    def _ends_process(self, error: BaseException) -> bool:
        """Tell whether an error would end the event loop, and with it every other run of this process.

        Ctrl-C belongs to the user where there is one. A worker has its own signal handlers.
        """
        interrupts = isinstance(error, KeyboardInterrupt) and self._turn is not None
        return interrupts or isinstance(error, SystemExit | GeneratorExit)

    async def annotate(self, call_id: str, summary: str | None, key: str | None) -> None:
        """Write a note into the ledger, while the call runs."""
        noted = self._calls.annotate(call_id, summary, key)
        if noted is not None:
            await self._send(Batch(effects=[noted], chain=Chain()))  # nothing builds on it

    async def _settle(self, ctx: RunContext[Any], effect: Effect, kind: str, **outcome: str) -> None:
        failed = "error" in outcome
        error = {"error": outcome["error"]} if failed else {}
        self._events.append(self._event(ctx, kind, tool=effect.tool, call_id=effect.call_id, **error))
        await self._note(effect, state="failed" if failed else "completed", **outcome)

    async def _note(self, effect: Effect, **changes: str) -> None:
        """Have it written how a call stands now: with what was noted meanwhile, and soon."""
        self._calls.note(effect, **changes)
        if self._calls.any_runs:
            await self._send(self._taken())
        else:
            self._write_within(_A_MOMENT)

    def _write_within(self, seconds: float) -> None:
        if self._guard is None:
            self._guard = asyncio.get_running_loop().call_later(seconds, self._write_late)

    def _write_late(self) -> None:
        """Write what has waited for a moment: whatever comes next is slow to come."""
        self._guard = None
        self._late = asyncio.create_task(self._write_taken())

    async def _write_taken(self) -> None:
        with suppress(HoldfastError):  # the next write says so
            if self._events or self._calls.changed:
                await self._send(self._begun())

    def _begun(self) -> Batch:
        """Return a batch of all that waits; if the run has only begun, with its prompt, set aside for `resume`."""
        if self._unsaid is None:
            return self._taken()
        event, messages, prompt = self._unsaid.event, self._unsaid.messages, self._unsaid.prompt
        kind: CheckpointKind = "interrupted" if pending_calls(messages) else "settled"
        batch = self._grown(messages, kind, 0)
        batch.checkpoints = [self._checkpoint(kind, 0)]
        if prompt is not None:
            segment, aside = self._history.set_aside(ModelRequest(parts=[UserPromptPart(prompt)]))
            batch.segments, batch.messages = [*batch.segments, segment], [*batch.messages, aside]
            event.message = aside.segment, aside.position
        return batch

    def _taken(self, effects: Sequence[Effect] = ()) -> Batch:
        """Return a batch of all that waits for a write, and of these effects; of each in its last state."""
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None
        batch = Batch(events=self._events, effects=self._calls.take(effects))
        self._events = []
        if self._unsaid is not None:
            batch.runs, batch.status, self._unsaid = [self._row, *self._waited], "running", None
            if self._turn is not None:
                self._begin_turn(batch, self._turn)
        return batch

    def _begin_turn(self, batch: Batch, turn: Turn) -> None:
        """Say with the run's beginning which submission it carries out, and which run it goes on for."""
        turn.run_id = self._run_id
        batch.submissions = [SubmissionChange(id=turn.submission_id, state="claimed", run_id=self._run_id)]
        if turn.replaces is not None:
            batch.runs = [self._row, turn.replaces]
            if turn.recovered:
                payload = lenient_json({"run_id": turn.replaces.id})
                recovered = NewEvent(kind="recovered", run_id=self._run_id, payload=payload)
                batch.events = [recovered, *batch.events]

    async def _begin(self, ctx: RunContext[Any], agent: str) -> None:
        """Find the place in the recorded history where this run goes on, and say that it has begun."""
        session_id = self._held().session_id
        if self._turn is not None:  # whoever holds the lease has looked
            at, recorded = self._turn.checkpoint, self._turn.recorded
        else:
            latest = (await self._store.checkpoints(session_id=session_id, limit=1)).items
            at, recorded = (latest[0] if latest else None), []
            if at is not None:
                recorded = load(await self._offloader.back(await read_history(self._store, session_id, at)))
        if at is not None:
            segments = await self._store.segments(session_id)
            beyond = await self._store.history(
                session_id, segment=at.segment, length=at.length + 1, after=at.length - 1, limit=1
            )
            self._history = History(at.segment, len(segments), recorded, open_ended=not beyond)
            if at.run_id is not None and pending_calls(recorded):
                last = await self._store.run(at.run_id)
                self._waited = [replace(last, status="completed")] if last.status == "waiting" else []
        # Calls that were left open: this run carries them out, or was given their answers.
        carried_out = pending_calls(ctx.messages)
        messages = ctx.messages if carried_out else recorded
        if pending := carried_out or pending_calls(recorded):
            for call_id, (run_id, entry) in self._calls.inherit(messages, pending).items():
                page = await self._store.effects(session_id, run_id=run_id, call_id=entry)
                for effect in await self._offloader.effects_back(page.items):
                    self._calls.enter(call_id, effect)
            self._calls.inherited = bool(carried_out and self._calls.tools)
        metadata = lenient_json(self._settings.metadata)
        self._row = Run(id=self._run_id, agent=agent, parent_id=self._parent, metadata=metadata)
        started = self._event(ctx, "run_started", agent=agent, parent=self._parent)
        self._events.append(started)
        self._unsaid = _Beginning(started, list(ctx.messages), ctx.prompt)
        self._write_within(_SETUP)

    async def _send(self, batch: Batch) -> None:
        """Write a batch, with what is large in it put into the media store before. Batches stay in order.

        The history counts as recorded from when a batch was made. If then its content cannot be put, nothing may be
        written behind it: the run fails, and the next one goes on from what is there.
        """
        if not self._offloader.concerns(batch) and not self._order.locked():
            await self._put(batch)
            return
        async with self._order:
            self._held()
            try:
                await self._offloader.move_out(batch)
            except BaseException as error:
                self._give_back(batch, error)
                raise
            await self._put(batch)
            self._offloader.written(batch)

    async def _put(self, batch: Batch) -> None:
        """Write a batch, unless one before it failed: then nothing may be written behind that."""
        lease = self._held()
        chain = batch.chain = batch.chain or self._chain
        try:
            await self._store.write(lease, batch)
        except HoldfastError as error:
            chain.failed = chain.failed or error
            raise

    def _give_back(self, batch: Batch, error: BaseException) -> None:
        """Keep what can still be told of a batch whose content could not be put."""
        self._events = [*(event for event in batch.events if event.message is None), *self._events]
        ended = (
            effect
            if effect.message is None
            else ledger.without_result(replace(effect, message=None, result=""))
            for effect in batch.effects
            if effect.state != "started"
        )
        self._calls.changed = [*ended, *self._calls.changed]
        if batch.messages or batch.segments:
            cut_off = Conflict(problem="the run was cut off while its history was put into the media store")
            self._chain.failed = error if isinstance(error, HoldfastError) else cut_off

    async def _write(
        self,
        ctx: RunContext[Any],
        messages: list[ModelMessage],
        kind: CheckpointKind,
        event: NewEvent,
        *,
        effects: Sequence[Effect] = (),
    ) -> None:
        batch = self._grown(messages, kind, ctx.run_step, effects=effects)
        batch.events = [*batch.events, event]
        await self._send(batch)

    def _grown(
        self,
        messages: list[ModelMessage],
        kind: CheckpointKind,
        step: int | None,
        *,
        effects: Sequence[Effect] = (),
        thorough: bool = False,
    ) -> Batch:
        """Return a batch with what the history gained, and with the results that moved into it."""
        growth = self._history.grow(messages, thorough=thorough)
        told: list[NewEvent] = []
        moved: list[Effect] = []
        for row, message in zip(growth.messages, growth.added, strict=True):
            told.append(
                NewEvent(kind="message", run_id=self._run_id, step=step, message=(row.segment, row.position))
            )
            if isinstance(message, ModelRequest):
                moved += self._moved(message, (row.segment, row.position))
        begins = self._unsaid is not None
        batch = self._taken([*moved, *effects])
        batch.events = [*batch.events, *told]
        batch.segments, batch.messages = growth.segments, growth.messages
        if self._turn is not None:
            if any(isinstance(message, ModelResponse) for message in growth.added):
                batch.drafts_done = [self._run_id]
            steered = [
                SubmissionChange(id=submission_id, state="done", run_id=self._run_id)
                for submission_id in self._steered
            ]
            batch.submissions = [*batch.submissions, *steered]
            self._steered.clear()
        if growth.added or growth.segments or begins:
            batch.checkpoints = [self._checkpoint(kind, step)]
        return batch

    def _checkpoint(self, kind: CheckpointKind, step: int | None) -> Checkpoint:
        segment, length = self._history.segment, len(self._history)
        return Checkpoint(
            id=new_id(), segment=segment, length=length, kind=kind, run_id=self._run_id, step=step
        )

    def _moved(self, request: ModelRequest, message: tuple[int, int]) -> list[Effect]:
        """Return the effects whose results are in this message now; of those that it answers, tell that they ended."""
        moved, answered = self._calls.moved(request, message)
        for call_id, effect in answered.items():
            facts = {"tool": effect.tool, "call_id": call_id, "answered": True}
            kind = f"tool_call_{effect.state}"
            self._events.append(NewEvent(kind=kind, run_id=self._run_id, payload=lenient_json(facts)))
        return moved

    async def _end(self, result: AgentRunResult[Any]) -> None:
        messages = result.all_messages()
        waits = pending_calls(messages)
        kind: CheckpointKind = "interrupted" if waits else "settled"
        batch = self._grown(
            messages, kind, None, effects=self._calls.deferred(messages, result.output), thorough=True
        )
        batch.runs = [*batch.runs[1:], replace(self._row, status="waiting" if waits else "completed")]
        batch.status = "waiting" if waits else "idle"
        ending = NewEvent(kind="run_completed", run_id=self._run_id)
        if waits:
            batch.waiting_for = ", ".join(f"{call.tool_name} ({call.tool_call_id})" for call in waits)
            asked = [_asked(call) for call in waits]
            ending = NewEvent(
                kind="approval_requested", run_id=self._run_id, payload=lenient_json({"calls": asked})
            )
        batch.events = [*batch.events, ending]
        if (turn := self._turn) is not None:
            change = SubmissionChange(
                id=turn.submission_id,
                state="waiting" if waits else "done",
                reason=batch.waiting_for,
                run_id=self._run_id,
            )
            others = [c for c in batch.submissions if c.id != change.id]
            batch.submissions = [*others, change]
            batch.release = turn.last
        await self._send(batch)
        if turn is not None:
            turn.ended, turn.waits = True, bool(waits)

    async def _fail(self, error: BaseException) -> None:
        """Say how the run ended. What it got to is on record already."""
        await self._write_failure(error)
        if self._turn is not None and isinstance(self._chain.failed, StoreError):
            self._turn.failed = self._chain.failed

    async def _write_failure(self, error: BaseException) -> None:
        lease, turn = self._lease, self._turn
        stop = None if turn is None else turn.stop
        if lease is None or lease.lost or stop == "lost":
            return
        if turn is not None and (isinstance(error, StoreError) or isinstance(self._chain.failed, StoreError)):
            return  # what became of it is for whoever goes on to say
        if turn is not None and stop is None and self._caller is not None and self._caller.cancelling():
            return  # nobody asked for it: the worker is being torn down, and another one continues the turn
        if stop == "handover":  # likewise, from here
            with suppress(HoldfastError):
                await self._send(self._begun())
            return
        if turn is not None and stop == "timeout":
            error = turn.timed_out()
        cancelled = isinstance(error, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit) and (
            turn is None or stop == "interrupt"
        )
        kind = "interrupted" if cancelled else "failed"
        event = NewEvent(
            kind=f"run_{kind}", run_id=self._run_id, payload=lenient_json({"error": _said(error)})
        )
        run = replace(self._row, status=kind, error=_said(error))
        batch = self._begun() if self._chain.failed is None else self._taken()  # nothing of the history
        batch.events, batch.runs, batch.status = [*batch.events, event], [*batch.runs[1:], run], "idle"
        batch.chain = self._chain if self._chain.failed is None else None
        if turn is not None:
            batch.drafts_done = [self._run_id]
            reason = "interrupted" if cancelled else _said(error)
            change = SubmissionChange(
                id=turn.submission_id, state="failed", reason=reason, run_id=self._run_id
            )
            batch.submissions = [change]
        with suppress(HoldfastError):  # the error that ended the run is the one to raise
            try:
                await self._offloader.move_out(batch)
            except HoldfastError:  # that a call was carried out matters more than what it gave back
                batch.effects = [ledger.without_result(effect) for effect in batch.effects]
            await self._store.write(lease, batch)
            if turn is not None:
                turn.ended = True

    def _event(self, ctx: RunContext[Any], kind: str, **facts: object) -> NewEvent:
        return NewEvent(kind=kind, run_id=self._run_id, step=ctx.run_step, payload=lenient_json(facts))

    def _held(self) -> Lease:
        if self._lease is None:
            message = "the run has no lease yet"
            raise RuntimeError(message)
        if self._chain.failed is not None:
            raise self._chain.failed
        return self._lease


@contextmanager
def _ended_with(caller: "asyncio.Task[Any] | None") -> Generator[None, None, None]:
    """Cancel the current task when the task that runs the agent ends first.

    Pydantic AI calls `wrap_run` in a task of its own and forgets it if the run is cancelled in the moment after its start:
    then it would wait for the end of the run, and hold the session, as long as the process lives.
    """
    task = asyncio.current_task()
    if caller is None or task is None:
        yield
        return

    def cancel(_: object) -> None:
        task.cancel()

    caller.add_done_callback(cancel)
    try:
        yield
    finally:
        caller.remove_done_callback(cancel)


def _asked(call: ToolCallPart) -> dict[str, Any]:
    """Return what a person is asked: the call, with the digest that the answer is bound to."""
    arguments = call.args_as_dict()
    return {
        "call_id": call.tool_call_id,
        "tool": call.tool_name,
        "arguments": arguments,
        "digest": ledger.digest(arguments),
    }


def gone(tools: Sequence[str]) -> str:
    """Say that an agent cannot go on with calls of these tools."""
    return f"the agent has no tool {', '.join(tools)} any more, which a pending call needs"


def _is_current(task: "asyncio.Task[Any] | None") -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no event loop is running
        return False


def _said(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text.replace("\x00", "\\x00").encode("utf-8", "replace").decode()


def _usage(response: ModelResponse) -> dict[str, int]:
    usage = response.usage
    return {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}


def _cost(response: ModelResponse) -> str | None:
    try:
        return str(response.cost().total_price)
    except (LookupError, AssertionError, ValueError):  # no price is known for this model
        return None
