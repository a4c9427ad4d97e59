"""Run transactions and their operations on a connection."""

import json
import sqlite3
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from holdfast.store.archive import PAGE_BYTES, PAGE_ROWS
from holdfast.store.rows import CutRows, Row
from holdfast.store.sql import library
from holdfast.store.sql.library import Script
from holdfast.store.sql.store import page_text
from holdfast.store.transactions import Statement, Tx
from holdfast.tables import SESSION, TABLES

T = TypeVar("T")


def run(connection: sqlite3.Connection, tx: Tx[T]) -> T:
    """Run the operations of a transaction."""
    try:
        statement = next(tx)
        while True:
            statement = tx.send(execute(connection, statement))
    except StopIteration as end:
        return end.value


def run_separately(connection: sqlite3.Connection, make: Callable[[], Tx[T]]) -> T:
    """Run a transaction outside a group, on the writer's thread."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = run(connection, make())
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def pages(
    connection: sqlite3.Connection, session_id: str
) -> Generator[tuple[str, list[dict[str, object]]], None, None]:
    """Read the content of a session row by row, and yield it in bounded pages."""
    result = connection.execute(
        library.text("export_session", "sqlite"), {"session_id": session_id}
    ).fetchall()
    yield SESSION.name, [dict(row) for row in result]
    for table in TABLES:
        cursor = connection.execute(page_text(table), {"session_id": session_id})
        rows: list[dict[str, object]] = []
        size = 0
        for row in cursor:
            rows.append(dict(row))
            size += sum(len(value) for value in row if isinstance(value, str))
            if len(rows) >= PAGE_ROWS or size >= PAGE_BYTES:
                yield table.name, rows
                rows, size = [], 0
        if rows:
            yield table.name, rows


def execute(connection: sqlite3.Connection, statement: Statement) -> Sequence[Row]:
    """Run one statement and return its rows."""
    params = statement.params
    if isinstance(statement, Script):
        text = statement.text
        if statement.rows:
            return connection.executemany(text, statement.rows).fetchall()
    else:
        text = library.text(statement.name, "sqlite", library.given(statement.name, params))
    if any(isinstance(value, list) for value in params.values()):
        params = {name: json.dumps(v) if isinstance(v, list) else v for name, v in params.items()}
    cursor = connection.execute(text, params)
    if not statement.sized:
        return cursor.fetchall()
    rows: list[Row] = []
    size = 0
    for row in cursor:
        rows.append(row)
        size += sum(len(row[column] or "") for column in statement.sized)
        if size >= statement.page_bytes:
            cursor.close()
            return CutRows(rows)
    return rows
