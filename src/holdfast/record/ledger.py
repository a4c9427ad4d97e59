"""The ledger of tool calls: the outcome of each call, and how to handle calls with an unknown outcome."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, TypeAlias

from pydantic import TypeAdapter
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailedError, ToolRetryError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
)

from holdfast.errors import BadInput
from holdfast.jsontext import lenient_json, read_recorded
from holdfast.record.history import dump, dump_all, load
from holdfast.record.probes import Done, NotDone, Unknown
from holdfast.store import Store
from holdfast.types import Effect, Json

Policy: TypeAlias = Literal["retry", "report", "ask", "probe", "steps", "readonly"]
"""How to handle a call that was started and has no recorded end.

`retry`: it is safe to run it again. `report`: the model is informed that the outcome is unknown, and decides. `ask`: a person
decides, through an approval. `probe`: its probe determines the outcome, or else `report` applies. `steps`: the tool runs again,
and its recorded steps return their results. `readonly`: it changes nothing, so it runs again, and may run before its call is
recorded. A probe can be combined with any other policy, which applies if the probe returns `Unknown`.
"""

Deferral: TypeAlias = Literal["approval", "external", "again", "pause", "wait"]

CallRef: TypeAlias = tuple[str, str]
"""The identity of a call in the ledger: the run that made it, and its entry name in that run."""

current_call: ContextVar[CallRef | None] = ContextVar("holdfast_call", default=None)
"""The ledger entry of the tool call that is running in this context."""

renewed_keys: ContextVar[Mapping[CallRef, str]] = ContextVar("holdfast_keys", default=MappingProxyType({}))
"""The idempotency keys of steps that a person has repeated after they had completed."""

UNSERIALIZABLE: Final = '{"kind":"unserializable"}'
ANSWERS: Final[Mapping[type[Any], str]] = {Done: "done", NotDone: "not_done", Unknown: "unknown"}
"""The answers of a probe, in events."""
_PROBED = re.compile(r"(?:^|; )probe: [a-z ]+$")
_AGAIN: Final = "~again"
"""Precedes the number of an entry for a step that runs again because a person retries its turn."""
_UNDO: Final = "~undo"
"""Ends the entry name of the undo of a step."""
_OF_UNDO = re.compile(rf"/[^/]*{_UNDO}(?:{_AGAIN}[0-9]+)?(?:/|$)")
_NUMBER = re.compile(r"[0-9]{1,9}")
_SORTED = json.JSONEncoder(sort_keys=True, default=repr)


@cache
def _tool_return() -> TypeAdapter[ToolReturn[Any]]:
    return TypeAdapter(ToolReturn[Any])


def digest(arguments: Any) -> str:
    """Return the SHA-256 of a call's arguments, independent of the order of their names."""
    text = _SORTED.encode(arguments)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def origin(messages: Sequence[ModelMessage], run_id: str) -> str:
    """Return the run whose model made the pending calls. Another run may have continued them."""
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            return message.run_id or run_id
    return run_id


def entry(call_id: str, before: int) -> str:
    """Return the entry name of a call. Models reuse call ids, so later calls with the same id are numbered."""
    name = call_id.replace("/", "%2F")  # a slash separates the steps of a call from it
    return name if before == 0 else f"{name}~{before + 1}"


def step_entry(parent: str, name: str, before: int) -> str:
    """Return the entry name of a step of a call or of another step, after `before` steps with the same name."""
    return f"{parent}/{name}" if before == 0 else f"{parent}/{name}~{before + 1}"


def next_entry(place: str, redone: Collection[str]) -> str:
    """Return the entry name of a step at a place of the code, after those of its entries that failed and run again."""
    times = 0
    while (entry := numbered(place, times)) in redone:
        times += 1
    return entry


def numbered(name: str, times: int) -> str:
    """Return the name of an entry that is made again for the given time."""
    return name if times == 0 else f"{name}{_AGAIN}{times}"


def entries_from(steps: Mapping[str, Effect], first: str) -> list[str]:
    """Return a step, those that it is a part of, and all that were started later. The messages that steered the turn stay."""
    entries = list(steps)
    around = [entry for entry in entries if place(first).startswith(f"{place(entry)}/")]
    return [*around, *(entry for entry in entries[entries.index(first) :] if "/~" not in entry)]


