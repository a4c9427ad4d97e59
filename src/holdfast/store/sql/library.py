"""Turn each named statement, of store/catalogue.py and the .sql files next to this module, into the form that a driver accepts.

A file is a list of `-- name: x`, an optional comment that gives the reason, and the statement. Two markers let one file serve both
engines:

- a line that starts with `--[sqlite]` or `--[postgres]` is for that engine only;
- a line that ends with `--? name` is omitted unless the parameter `name` is given.

Parameters are written `:name`. asyncpg has no named parameters: for PostgreSQL they become `$1`, `$2`, … Some stand for a lookup:
`:session` is the number of the session `:session_id`, and `:run` that of its run `:run_id`; `:session_id_of(t)` and `:run_id_of(t)` are the
ids for the numbers in a row of `t`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from holdfast.store.retention import CONTENT
from holdfast.store.sql import catalogue
from holdfast.store.sql.arms import arm_text
from holdfast.store.sql.catalogue import Dialect
from holdfast.store.sql.lookups import of_session, with_lookups
from holdfast.store.transactions import Statement
from holdfast.store.write import ARMS

_FOLDER = resources.files("holdfast.store.sql")
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_MARKED = re.compile(r"^--\[(\w+)\] ?", re.MULTILINE)
_OPTIONAL = re.compile(r"--\? (\w+)\s*$")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z]\w*)")
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Script(Statement):
    """An operation of the SQL engines with its own text: a migration, or a statement generated from the list of tables.

    With `rows`, SQLite runs it once for each of them.
    """

    text: str = ""
    rows: Sequence[Mapping[str, object]] = ()


@cache
def _sources(dialect: Dialect) -> dict[str, str]:
    """Return the statements of an engine: the plain ones of the catalogue, and those written by hand for both engines or for this one."""
    sources = {name: with_lookups(text) for name, text in catalogue.texts(dialect).items()}
    sources["content_counts"] = _counts()
    for folder in (_FOLDER, resources.files(f"holdfast.store.{dialect}")):
        for file in folder.iterdir():
            if not file.name.endswith(".sql"):
                continue
            _, *pieces = _NAME.split(file.read_text())
            for name, body in zip(pieces[::2], pieces[1::2], strict=True):
                if name in sources:
                    message = (
                        f"{file.name}: statement {name} exists twice, or is in store/catalogue.py as well"
                    )
                    raise ValueError(message)
                is_arm = name in ARMS and folder is _FOLDER
                sources[name] = (
                    arm_text(name, for_dialect(body, dialect), dialect) if is_arm else with_lookups(body)
                )
    return sources


def _counts() -> str:
    """Return the statement that counts a session's rows in each table with content."""
    return " UNION ALL ".join(
        f"SELECT '{table}' AS kind, count(*) AS number FROM {table} WHERE {of_session(table)}"  # noqa: S608
        for table in CONTENT
        if table != "credentials"
    )


def statement_names(dialect: Dialect = "sqlite") -> frozenset[str]:
    """Return the names of all statements of an engine."""
    return frozenset(_sources(dialect))


def for_dialect(text: str, dialect: Dialect) -> str:
    """Uncomment the lines for `dialect`, and drop those for the other engine and all comments."""
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
    if name not in _sources(dialect):
        message = f"no statement {name}: declare it in store/catalogue.py, or write it in a .sql file"
        raise LookupError(message)
    return for_dialect(_sources(dialect)[name], dialect)


@cache
def optional(name: str) -> frozenset[str]:
    """Return the optional parameters of a statement."""
    source = _sources("sqlite").get(name, "")  # only shared statements have optional lines
    return frozenset(re.findall(r"--\? (\w+)\s*$", source, re.MULTILINE))


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


def given(name: str, params: Mapping[str, object]) -> frozenset[str]:
    """Return the optional parameters of a statement that have a value."""
    names = optional(name)
    return frozenset(p for p in names if params.get(p) is not None) if names else _NONE


@cache
def numbered(source: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement for PostgreSQL with $1, $2, … and the names of these parameters in order."""
    order: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in order:
            order.append(match[1])
        return f"${order.index(match[1]) + 1}"

    return _PARAMETER.sub(number, source), tuple(order)


@cache
def bounded(source: str, sized: tuple[str, ...]) -> str:
    """Return a query for PostgreSQL that ends with the row that reaches `:page_bytes`, and whether one did.

    The sizes are computed without fetching the content, and rows beyond the page are not fetched.
    """
    size = " + ".join(f"coalesce(octet_length({column}), 0)" for column in sized)
    return (
        "SELECT *, upto_ >= :page_bytes AS cut_ FROM (SELECT *, sum(bytes_) OVER (ORDER BY number_) AS upto_"  # noqa: S608
        f" FROM (SELECT *, {size} AS bytes_, row_number() OVER () AS number_ FROM ({source}) AS rows_) AS sized_)"
        " AS page_ WHERE upto_ - bytes_ < :page_bytes ORDER BY number_"
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
