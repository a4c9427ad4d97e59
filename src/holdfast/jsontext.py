"""Write and validate the JSON text that is stored.

Every reader must be able to read stored JSON: it has no NaN or Infinity, which JSON does not support, no numbers that a
parser rejects, and no nesting that overflows the serializer of a list that contains it.
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, cast

from holdfast.errors import BadInput, BadText
from holdfast.types import Json

DEEPEST: Final = 100
"""The deepest allowed nesting of objects and arrays. Pydantic serializes up to 255 levels."""


def _refuse(constant: str) -> NoReturn:
    message = f"{constant} is not a JSON number"
    raise ValueError(message)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        message = "a number is too large"
        raise ValueError(message)
    return number


def _bounded(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        message = "a number is too large"
        raise ValueError(message)
    return int(text)


_MOST_DIGITS: Final = 310
"""The number of digits of the largest float. The time to read a longer number grows with the square of its length."""
_LONGEST_INT: Final = 4300
"""The most digits that Python reads by default. Pydantic writes longer numbers, and a tool may return one."""
MOST_VALUES: Final = 100_000
"""The most values in a JSON text from outside. A value takes a hundred times as much memory as its text."""
MOST_RECORDED_VALUES: Final = 2_000_000
"""The most values in a recorded message or result. An archive that restores one has the same limit."""
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A string, even if it is unterminated: otherwise each quote in it would cause another scan of the rest."""
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_STRICT: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, parse_int=_bounded)
_SCAN: Final[Callable[[str, int], tuple[Any, int]]] = vars(_STRICT)["scan_once"]
"""Reads the value at a position. Searching for white space around it would take longer than a short value."""
_TOLERANT: Final = json.JSONDecoder(
    parse_constant=_refuse, parse_int=lambda text: int(text) if len(text) < _LONGEST_INT else text
)
_LENIENT: Final = json.JSONDecoder(parse_constant=lambda _: None)


def parse_json(text: str, what: str, *, most_values: int = MOST_VALUES) -> Any:
    """Return the value of a JSON text. Raise `BadText` if it is not strict JSON, too large or nested too deeply."""
    if has_many_values(text, most_values):
        raise BadText(what=what, problem=f"has more than {most_values:,} values")
    try:
        value = _decode(text)
    except RecursionError:
        raise BadText(what=what, problem=_TOO_DEEP) from None
    except ValueError as error:
        raise BadText(what=what, problem=f"is not valid JSON: {error}") from None
    if len(text) > 2 * DEEPEST and text.count("{") + text.count("[") > DEEPEST and is_too_deep(value):
        raise BadText(what=what, problem=_TOO_DEEP)
    return value


def _decode(text: str) -> Any:
    try:
        value, end = _SCAN(text, 0)
        if end == len(text):
            return value
    except StopIteration:
        pass
    return _STRICT.decode(text)  # with white space around it, or an error


def parse_object(text: str, what: str) -> dict[str, Any]:
    """Return the value of a JSON text that must be an object, with the checks of `parse_json`."""
    value = parse_json(text, what)
    if not isinstance(value, dict):
        raise BadText(what=what, problem="is not a JSON object")
    return cast("dict[str, Any]", value)


_TOO_DEEP: Final = f"is nested more than {DEEPEST} levels deep"


def has_many_values(text: str, most: int) -> bool:
    """Return whether a JSON text has more values than `most`, without parsing it."""
    return len(text) > most and _most_values(text) > most and _most_values(_STRING.sub("", text)) > most


def _most_values(text: str) -> int:
    """Return an upper bound of the number of values: each but the first follows one of these characters."""
    return text.count(",") + text.count("[") + text.count("{")


def check_recorded(text: str, what: str) -> None:
    """Raise `BadText` if a recorded text has more values than an archive may restore."""
    if has_many_values(text, MOST_RECORDED_VALUES):
        raise BadText(what=what, problem=f"has more than {MOST_RECORDED_VALUES:,} values")


def is_too_deep(value: Any) -> bool:
    """Return whether a value is nested more deeply than the limit. Works level by level, without recursion."""
    level: list[Any] = [value]
    for _ in range(DEEPEST + 1):
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return False
        level = [child for item in level for child in _children(item)]
    return True


def _children(item: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return item.values() if isinstance(item, dict) else item


def has_lone_surrogates(text: str, value: Any) -> bool:
    """Return whether the value of this JSON text contains a lone surrogate, which UTF-8 cannot represent."""
    if _SURROGATE.search(text) is None:
        return False
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def read_recorded(text: Json) -> Any:
    """Return the value of a recorded text. A number with more digits than Python reads becomes a string."""
    return _TOLERANT.decode(text)


def read_json(text: Json) -> Any:
    """Return the value of a stored text in a form that can be sent: lone surrogates become "?", as in JavaScript."""
    value: Any = json.loads(text)
    if has_lone_surrogates(text, value):
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def strict_json(value: Any, what: str) -> Json:
    """Return the JSON text of a value from outside. Raise `BadInput` if JSON cannot represent it."""
    try:
        return json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise BadInput(problem=f"the {what} cannot be written as JSON: {error}") from None


def lenient_json(
    value: Any, *, default: Callable[[Any], Any] | None = None, separators: tuple[str, str] | None = None
) -> Json:
    """Return the JSON text of a value from Holdfast or an agent. NaN and infinite numbers become null, as in Pydantic."""
    try:
        return json.dumps(value, allow_nan=False, default=default, separators=separators)
    except ValueError:
        text = json.dumps(value, default=default)
        return json.dumps(_LENIENT.decode(text), separators=separators)
