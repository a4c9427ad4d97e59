"""Rows of any engine: conversion to the types of the store, and pages."""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Protocol, TypeAlias, TypeVar, get_type_hints

from holdfast.errors import BadCursor, BadInput
from holdfast.types import Page

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST_PAGE = 10_000


class Row(Protocol):
    """A row of either driver."""

    def __getitem__(self, column: str, /) -> Any:
        """Return the value of a column."""
        ...


Rows: TypeAlias = Sequence[Row]


class CutRows(list[Row]):
    """Rows that end before their maximum number because they reached their maximum size."""


def moment(microseconds: int) -> datetime:
    """Return a stored time as a datetime, exactly."""
    return _EPOCH + timedelta(microseconds=microseconds)


def microseconds(at: datetime) -> int:
    """Return a time as it is stored."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def maybe_moment(microseconds: int | None) -> datetime | None:
    """Return a stored time that may be missing, or 0."""
    return moment(microseconds) if microseconds else None


_CONVERTED: dict[Any, Callable[[Any], Any]] = {
    datetime: moment,
    datetime | None: maybe_moment,
    bool: bool,
}
"""How a column's value is converted to a field of this type, if they differ."""


@cache
def _columns(kind: type[Any]) -> tuple[tuple[str, Callable[[Any], Any] | None], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, _CONVERTED.get(hints[field.name])) for field in fields(kind))


def from_row(kind: type[T], row: Row, **given: Any) -> T:
    """Create a dataclass from a row whose columns have the names of its fields; `given` fields have no column."""
    values = {
        name: row[name] if convert is None else convert(row[name])
        for name, convert in _columns(kind)
        if name not in given
    }
    return kind(**values, **given)


def page_limit(limit: int) -> int:
    """Return `limit` if it is a valid page size."""
    if not 1 <= limit <= _LARGEST_PAGE:
        raise BadInput(problem=f"limit must be 1 to {_LARGEST_PAGE}, not {limit}")
    return limit


def is_part(rows: Rows, limit: int) -> bool:
    """Return whether there may be more rows."""
    return isinstance(rows, CutRows) or len(rows) >= limit


def to_page(rows: Rows, limit: int, items: list[T], *key: str) -> Page[T]:
    """Return a page of these items, each made from a row. The `key` columns of the last row become the next cursor."""
    more = to_cursor(*(rows[-1][column] for column in key)) if is_part(rows, limit) else None
    return Page(items=items, next_cursor=more)


def to_cursor(*keys: object) -> str:
    """Return an opaque cursor for the keys of the last item of a page."""
    return base64.urlsafe_b64encode(json.dumps(keys).encode()).decode().rstrip("=")


def from_cursor(cursor: str | None, *kinds: type) -> Iterable[Any]:
    """Return the keys in a cursor, or as many Nones. Raise `BadCursor` for anything that `to_cursor` did not create."""
    if cursor is None:
        return [None] * len(kinds)
    try:
        keys: Any = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        raise BadCursor(cursor=cursor) from None
    if not isinstance(keys, list) or [type(k) for k in keys] != list(kinds):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        raise BadCursor(cursor=cursor)
    return keys  # pyright: ignore[reportUnknownVariableType]
