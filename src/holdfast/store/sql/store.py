"""`SqlStore`: the common part of SQLite and PostgreSQL besides their statements: migrations, and statements generated from the tables."""

import json
from collections.abc import Mapping, Sequence
from functools import cache

from holdfast.diagnostics import Violation
from holdfast.store import schema
from holdfast.store.archive import PAGE_BYTES, PAGE_ROWS, Imported
from holdfast.store.rows import Rows
from holdfast.store.sql import library
from holdfast.store.sql.check import invariants
from holdfast.store.sql.library import Dialect, Script
from holdfast.store.sql.lookups import of_session, stored_columns, with_lookups
from holdfast.store.store import Store
from holdfast.store.transactions import Progress, Tx, op, slow, writing
from holdfast.tables import NUMBERED, TABLES, Table


class SqlStore(Store):
    """A store whose operations are SQL statements."""

    _dialect: Dialect

    async def upgrade(self) -> int:
        # Checked first without a lock, and without the permission to create anything.
        return schema.LATEST if await self._version() == schema.LATEST else await self._upgrade()

    @writing(repeatable=True)
    def _upgrade(self) -> Tx[int]:
        yield op("migration_lock")
        yield op("create_schema")
        version = yield from self._known_version()
        if version == 0 and not (yield op("has_migrations")):
            yield op("create_migrations")
        for number, name, script in library.migrations():
            if number > version:
                for text in library.split(script, self._dialect):
                    yield Script(name, {}, slow=True, text=text)
                yield op("add_migration", version=number, name=name)
        return schema.LATEST

    def _violations(
        self, *, limit: int, session_id: str | None = None, progress: Progress | None = None
    ) -> Tx[list[Violation]]:
        violations: list[Violation] = []
        one = session_id is not None
        params = {"limit": limit, "session_id": session_id} if one else {"limit": limit}
        checks = invariants(self._dialect, of_session=one)
        for number, (name, text) in enumerate(checks, 1):
            if progress is not None:
                progress(name, number, len(checks))
            rows = yield Script(name, params, slow=not one, scans=not one, text=text)
            violations += [
                Violation(invariant=name, session_id=row["session_id"], detail=row["detail"]) for row in rows
            ]
        return violations

    def _content_sizes(self, session_id: str) -> Tx[Rows]:
        text = _sizes_text(self._dialect)
        return (yield Script("content_sizes", {"session_id": session_id}, slow=True, text=text))

    def _delete_run_numbers(self, session_id: str) -> Tx[None]:
        text = f"DELETE FROM run_numbers WHERE {with_lookups('session = :session')}"  # noqa: S608
        yield Script("delete_run_numbers", {"session_id": session_id}, slow=True, text=text)

    def _taken_ids(self, table: Table, ids: Sequence[str]) -> Tx[Rows]:
        text = _taken_text(table, self._dialect)
        return (yield Script("taken_ids", {"ids": ids}, slow=True, text=text))

    def _shared_rows(self, table: Table, after: tuple[object, ...] | None, limit: int) -> Tx[Rows]:
        place = {} if after is None else {f"after_{c}": v for c, v in zip(table.key, after, strict=True)}
        text = _shared_text(table, self._dialect, after=after is not None)
        return (
            yield Script("shared_rows", {"limit": limit, **place}, sized=table.texts, slow=True, text=text)
        )

    def _add_rows(self, table: Table, rows: Sequence[Imported], *, exist_ok: bool = False) -> Tx[None]:
        yield from self._name_runs(rows)
        text = _insert_text(table, self._dialect) + (" ON CONFLICT DO NOTHING" if exist_ok else "")
        if self._dialect == "postgres":
            body = json.dumps(rows, ensure_ascii=False)
            yield Script("import_rows", {"rows": body}, slow=True, text=text)
        else:
            yield Script("import_rows", {}, text=text, rows=rows)

    def _name_runs(self, rows: Sequence[Mapping[str, object]]) -> Tx[None]:
        """Give a number to each run that these rows name. The head of their session is locked, or not yet visible to others."""
        names = sorted(
            {(str(row["session_id"]), str(row["run_id"])) for row in rows if row.get("run_id") is not None}
        )
        if not names:
            return
        if self._dialect == "sqlite":
            yield slow(op("name_runs", names=[list(name) for name in names]))
        else:
            session_ids, run_ids = map(list, zip(*names, strict=True))
            yield slow(op("name_runs", session_ids=session_ids, run_ids=run_ids))


