"""The tool calls of one run: their ledger entries, their states, and their changes that are not written yet.

It decides how to answer a call that was started earlier. It never runs a tool and never writes.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from pydantic_ai import RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.tools import DeferredToolRequests, ToolDefinition

from holdfast.errors import Conflict
from holdfast.record import ledger
from holdfast.record.deadlines import Deadline
from holdfast.record.ledger import CallRef, Policy
from holdfast.record.open_calls import answers, pending_calls
from holdfast.record.probes import Probe
from holdfast.record.waits import Wait
from holdfast.store import Store
from holdfast.types import Effect


class Calls:
    """The calls of a run that no message answers yet, including those that an earlier run left open."""

    def __init__(
        self, run_id: str, policies: Mapping[str, Policy], probes: Mapping[str, Probe] | None = None
    ) -> None:
        self.inherited = False
        """Whether an earlier run started some of them, and it is not checked yet whether their tools still exist."""
        self.changed: list[Effect] = []
        """The effects to write with the next batch."""
        self._run_id = run_id
        self._policies = policies
        self._probes = probes or {}
        self._effects: dict[CallRef, Effect] = {}
        self._refs: dict[str, CallRef] = {}  # the ledger entry of the latest call with an id
        self._made: Counter[CallRef] = Counter()  # how often a run has made a call with an id
        self._returned: dict[CallRef, ToolReturnPart] = {}  # results that are not serialized yet
        self._deadlines: dict[str, Deadline] = {}  # of the questions about a tool, by its name

    @property
    def any_runs(self) -> bool:
        """Whether the outcome of some call is still pending."""
        return any(map(ledger.is_cut_off, self._effects.values()))

    @property
    def tools(self) -> set[str]:
        """The names of the called tools."""
        return {effect.tool for effect in self._effects.values()}

    def notes(self, output: object) -> dict[str, dict[str, Any]]:
        """Return what to know about the calls that a run ends with, by call id: whether one may have taken effect, or runs outside."""
        outside = output.calls if isinstance(output, DeferredToolRequests) else ()
        return {call.tool_call_id: {"external": True} for call in outside} | self._unknown

    @property
    def _unknown(self) -> dict[str, dict[str, Any]]:
        """The facts that a person needs before approving a call again that may have taken effect, by call id."""
        return {
            call_id: {
                "note": ledger.again_note(self._effects[ref]),
                "unsettled": ledger.asked_about(self._effects[ref]),
            }
            for call_id, ref in self._refs.items()
            if ref in self._effects and ledger.waits_for(self._effects[ref]) == "again"
        }

    @property
    def waits(self) -> dict[str, Wait]:
        """The calls that wait for a time or a signal, by call id, with their waits."""
        entries = {call_id: self._effects.get(ref) for call_id, ref in self._refs.items()}
        found = {call_id: Wait.of(effect) for call_id, effect in entries.items() if effect is not None}
        return {call_id: wait for call_id, wait in found.items() if wait is not None}

    def made_by(self, response: ModelResponse) -> None:
        """Count the calls in a model response."""
        self._made.update((self._run_id, call.tool_call_id) for call in pending_calls([response]))

    async def inherit(
        self, store: Store, session_id: str, messages: Sequence[ModelMessage], pending: Sequence[ToolCallPart]
    ) -> None:
        """Take over the pending calls at the end of a history, with their ledger entries."""
        run_id = ledger.origin(messages, self._run_id)
        before = ledger.calls_before(messages, run_id)
        self._made.update({(run_id, call_id): count for call_id, count in before.items()})
        ids = [call.tool_call_id for call in pending]
        latest = await ledger.latest_entries(store, session_id, run_id, ids)
        for call_id in ids:
            earlier, effect = ledger.open_entry(before[call_id], latest.get(call_id))
            self._made[run_id, call_id] = earlier + 1
            if effect is not None:
                self._enter(call_id, effect)

    async def load_results(self, read: Callable[[Sequence[Effect]], Awaitable[Sequence[Effect]]]) -> None:
        """Replace the inherited effects with the result of `read`, which restores large results."""
        for effect in await read(list(self._effects.values())):
            self._effects[effect.run_id, effect.call_id] = effect

    def _enter(self, call_id: str, effect: Effect) -> None:
        ref = self._refs[call_id] = effect.run_id, effect.call_id
        self._effects[ref] = effect

    def ref(self, messages: Sequence[ModelMessage], call_id: str) -> CallRef:
        """Return the ledger entry of a call: a new one, or the one in which it waits for an answer."""
        ref = self._refs.get(call_id)
        effect = self._effects.get(ref) if ref else None
        if ref is not None and effect is not None and ledger.waits_for(effect) is not None:
            return ref
        ref = self._refs[call_id] = self._new_ref(ledger.origin(messages, self._run_id), call_id)
        return ref

    def entry(self, ref: CallRef) -> Effect | None:
        """Return the effect of a call. Its result is serialized only here, since most results move into a message before."""
        effect = self._effects.get(ref)
        if effect is not None and (part := self._returned.pop(ref, None)) is not None:
            effect = self._effects[ref] = replace(effect, result=ledger.returned(part))
        return effect

    def is_deferred(self, ref: CallRef) -> bool:
        """Return whether a call waits for an answer, so that replaying it does not end it."""
        return ledger.waits_for(self._effects[ref]) is not None

    def runs_alone(self, ref: CallRef) -> bool:
        """Return whether this is the only call whose outcome is pending."""
        return all(other == ref or not ledger.is_cut_off(effect) for other, effect in self._effects.items())

    def recovery(self, tool: ToolDefinition) -> tuple[Policy, Probe | None]:
        """Return how a call of a tool is recovered: its policy, and its probe if it has one. Raises `BadInput`."""
        metadata = tool.metadata or {}
        probe = self._probes.get(tool.name) or metadata.get("probe")
        policy = self._policies.get(tool.name) or metadata.get("recovery", "report")
        ledger.check_policy(policy, probe, allowed=get_args(Policy), what=f"tool {tool.name!r}")
        return policy, probe

    def read_deadline(self, tool: ToolDefinition) -> None:
        """Read the deadline that a tool declares for the questions about its calls. Raises `BadInput`."""
        deadline = None
        if "approval" in (tool.metadata or {}):
            policy, _ = self.recovery(tool)
            deadline = Deadline.of_tool(tool, policy)
        if deadline is not None:
            self._deadlines[tool.name] = deadline

    def deadlines(self, output: object) -> dict[str, Deadline]:
        """Return the deadlines of the questions that a run ends with, by call id.

        A call that may have taken effect, or whose result comes from outside, is never approved by default.
        """
        if not isinstance(output, DeferredToolRequests):
            return {}
        approvable = {call.tool_call_id for call in output.approvals} - self._unknown.keys()
        asked = {
            call.tool_call_id: self._deadlines.get(call.tool_name)
            for call in (*output.calls, *output.approvals)
        }
        return {
            call_id: deadline
            for call_id, deadline in asked.items()
            if deadline is not None and (deadline.default != "approve" or call_id in approvable)
        }

    def answer(self, ctx: RunContext[Any], effect: Effect, tool: ToolDefinition) -> Callable[[], Any] | None:
        """Return a function that answers a call that was started earlier; None if the call may run again."""
        if ledger.is_known(effect):
            return lambda: ledger.replay(effect)
        if (waits := ledger.waits_for(effect)) == "wait":
            return None
        if waits is not None:
            # Running needs an approval, and one that this call has already used does not count.
            approved = ctx.tool_call_approved and waits != "external"
            return None if approved else lambda: ledger.replay(effect)
        policy, _ = self.recovery(tool)
        if policy in {"retry", "readonly"} or (policy == "steps" and effect.state == "started"):
            return None
        if policy == "ask" and effect.state == "started":
            waiting = self.note(effect, result=ledger.deferred("again"))
            return lambda: ledger.replay(waiting)
        return lambda: ledger.report_unknown(effect, tool.name, ctx.tool_call_id or effect.call_id)

    def begin(self, ref: CallRef, tool: str, step: int, arguments: Any) -> Effect:
        """Register that a call is started, possibly again. The caller must record this before it runs the tool."""
        known = self._effects.get(ref)
        effect = self._effects[ref] = _effect(
            ref,
            tool,
            arguments,
            step=step,
            attempts=1 if known is None else known.attempts + 1,
            summary=known and known.summary,
        )
        return effect

    def returns(self, ref: CallRef, part: ToolReturnPart) -> None:
        """Keep the result of a call until it moves into a message or must be recorded without one."""
        self._returned[ref] = part

    def note(self, effect: Effect, **changes: str) -> Effect:
        """Update the effect of a call. The change is written with the next batch."""
        ref = effect.run_id, effect.call_id
        noted = self._effects[ref] = replace(self._effects.get(ref, effect), **changes)
        self.changed.append(noted)
        return noted

    def annotate(self, call_id: str, summary: str | None, key: str | None) -> Effect | None:
        """Set the summary or the idempotency key of a call, and return its effect."""
        ref = ledger.current_call.get() or self._refs.get(call_id)
        effect = self.entry(ref) if ref else None
        if ref is None or effect is None:
            return None
        noted = self._effects[ref] = replace(
            effect, summary=summary or effect.summary, idempotency_key=key or effect.idempotency_key
        )
        return noted

    def moved(
        self, request: ModelRequest, message: tuple[int, int]
    ) -> tuple[list[Effect], dict[str, Effect]]:
        """Return the effects whose results are now in this message, and, by call id, those that the message answers."""
        moved: list[Effect] = []
        answered: dict[str, Effect] = {}
        for part in answers(request):
            ref = self._refs.get(part.tool_call_id)
            effect = self._effects.pop(ref, None) if ref else None
            if ref is None or effect is None:
                continue
            self._returned.pop(ref, None)
            if effect.state == "completed":
                moved.append(replace(effect, result=None, message=message))
            elif (ended := ledger.answered(effect, part, message)) is not None:
                moved.append(ended)
                answered[part.tool_call_id] = ended
            elif ledger.waits_for(effect) == "again":  # denied: it is still unknown whether it took effect
                moved.append(replace(effect, result=None))
        return moved, answered

    def entry_of(self, messages: Sequence[ModelMessage], call_id: str) -> str:
        """Return the run and the ledger entry of a call that waits, as one text that no other call has."""
        ref = self._refs.get(call_id)
        if ref is None or ref not in self._effects:
            ref = self._new_ref(ledger.origin(messages, self._run_id), call_id)
        return "/".join(ref)

    def deferred(self, messages: Sequence[ModelMessage], output: object) -> list[Effect]:
        """Return ledger entries for the calls that were deferred without a tool having run."""
        if not isinstance(output, DeferredToolRequests):
            return []
        run_id = ledger.origin(messages, self._run_id)
        external = {call.tool_call_id for call in output.calls}
        entries: list[Effect] = []
        for call in (*output.calls, *output.approvals):
            ref = self._new_ref(run_id, call.tool_call_id)
            if self._effects.get(self._refs.get(call.tool_call_id, ref)) is None:
                kind = "external" if call.tool_call_id in external else "approval"
                waits = ledger.deferred(kind, output.metadata.get(call.tool_call_id))
                entries.append(_effect(ref, call.tool_name, call.args_as_dict(), result=waits, attempts=0))
        return entries

    def take(self, effects: Iterable[Effect]) -> list[Effect]:
        """Return the effects to write, including these, each in its latest state."""
        last = {(effect.run_id, effect.call_id): effect for effect in (*self.changed, *effects)}
        self.changed = []
        if self._returned:
            for ref in last.keys() & self._returned.keys():
                last[ref] = self.entry(ref) or last[ref]
        return list(last.values())

    def _new_ref(self, run_id: str, call_id: str) -> CallRef:
        # Counts the calls made, not the tools that ran: only calls can be counted in a history.
        return run_id, ledger.entry(call_id, max(0, self._made[run_id, call_id] - 1))


def missing_tools(tools: Sequence[str]) -> Conflict:
    """Return the error for an agent that no longer has the tools of its pending calls."""
    return Conflict(
        problem=f"the agent no longer has the tool {', '.join(tools)}, which a pending call needs; add it again, or rewind the session"
    )


def _effect(ref: CallRef, tool: str, arguments: Any, **rest: Any) -> Effect:
    return Effect(
        run_id=ref[0],
        call_id=ref[1],
        tool=tool,
        arguments_digest=ledger.digest(arguments),
        idempotency_key=ledger.key(*ref),
        **rest,
    )
