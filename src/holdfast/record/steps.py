"""Steps: parts of a tool call or of a plain agent's turn that have their own ledger entries.

After a crash the code runs again from the top. A step whose end is recorded does not run again: it returns its recorded result or
raises its recorded failure. The start of a step is durable before it runs; the same write records the end of the previous step.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Final, TypeVar, TypeVarTuple, cast, overload

from pydantic_ai.exceptions import ApprovalRequired

from holdfast.errors import BadInput, OutcomeUnknown, StepError, StepsDiffer
from holdfast.jsontext import lenient_json
from holdfast.record import ledger, step_results
from holdfast.record.buffer import Buffer
from holdfast.record.ledger import CallRef
from holdfast.record.offloader import MediaOffloader
from holdfast.record.probes import LIMIT_SECONDS, Done, NotDone, Probe, ProbeAnswer, ask_probe
from holdfast.record.retries import Pause, Retry
from holdfast.record.step_requests import StepPolicy, StepRequest
from holdfast.record.step_tasks import StepTasks
from holdfast.record.threads import RunThreads, ThreadedCall
from holdfast.record.undo import Undo, UndoFunction, find_undo, undo_record
from holdfast.record.waits import Suspended, Wait
from holdfast.store import Store
from holdfast.types import Effect, NewEvent

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_PATIENCE_SECONDS: Final = 30.0
"""How long a new step waits for concurrent code to repeat its recorded steps."""


@dataclass(slots=True, kw_only=True)
class Steps:
    """The steps of one tool call, or of one turn of a plain agent."""

    ref: CallRef
    """The ledger entry that they belong to."""
    store: Store
    buffer: Buffer
    offloader: MediaOffloader
    threads: RunThreads
    step: int | None = None
    """The step of the run, for the events."""
    redone: Collection[str] = ()
    """The entries of steps that run again, each as a new entry."""
    renewed: Mapping[str, str] = field(default_factory=dict[str, str])
    """The retries that repeat completed steps, by position. A repeat is a new request with its own idempotency key."""
    undos: Mapping[str, Undo] = field(default_factory=dict[str, Undo])
    """The functions of the agent that undo steps."""
    approved: bool = False
    """Whether a person decided to repeat the steps that wait for it."""
    settled: Callable[[], Awaitable[None]] | None = None
    """Called before a step if no other step is running. May stop the run."""
    check: Callable[[], None] | None = None
    """Called when the code requests a step. Raises if the step must not run."""
    decide: Callable[[str, str, int, Any], Awaitable[bool]] | None = None
    """Ask a person whether a step may run again, given its name, entry, attempts and arguments. By default the tool call waits for an approval."""
    waits: list[Wait] = field(default_factory=list[Wait])
    """What the code waits for. Then it is suspended."""
    delegates: dict[str, Any] = field(default_factory=dict[str, Any])  # about to start, by their run
    _recorded: dict[str, Effect] = field(default_factory=dict[str, Effect])
    """The recorded steps that the code has not requested yet."""
    _requested: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    _running: dict[CallRef, Effect] = field(default_factory=dict[CallRef, Effect])
    _replayed: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: StepTasks = field(default_factory=StepTasks)
    _failures: list[str] = field(default_factory=list[str])
    """The entries of steps that failed or have an unknown outcome, in the order in which the code received the errors."""

    async def load(self, parent: CallRef | None = None) -> None:
        """Read the recorded steps of the call, or of one of its steps. Steps within a completed step are not needed."""
        entries = await ledger.step_entries(self.store, self.buffer.lease.session_id, *(parent or self.ref))
        entries = {entry: effect for entry, effect in entries.items() if entry not in self.redone}
        ended = tuple(
            ledger.place(entry) + "/" for entry, effect in entries.items() if effect.state != "started"
        )
        self._recorded |= {entry: effect for entry, effect in entries.items() if not entry.startswith(ended)}

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Record the `step` calls of the code in this block as steps of this call. Raises `StepsDiffer` if it ends before its recorded steps.

        When the code ends or fails, waits for steps that still run, such as the others in a `gather`, so that their outcomes are recorded.
        When it is cancelled, cancels them, and waits until they have ended.
        """
        self.tasks.begin()
        token = _current.set(self)
        keys = ledger.renewed_keys.set({(self.ref[0], place): self._key(place) for place in self.renewed})
        try:
            try:
                yield
            except asyncio.CancelledError:
                await self.tasks.stop()
                raise
            except (Exception, Suspended, BaseExceptionGroup):
                await self.tasks.finish(self._running)
                raise
            await self.tasks.finish(self._running)
        finally:
            self.tasks.closed = True
            _current.reset(token)
            ledger.renewed_keys.reset(keys)
        for entry, effect in self._recorded.items():
            raise StepsDiffer(asked="it has ended", recorded=label(entry, effect))

    @property
    def is_replaying(self) -> bool:
        """Whether recorded steps remain that the code has not requested."""
        return bool(self._recorded)

    def take_recorded(self, name: str) -> tuple[CallRef, Effect | None]:
        """Return the next entry with this name, and its effect if it is recorded."""
        before = self._requested[self.ref[1], name]
        self._requested[self.ref[1], name] += 1
        entry = ledger.step_entry(self.ref[1], name, before)
        self._replayed.set()
        return (self.ref[0], entry), self._recorded.pop(entry, None)

    def ended_by(self, error: BaseException) -> list[str]:
        """Return the entries of the steps that caused an error, and of all steps that failed afterwards.

        `gather` raises only the first failure.
        """
        entries = failed_steps(error)
        since = [self._failures.index(entry) for entry in entries if entry in self._failures]
        return list(dict.fromkeys([*entries, *(self._failures[min(since) :] if since else ())]))

    async def run(self, request: StepRequest) -> Any:
        """Run a step, or return its recorded result."""
        request = self._placed(request)
        with self.tasks.counted():
            return await self._run(request)

    async def _run(self, request: StepRequest) -> Any:
        if request.undo is not None:
            self.buffer.keep_undoable()
        known = self._recorded.pop(request.entry, None)
        if known is None:
            if request.entry == request.ref[1]:  # else it is on record, as one that failed
                await self.finish_replay(f"it calls step {request.name!r}")
        else:
            self._replayed.set()
            if known.arguments_digest != request.digest:
                asked = f"it calls step {request.name!r} with other arguments"
                raise StepsDiffer(asked=asked, recorded=label(request.entry, known))
            if known.state != "started":
                if known.state == "failed":
                    self._failures.append(request.entry)
                (known,) = await self.offloader.effects_back([known])
                return request.replay(known)
            if ledger.waits_for(known) == "again" and not self.approved:
                await self._ask(request, known)
            if ledger.waits_for(known) is None:
                answer = await self._probe(request, known)
                if answer is not None:
                    known = ledger.with_answer(known, answer)
                if isinstance(answer, Done):
                    for inner in self._drop_inner(request):
                        if inner.state == "started":  # a part of what was done
                            self.buffer.add_effect(
                                replace(inner, state="completed", result=ledger.UNSERIALIZABLE)
                            )
                    return await self._complete(request, known, answer.result, probed=True)
                if not isinstance(answer, NotDone):
                    await self._apply_policy(request, known)
        if self.settled is not None and not self._running:
            await self.settled()
        return await self._attempt(request, known)

    @contextmanager
    def running(self, effect: Effect) -> Generator[None, None, None]:
        """Let the end of the call or turn wait for this block."""
        ref = effect.run_id, effect.call_id
        self._running[ref] = effect
        try:
            with self.tasks.counted():
                yield
        finally:
            self._running.pop(ref, None)
            self.tasks.changed()

    async def annotate(self, ref: CallRef, summary: str | None, key: str | None) -> bool:
        """Annotate a running step; return whether it is one."""
        effect = self._running.get(ref)
        if effect is None:
            return False
        noted = self._running[ref] = replace(
            effect, summary=summary or effect.summary, idempotency_key=key or effect.idempotency_key
        )
        await self.buffer.write_note(noted)
        return True

    def _placed(self, request: StepRequest) -> StepRequest:
        """Assign a step the next position for its name. Raises `BadInput` after the end of the call or turn."""
        if self.tasks.closed:
            raise BadInput(problem=f"step {request.name!r} was started after its tool call or turn had ended")
        if self.check is not None:
            self.check()
        parent = ledger.current_call.get() or self.ref
        within = parent[1] if parent[0] == self.ref[0] and _is_within(parent[1], self.ref[1]) else self.ref[1]
        before = self._requested[within, request.name]
        self._requested[within, request.name] += 1
        place = ledger.step_entry(within, request.name, before)
        return replace(request, ref=(self.ref[0], place), entry=ledger.next_entry(place, self.redone))

    async def finish_replay(self, asked: str) -> None:
        """Let concurrent code repeat its recorded steps before a new one runs. Raises `StepsDiffer` if it does not."""
        alone = self.tasks.is_main  # then no other part of the code can be about to ask
        while self._recorded:
            self._replayed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0 if alone else _PATIENCE_SECONDS):
                    await self._replayed.wait()
                    continue
            entry, effect = next(iter(self._recorded.items()))
            raise StepsDiffer(asked=asked, recorded=label(entry, effect))

    async def _probe(self, request: StepRequest, known: Effect) -> ProbeAnswer | None:
        if request.probe is None:
            return None
        call = request.unsettled(known, known.idempotency_key or self._key(request.ref[1]))
        async with outside():
            answer, error = await ask_probe(request.probe, call, request.probe_timeout)
        facts = request.facts(answer=ledger.ANSWERS[type(answer)], **({"error": error} if error else {}))
        self.buffer.add(self.event("probe_answered", facts))
        return answer

    async def _apply_policy(self, request: StepRequest, known: Effect) -> None:
        """Return if the step may run again although its outcome is unknown."""
        if request.policy == "retry":
            return
        if request.policy == "ask":
            await self.buffer.write_effects([replace(known, result=ledger.deferred("again"))])
            await self._ask(request, known)
            return
        await self.buffer.write_effects([known])  # with the answer of the probe
        raise self._unknown(request)

    async def _ask(self, request: StepRequest, known: Effect) -> None:
        """Return if a person allows the step to run again."""
        if self.decide is None:
            raise StepApproval({"step": request.name, "call_id": request.entry})
        if not await self.decide(request.name, request.entry, known.attempts, request.arguments_as_json()):
            await self.buffer.write_effects([replace(known, result=None)])
            raise self._unknown(request)

    def _unknown(self, request: StepRequest) -> OutcomeUnknown:
        self._drop_inner(request)
        self._failures.append(request.entry)
        return OutcomeUnknown(step=request.name, call_id=request.entry)

    async def _repeat_inner(self, request: StepRequest) -> None:
        """Let the next attempt repeat the recorded steps of the one that failed, as it would after a crash."""
        requested = [place for place in self._requested if _is_within(place[0], request.ref[1])]
        for place in requested:
            del self._requested[place]
        if requested:
            await self.load(request.ref)

    def _drop_inner(self, request: StepRequest) -> list[Effect]:
        """Do not expect the recorded steps within a step that does not run again. Return them."""
        inner = [entry for entry in self._recorded if entry.startswith(request.ref[1] + "/")]
        self._replayed.set()
        return [self._recorded.pop(entry) for entry in inner]

    async def _attempt(self, request: StepRequest, known: Effect | None) -> Any:
        """Run the step until it succeeds, fails, or may not be tried again. Continue after a pause that a crash interrupted."""
        effect = known or request.first_effect(self.step, self._key(request.ref[1]))
        pause = Pause.of(effect)
        while True:
            if pause is not None:
                await asyncio.sleep(max(0.0, (pause.until - await self.store.now()).total_seconds()))
            effect = replace(effect, attempts=effect.attempts + 1, result=None)
            self._running[request.ref] = effect
            waiting = partial(self.buffer.waiting_for_thread, request.name, request.entry)
            async with self.threads.call(request.ref, waiting) as call:
                try:
                    started = self.event(
                        "step_started", request.facts(attempt=effect.attempts, **request.undo_facts())
                    )
                    await _start(self, self._running, effect, started)
                    value = await _called(request, call, self.threads)
                except BaseException as error:
                    effect = self._running.get(request.ref, effect)
                    if not _is_outcome(error) or self.buffer.caused(error):
                        raise
                    pause = request.retry and request.retry.next_pause(
                        effect, pause, error, await self.store.now()
                    )
                    if pause is None:
                        text = ledger.describe(error)
                        self._failures.append(request.entry)
                        self._end(
                            request, replace(effect, state="failed", error=text), "step_failed", error=text
                        )
                        raise request.failure(text) from error
                    effect = replace(effect, result=pause.as_json())
                    failed = request.facts(error=ledger.describe(error), retry_at=pause.until.isoformat())
                    await self.buffer.write_effects([effect], self.event("step_failed", failed))
                    await self._repeat_inner(request)
                else:
                    return await self._complete(request, self._running[request.ref], value)
                finally:
                    self._running.pop(request.ref, None)
                    self.tasks.changed()

    async def _complete(
        self, request: StepRequest, effect: Effect, value: Any, *, probed: bool = False
    ) -> Any:
        """Record the result and return it as its record returns it."""
        facts = {"probe": True} if probed else {}
        try:
            text, back = step_results.dump(value, step_results.result_type(request.function))
        except step_results.Unserializable as error:
            effect = replace(effect, state="completed", result=ledger.UNSERIALIZABLE, error=str(error))
            self._end(request, effect, "step_completed", **facts)
            raise request.unserializable(str(error)) from None
        result = f'{{"kind":"value","value":{text}}}'
        self._end(request, replace(effect, state="completed", result=result), "step_completed", **facts)
        return back

    def _end(self, request: StepRequest, effect: Effect, kind: str, **facts: object) -> None:
        self.buffer.add(self.event(kind, request.facts(**facts)))
        self.buffer.add_effect(effect)

    def event(self, kind: str, facts: dict[str, object]) -> NewEvent:
        return NewEvent(kind=kind, run_id=self.buffer.run.id, step=self.step, payload=lenient_json(facts))

    def _key(self, place: str) -> str:
        retry = self.renewed.get(place)
        return ledger.key(self.ref[0], place if retry is None else f"{place}#{retry}")