def place(entry: str) -> str:
    """Return the place in the code of a step's entry."""
    start, _, times = entry.rpartition(_AGAIN)
    return start if times.isdigit() else entry


def undo_entry(entry: str) -> str:
    """Return the entry name of the undo of a step. After a failure it is numbered, like a step that runs again."""
    return f"{entry}{_UNDO}"


def is_of_undo(entry: str, parent: str = "") -> bool:
    """Return whether an entry within `parent` is the undo of a step, or a step of such an undo."""
    return _OF_UNDO.search(entry, len(parent)) is not None


def is_step(effect: Effect) -> bool:
    """Return whether an entry belongs to a step and not to a call."""
    return "/" in effect.call_id


async def step_entries(store: Store, session_id: str, run_id: str, parent: str) -> dict[str, Effect]:
    """Return the recorded steps of a call, a step or an undo by their entry names, in the order of their start."""
    return steps_within(await run_entries(store, session_id, run_id), parent)


def steps_within(entries: Iterable[Effect], parent: str) -> dict[str, Effect]:
    """Return the steps of a call, a step or an undo among the entries of its run. The undos of steps are left out."""
    return {
        effect.call_id: effect
        for effect in entries
        if effect.call_id.startswith(f"{parent}/") and not is_of_undo(effect.call_id, parent)
    }


async def run_entries(store: Store, session_id: str, run_id: str) -> list[Effect]:
    """Return all ledger entries of a run in the order of their start."""
    entries: list[Effect] = []
    cursor = None
    while True:
        page = await store.effects(session_id, run_id=run_id, cursor=cursor)
        entries += page.items
        cursor = page.next_cursor
        if cursor is None:
            return entries


def check_policy(policy: Any, probe: Any, *, allowed: Sequence[str], what: str) -> Policy:
    """Return the policy of a call or step. Raises `BadInput` if there is no such policy, or its probe is missing."""
    if policy not in allowed:
        raise BadInput(
            problem=f"{policy!r} is not a recovery policy of {what}; use one of {', '.join(allowed)}"
        )
    if (policy == "probe" or probe is not None) and not callable(probe):
        raise BadInput(problem=f"{what} needs a function as its probe, not {type(probe).__name__}")
    return policy


def calls_before(messages: Sequence[ModelMessage], run_id: str) -> Counter[str]:
    """Count the calls that a run made with each id, up to its last response."""
    last = next((n for n in reversed(range(len(messages))) if isinstance(messages[n], ModelResponse)), 0)
    return Counter(
        part.tool_call_id
        for message in messages[:last]
        if isinstance(message, ModelResponse) and (message.run_id or run_id) == run_id
        for part in message.parts
        if isinstance(part, ToolCallPart)
    )


async def latest_entries(
    store: Store, session_id: str, run_id: str, call_ids: Iterable[str]
) -> dict[str, tuple[int, Effect]]:
    """Return, for each of these ids that the ledger of a run contains, the number of the latest call with it, and its effect.

    They are counted in the ledger because a history processor may have dropped calls from the history.
    """
    latest: dict[str, tuple[int, Effect]] = {}
    wanted = {entry(call_id, 0): call_id for call_id in call_ids}
    cursor = None
    while run_id:
        page = await store.effects(session_id, run_id=run_id, cursor=cursor)
        for effect in page.items:
            base, _, number = effect.call_id.rpartition("~")
            for name, count in (
                (effect.call_id, 1),
                (base, int(number) if _NUMBER.fullmatch(number) else 0),
            ):
                call_id = wanted.get(name)
                if call_id is not None and count > latest.get(call_id, (0, effect))[0]:
                    latest[call_id] = count, effect
        cursor = page.next_cursor
        if cursor is None:
            break
    return latest


def open_entry(before: int, latest: tuple[int, Effect] | None) -> tuple[int, Effect | None]:
    """Return how many calls with the same id precede a pending call, and its effect if it was started.

    `before` of them are in the history; `latest` is the last one in the ledger. It belongs to the pending call if no message
    answers it and the history has no later one.
    """
    number, effect = latest or (0, None)
    if effect is not None and effect.message is None and number > before:
        return number - 1, effect
    return max(before, number), None


