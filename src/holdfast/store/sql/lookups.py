"""Where the SQL engines store the numbers of sessions and runs instead of their ids, and the lookups from one to the other."""

import re

from holdfast.tables import KEYS, NUMBERED, Column, Table

_LOOKUPS = tuple(
    (re.compile(rf"(?<![:\w]):{mark}"), lookup)
    for mark, lookup in {
        r"run\b": "(SELECT x.number FROM run_numbers x WHERE x.session = :session AND x.id = :run_id)",
        r"session\b": "(SELECT x.number FROM heads x WHERE x.session_id = :session_id)",
        r"run_id_of\((\w+)\)": r"(SELECT x.id FROM run_numbers x WHERE x.session = \1.session AND x.number = \1.run)",
        r"session_id_of\((\w+)\)": r"coalesce((SELECT x.session_id FROM heads x WHERE x.number = \1.session), 'none')",
    }.items()
)


def with_lookups(text: str) -> str:
    """Return a statement with the lookups that its parameters stand for."""
    for mark, lookup in _LOOKUPS:
        text = mark.sub(lookup, text)
    return text


def of_session(table: str) -> str:
    """Return the condition for a session's rows of a table."""
    return with_lookups("session = :session") if table in NUMBERED else "session_id = :session_id"


def stored_name(table: str, column: str) -> str:
    """Return the name of a column in the database."""
    return column.removesuffix("_id") if table in NUMBERED and column in {"session_id", "run_id"} else column


def stored_key(table: str) -> tuple[str, ...]:
    """Return the columns of a table's key as they are stored, without the session."""
    return tuple(stored_name(table, column) for column in KEYS[table] if column != "session_id")


def stored_columns(table: Table) -> list[tuple[str, Column]]:
    """Return the columns of a table with their names in the database."""
    return [(stored_name(table.name, column.name), column) for column in table.columns]
