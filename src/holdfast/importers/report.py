"""What came of an import, in one shape for all importers: what was found, what went in, and what did not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

Unit: TypeAlias = Literal["sessions", "commands"]
Progress: TypeAlias = Callable[[int, int | None], None]
"""Told by how much an import moved on, and, once that is known, how much there is in all."""

_EXAMPLES: Final = 5
_LONGEST: Final = 200
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that an importer met so many times, with a few examples of where."""

    what: str
    count: int
    examples: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of an import; of a dry run, what would come of it.

    Of what was `found`, `imported` is new here and `present` was here before, unchanged. `left_alone` says what is not
    as it is in the source and stayed so. `not_understood` is what the importer has no place or no word for. `records`
    counts the rows that went in, by table.
    """

    system: str
    source: str
    unit: Unit
    dry_run: bool
    found: int
    imported: int
    present: int
    records: Mapping[str, int]
    left_alone: Sequence[Note]
    not_understood: Sequence[Note]


@dataclass(slots=True)
class Notes:
    """Counts what is worth a note, and keeps a few examples of each."""

    _found: dict[str, tuple[int, list[str]]] = field(default_factory=dict[str, tuple[int, list[str]]])

    def add(self, what: str, example: str, count: int = 1) -> None:
        """Note it once more."""
        before, examples = self._found.get(what, (0, []))
        if len(examples) < _EXAMPLES and example[:_LONGEST] not in examples:
            examples.append(example[:_LONGEST])
        self._found[what] = (before + count, examples)

    def all(self) -> list[Note]:
        """Return all notes."""
        return [Note(what=what, count=count, examples=seen) for what, (count, seen) in self._found.items()]


def nothing(by: int, total: int | None) -> None:
    """Show no progress."""
    del by, total


def microseconds(at: datetime) -> int:
    """Return an instant as the store keeps it. A time without a zone is one in UTC."""
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    elapsed = at - _EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
