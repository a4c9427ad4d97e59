"""Find where a list differs from the one that was stored last, without serializing either.

A list of messages is passed to each put as a whole, and a node may have edited a message in place. So the saver keeps a frozen copy of the
list: it shares the strings, which cannot change, and copies the containers. Comparing it with the list is one comparison of
dicts per message, in which an unchanged string is recognized by its address. That is linear in the number of elements, but takes only
0.3 to 2 microseconds per message, and nothing that was stored before is serialized, read or written.

Numbers are equal only if their types are. Objects other than messages are compared by their serialized bytes. Dicts are equal in any order.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias, cast

from langchain_core.messages import BaseMessage

Dump: TypeAlias = Callable[[Any], tuple[str, bytes]]


class _Leaf:
    """Compares itself with a live value. NumPy leaves the comparison to it."""

    __slots__ = ()
    __array_ufunc__ = None


class _Exact(_Leaf):
    """A number or bytes: equal if the type is the same as well, so that 1, 1.0 and True differ."""

    __slots__ = ("kind", "value")
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(self, value: Any) -> None:
        self.kind: type[Any] = value.__class__
        self.value = repr(value) if self.kind is float else value

    def __eq__(self, other: object) -> bool:
        return other.__class__ is self.kind and self.value == (repr(other) if self.kind is float else other)


class _Message(_Leaf):
    """A message of LangChain, which is dumped by its fields."""

    __slots__ = ("extra", "fields", "kind")
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(self, message: BaseMessage, dump: Dump) -> None:
        self.kind = message.__class__
        self.fields = _freeze_fields(vars(message), dump)
        self.extra = freeze(message.__pydantic_extra__, dump)

    def __eq__(self, other: object) -> bool:
        return (
            other.__class__ is self.kind
            and self.fields == other.__dict__
            and self.extra == cast("BaseMessage", other).__pydantic_extra__
        )


class _Dumped(_Leaf):
    """Any other object: equal if it is serialized to the same bytes."""

    __slots__ = ("dump", "dumped", "kind")
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(self, value: Any, dump: Dump) -> None:
        self.kind: type[Any] = value.__class__
        self.dump = dump
        try:
            self.dumped = dump(value)
        except Exception:  # noqa: BLE001 - the application's object; what cannot be serialized was read, and counts as changed
            self.dumped = None

    def __eq__(self, other: object) -> bool:
        return other.__class__ is self.kind and self.dumped is not None and self.dumped == self.dump(other)


@cache
def _is_message(kind: type[Any]) -> bool:
    return issubclass(kind, BaseMessage) and kind.__module__.startswith("langchain_core.messages")


def freeze(value: Any, dump: Dump) -> Any:
    """Return a copy that stays as it is, and is equal to the value until the value is changed."""
    kind: type[Any] = value.__class__
    if kind is str or value is None:
        return value
    if kind is bool or kind is int or kind is float or kind is bytes:
        return _Exact(value)
    if kind is dict and {*map(type, value)} <= {str}:
        return _freeze_fields(value, dump)
    if kind is list:
        return [freeze(item, dump) for item in value]
    if kind is tuple:
        return tuple(freeze(item, dump) for item in value)
    if _is_message(kind):
        return _Message(value, dump)
    return _Dumped(value, dump)


def _freeze_fields(fields: dict[str, Any], dump: Dump) -> dict[str, Any]:
    return {
        name: item
        if (kind := item.__class__) is str or item is None
        else kind()
        if not item and (kind is dict or kind is list)
        else freeze(item, dump)
        for name, item in fields.items()
    }


class Frozen:
    """A frozen list. Messages are compared by their fields, all at once."""

    __slots__ = ("_dump", "_extras", "_fields", "_kinds", "_others")

    def __init__(self, items: list[Any], dump: Dump) -> None:
        self._dump = dump
        self._kinds: list[type[Any]] = []
        self._fields: list[Any] = []
        self._extras: list[Any] = []
        self._others: set[int] = set()
        """The positions of elements that are not messages."""
        self.replace(0, items)

    def replace(self, start: int, items: list[Any]) -> None:
        """Replace all elements from a position on."""
        dump = self._dump
        del self._kinds[start:], self._fields[start:], self._extras[start:]
        if self._others:
            self._others = {position for position in self._others if position < start}
        for position, item in enumerate(items, start):
            kind: type[Any] = item.__class__
            self._kinds.append(kind)
            if _is_message(kind):
                self._fields.append(_freeze_fields(cast("dict[str, Any]", vars(item)), dump))
                self._extras.append(freeze(item.__pydantic_extra__, dump))
            else:
                self._others.add(position)
                self._fields.append(freeze(item, dump))
                self._extras.append(None)

    def first_difference(self, live: list[Any]) -> int:
        """Return how many elements at the beginning of both lists are the same."""
        length = min(len(self._kinds), len(live))
        if self._is_same(live, 0, length):
            return length
        return next(n for n in range(length) if not self._is_same(live, n, n + 1))

    def _is_same(self, live: list[Any], start: int, end: int) -> bool:
        part = live[start:end]
        if [item.__class__ for item in part] != self._kinds[start:end]:
            return False
        if self._others:
            others = self._others
            fields = [item if n in others else item.__dict__ for n, item in enumerate(part, start)]
            extras = [None if n in others else item.__pydantic_extra__ for n, item in enumerate(part, start)]
        else:
            fields = [item.__dict__ for item in part]
            extras = [item.__pydantic_extra__ for item in part]
        try:
            return self._fields[start:end] == fields and self._extras[start:end] == extras
        except Exception:  # noqa: BLE001 - an object of the application that cannot be compared counts as changed
            return False
