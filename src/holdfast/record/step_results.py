"""The results of steps as exact JSON: a step returns the same value when it runs and when its record is read."""

import json
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from holdfast.jsontext import DEEPEST, is_too_deep, lenient_json
from holdfast.types import Json

_UNTYPED: Any = object()
_EXACT = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings")


class Unserializable(Exception):
    """A value that JSON cannot represent exactly."""


def result_type(function: Callable[..., Any]) -> Any:
    """Return the declared return type of a function, or a marker if it has none."""
    while isinstance(function, partial):
        function = function.func
    try:
        return get_type_hints(function).get("return", _UNTYPED)
    except Exception:  # noqa: BLE001 - annotations are code, and their names may exist for type checkers only
        return _UNTYPED


def dump(value: Any, kind: Any) -> tuple[Json, Any]:
    """Return the text of a result, and the value that a reader of this text gets. Raises `Unserializable`."""
    try:
        if kind is _UNTYPED:
            text = json.dumps(value, allow_nan=False, separators=(",", ":"))
            back = json.loads(text)
            if back != value:
                message = f"{type(value).__name__} changes when it is written as JSON"
                raise Unserializable(message)
        else:
            text = _adapter(kind).dump_json(value, warnings="error").decode()
            back = load(text, kind)
    except (TypeError, ValueError, RecursionError, PydanticSerializationError) as error:
        raise Unserializable(" ".join(str(error).split())[:200]) from None
    if len(text) > 2 * DEEPEST and is_too_deep(json.loads(text)):
        message = "it is nested too deeply"
        raise Unserializable(message)
    return text, back


def load(text: Json, kind: Any) -> Any:
    """Return the value of a recorded result. Raises `Unserializable` if it no longer has the declared type."""
    if kind is _UNTYPED:
        return json.loads(text)
    try:
        return _adapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Unserializable(f"it is not a valid {_name(kind)}: {first['msg']}") from None


def digest_text(arguments: Any) -> str:
    """Return arguments as text that is the same in every process: an object that is not data counts by its type."""
    adapter: TypeAdapter[Any] = _adapter(Any)
    try:
        value = adapter.dump_python(arguments, mode="json", warnings=False, fallback=_type_name)
    except (PydanticSerializationError, ValueError, RecursionError):
        value = _type_name(arguments)
    return lenient_json(value)


def _type_name(value: Any) -> str:
    kind: type[Any] = value.__class__
    return f"<{kind.__module__}.{kind.__qualname__}>"


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)


def _adapter(kind: Any) -> TypeAdapter[Any]:
    try:
        return _cached(kind)
    except TypeError:  # an annotation that cannot be hashed
        return _build(kind)


def _build(kind: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(kind, config=_EXACT)
    except PydanticUserError:  # a model has its own configuration, and some types cannot be described
        try:
            return TypeAdapter(kind)
        except PydanticUserError as error:
            raise Unserializable(
                f"the return type {_name(kind)} cannot be recorded: {error.message}"
            ) from None


_cached = lru_cache(maxsize=1024)(_build)
