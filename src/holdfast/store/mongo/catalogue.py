"""Run the plain statements: each is a filter of one collection, and the values of its documents."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bson import MaxKey

from holdfast.store.catalogue import PLAIN, Delete, Insert, Item, Plain, Read, Update, items
from holdfast.store.mongo.documents import Documents, MongoRow, Sort
from holdfast.tables import KEYS

_OPERATORS: Final = {
    "=": "$eq",
    "is": "$eq",
    "<>": "$ne",
    "in": "$in",
    "<": "$lt",
    "<=": "$lte",
    ">": "$gt",
    ">=": "$gte",
}
_SUM = re.compile(r"(\S+) ([+-]) (\S+)")
_CONSTANT = re.compile(r"now|-?\d+|'.+'")
_NONE: Final = MongoRow()

Params = Mapping[str, Any]


async def plain(name: str, db: Documents, /, **params: Any) -> list[MongoRow]:
    """Run a plain statement and return its rows."""
    statement = PLAIN[name]
    params["now"] = await db.now() if _has_time(statement) else None
    match statement:
        case Read():
            return await _read(db, statement, params)
        case Insert():
            return await _insert(db, statement, params)
        case Update():
            return await _update(db, statement, params)
        case Delete(table=table, limited=limited):
            order = ", ".join(KEYS[table]) if limited else ""
            where = filter_of(table, statement.where, params, order)
            limit = params["limit"] if limited else 0
            return await db.delete(table, where, limit=limit, sort=_sort(table, order))


def _has_time(statement: Plain) -> bool:
    parts = [getattr(statement, part, "") for part in ("where", "values")]
    return any(re.match(r"now\b", item.value) for part in parts for item in items(part))


async def _read(db: Documents, read: Read, params: Params) -> list[MongoRow]:
    columns = None if read.columns == "*" else [item.column for item in _given(read.columns, params)]
    return await db.find(
        read.table,
        filter_of(read.table, read.where, params, read.order),
        sort=_sort(read.table, read.order),
        limit=_value(read.limit, params) if read.limit else 0,
        fields=columns,
        paged=bool(read.limit),
    )


async def _insert(db: Documents, insert: Insert, params: Params) -> list[MongoRow]:
    row = MongoRow(_values(insert.values, params))
    added = True
    if insert.many:
        db.gather(insert.table, row)
    elif insert.once:
        added = await db.insert_new(insert.table, row)
    elif insert.replaces:
        await db.put(insert.table, [row], lambda _, new: new)
    else:
        await db.insert(insert.table, [row])
    return [row] if added and insert.returning else []


async def _update(db: Documents, update: Update, params: Params) -> list[MongoRow]:
    where = filter_of(update.table, update.where, params, "")
    if not update.returning and all(_CONSTANT.fullmatch(item.value) for item in items(update.values)):
        values = _values(update.values, params)  # neither is a long text, nor do they replace one
        await db[update.table].update_many(where, {"$set": values}, session=db.session)
        return []
    return [
        await db.change(update.table, row, **_values(update.values, params, row))
        for row in await db.find(update.table, where)
    ]


def _given(text: str, params: Params) -> list[Item]:
    return [item for item in items(text) if item.given is None or params.get(item.given) is not None]


def _values(text: str, params: Params, row: MongoRow = _NONE) -> dict[str, Any]:
    return {item.column: _value(item.value, params, row) for item in _given(text, params)}


def _value(text: str, params: Params, row: MongoRow = _NONE) -> Any:
    if added := _SUM.fullmatch(text):
        first, second = (_value(part, params, row) for part in (added[1], added[3]))
        if first is None or second is None:
            return None
        return first + second if added[2] == "+" else first - second
    match text[0]:
        case ":":
            return params[text[1:]]
        case "'":
            return text[1:-1]
        case "-" | "0" | "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9":
            return int(text)
        case _:
            return params["now"] if text == "now" else None if text == "null" else row[text]


def filter_of(table: str, text: str, params: Params, order: str) -> dict[str, Any]:
    """Return the filter for these conditions. It uses the key if they name all of it, or for a range of it in its order."""
    where: dict[str, dict[str, Any]] = {}
    for item in _given(text, params):
        where.setdefault(item.column, {})[_OPERATORS[item.operator]] = _value(item.value, params)
    key = KEYS[table]
    by_key: dict[str, Any] = {}
    if len(key) == 1 and key[0] in where:
        by_key["_id"] = _plain(where.pop(key[0]))
    elif all("$eq" in where.get(column, {}) for column in key):
        by_key["_id"] = {column: where.pop(column)["$eq"] for column in key}
    elif "$eq" in where.get(key[0], {}) and _sort(table, order)[:1] == [("_id", 1)]:
        by_key["_id"] = _range(key, where)
    return by_key | {column: _plain(test) for column, test in where.items()}


def _plain(test: dict[str, Any]) -> Any:
    """Return a value instead of a comparison with it, so that the server recognizes a read by key."""
    return test["$eq"] if test.keys() == {"$eq"} else test


def _range(key: Sequence[str], where: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Remove the conditions on the first two columns of the key, and return them as a range of keys."""
    first = {key[0]: where.pop(key[0])["$eq"]}
    bounds = {way: {**first, key[1]: value} for way, value in where.pop(key[1], {}).items()}
    if not bounds.keys() & {"$gt", "$gte"}:
        bounds["$gt"] = first
    if not bounds.keys() & {"$lt", "$lte"}:
        bounds["$lt"] = {**first, key[1]: MaxKey()}
    return bounds


def _sort(table: str, order: str) -> Sort:
    columns = tuple(filter(None, order.removesuffix(" desc").split(", ")))
    way = -1 if order.endswith(" desc") else 1
    if columns and columns in {KEYS[table], KEYS[table][1:]}:
        return [("_id", way)]
    return [(column, way) for column in columns]
