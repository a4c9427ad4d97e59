"""The report of an import, in one format for all importers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

Unit: TypeAlias = Literal["sessions", "commands"]
Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with the progress of an import, and with the total once that is known."""

_EXAMPLES: Final = 5
_LONGEST: Final = 200
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that an importer found `count` times, with a few examples of where."""

    what: str
    count: int
    examples: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of an import, or of a dry run.

    Of the items `found`, `imported` are new, `already_present` existed unchanged, and `reassigned` existed and were given to another agent.
    `skipped` lists existing items that differ
    from the source and were not changed. `not_understood` lists what the importer does not support. `records`
    counts the imported rows by table.
    """

    system: str
    source: str
    unit: Unit
    dry_run: bool
    found: int
    imported: int
    already_present: int
    reassigned: int = 0
    records: Mapping[str, int]
    skipped: Sequence[Note]
    not_understood: Sequence[Note]


@dataclass(slots=True)
class Notes:
    """Counts findings, and keeps a few examples of each."""

    _found: dict[str, tuple[int, list[str]]] = field(default_factory=dict[str, tuple[int, list[str]]])

    def add(self, what: str, example: str, count: int = 1) -> None:
        """Count a finding."""
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
    """Return a time as it is stored. A time without a zone is taken as UTC."""
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    elapsed = at - _EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
