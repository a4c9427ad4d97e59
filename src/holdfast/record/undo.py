"""The functions that undo steps: how an agent registers them, what they receive, and what the ledger keeps of a step for them."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args, get_type_hints

from holdfast.errors import BadInput
from holdfast.ids import check_choice, check_name
from holdfast.jsontext import lenient_json, read_recorded
from holdfast.record import ledger, step_results
from holdfast.record.probes import LIMIT_SECONDS, Probe
from holdfast.record.retries import Retry
from holdfast.record.step_requests import StepPolicy, all_arguments
from holdfast.types import Effect, Json

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedStep(Generic[T]):
    """A step that took effect, as the function that undoes it receives it.

    The values are those of the ledger: JSON. If the function declares `CompletedStep[Booking]`, the `result` is a `Booking`.
    """

    name: str
    """The name of the step."""
    key: str
    """The idempotency key that the step used."""
    arguments: Sequence[Any] = field(repr=False)
    """The arguments of the step in order. One that is not data is the name of its type."""
    keywords: Mapping[str, Any] = field(repr=False)
    """The keyword arguments of a `functools.partial`."""
    result: T = field(repr=False)
    """The recorded result of the step."""
    summary: str | None = None
    """The summary that the step set with `annotate_effect`."""
    started_at: datetime | None = None
    ended_at: datetime | None = None


UndoFunction: TypeAlias = Callable[[CompletedStep[Any]], Awaitable[object] | object]


@dataclass(frozen=True, slots=True)
class Undo:
    """A function that undoes steps, and what happens when it is interrupted.

    `name` is the name that the ledger keeps; by default it is that of the function. `recovery`, `probe`, `probe_timeout` and `retry` are
    for the undo, as they are in `step` for a step. `step_probe` determines whether a step with an unknown outcome took effect: without it,
    such a step stops the undo.
    """

    function: UndoFunction
    name: str = field(default="", kw_only=True)
    recovery: StepPolicy = field(default="report", kw_only=True)
    probe: Probe | None = field(default=None, kw_only=True)
    probe_timeout: float = field(default=LIMIT_SECONDS, kw_only=True)
    retry: Retry | None = field(default=None, kw_only=True)
    step_probe: Probe | None = field(default=None, kw_only=True)


OnFailure: TypeAlias = Literal["undo"]
"""What happens when a turn fails or is interrupted: its effects are undone."""
AnyUndo: TypeAlias = Undo | UndoFunction
"""What an agent registers: a function, or an `Undo` with its options."""


def undos_by_name(undos: Iterable[AnyUndo]) -> dict[str, Undo]:
    """Return the registered functions by name. Raises `BadInput` for an invalid one, and for two of the same name."""
    named: dict[str, Undo] = {}
    for given in undos:
        undo: Any = given if isinstance(given, Undo) else Undo(given)
        if not callable(undo.function):
            raise BadInput(problem=f"an undo must be a function, not {type(undo.function).__name__}")
        name = check_name(undo.name or _name_of(undo.function), "name of an undo")
        ledger.check_policy(undo.recovery, undo.probe, allowed=get_args(StepPolicy), what=f"undo {name!r}")
        if name in named:
            raise BadInput(problem=f"two functions for undo have the name {name!r}; give one another name")
        named[name] = undo
    return named


def check_undo_options(undos: Iterable[AnyUndo], on_failure: Any) -> None:
    """Raise `BadInput` unless an agent can have these functions, and can do this when a turn fails."""
    undos_by_name(undos)
    if on_failure is not None:
        check_choice(on_failure, get_args(OnFailure), "value for on_failure")


def find_undo(undo: UndoFunction | str, registered: Mapping[str, Undo], step: str) -> str:
    """Return the registered name of the undo of a step. Raises `BadInput` if the agent does not have it."""
    if isinstance(undo, str):
        name = undo if undo in registered else None
    else:
        name = next((name for name, each in registered.items() if each.function == undo), None)
    if name is None:
        given = undo if isinstance(undo, str) else _name_of(undo)
        known = ", ".join(registered) or "none"
        raise BadInput(
            problem=f"the agent has no undo {given!r}, which step {step!r} names (it has {known}). Pass the function to the agent: undo=[{given}]"
        )
    return name


def undo_record(name: str, function: Callable[..., Any], arguments: Sequence[Any]) -> Json:
    """Return what the ledger keeps of a step that has an undo: its name, and the arguments of the step."""
    positional, keywords = all_arguments(function, arguments)
    given = json.loads(step_results.digest_text({"arguments": positional, "keywords": keywords}))
    return lenient_json({"undo": name, **given})


def undo_name(effect: Effect) -> str | None:
    """Return the name of the undo of a step; None if it has none."""
    return None if effect.undo is None else read_recorded(effect.undo)["undo"]


def completed_step(effect: Effect, function: UndoFunction) -> CompletedStep[Any]:
    """Return a step with its complete record as the function that undoes it receives it. Raises `Unserializable` if the function declares another type of result."""
    recorded: dict[str, Any] = read_recorded(effect.undo or "{}")
    result: Any = (
        read_recorded(effect.result).get("value") if ledger.is_known(effect) and effect.result else None
    )
    if (kind := _declared_result(function)) is not None:
        result = step_results.load(lenient_json(result), kind)
    return CompletedStep(
        name=effect.tool,
        key=effect.idempotency_key or ledger.key(effect.run_id, effect.call_id),
        arguments=recorded.get("arguments", []),
        keywords=recorded.get("keywords", {}),
        result=result,
        summary=ledger.noted(effect),
        started_at=effect.started_at,
        ended_at=effect.ended_at,
    )


def _name_of(function: object) -> str:
    return getattr(function, "__name__", None) or type(function).__name__


def _declared_result(function: UndoFunction) -> Any:
    """Return the type of the result that a function declares, as in `CompletedStep[Booking]`; None if it declares none."""
    try:
        hints = get_type_hints(function)
    except Exception:  # noqa: BLE001 - annotations are code, and their names may exist for type checkers only
        return None
    declared = (get_args(hint) for name, hint in hints.items() if name != "return")
    kind = next((arguments[0] for arguments in declared if len(arguments) == 1), None)
    return None if kind is Any else kind
