"""The .sql files and the code that names them belong together."""

import inspect
import re
from pathlib import Path

import pytest

from holdfast.store import sql
from holdfast.store.retention import CONTENT
from holdfast.store.schema import LATEST
from holdfast.store.sql import library
from holdfast.store.write import ARMS, NUMBERED
from holdfast.types import DUE_BY

FOLDER = Path(sql.__file__).parent


MONGODB_ONLY = {
    "content_sizes",
    "lease_holder",
    "violations",
    "loose_pieces",
    "taken_ids",
    "import_rows",
    "shared_rows",
    "add_shared_row",
}


def test_every_statement_is_used_and_every_name_exists():
    code = "\n".join(path.read_text() for path in FOLDER.parent.rglob("*.py"))
    used = set(re.findall(r'\b(?:op|text|Statement)\(\s*f?["\'](\w+)["\']', code))
    used |= {*ARMS, *(f"delete_{table}" for table in CONTENT), *(f"due_{by}" for by in DUE_BY)}
    statements = library.statement_names("sqlite") | library.statement_names("postgres")
    used |= {name for name in statements if name.startswith("check_")}
    assert used - MONGODB_ONLY == statements


def test_engine_lines():
    text = "SELECT 1\n--[sqlite] FROM a\n--[postgres] FROM b -- why\n;\n-- a comment"
    assert library.for_dialect(text, "sqlite") == "SELECT 1\nFROM a"
    assert library.for_dialect(text, "postgres") == "SELECT 1\nFROM b"


def test_optional_lines_follow_the_given_parameters():
    plain = library.text("submissions", "sqlite")
    assert "state = :state" not in plain
    assert "state = :state" in library.text("submissions", "sqlite", frozenset({"state"}))


def test_parameters_are_numbered_in_order_of_appearance():
    text, names = library.numbered(library.text("submissions", "postgres", frozenset({"state", "after"})))
    assert names == ("session_id", "state", "after", "limit")
    assert re.findall(r"\$\d", text) == ["$1", "$2", "$3", "$4"]
    assert ":" not in text


def test_migrations_are_numbered_without_holes():
    assert [number for number, _, _ in library.migrations()] == list(range(1, LATEST + 1))


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_begins_with_its_session_and_names_each_column_once(name: str):
    columns = [column for column, _ in ARMS[name]]
    assert columns[0] == "session_id"
    assert len(set(columns)) == len(columns)


@pytest.mark.parametrize("name", ARMS)
def test_the_arms_of_sqlite_use_every_column(name: str):
    used = {int(number) for number in re.findall(r"\?(\d+)", library.text(name, "sqlite"))}
    assert used == set(range(1, len(ARMS[name]) + 1 + (name in NUMBERED)))


SQL_ONLY = {
    *ARMS,  # the hot path is written for each engine
    *("name_run", "name_runs"),  # MongoDB stores ids
    "charge_budget",  # part of the hot path
    *("migration_lock", "create_schema", "create_migrations", "add_migration"),  # so are migrations
    *(name for name in library.statement_names() if name.startswith("check_")),  # MongoDB runs them on a copy
}


def test_mongodb_has_every_statement_under_its_name():
    from holdfast.store.mongo.transactions import STATEMENTS

    assert library.statement_names() - SQL_ONLY - set(STATEMENTS) == set()


def test_mongodb_takes_the_parameters_of_every_statement():
    from holdfast.store.mongo.transactions import STATEMENTS

    for name in library.statement_names() - SQL_ONLY:
        taken = inspect.signature(STATEMENTS[name]).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
            given = set(
                re.findall(r"(?<![:\w]):([a-z]\w*)", library.text(name, "sqlite", library.optional(name)))
            )
            assert given | library.optional(name) <= set(taken), name


def test_mongodb_has_the_same_migrations():
    from holdfast.store.mongo.schema import MIGRATIONS

    assert [(n, name) for n, name, _ in MIGRATIONS] == [(n, name) for n, name, _ in library.migrations()]