_current: ContextVar[Steps | None] = ContextVar("holdfast_steps", default=None)
_reason: ContextVar[str | None] = ContextVar("holdfast_no_steps", default=None)
"""Why the code that runs cannot use steps, if that is known."""


@asynccontextmanager
async def outside(reason: str | None = None) -> AsyncGenerator[None, None]:
    """Run a block that must not use steps, for this reason."""
    token, reason_token = _current.set(None), _reason.set(reason)
    try:
        yield
    finally:
        _current.reset(token)
        _reason.reset(reason_token)


def current_steps() -> Steps | None:
    """Return the steps of the tool call or turn that runs this code."""
    return _current.get()


def required_steps(what: str) -> Steps:
    """Return the steps of the tool call or turn that runs this code. Raises `BadInput` if there is none."""
    steps = _current.get()
    if steps is None and (reason := _reason.get()) is not None:
        raise BadInput(problem=f"`{what}` was called in {reason}")
    if steps is None:
        raise BadInput(
            problem=f"`{what}` was called outside a recorded turn. Call it in a plain agent, or in a tool with recovery `steps` whose agent has the Holdfast capability"
        )
    return steps


@overload
async def step(
    name: str,
    function: Callable[[*Ts], Awaitable[T]],
    *arguments: *Ts,
    recovery: StepPolicy = ...,
    probe: Probe | None = None,
    probe_timeout: float = ...,
    retry: Retry | None = None,
    undo: UndoFunction | str | None = None,
) -> T: ...
@overload
async def step(
    name: str,
    function: Callable[[*Ts], T],
    *arguments: *Ts,
    recovery: StepPolicy = ...,
    probe: Probe | None = None,
    probe_timeout: float = ...,
    retry: Retry | None = None,
    undo: UndoFunction | str | None = None,
) -> T: ...
async def step(
    name: str,
    function: Callable[..., Any],
    *arguments: Any,
    recovery: StepPolicy = "report",
    probe: Probe | None = None,
    probe_timeout: float = LIMIT_SECONDS,
    retry: Retry | None = None,
    undo: UndoFunction | str | None = None,
) -> Any:
    """Run `function(*arguments)` as a step of the tool call or turn that calls this, and return its result.

    If the process dies, the tool or turn runs again from the top, and a completed step returns its recorded result. If a step was
    started but has no recorded end, the `probe` runs first. If it returns `Unknown`, `recovery` applies: `retry` runs the step
    again, `report` raises `OutcomeUnknown`, and `ask` waits for a person's decision. A synchronous function runs in a thread.

    The result must be data: JSON, or a value of the function's declared return type. If the function raises, the step fails with
    `StepError`, and the failure is recorded. `retry` lists the errors after which the step is tried again. `undo` is the function that
    undoes the step, or its name. It must be registered with the agent: it runs only if the effects of the turn are undone.

    Raises `BadInput` outside a tool with `recovery="steps"` and outside a plain agent's turn, and `StepsDiffer` if the steps or
    their arguments differ from the record.
    """
    steps = required_steps(f"step({name!r}, …)")
    request = StepRequest.checked(
        name, function, arguments, recovery=recovery, probe=probe, probe_timeout=probe_timeout, retry=retry
    )
    if undo is not None:
        registered = find_undo(undo, steps.undos, name)
        request = replace(request, undo=undo_record(registered, function, arguments))
    return await steps.run(request)


