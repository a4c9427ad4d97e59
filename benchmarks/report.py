"""What every benchmark prints: progress, a table of measurements and bars, and one line of JSON for programs."""

import json
import sys
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Bound: TypeAlias = Literal["at least", "at most"]


@dataclass(frozen=True, slots=True)
class Line:
    """One measurement. With a limit it is a bar, which must hold; without one it is there to be read."""

    name: str
    value: float
    unit: str = ""
    bound: Bound = "at most"
    limit: float | None = None
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Say whether the value is on the right side of its limit."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.bound == "at least" else self.value <= self.limit


@dataclass(slots=True)
class Report:
    """The lines of one benchmark, in the order in which they were measured."""

    benchmark: str
    lines: list[Line] = field(default_factory=list[Line])

    def add(
        self,
        name: str,
        value: float,
        unit: str = "",
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        detail: str = "",
    ) -> None:
        """Note a measurement and show it at once. With `at_least` or `at_most` it is a bar."""
        bound, limit = ("at most", at_most) if at_least is None else ("at least", at_least)
        line = Line(name, value, unit, bound, limit, detail)
        self.lines.append(line)
        progress("  " + "  ".join(filter(None, _cells(line))))

    def finish(self) -> int:
        """Print the table and, as the last line, the bars as JSON. Return the exit code: 1 if a bar does not hold."""
        header = ("measurement", "value", "limit", "holds", "detail")
        rows = [header, *map(_cells, self.lines)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        rows.insert(1, tuple("-" * width for width in widths))
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        bars = [line for line in self.lines if line.limit is not None]
        broken = [line.name for line in bars if not line.holds]
        print(
            f"\n{len(bars) - len(broken)} of {len(bars)} bars hold.",
            *(f"BROKEN: {name}" for name in broken),
            sep="\n",
        )
        shown = [{"name": b.name, "value": b.value, "limit": b.limit, "holds": b.holds} for b in bars]
        print(json.dumps({"benchmark": self.benchmark, "bars": shown}), flush=True)
        return 1 if broken else 0


def progress(text: str) -> None:
    """Tell whoever waits how far it is; not a part of the result."""
    print(text, file=sys.stderr, flush=True)


def _cells(line: Line) -> tuple[str, str, str, str, str]:
    if line.limit is None:
        return line.name, _number(line.value, line.unit), "", "", line.detail
    limit = f"{line.bound} {_number(line.limit, line.unit)}"
    return line.name, _number(line.value, line.unit), limit, "yes" if line.holds else "NO", line.detail


def _number(value: float, unit: str) -> str:
    return f"{value:,.2f} {unit}".rstrip() if value < 100 else f"{value:,.0f} {unit}".rstrip()