async def ended_calls(
    store: Store, session_id: str, messages: Sequence[ModelMessage], call_ids: Sequence[str]
) -> set[str]:
    """Return which of the pending calls at the end of a history have a recorded end."""
    run_id = origin(messages, "")
    before = calls_before(messages, run_id)
    latest = await latest_entries(store, session_id, run_id, call_ids)
    entries = {call_id: open_entry(before[call_id], latest.get(call_id))[1] for call_id in call_ids}
    return {
        call_id for call_id, effect in entries.items() if effect is not None and effect.state != "started"
    }


def key(run_id: str, call_id: str) -> str:
    """Return the idempotency key of a call. It is the same in every process."""
    return hashlib.sha256(f"{run_id}/{call_id}".encode()).hexdigest()[:32]


def idempotency_key(ctx: RunContext[Any] | None = None) -> str:
    """Return the idempotency key of the current step or tool call, for services that deduplicate requests.

    It stays the same when the step or call runs again after a crash or a failure, in any process. A completed step that a person
    repeats gets a new key. If the run is not recorded, pass the tool's `ctx`.
    """
    if (current := current_call.get()) is not None:
        return renewed_keys.get().get(current) or key(*current)
    if ctx is None or ctx.tool_call_id is None or ctx.run_id is None:
        message = "idempotency_key can only be used within a step or a tool call"
        raise ValueError(message)
    return key(origin(ctx.messages, ctx.run_id), ctx.tool_call_id)


def returned(part: ToolReturnPart) -> Json:
    """Return the result of a tool as text, or a marker if it cannot be serialized."""
    value: Any = part.content
    if isinstance(value, ToolReturn):
        structured: ToolReturn[Any] = value  # pyright: ignore[reportUnknownVariableType]
        try:
            body = lenient_json(_tool_return().dump_python(structured, mode="json", fallback=repr))
        except (ValueError, RecursionError):
            return UNSERIALIZABLE
        return f'{{"kind":"tool_return","value":{body}}}'
    body = dump_all(ModelRequest(parts=[part]))
    return UNSERIALIZABLE if body is None else f'{{"kind":"return","message":{body}}}'


def raised(error: ToolRetryError | ToolFailedError) -> Json:
    """Return the retry or failure message that a tool raised for the model, as text."""
    part = error.tool_retry if isinstance(error, ToolRetryError) else error.tool_failed
    kind = "retry" if isinstance(error, ToolRetryError) else "failed"
    return f'{{"kind":"{kind}","message":{dump(ModelRequest(parts=[part]))}}}'


def deferred(kind: Deferral, metadata: dict[str, Any] | None = None) -> Json:
    """Return the reason why a started call waits, as text."""
    return lenient_json({"kind": kind, "metadata": metadata}, default=repr)


def waits_for(effect: Effect) -> Deferral | None:
    """Return what a call waits for: an approval, an external result, a decision to run it again, a time or a signal. None if nothing."""
    if effect.state != "started" or effect.result is None:
        return None
    return json.loads(effect.result)["kind"]


def was_approved(effect: Effect | None) -> bool:
    """Return whether a call that waits for a time or a signal had been approved before."""
    metadata: dict[str, Any] = json.loads((effect and effect.result) or "{}").get("metadata") or {}
    return bool(metadata.get("approved"))


def _questions(effect: Effect) -> list[dict[str, Any]]:
    """Return the open questions of the delegate that a call waits for."""
    metadata: dict[str, Any] = json.loads(effect.result or "{}").get("metadata") or {}
    return metadata.get("questions") or []


def again_note(effect: Effect) -> str:
    """Return the facts that a person needs to decide whether a call runs again."""
    metadata: dict[str, Any] = json.loads(effect.result or "{}").get("metadata") or {}
    step = metadata.get("step")
    what = f"Its step {step!r}" if step else "It"
    summary = f" ({effect.summary})" if effect.summary else ""
    return f"{what} was started before an interruption, and it is unknown whether it took effect{summary}. Approve to run it again."


def asked_about(effect: Effect) -> dict[str, str]:
    """Return the ledger entry that a person decides about when a call waits to run again: the call, or one of its steps."""
    metadata: dict[str, Any] = json.loads(effect.result or "{}").get("metadata") or {}
    return {"run_id": effect.run_id, "call_id": metadata.get("call_id", effect.call_id)}


