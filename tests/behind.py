"""What tests do to a MongoDB database behind the store's back: the few forms of SQL that they use, on documents."""

import ast
import re
from typing import Any

from pymongo import AsyncMongoClient

from holdfast.tables import KEYS

_FORM = re.compile(
    r"UPDATE (?P<updated>\w+) SET (?P<values>.*?)(?: WHERE (?P<where>.*))?"
    r"|DELETE FROM (?P<cleared>\w+)(?: WHERE (?P<which>.*))?"
    r"|INSERT INTO (?P<filled>\w+) \((?P<columns>[^)]*)\) VALUES (?P<row>\(.*\))"
)


async def execute(url: str, script: str) -> None:
    async with AsyncMongoClient[dict[str, Any]](url) as client:
        database = client.get_default_database()
        for statement in script.split(";"):
            form = _FORM.fullmatch(statement.strip())
            assert form is not None, statement
            if form["updated"]:
                await database[form["updated"]].update_many(
                    _pairs(form["where"]), {"$set": _pairs(form["values"])}
                )
            elif form["cleared"]:
                await database[form["cleared"]].delete_many(_pairs(form["which"]))
            else:
                names = [name.strip() for name in form["columns"].split(",")]
                row = dict(zip(names, _value(form["row"]), strict=True))
                key = {name: row[name] for name in KEYS[form["filled"]]}
                row["_id"] = key if len(key) > 1 else next(iter(key.values()))
                await database[form["filled"]].insert_one(row)


def _pairs(text: str | None) -> dict[str, Any]:
    pairs = (pair.split(" = ") for pair in (text or "").split(", ") if pair)
    return {name.strip(): _value(value) for name, value in pairs}


def _value(text: str) -> Any:
    return ast.literal_eval(text.replace("NULL", "None"))