def failed_steps(error: BaseException) -> list[str]:
    """Return the entries of the steps whose failure or unknown outcome led to an error."""
    found: list[str] = []
    left: list[BaseException] = [error]
    while left:
        cause = left.pop()
        is_step = isinstance(cause, StepError | OutcomeUnknown)
        if is_step:
            found.append(str(cause.facts.get("call_id")))
        elif isinstance(cause, BaseExceptionGroup):
            left += cast("BaseExceptionGroup[BaseException]", cause).exceptions
        # A failure that was being handled when a step failed is not its cause.
        before = cause.__cause__ or (None if is_step or found else cause.__context__)
        if before is not None:
            left.append(before)
    return found


class StepApproval(ApprovalRequired):
    """Raised when a person must decide whether to run a step again that may have taken effect."""


async def _start(steps: Steps, running: dict[CallRef, Effect], effect: Effect, started: NewEvent) -> None:
    """Record that a step is started. One of a plain agent may ask a model: if a budget is used up, it is suspended when no other step runs."""
    outermost = (ledger.current_call.get() or steps.ref) == steps.ref
    waits = steps.waits if steps.decide and outermost else None
    try:
        await steps.buffer.start_step(effect, started, waits)
    except Suspended:
        running.pop(next(ref for ref, other in running.items() if other is effect))
        await steps.tasks.idle(running)
        raise


def _is_outcome(error: BaseException) -> bool:
    """Return whether an error determines how a step ended. The outcome of a cancelled step is unknown."""
    return isinstance(error, Exception) and not isinstance(
        error, ApprovalRequired | OutcomeUnknown | StepsDiffer
    )


def _is_within(entry: str, parent: str) -> bool:
    return entry == parent or entry.startswith(parent + "/")


def label(entry: str, effect: Effect) -> str:
    """Return a recorded step in words, for an error message."""
    number = entry.rpartition("~")[2] if "~" in entry else ""
    return f"step {effect.tool!r}" + (f" number {number}" if number.isdigit() else "")


async def _called(request: StepRequest, call: ThreadedCall, threads: RunThreads) -> Any:
    """Call the function of a step, in a thread if it is not async."""
    token = ledger.current_call.set(request.ref)
    try:
        if iscoroutinefunction(request.function):
            return await request.function(*request.arguments)
        value = await call.run(threads, request.function, *request.arguments)
        if isawaitable(value):
            await call.leave_thread()
            return await value
        return value
    finally:
        ledger.current_call.reset(token)