def answered(effect: Effect, part: Any, message: tuple[int, int]) -> Effect | None:
    """Return the final effect of a waiting call, from the message that answers it; None if its outcome is still unknown."""
    kind, outcome = waits_for(effect), getattr(part, "outcome", "success")
    if kind is None or outcome == "interrupted" or (kind == "again" and outcome == "denied"):
        return None  # an earlier attempt was started, and its outcome is unknown
    if outcome == "denied":
        return replace(effect, state="failed", result=None, error=f"denied: {part.content}", message=message)
    return replace(effect, state="completed", result=None, message=message)


def replay(effect: Effect) -> Any:
    """Replay a recorded result: return it, or raise the tool's message for the model, or the deferral."""
    record: dict[str, Any] = read_recorded(effect.result or "{}")
    kind = record.get("kind")
    if kind in {"approval", "again"}:
        raise ApprovalRequired(record["metadata"])
    if kind == "external":
        raise CallDeferred(record["metadata"])
    if kind == "tool_return":
        return _tool_return().validate_python(record["value"])
    (message,) = load([json.dumps(record["message"])])
    (part,) = message.parts
    if kind == "retry":
        raise ToolRetryError(part)  # pyright: ignore[reportArgumentType]
    if kind == "failed":
        raise ToolFailedError(part)  # pyright: ignore[reportArgumentType]
    return part.content  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


def describe(error: BaseException) -> str:
    """Return an error as text that every store accepts."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text.replace("\x00", "\\x00").encode("utf-8", "replace").decode()


def without_result(effect: Effect) -> Effect:
    """Return the effect as one whose result could not be recorded."""
    result = None if effect.result is None else UNSERIALIZABLE
    return replace(effect, result=result, undo=None)  # what was recorded when the step started stays


def with_answer(effect: Effect, answer: Any) -> Effect:
    """Return the effect with the answer of its probe in its summary."""
    summary = "; ".join(filter(None, (noted(effect), f"probe: {ANSWERS[type(answer)].replace('_', ' ')}")))
    return replace(effect, summary=summary)


def noted(effect: Effect) -> str | None:
    """Return the summary that the application set, without the answer of a probe."""
    return _PROBED.sub("", effect.summary or "") or None


def is_cut_off(effect: Effect) -> bool:
    """Return whether a call was started, has no recorded end and waits for nothing: it is unknown whether it took effect."""
    return effect.state == "started" and effect.result is None


def is_known(effect: Effect) -> bool:
    """Return whether the outcome of a call is recorded and can be replayed."""
    return (
        effect.state == "completed"
        and effect.result is not None
        and "unserializable" not in effect.result[:40]
    )


def report_unknown(effect: Effect, tool: str, call_id: str, step: str | None = None) -> NoReturn:
    """Answer a call that does not run again: raise the exception that makes Pydantic AI add a result with the outcome `interrupted`, or `failed`."""
    outcome = "failed" if effect.state == "failed" else "interrupted"
    raise ToolFailedError(ToolReturnPart(tool, unknown(effect, step), call_id, outcome=outcome)) from None


def unknown(effect: Effect, step: str | None = None) -> str:
    """Return the text that reports a call with an unknown outcome to the model; `step` is the part of it that was cut off."""
    if step is not None:
        return (
            f"This call was interrupted: its step {step!r} was started, but it is unknown whether it took effect. "
            "Check before you repeat it, or inform the user."
        )
    if effect.state == "failed":
        return f"The call failed: {effect.error}. It was not repeated. Decide whether to retry it."
    if waits_for(effect) == "approval":
        return "This call was not carried out: the conversation continued before it was approved."
    if waits_for(effect) == "wait" and (asked := _questions(effect)):
        tools = ", ".join(sorted({question["tool"] for question in asked}))
        return f"This call was stopped while its delegate waited for a decision about {tools}, which was not carried out."
    if waits_for(effect) == "wait":
        return "This call was stopped while it waited for a time or a signal. Its completed steps have taken effect."
    if waits_for(effect) == "external":
        return "This call was handed over, and the conversation continued before its result arrived."
    if effect.state == "completed":
        return "The call was carried out before an interruption; its result could not be recorded."
    return (
        "This call was interrupted: it was started, but it is unknown whether it took effect. "
        "Check before you repeat it, or inform the user."
    )
