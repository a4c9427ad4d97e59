"""The type of an agent's output, and how it is read from a turn."""

import json
from collections.abc import Sequence
from inspect import isroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, cast

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from holdfast.client.turn import TurnOutput
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from pydantic_ai import Agent

T = TypeVar("T")


class OutputType(Generic[T]):
    """Reads the output of turns as one type."""

    def __init__(self, type_: Any) -> None:
        self._type = type_
        self._adapter: TypeAdapter[T] | None = None if type_ is str else TypeAdapter(type_)

    def parse(self, output: TurnOutput) -> T:
        """Return the output of a turn. Raises `BadInput` if it has another type."""
        value = output.value
        if self._adapter is None:
            return cast("T", value if isinstance(value, str) else json.dumps(value))
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            problem = f"the output of turn {output.id} is not of type {self._type!r}: {where} {first['msg']}"
            raise BadInput(problem=problem) from error


def output_type_of(agent: "Agent[Any, T]") -> OutputType[T]:
    """Return the output type of an agent. Raises `BadInput` if it does not consist of types."""
    from pydantic_ai import DeferredToolRequests

    given: Any = agent.output_type
    kinds: Sequence[Any] = cast("Sequence[Any]", given) if isinstance(given, Sequence) else [given]
    types = [kind for kind in kinds if kind is not DeferredToolRequests]
    problem = f"the output type of agent {agent.name!r} is not made of types only; pass output_type"
    if any(map(isroutine, types)):  # Pydantic would call a function to validate the output
        raise BadInput(problem=problem)
    try:
        return OutputType(Union[tuple(types)])  # noqa: UP007 - the types are values here
    except (PydanticUserError, TypeError) as error:  # a marker such as ToolOutput
        raise BadInput(problem=problem) from error
