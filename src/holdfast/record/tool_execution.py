"""A tool call of a run while it is carried out: its ledger entry, its steps, and how it ended."""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
)
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailedError, ToolRetryError
from pydantic_ai.messages import ToolCallPart, ToolReturnPart
from pydantic_ai.tools import ToolDefinition

from holdfast.counting import count
from holdfast.errors import AgentExited, BudgetReached, OutcomeUnknown, StepsDiffer
from holdfast.jsontext import lenient_json
from holdfast.record import ledger
from holdfast.record.buffer import Buffer
from holdfast.record.calls import Calls
from holdfast.record.ledger import CallRef, Policy
from holdfast.record.offloader import MediaOffloader
from holdfast.record.probes import LIMIT_SECONDS, Done, NotDone, Probe, Unsettled, ask_probe
from holdfast.record.run_host import RunHost
from holdfast.record.steps import StepApproval, Steps, outside
from holdfast.record.threads import RunThreads
from holdfast.record.undo import Undo
from holdfast.record.waits import Waiting
from holdfast.store import Store
from holdfast.types import Effect, NewEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolExecution:
    """Runs a tool for one call, or returns the recorded outcome of the call."""

    ctx: RunContext[Any]
    call: ToolCallPart
    args: dict[str, Any]
    store: Store
    buffer: Buffer
    calls: Calls
    offloader: MediaOffloader
    host: RunHost
    threads: RunThreads
    unapproved: set[str]
    """The calls that must not look approved to their tools: they run again because they waited."""
    undos: Mapping[str, Undo]
    """The functions of the agent that undo steps."""

    async def run(self, tool_def: ToolDefinition, handler: Any) -> Any:
        """Run the tool, unless the outcome of the call is recorded and does not allow that."""
        facts = {"tool": self.call.tool_name, "call_id": self.call.tool_call_id}
        ref = self.calls.ref(self.ctx.messages, self.call.tool_call_id)
        policy, probe = self.calls.recovery(tool_def)
        known = self.calls.entry(ref)
        asleep = known is not None and ledger.waits_for(known) == "wait"
        if self.call.tool_call_id in self.host.unanswered or (asleep and not ledger.was_approved(known)):
            self.ctx.tool_call_approved = False
            self.unapproved.add(self.call.tool_call_id)
        not_done = False
        if known is not None and probe is not None and ledger.is_cut_off(known):
            not_done = await self._ask_probe(probe, known)
            known = self.calls.entry(ref)
        if (
            known is not None
            and not not_done
            and (answer := self.calls.answer(self.ctx, known, tool_def)) is not None
        ):
            if not self.calls.is_deferred(ref):
                kind, outcome = (
                    "tool_call_completed",
                    {} if ledger.is_known(known) else {"outcome": "unknown"},
                )
                if known.state == "failed":
                    kind, outcome = "tool_call_failed", {"error": known.error or ""}
                elif outcome:
                    count(
                        "tool_calls",
                        agent=self.buffer.run.agent,
                        tool=self.call.tool_name,
                        outcome="unknown",
                    )
                self.buffer.add(run_event(self.ctx, kind, **facts, **outcome))
            return answer()
        effect = self.calls.begin(ref, self.call.tool_name, self.ctx.run_step, self.args)
        started = run_event(self.ctx, "tool_call_started", **facts)
        # The response, with all its calls, is durable before the first of them runs that could change something.
        if policy == "readonly":
            self.buffer.delay_step(
                self.ctx.messages, "interrupted", self.ctx.run_step, started, effects=[effect]
            )
        else:
            self.buffer.start(
                self.buffer.take_step(
                    self.ctx.messages, "interrupted", self.ctx.run_step, started, effects=[effect]
                )
            )
            await self.buffer.join()
        waiting = partial(self.buffer.waiting_for_thread, self.call.tool_name, effect.call_id)
        async with self.threads.call(ref, waiting) as threaded:
            steps = await self._steps(ref, policy, begun=known is not None)
            running = handler(self.args)
            if _is_synchronous(self.ctx, self.call.tool_name):
                running = threaded.run_tool(self.threads, running)
            return await self._recorded(effect, steps, running)

    async def _recorded(
        self, effect: Effect, steps: AbstractAsyncContextManager[None], running: Awaitable[Any]
    ) -> Any:
        """Run a tool whose call is recorded, and record its outcome."""
        ref = effect.run_id, effect.call_id
        token = ledger.current_call.set(ref)
        task = asyncio.current_task()
        began = time.perf_counter()
        try:
            async with steps:
                value = await running
        except OutcomeUnknown as error:
            facts = {"tool": self.call.tool_name, "call_id": self.call.tool_call_id, "outcome": "unknown"}
            self._count("unknown", began)
            await self.buffer.write_effects([], run_event(self.ctx, "tool_call_completed", **facts))
            ledger.report_unknown(
                effect, self.call.tool_name, self.call.tool_call_id, str(error.facts["step"])
            )
        except BudgetReached as reached:  # of a delegate that cannot be suspended: the model is told, and then the run itself waits
            failed = ToolReturnPart(
                self.call.tool_name, str(reached), self.call.tool_call_id, outcome="failed"
            )
            self._count("failed", began)
            await self._record_error(effect, error := ToolFailedError(failed))
            raise error from None
        except BaseException as error:
            if _can_be_recorded(error, task) and not self.buffer.caused(error):
                self._count(_outcome(error), began)
                await self._record_error(effect, error)
            raise
        finally:
            ledger.current_call.reset(token)  # the calls of a delegate are not those of the caller
        self._count("completed", began)
        self.calls.returns(ref, ToolReturnPart(self.call.tool_name, value, self.call.tool_call_id))
        await self._settle(effect, "tool_call_completed")
        return value

    async def _ask_probe(self, probe: Probe, effect: Effect) -> bool:
        """Determine whether a call took effect, and if so record its result. Return whether it may run again."""
        unsettled = Unsettled(
            name=self.call.tool_name,
            key=effect.idempotency_key or ledger.key(effect.run_id, effect.call_id),
            arguments=self.args,
            summary=ledger.noted(effect),
            attempts=effect.attempts,
            started_at=effect.started_at,
        )
        answer, error = await ask_probe(probe, unsettled, LIMIT_SECONDS)
        facts = {
            "name": self.call.tool_name,
            "call_id": effect.call_id,
            "answer": ledger.ANSWERS[type(answer)],
        }
        self.buffer.add(run_event(self.ctx, "probe_answered", **facts, **({"error": error} if error else {})))
        state = "completed" if isinstance(answer, Done) else "started"
        self.calls.note(effect, state=state, summary=ledger.with_answer(effect, answer).summary or "")
        if isinstance(answer, Done):
            part = ToolReturnPart(self.call.tool_name, answer.result, self.call.tool_call_id)
            self.calls.returns((effect.run_id, effect.call_id), part)
        return isinstance(answer, NotDone)

    async def _steps(self, ref: CallRef, policy: Policy, *, begun: bool) -> AbstractAsyncContextManager[None]:
        """Return the context for steps of a tool. Only tools with the policy `steps` may use them, because those tools run again after a crash."""
        if policy != "steps":
            tool = f"the tool {self.call.tool_name!r}, which has recovery {policy!r}"
            remedy = "Only a tool that can run again from its top may use it: declare the tool with metadata={'recovery': 'steps'}"
            return outside(f"{tool}. {remedy}")

        async def settled() -> None:
            if self.calls.runs_alone(ref):
                await self.host.settled()

        steps = Steps(
            ref=ref,
            store=self.store,
            buffer=self.buffer,
            offloader=self.offloader,
            threads=self.threads,
            step=self.ctx.run_step,
            undos=self.undos,
            approved=self.ctx.tool_call_approved,
            settled=settled,
        )
        if begun:
            await steps.load()
        return steps.open()

    async def _record_error(self, effect: Effect, error: BaseException) -> None:
        """Record the error that a tool raised. Raise `AgentExited` instead of an error that would end the event loop."""
        match error:
            case ToolRetryError() | ToolFailedError():
                await self._settle(effect, "tool_call_completed", result=ledger.raised(error))
            case (
                ApprovalRequired() | CallDeferred()
            ):  # the call ends when it is answered, in this or a later run
                kind = "approval" if isinstance(error, ApprovalRequired) else "external"
                if isinstance(error, StepApproval):
                    kind = "again"
                elif isinstance(error, Waiting):
                    kind = "wait"
                metadata = error.metadata
                if isinstance(error, Waiting):
                    metadata = {**(metadata or {}), "approved": self.ctx.tool_call_approved}
                self.calls.note(effect, result=ledger.deferred(kind, metadata))
                await self.buffer.write_soon()
            case _:
                await self._settle(effect, "tool_call_failed", error=ledger.describe(error))
                if self._ends_process(error):
                    raise AgentExited(what=f"The tool {effect.tool}", error=ledger.describe(error)) from error

    def _count(self, outcome: str | None, began: float) -> None:
        """Count a call that ended. Its tool is one of the agent's: no name that only a model chose is a label."""
        if outcome is not None:
            agent, tool = self.buffer.run.agent, self.call.tool_name
            count("tool_calls", agent=agent, tool=tool, outcome=outcome)
            count("tool_seconds", time.perf_counter() - began, agent=agent, tool=tool)

    def _ends_process(self, error: BaseException) -> bool:
        """Return whether an error would end the event loop, and thereby all other runs of this process."""
        interrupts = isinstance(error, KeyboardInterrupt) and self.host.handles_interrupts
        return interrupts or isinstance(error, SystemExit | GeneratorExit)

    async def _settle(self, effect: Effect, kind: str, **outcome: str) -> None:
        failed = "error" in outcome
        error = {"error": outcome["error"]} if failed else {}
        self.buffer.add(run_event(self.ctx, kind, tool=effect.tool, call_id=effect.call_id, **error))
        self.calls.note(effect, state="failed" if failed else "completed", **outcome)
        await self.buffer.write_soon()