@cache
def page_text(table: Table, *, bounded: bool = False, after: bool = False) -> str:
    """Return the statement that reads a session's rows of a table in order.

    With `bounded` it returns at most one page, counting bytes without fetching them; with `after` it continues after a key.
    """
    columns, key = ", ".join(table.names), ", ".join(table.key)
    shown, order, source = columns, key, table.name
    where = of_session(table.name)
    if table.name in NUMBERED:
        ids = {
            "session_id": "CAST(:session_id AS text) AS session_id",
            "run_id": with_lookups(":run_id_of(t) AS run_id"),
        }
        source = f"{table.name} t"
        if "run_id" in table.key:  # in the order of the public ids: run by run
            ids["run_id"] = "n.id AS run_id"
            source = f"run_numbers n CROSS JOIN {source}"
            where = with_lookups("n.session = :session AND t.session = n.session AND t.run = n.number")
            where += " AND n.id >= :after_run_id" if after else ""
            order = key.replace("run_id", "n.id")
        else:
            where = f"t.{where}"
        shown = ", ".join(ids.get(name, f"t.{name}") for name in table.names)
    if after:
        where += f" AND ({order}) > ({', '.join(f':after_{column}' for column in table.key)})"
    rows = f"FROM {source} WHERE {where} ORDER BY {order}"
    if not bounded:
        return f"SELECT {shown} {rows}"
    sizes = [f"coalesce(octet_length({column.name}), 0)" for column in table.columns if column.is_text]
    return (
        f"SELECT {columns} FROM (SELECT *, sum(bytes) OVER (ORDER BY {key}) - bytes AS before"  # noqa: S608
        f" FROM (SELECT *, {' + '.join(sizes)} AS bytes FROM (SELECT {shown} {rows} LIMIT {PAGE_ROWS}) AS rows) AS sized) AS page"
        f" WHERE before < {PAGE_BYTES} ORDER BY {key}"
    )


@cache
def _sizes_text(dialect: Dialect) -> str:
    """Return the statement that adds up the content of a session: texts as they are stored, and 8 bytes for each number."""
    size = "length(CAST({} AS blob))" if dialect == "sqlite" else "pg_column_size({})"
    parts: list[str] = []
    for table in TABLES:
        texts = [name for name, column in stored_columns(table) if column.is_text and name == column.name]
        numbers = str(8 * (len(table.names) - len(texts)))
        sizes = " + ".join([numbers, *(f"coalesce({size.format(name)}, 0)" for name in texts)])
        parts.append(
            f"SELECT coalesce(sum({sizes}), 0) AS bytes FROM {table.name} WHERE {of_session(table.name)}"  # noqa: S608
        )
    return " UNION ALL ".join(parts)


@cache
def _insert_text(table: Table, dialect: Dialect) -> str:
    columns = ", ".join(name for name, _ in stored_columns(table))
    values = with_lookups(", ".join(f":{name}" for name, _ in stored_columns(table)))
    if dialect == "sqlite":
        return f"INSERT INTO {table.name} ({columns}) VALUES ({values})"  # noqa: S608
    kinds = ", ".join(f"{column.name} {'text' if column.is_text else 'bigint'}" for column in table.columns)
    return (
        f"INSERT INTO {table.name} ({columns}) SELECT {values.replace(':', 'r.')}"  # noqa: S608
        f" FROM json_to_recordset(CAST(CAST(:rows AS text) AS json)) AS r({kinds})"
    )


@cache
def _shared_text(table: Table, dialect: Dialect, *, after: bool) -> str:
    """Return the statement that reads rows of a table, of all sessions, in the order of its key."""
    where = [
        f"{column} IS NULL" if value is None else f"{column} = '{value}'" for column, value in table.only
    ]
    if after:
        kinds = {column.name: "text" if column.is_text else "bigint" for column in table.columns}
        values = ", ".join(f"CAST(:after_{column} AS {kinds[column]})" for column in table.key)
        where.append(f"({', '.join(table.key)}) > ({values})")
    del dialect
    return (
        f"SELECT {', '.join(table.names)} FROM {table.name} WHERE {' AND '.join(where) or 'TRUE'}"  # noqa: S608
        f" ORDER BY {', '.join(table.key)} LIMIT :limit"
    )


@cache
def _taken_text(table: Table, dialect: Dialect) -> str:
    ids = "IN (SELECT value FROM json_each(:ids))" if dialect == "sqlite" else "= ANY(CAST(:ids AS text[]))"
    return f"SELECT {table.unique} AS id FROM {table.name} WHERE {table.unique} {ids} LIMIT 1"  # noqa: S608
