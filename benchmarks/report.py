"""How every benchmark compares and what it prints: progress, a table of measurements and bars, and a line of JSON."""

import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import median
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
        for row in (rows[0], ["-" * width for width in widths], *rows[1:]):
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


@dataclass(frozen=True, slots=True)
class Duel:
    """Two sides, block by block: the seconds that one operation took."""

    first: list[float] = field(default_factory=list[float])
    second: list[float] = field(default_factory=list[float])

    @property
    def ratio(self) -> float:
        """How many times as long as the second the first one took."""
        return median(a / b for a, b in zip(self.first, self.second, strict=True))

    def rates(self, first: str, second: str) -> str:
        """Say how many per second each side did."""
        return f"{first} {1 / median(self.first):,.0f}/s, {second} {1 / median(self.second):,.0f}/s"

    def times(self, first: str, second: str) -> str:
        """Say how long one took on each side."""
        return f"{first} {median(self.first) * 1e6:,.0f} us, {second} {median(self.second) * 1e6:,.0f} us"


async def _nothing() -> None:
    pass


async def side_by_side(
    first: Callable[[], Awaitable[float]],
    second: Callable[[], Awaitable[float]],
    *,
    blocks: int,
    prepare: Callable[[], Awaitable[None]] = _nothing,
) -> Duel:
    """Run both in turns. What `prepare` does before each turn is not measured; the first turn only warms up."""
    duel = Duel()
    sides = [(first, duel.first), (second, duel.second)]
    for _ in range(blocks + 1):
        await prepare()
        for side, results in sides:
            results.append(await side())
        sides.reverse()  # whoever goes second inherits the caches and checkpoints of the other
    del duel.first[0], duel.second[0]
    return duel


async def seconds(work: Awaitable[object], operations: int) -> float:
    """Return the seconds that one of the operations in this work takes."""
    started = time.perf_counter()
    await work
    return (time.perf_counter() - started) / operations


def _cells(line: Line) -> tuple[str, str, str, str, str]:
    if line.limit is None:
        return line.name, _number(line.value, line.unit), "", "", line.detail
    limit = f"{line.bound} {_number(line.limit, line.unit)}"
    return line.name, _number(line.value, line.unit), limit, "yes" if line.holds else "NO", line.detail


def _number(value: float, unit: str) -> str:
    return f"{value:,.2f} {unit}".rstrip() if value < 100 else f"{value:,.0f} {unit}".rstrip()
