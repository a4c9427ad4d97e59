"""The request of a tool or plain agent for a step, and the recorded outcome that it receives."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeAlias, cast, get_args

from pydantic_ai.exceptions import ModelRetry

from holdfast.errors import BadInput, StepError, StepsDiffer
from holdfast.record import ledger, step_results
from holdfast.record.ledger import CallRef, Policy
from holdfast.record.probes import Probe, Unsettled
from holdfast.record.retries import Retry
from holdfast.types import Effect, Json

_LONGEST_NAME: Final = 100
StepPolicy: TypeAlias = Literal["retry", "report", "ask", "probe"]
"""How to handle, after a crash, a step that was started and has no recorded end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """A request for a step."""

    name: str
    function: Callable[..., Any]
    arguments: Sequence[Any]
    digest: str
    policy: Policy
    probe: Probe | None
    probe_timeout: float
    retry: Retry | None
    ref: CallRef = ("", "")
    """Its place in the code. The steps within it belong to this place."""
    entry: str = ""
    """Its ledger entry: its place, numbered if it runs again after a failure that ended the turn."""
    undo: Json | None = None
    """The name of the function that undoes it, and its arguments, as the ledger keeps them."""

    @classmethod
    def checked(
        cls,
        name: str,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        *,
        recovery: StepPolicy,
        probe: Probe | None,
        probe_timeout: float,
        retry: Retry | None,
    ) -> Self:
        """Check a request for a step. Raises `BadInput`."""
        _check_name(name)
        if not callable(function):
            raise BadInput(problem=f"step {name!r} needs a function, not {type(function).__name__}")
        policy = ledger.check_policy(recovery, probe, allowed=get_args(StepPolicy), what=f"step {name!r}")
        return cls(
            name=name,
            function=function,
            arguments=arguments,
            digest=ledger.digest(_arguments_text(function, arguments)),
            policy=policy,
            probe=probe,
            probe_timeout=probe_timeout,
            retry=retry,
        )

    def first_effect(self, step: int | None, key: str) -> Effect:
        """Return the ledger entry of a step that has not been attempted yet."""
        return Effect(
            run_id=self.ref[0],
            call_id=self.entry,
            tool=self.name,
            step=step,
            arguments_digest=self.digest,
            idempotency_key=key,
            undo=self.undo,
            attempts=0,
        )

    def unsettled(self, known: Effect, key: str) -> Unsettled:
        """Return the step as its probe receives it."""
        return Unsettled(
            name=self.name,
            key=key,
            arguments=tuple(self.arguments),
            summary=ledger.noted(known),
            attempts=known.attempts,
            started_at=known.started_at,
        )

    def facts(self, **more: object) -> dict[str, object]:
        """Return the payload of an event about the step."""
        return {"name": self.name, "call_id": self.entry, **more}

    def undo_facts(self) -> dict[str, str]:
        """Return the name of its undo for the event of its start."""
        return {} if self.undo is None else {"undo": json.loads(self.undo)["undo"]}

    def arguments_as_json(self) -> Any:
        """Return the arguments for a person to read."""
        return json.loads(_arguments_text(self.function, self.arguments))

    def replay(self, effect: Effect) -> Any:
        """Return the recorded result of the step, or raise its recorded failure."""
        if effect.state == "failed":
            raise self.failure(effect.error or "")
        if not ledger.is_known(effect):
            raise self.unserializable(effect.error or "")
        record: dict[str, Any] = json.loads(effect.result or "{}")
        if record["kind"] != "value":
            return ledger.replay(effect)
        try:
            return step_results.load(json.dumps(record["value"]), step_results.result_type(self.function))
        except step_results.Unserializable as error:
            recorded = f"a result of step {self.name!r} of another type: {error}"
            raise StepsDiffer(asked="the function returns another type", recorded=recorded) from None

    def failure(self, error: str) -> Exception:
        """Return the error of the failed step. The message of a tool for the model remains one."""
        kind, _, text = error.partition(": ")
        if kind == ModelRetry.__name__:
            return ModelRetry(text)
        return StepError(step=self.name, error=error, call_id=self.entry)

    def unserializable(self, problem: str) -> BadInput:
        """Return the error of a step whose result cannot be recorded."""
        return BadInput(
            problem=f"step {self.name!r} has ended, but its result cannot be recorded exactly: {problem}. Return JSON, or declare the return type of the function"
        )


def all_arguments(function: Any, arguments: Iterable[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and keyword arguments of a call, including those of a `functools.partial`."""
    positional, named = list(arguments), cast("dict[str, Any]", {})
    while hasattr(function, "func") and hasattr(function, "keywords"):
        positional, named = [*function.args, *positional], {**function.keywords, **named}
        function = function.func
    return positional, named


def _arguments_text(function: Any, arguments: Iterable[Any]) -> Json:
    positional, named = all_arguments(function, arguments)
    return step_results.digest_text([positional, named] if named else positional)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
        raise BadInput(
            problem=f"a step needs a name of 1 to {_LONGEST_NAME} printable characters, not {name!r:.80}"
        )
    if "/" in name or "~" in name:
        raise BadInput(problem=f"the name of step {name!r} must not contain / or ~")
