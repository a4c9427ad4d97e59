"""The operations: each is one function, registered with its method, path and rule. Both doors call it.

The API server makes a route of each (`server/routes.py`); `connect` on a store calls it directly (`client/local.py`).
"""

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Final, NewType, TypeVar, cast, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from holdfast.api.models import ID_PATTERN, Id
from holdfast.content import place_of
from holdfast.errors import BadId, BadInput, BadText
from holdfast.jsontext import MOST_VALUES, has_lone_surrogates, parse_json
from holdfast.operations.access import Rule

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
JsonText = NewType("JsonText", str)
"""A response as exact JSON text, where parsing it would take long or change it."""
MOST_FIELDS: Final = 100
NO_NUL: Final = r"^[^\x00]*$"
SessionId = Annotated[Id, Field(description="Id of the session.")]
Limit = Annotated[int, Field(ge=1, le=1000, description="Maximum number of items.")]
CursorText = Annotated[str | None, Field(max_length=1000, description="`next_cursor` of the previous page.")]


@dataclass(frozen=True, slots=True)
class ClientMethod:
    """A method of a handle that sends the request of a route, and the command that does the same."""

    name: str
    """Such as `SessionHandle.undo`."""
    command: str | None = None
    """Without `holdfast`. If there is none, `note` has the reason."""
    note: str = ""


@dataclass(frozen=True)
class Operation:
    """One operation: the function, and how it is called."""

    call: Callable[..., Awaitable[Any]]
    method: str
    path: str
    rule: Rule
    client: tuple[ClientMethod, ...]
    """The methods of handles that call it; if there is none, `no_method` has the reason."""
    no_method: str | None
    topic: str
    status: int
    has_route: bool
    """Whether the API server creates a route for it. Otherwise a separate route, which can also stream, calls the function."""
    options: Mapping[str, Any]
    """Its description in the OpenAPI document."""
    _pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        parts = re.sub(r"\{(\w+):path\}", r"(?P<\1>.+)", self.path)
        object.__setattr__(self, "_pattern", re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", parts)))

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters after the caller, with their types."""
        hints = get_type_hints(self.call, include_extras=True)
        given = list(inspect.signature(self.call).parameters.values())[1:]
        return {each.name: each.replace(annotation=hints[each.name]) for each in given}

    @cached_property
    def _adapters(self) -> dict[str, TypeAdapter[Any]]:
        return {name: TypeAdapter(each.annotation) for name, each in self.parameters.items()}

    def match(self, method: str, path: str) -> dict[str, str] | None:
        """Return the parameters in a path; None if it is not that of this operation."""
        result = self._pattern.fullmatch(path) if method == self.method else None
        return None if result is None else result.groupdict()

    def bind(self, path: Mapping[str, Any], query: Mapping[str, Any], body: Any) -> dict[str, Any]:
        """Return the arguments of a call, validated. Raises `BadInput`."""
        values: dict[str, Any] = {}
        errors: list[Any] = []
        for name, parameter in self.parameters.items():
            where = ("body",) if name == "body" else ("path" if name in path else "query", name)
            value = body if name == "body" else path.get(name, query.get(name))
            if value is None:
                if parameter.default is inspect.Parameter.empty:
                    errors.append({"loc": where, "msg": "Field required", "input": None})
                continue
            try:
                values[name] = self._adapters[name].validate_python(value)
            except ValidationError as error:
                errors += [{**each, "loc": (*where, *each["loc"])} for each in error.errors()]
        if errors:
            raise invalid(errors)
        return values


OPERATIONS: list[Operation] = []
"""The operations of the modules that are imported; `topics.py` imports all."""


def operation(
    method: str,
    path: str,
    rule: Rule,
    *client: ClientMethod,
    no_method: str | None = None,
    topic: str,
    status: int = 200,
    has_route: bool = True,
    **options: Any,
) -> Callable[[F], F]:
    """Register a function as an operation. Its first parameter is the `Caller`; a parameter `body` is the body of the request.

    `client` lists the methods of handles that call it, or `no_method` gives the reason that there is none. They become
    docs/reference/operations.md.
    """

    def register(call: F) -> F:
        OPERATIONS.append(
            Operation(call, method, path, rule, client, no_method, topic, status, has_route, options)
        )
        return call

    return register


def invalid(errors: Iterable[Mapping[str, Any]]) -> BadInput:
    """Return Pydantic's validation errors as one error, with the location of each problem."""
    results = list(errors)
    first = results[0]
    if first.get("ctx", {}).get("pattern") == ID_PATTERN:
        name = [part for part in first["loc"] if isinstance(part, str)][-1]  # without the position in a list
        return BadId(what=name.replace("_", " "), value=str(first["input"])[:200])
    problems = [{"where": place_of(each["loc"]), "problem": str(each["msg"])} for each in results][:20]
    message = f"{problems[0]['where']}: {problems[0]['problem']}".encode("utf-8", "replace").decode()
    return BadInput.restore(message, {"problems": problems})


def parse_body(body: bytes, most_values: int = MOST_VALUES) -> Any:
    """Return the value of a request body: strict JSON in UTF-8, with the same limit on nesting as stored JSON. Raises `BadInput`."""
    try:
        text = body.decode("utf-8-sig")
        value = parse_json(text, "request body", most_values=most_values)
    except UnicodeDecodeError:
        raise _bad_body("is not UTF-8") from None
    except BadText as error:
        raise _bad_body(str(error.facts["problem"])) from None
    if has_lone_surrogates(text, value):
        raise _bad_body("contains a lone surrogate, which is not valid text")
    if _has_many_fields(value):
        # Each unknown field would become an error in the response.
        raise _bad_body(f"has more than {MOST_FIELDS} fields")
    return value


def _has_many_fields(value: object) -> bool:
    return isinstance(value, dict) and len(cast("dict[str, Any]", value)) > MOST_FIELDS


def _bad_body(problem: str) -> BadInput:
    return BadInput.restore(f"The request body {problem}.", {})


def dump_body(value: object) -> bytes:
    """Return a value as the body of a request. Raises `BadText` for text that is not valid, and `BadInput` for values that are not JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:
        problem = "contains a lone surrogate, which is not valid text"
        raise BadText(what="request", problem=problem) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(problem=f"a value of the request is not JSON: {error}") from None
