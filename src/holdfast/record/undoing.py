"""Undo one step: its undo is a ledger entry of its own, with the policies, probes and retries of a step."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Final, NoReturn, cast

from pydantic_ai.exceptions import ModelRetry
from pydantic_core import to_jsonable_python

from holdfast.errors import BadInput, Conflict, OutcomeUnknown, StepError
from holdfast.jsontext import lenient_json, read_recorded
from holdfast.record import ledger
from holdfast.record.buffer import Buffer
from holdfast.record.ledger import CallRef
from holdfast.record.offloader import MediaOffloader
from holdfast.record.probes import Done, NotDone, Unsettled, ask_probe
from holdfast.record.run_host import RunHost
from holdfast.record.step_requests import StepRequest
from holdfast.record.step_results import Unserializable
from holdfast.record.steps import Steps
from holdfast.record.threads import RunThreads
from holdfast.record.undo import CompletedStep, Undo, UndoFunction, completed_step, undo_name
from holdfast.record.undo_plan import Undoable
from holdfast.sentences import without_period
from holdfast.store import Store
from holdfast.types import Effect, NewEvent

_KINDS: Final[Mapping[str, str]] = {
    "step_started": "undo_started",
    "step_completed": "effect_undone",
    "step_failed": "undo_failed",
}
"""The events of an undo, by those of a step."""


@dataclass(kw_only=True)
class UndoSteps(Steps):
    """The undo of one step, and the steps that its function uses."""

    item: Undoable

    async def load(self, parent: CallRef | None = None) -> None:
        """Read the steps within the undo. Those that made an earlier attempt fail run again."""
        failed, known = self.item.failed, self.item.known
        if failed is not None:
            entries = await ledger.step_entries(self.store, self.buffer.lease.session_id, *self.ref)
            began = None if known is None else known.started_at
            self.redone = [
                entry
                for entry, effect in entries.items()
                if effect.state == "failed" and (began is None or (effect.ended_at or began) <= began)
            ]
        await super().load(parent)
        if known is not None:
            self._recorded[known.call_id] = known

    def take_recorded(self, name: str) -> NoReturn:
        """Raise `BadInput`: an undo cannot wait for a time or a signal."""
        del name
        raise BadInput(problem="a function that undoes a step cannot sleep or wait for a signal")

    def event(self, kind: str, facts: dict[str, object]) -> NewEvent:
        """Return an event about the undo, or about a step within it."""
        if facts["call_id"] == self.item.entry:
            kind, facts = _KINDS.get(kind, kind), {**facts, "undoes": self.item.step.call_id}
        return super().event(kind, facts)

    def _placed(self, request: StepRequest) -> StepRequest:
        if request.entry:
            return request
        if request.undo is not None:
            problem = f"step {request.name!r} is part of an undo, and cannot have an undo itself"
            raise BadInput(problem=problem)
        return super()._placed(request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undoing:
    """Undoes steps, one at a time, and records it in a run."""

    store: Store
    buffer: Buffer
    offloader: MediaOffloader
    threads: RunThreads
    host: RunHost
    undos: Mapping[str, Undo]
    """The functions of the agent."""
    decide: Callable[[str, str, int, Any], Awaitable[bool]]
    """Ask a person whether an undo may run again, as in `Steps`."""

    async def undo(self, item: Undoable) -> None:
        """Undo a step, unless it had no effect. Raises `Conflict` if that fails, or if an outcome is unknown."""
        registered = self._registered(item)
        (step,) = await self.offloader.effects_back([item.step])
        if item.is_unknown:
            known = await self._probe_step(registered, step)
            if known is None:
                return
            step = known
        steps = UndoSteps(
            item=item,
            ref=item.place,
            store=self.store,
            buffer=self.buffer,
            offloader=self.offloader,
            threads=self.threads,
            undos=self.undos,
            settled=self.host.settled,
            decide=self.decide,
        )
        try:
            request = self._request(item, registered, completed_step(step, registered.function))
            await steps.load()
            async with steps.open():
                await steps.run(request)
        except Unserializable as error:
            other = f"its undo declares another type of result: {without_period(error)}. Restore the type, then undo the effects again"
            raise _stopped(step, other) from error
        except (StepError, ModelRetry) as error:
            text = error.facts["error"] if isinstance(error, StepError) else error
            failed = f"its undo failed: {without_period(text)}. Undo the effects again to retry it"
            raise _stopped(step, failed) from error
        except OutcomeUnknown as error:
            entry = f"{item.entry} of run {step.run_id}"
            unknown = (
                f"it is unknown whether its undo took effect. Settle {entry}, then undo the effects again"
            )
            raise _stopped(step, unknown) from error

    def _registered(self, item: Undoable) -> Undo:
        name = undo_name(item.step) or ""
        registered = self.undos.get(name)
        if registered is None:
            missing = (
                f"the agent no longer has its undo {name!r}. Deploy it again, then undo the effects again"
            )
            raise _stopped(item.step, missing)
        return registered

    def _request(self, item: Undoable, undo: Undo, step: CompletedStep[Any]) -> StepRequest:
        return StepRequest(
            name=undo_name(item.step) or "",
            function=_without_result(undo.function),
            arguments=(step,),
            digest=item.step.arguments_digest or "",
            policy=undo.recovery,
            probe=undo.probe,
            probe_timeout=undo.probe_timeout,
            retry=undo.retry,
            ref=item.place,
            entry=item.entry,
        )

    async def _probe_step(self, undo: Undo, step: Effect) -> Effect | None:
        """Return a step with an unknown outcome as completed if its probe determines that it took effect; None if it did not.

        Raises `Conflict` if the outcome stays unknown.
        """
        entry = f"{step.call_id} of run {step.run_id}"
        problem = f"it is unknown whether it took effect. Settle {entry}, then undo the effects again"
        if undo.step_probe is None:
            raise _stopped(step, problem)
        call = Unsettled(
            name=step.tool,
            key=step.idempotency_key or ledger.key(step.run_id, step.call_id),
            arguments=tuple(read_recorded(step.undo or "{}")["arguments"]),
            summary=ledger.noted(step),
            attempts=step.attempts,
            started_at=step.started_at,
        )
        answer, error = await ask_probe(undo.step_probe, call, undo.probe_timeout)
        facts: dict[str, object] = {"name": step.tool, "call_id": step.call_id}
        reason = {"error": error} if error else {}
        self._add("probe_answered", {**facts, "answer": ledger.ANSWERS[type(answer)], **reason})
        step = ledger.with_answer(step, answer)
        if isinstance(answer, Done):
            value = to_jsonable_python(answer.result, bytes_mode="base64", serialize_unknown=True)
            result = lenient_json({"kind": "value", "value": value})
            step = replace(step, state="completed", result=result)
            self._add("step_completed", {**facts, "probe": True})
            await self.buffer.write_effects([step])
            return step
        if isinstance(answer, NotDone):
            none = "its probe found that it had no effect"
            self._add("step_failed", {**facts, "error": none})
            await self.buffer.write_effects([replace(step, state="failed", error=none)])
            return None
        await self.buffer.write_effects([step])
        raise _stopped(step, problem)

    def _add(self, kind: str, facts: dict[str, object]) -> None:
        self.buffer.add(NewEvent(kind=kind, run_id=self.buffer.run.id, payload=lenient_json(facts)))


def _stopped(step: Effect, problem: str) -> Conflict:
    text = f"The undo stopped at step {step.tool!r} ({step.call_id}): {problem}."
    return Conflict.restore(text, {"step": step.tool, "call_id": step.call_id})


def _without_result(function: UndoFunction) -> Callable[[CompletedStep[Any]], Any]:
    """Return the function without its result, which nothing reads and which may not be data."""

    async def called(step: CompletedStep[Any]) -> Any:
        await cast("Awaitable[object]", function(step))

    def called_in_thread(step: CompletedStep[Any]) -> Any:
        value = function(step)
        return _awaited(value) if isawaitable(value) else None

    return called if iscoroutinefunction(function) else called_in_thread


async def _awaited(value: Awaitable[object]) -> None:
    await value
