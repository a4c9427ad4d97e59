"""The texts of the plain statements."""

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

from holdfast.store.catalogue import PLAIN, Delete, Insert, Item, Plain, Read, Update, items
from holdfast.store.sql.lookups import stored_key, stored_name
from holdfast.tables import KEYS

Dialect: TypeAlias = Literal["sqlite", "postgres"]

_LISTS: dict[Dialect, str] = {
    "sqlite": "IN (SELECT value FROM json_each({}))",
    "postgres": "= ANY(CAST({} AS text[]))",
}


def texts(dialect: Dialect) -> dict[str, str]:
    """Return the text of each plain statement, with the marks and lookups of .sql files."""
    return {name: _text(statement, dialect) for name, statement in PLAIN.items()}


def _text(statement: Plain, dialect: Dialect) -> str:
    table = statement.table
    match statement:
        case Read(columns=columns, order=order, limit=limit):
            selected = (
                columns if columns == "*" else _lines(", ", [(i.column, i.given) for i in items(columns)])
            )
            ordered = f"\nORDER BY {order}" if order else ""
            limited = f"\nLIMIT {limit}" if limit else ""
            return f"SELECT {selected}\nFROM {table}{_where(statement, dialect)}{ordered}{limited}"
        case Insert():
            columns = ", ".join(stored_name(table, item.column) for item in items(statement.values))
            values = ", ".join(_value(table, item) for item in items(statement.values))
            return (
                f"INSERT INTO {table} ({columns})\nVALUES ({values}){_on_conflict(statement)}"
                + _returning(statement.returning)
            )
        case Update():
            changes = [(f"{i.column} = {_value(table, i)}", i.given) for i in items(statement.values)]
            return f"UPDATE {table} SET {_lines(', ', changes)}{_where(statement, dialect)}{_returning(statement.returning)}"  # noqa: S608
        case Delete(limited=True):
            key = ", ".join(stored_key(table)) or "session_id"
            rows = f"FROM {table}{_where(statement, dialect)}"
            return f"DELETE {rows}\nAND ({key}) IN (SELECT {key} {rows}\nORDER BY {key} LIMIT :limit)\nRETURNING 1 AS gone"
        case Delete():
            return f"DELETE FROM {table}{_where(statement, dialect)}"  # noqa: S608


def _where(statement: Read | Update | Delete, dialect: Dialect) -> str:
    table = statement.table
    conditions = [
        (f"{stored_name(table, item.column)} {_test(table, item, dialect)}", item.given)
        for item in items(statement.where)
    ]
    if conditions and conditions[0][1]:
        conditions.insert(0, ("TRUE", None))
    return f"\nWHERE {_lines(' AND ', conditions)}" if conditions else ""


def _lines(separator: str, parts: Sequence[tuple[str, str | None]]) -> str:
    """Join these parts. Each optional one is on a line of its own, with the mark of its parameter."""
    text = ""
    for number, (part, given) in enumerate(parts):
        begin = separator if number else ""
        text += f"\n {begin}{part}   --? {given}\n" if given else f"{begin}{part}"
    return text.rstrip("\n")


def _test(table: str, item: Item, dialect: Dialect) -> str:
    value = _value(table, item)
    return _LISTS[dialect].format(value) if item.operator == "in" else f"{item.operator.upper()} {value}"


def _value(table: str, item: Item) -> str:
    if item.value == f":{item.column}":
        return f":{stored_name(table, item.column)}"
    return re.sub(r"\bnow\b", "now_us()", item.value)


def _on_conflict(statement: Insert) -> str:
    key = KEYS[statement.table]
    if statement.once:
        return f"\nON CONFLICT ({', '.join(key)}) DO NOTHING"
    if not statement.replaces:
        return ""
    columns = [item.column for item in items(statement.values) if item.column not in key]
    changes = ", ".join(f"{column} = excluded.{column}" for column in columns)
    return f"\nON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"


def _returning(columns: str) -> str:
    return f"\nRETURNING {columns}" if columns else ""
