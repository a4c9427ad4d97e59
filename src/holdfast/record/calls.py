"""The tool calls of one run: where each is in the ledger, how it stands, and what is to be written of it.

It decides what becomes of a call that was begun before. It never runs a tool and never writes.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

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
from holdfast.record.ledger import CallRef, Policy
from holdfast.record.validity import answers, pending_calls
from holdfast.store import Store
from holdfast.types import Effect


class Calls:
    """The calls of a run that no message answers yet, with those that an earlier run left open."""

    def __init__(self, run_id: str, policies: Mapping[str, Policy]) -> None:
        self.inherited = False
        """Whether an earlier run began some of them, and their tools were not looked up yet."""
        self.changed: list[Effect] = []
        """The effects that wait for the next batch."""
        self._run_id = run_id
        self._policies = policies
        self._effects: dict[CallRef, Effect] = {}
        self._refs: dict[str, CallRef] = {}  # where the latest call with an id is in the ledger
        self._made: Counter[CallRef] = Counter()  # how often a run has made a call with an id
        self._returned: dict[CallRef, ToolReturnPart] = {}  # results that are no text yet

    @property
    def any_runs(self) -> bool:
        """Whether the outcome of some call is still to come."""
        return any(effect.state == "started" and effect.result is None for effect in self._effects.values())

    @property
    def tools(self) -> set[str]:
        """The tools that are called."""
        return {effect.tool for effect in self._effects.values()}

    def made_by(self, response: ModelResponse) -> None:
        """Count the calls that the model makes."""
        self._made.update((self._run_id, call.tool_call_id) for call in pending_calls([response]))

    async def inherit(
        self, store: Store, session_id: str, messages: Sequence[ModelMessage], pending: Sequence[ToolCallPart]
    ) -> None:
        """Take over the calls that are pending at the end of a history, with what the ledger knows of them."""
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
        """Replace the effects that were taken over by what `read` makes of them, with large results in place."""
        for effect in await read(list(self._effects.values())):
            self._effects[effect.run_id, effect.call_id] = effect

    def _enter(self, call_id: str, effect: Effect) -> None:
        ref = self._refs[call_id] = effect.run_id, effect.call_id
        self._effects[ref] = effect

    def ref(self, messages: Sequence[ModelMessage], call_id: str) -> CallRef:
        """Return where a call is in the ledger: an entry of its own, or the one where it waits for an answer."""
        ref = self._refs.get(call_id)
        effect = self._effects.get(ref) if ref else None
        if ref is not None and effect is not None and ledger.waits_for(effect) is not None:
            return ref
        ref = self._refs[call_id] = self._new_ref(ledger.origin(messages, self._run_id), call_id)
        return ref

    def entry(self, ref: CallRef) -> Effect | None:
        """Return how a call stands. A result becomes text here: most move into a message before that."""
        effect = self._effects.get(ref)
        if effect is not None and (part := self._returned.pop(ref, None)) is not None:
            effect = self._effects[ref] = replace(effect, result=ledger.returned(part))
        return effect

    def waits(self, ref: CallRef) -> bool:
        """Say whether a call waits for somebody: then its answer is not its end."""
        return ledger.waits_for(self._effects[ref]) is not None

    def answer(self, ctx: RunContext[Any], effect: Effect, tool: ToolDefinition) -> Callable[[], Any] | None:
        """Return what gives the answer to a call that was begun before; None if it may be run again."""
        if ledger.is_known(effect):
            return lambda: ledger.replay(effect)
        if (waits := ledger.waits_for(effect)) is not None:
            # A person says so; not by an approval that this call has used up already.
            approved = ctx.tool_call_approved and waits != "external"
            return None if approved else lambda: ledger.replay(effect)
        policy = self._policies.get(tool.name) or (tool.metadata or {}).get("recovery", "report")
        if policy == "retry":
            return None
        if policy == "ask" and effect.state == "started":
            asked = self.note(effect, result=ledger.deferred("again"))
            return lambda: ledger.replay(asked)
        return lambda: ledger.unknown(effect)

    def begin(self, ref: CallRef, tool: str, step: int, arguments: Any) -> Effect:
        """Enter that a call is carried out, maybe again. It is for the caller to write that down first."""
        known = self._effects.get(ref)
        effect = self._effects[ref] = _effect(
            ref, tool, arguments, step=step, attempts=1 if known is None else known.attempts + 1
        )
        return effect

    def returns(self, ref: CallRef, part: ToolReturnPart) -> None:
        """Keep what a call gave back, until it moves into a message or has to be told without one."""
        self._returned[ref] = part

    def note(self, effect: Effect, **changes: str) -> Effect:
        """Change how a call stands, by what was noted of it meanwhile; it is told with the next write."""
        ref = effect.run_id, effect.call_id
        noted = self._effects[ref] = replace(self._effects.get(ref, effect), **changes)
        self.changed.append(noted)
        return noted

    def annotate(self, call_id: str, summary: str | None, key: str | None) -> Effect | None:
        """Note what a call did, or the key that it used, and return how it stands."""
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
        """Return the effects whose results are in this message now, and of these, by call, those it has answered."""
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
        return moved, answered

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
        """Return what is to be written of calls, with these: of each its last state."""
        last = {(effect.run_id, effect.call_id): effect for effect in (*self.changed, *effects)}
        self.changed = []
        if self._returned:
            for ref in last.keys() & self._returned.keys():
                last[ref] = self.entry(ref) or last[ref]
        return list(last.values())

    def _new_ref(self, run_id: str, call_id: str) -> CallRef:
        # By the calls that were made, not by those whose tools ran: only these can be counted in a history.
        return run_id, ledger.entry(call_id, max(0, self._made[run_id, call_id] - 1))


def missing_tools(tools: Sequence[str]) -> Conflict:
    """Return the error of an agent that no longer has the tools of calls it has to carry out."""
    return Conflict(problem=f"the agent has no tool {', '.join(tools)} any more, which a pending call needs")


def _effect(ref: CallRef, tool: str, arguments: Any, **rest: Any) -> Effect:
    return Effect(
        run_id=ref[0],
        call_id=ref[1],
        tool=tool,
        arguments_digest=ledger.digest(arguments),
        idempotency_key=ledger.key(*ref),
        **rest,
    )