def run_event(ctx: RunContext[Any], kind: str, **facts: object) -> NewEvent:
    """Return an event of a run and its current step."""
    return NewEvent(kind=kind, run_id=ctx.run_id, step=ctx.run_step, payload=lenient_json(facts))


def _can_be_recorded(error: BaseException, task: "asyncio.Task[Any] | None") -> bool:
    """Return whether an error of a tool determines how its call ended, and can be written.

    The outcome of a cancelled call is unknown. A call that stopped with `StepsDiffer` can continue once the code is restored. A
    coroutine that is closed after its event loop has ended cannot write.
    """
    if isinstance(error, GeneratorExit):
        try:
            return asyncio.current_task() is task
        except RuntimeError:  # no event loop is running
            return False
    return not isinstance(error, asyncio.CancelledError | StepsDiffer)


def _outcome(error: BaseException) -> str | None:
    """Return how a call ended that raised an error; None if it has not ended, because it waits."""
    match error:
        case ApprovalRequired() | CallDeferred():
            return None
        case ToolRetryError():
            return "retry"
        case _:
            return "failed"


def _is_synchronous(ctx: RunContext[Any], tool: str) -> bool:
    """Return whether a tool is a function that runs in a thread."""
    tools: Mapping[str, Any] = (ctx.tool_manager and ctx.tool_manager.tools) or {}
    found: Any = tools.get(tool)
    while hasattr(found, "source_tool"):  # it belongs to one of several toolsets
        found = found.source_tool
    return getattr(found, "is_async", True) is False
