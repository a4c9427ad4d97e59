"""The invariants as queries: those of check.sql, and that all content belongs to an existing session."""

from functools import cache

from holdfast.store.retention import CONTENT
from holdfast.store.sql import library
from holdfast.store.sql.library import Dialect
from holdfast.tables import NUMBERED


@cache
def invariants(dialect: Dialect, *, of_session: bool) -> tuple[tuple[str, str], ...]:
    """Return the name and the text of each invariant, or only of those that can be checked for one session."""
    written = [name for name in library.statement_names() if name.startswith("check_")]
    if of_session:
        one = [name for name in written if "session_id" in library.optional(name)]
        return tuple(
            (_title(name), library.text(name, dialect, frozenset({"session_id"}))) for name in sorted(one)
        )
    texts = {_title(name): library.text(name, dialect) for name in written}
    texts |= {f"{table.replace('_', ' ')} have session": _has_session(table) for table in CONTENT}
    return tuple(sorted(texts.items()))


def _title(name: str) -> str:
    return name.removeprefix("check_").replace("_", " ")


def _has_session(table: str) -> str:
    if table in NUMBERED:
        return (
            f"SELECT DISTINCT 'number ' || t.session AS session_id, 'rows in {table} have no session' AS detail FROM {table} t"  # noqa: S608
            " WHERE NOT EXISTS (SELECT 1 FROM heads h WHERE h.number = t.session) LIMIT :limit"
        )
    there = "sessions s WHERE s.id" if table == "credentials" else "heads h WHERE h.session_id"
    return (
        f"SELECT DISTINCT t.session_id, 'rows in {table} have no session' AS detail FROM {table} t"  # noqa: S608
        f" WHERE t.session_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {there} = t.session_id) LIMIT :limit"
    )
