"""Reads the .sql files beside it and turns each named statement into what a driver takes.

A file is a list of `-- name: x`, an optional comment that says why, and the statement. Three small marks let one
file serve both engines:

- a line that begins with `--[sqlite]` or `--[postgres]` is for that engine only;
- a line that ends with `--? name` is left out unless the parameter `name` is given;
- `rows(a text, b bigint)` is a relation made of the rows passed in (see write.sql).

Parameters are written `:name`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Literal, TypeAlias

Dialect: TypeAlias = Literal["sqlite", "postgres"]

PAGE_BYTES = 4 * 1024 * 1024
"""A page ends with the row that reaches this size, so that readers need memory for one page and one row."""

_FOLDER = resources.files("holdfast.store.sql")
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_MARKED = re.compile(r"^--\[(\w+)\] ?", re.MULTILINE)
_OPTIONAL = re.compile(r"--\? (\w+)\s*$")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z]\w*)")
_NONE: frozenset[str] = frozenset()
_ROWS = re.compile(r"\brows\(([^()]*)\)")


@dataclass(frozen=True, slots=True)
class Statement:
    """A named statement with its parameters; with `rows`, an arm and its rows; with `text`, just that.

    With `sized`, the names of columns with content, the rows end with the one that reaches `PAGE_BYTES`.
    """

    name: str
    params: Mapping[str, object] = field(default_factory=dict[str, object])
    rows: Sequence[Sequence[object]] | None = None
    text: str | None = None
    sized: tuple[str, ...] = ()

    def given(self) -> frozenset[str]:
        """Return those of its optional parameters that have a value."""
        names = optional(self.name)
        return frozenset(p for p in names if self.params.get(p) is not None) if names else _NONE


@dataclass(frozen=True, slots=True)
class Arm:
    """A statement over `rows(...)`: its text around that relation, and the relation's columns and types."""

    before: str
    after: str
    columns: tuple[tuple[str, str], ...]


@cache
def _sources() -> dict[str, str]:
    found: dict[str, str] = {}
    for file in sorted(_FOLDER.iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".sql"):
            continue
        _, *pieces = _NAME.split(file.read_text())
        for name, body in zip(pieces[::2], pieces[1::2], strict=True):
            if name in found:
                message = f"{file.name}: statement {name} exists twice"
                raise ValueError(message)
            found[name] = body
    return found


def statement_names() -> frozenset[str]:
    """Return the names of all statements."""
    return frozenset(_sources())


def for_dialect(text: str, dialect: Dialect) -> str:
    """Uncomment the lines that are for `dialect`, drop those for the other, and all comments."""
    lines: list[str] = []
    for line in text.splitlines():
        mark = _MARKED.match(line)
        if mark and mark[1] != dialect:
            continue
        kept = line[mark.end() :] if mark else line
        optional = _OPTIONAL.search(kept)
        code = kept.split("--", 1)[0].rstrip()
        if code:
            lines.append(f"{code} {optional[0].strip()}" if optional else code)
    return "\n".join(lines).strip().removesuffix(";").rstrip()


@cache
def _text(name: str, dialect: Dialect) -> str:
    return for_dialect(_sources()[name], dialect)


@cache
def optional(name: str) -> frozenset[str]:
    """Return the parameters that a statement can do without."""
    return frozenset(re.findall(r"--\? (\w+)\s*$", _sources()[name], re.MULTILINE))


@cache
def text(name: str, dialect: Dialect, given: frozenset[str] = _NONE) -> str:
    """Return the statement for `dialect` with the optional lines of the `given` parameters."""
    lines: list[str] = []
    for line in _text(name, dialect).splitlines():
        mark = _OPTIONAL.search(line)
        if mark is None:
            lines.append(line)
        elif mark[1] in given:
            lines.append(line[: mark.start()].rstrip())
    return "\n".join(lines)


@cache
def numbered(name: str, given: frozenset[str]) -> tuple[str, tuple[str, ...]]:
    """Return the statement for PostgreSQL with $1, $2, … and the names of these parameters in order."""
    return numbered_text(text(name, "postgres", given))


@cache
def numbered_text(source: str) -> tuple[str, tuple[str, ...]]:
    """Do the same with a statement's text."""
    order: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in order:
            order.append(match[1])
        return f"${order.index(match[1]) + 1}"

    return _PARAMETER.sub(number, source), tuple(order)


@cache
def bounded(source: str, sized: tuple[str, ...]) -> str:
    """Return a query for PostgreSQL that ends with the row that reaches `PAGE_BYTES`, and tells whether one did.

    The sizes are known without fetching the content, and nothing of the rows beyond is fetched.
    """
    size = " + ".join(f"coalesce(octet_length({column}), 0)" for column in sized)
    return (
        "SELECT *, upto_ >= :page_bytes AS cut_ FROM (SELECT *, sum(bytes_) OVER (ORDER BY number_) AS upto_"  # noqa: S608
        f" FROM (SELECT *, {size} AS bytes_, row_number() OVER () AS number_ FROM ({source}) AS rows_) AS sized_)"
        " AS page_ WHERE upto_ - bytes_ < :page_bytes ORDER BY number_"
    )


@cache
def arm(name: str, dialect: Dialect) -> Arm:
    """Return an arm, split at its `rows(...)`."""
    source = _text(name, dialect)
    match = _ROWS.search(source)
    if match is None:
        message = f"{name} has no rows(...)"
        raise ValueError(message)
    columns = tuple((c.split()[0], c.split()[1]) for c in match[1].split(","))
    return Arm(source[: match.start()], source[match.end() :], columns)


@cache
def text_columns(arm_name: str) -> tuple[tuple[int, str], ...]:
    """Return where an arm has text, after its session, and what it is called for a person."""
    columns = arm(arm_name, "sqlite").columns
    return tuple(
        (n, name.replace("_", " ")) for n, (name, kind) in enumerate(columns) if kind == "text" and n
    )


@cache
def migrations() -> tuple[tuple[int, str, str], ...]:
    """Return every migration as (version, name, text), in order."""
    files = sorted(f.name for f in (_FOLDER / "migrations").iterdir() if f.name.endswith(".sql"))
    return tuple(
        (int(name[:4]), name.removesuffix(".sql"), (_FOLDER / "migrations" / name).read_text())
        for name in files
    )


def split(script: str, dialect: Dialect) -> list[str]:
    """Return the single statements of a migration."""
    return [s for piece in for_dialect(script, dialect).split(";") if (s := piece.strip())]
