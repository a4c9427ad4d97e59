"""The .sql files and the code that names them belong together."""

import inspect
import re
from pathlib import Path

import pytest

from holdfast.store import sql
from holdfast.store.sql import library
from holdfast.store.sql.retention import CONTENT
from holdfast.store.sql.write import ARMS
from holdfast.types import DUE_BY

FOLDER = Path(sql.__file__).parent


def test_every_statement_is_used_and_every_name_exists():
    code = "\n".join(path.read_text() for path in (*FOLDER.glob("*.py"), *FOLDER.parent.glob("*.py")))
    used = set(re.findall(r'\b(?:sql|text|Statement)\(\s*f?["\'](\w+)["\']', code))
    used |= {*ARMS, *(f"delete_{table}" for table in CONTENT), *(f"due_{by}" for by in DUE_BY)}
    used |= {name for name in library.statement_names() if name.startswith("check_")}
    assert used == library.statement_names()


def test_engine_lines():
    text = "SELECT 1\n--[sqlite] FROM a\n--[postgres] FROM b -- why\n;\n-- a comment"
    assert library.for_dialect(text, "sqlite") == "SELECT 1\nFROM a"
    assert library.for_dialect(text, "postgres") == "SELECT 1\nFROM b"


def test_optional_lines_follow_the_given_parameters():
    plain = library.text("submissions", "sqlite")
    assert "state = :state" not in plain
    assert "state = :state" in library.text("submissions", "sqlite", frozenset({"state"}))


def test_parameters_are_numbered_in_order_of_appearance():
    text, names = library.numbered("submissions", frozenset({"state", "after"}))
    assert names == ("session_id", "state", "after", "limit")
    assert re.findall(r"\$\d", text) == ["$1", "$2", "$3", "$4"]
    assert ":" not in text


def test_migrations_are_numbered_without_holes():
    assert [number for number, _, _ in library.migrations()] == list(range(1, len(library.migrations()) + 1))


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_begins_with_its_session(name: str):
    assert library.arm(name, "postgres").columns[0] == ("session_id", "text")


SQL_ONLY = {
    *("fence_group", "refer_blobs_group", *ARMS),  # the hot path is written for each engine
    *("migration_lock", "create_schema", "create_migrations", "add_migration"),  # so are migrations
    *("unlit_beacons", "light_beacon", "dim_beacon"),  # PostgreSQL's way to tell who is gone
    *("queue_submission", "begin_and_tell"),  # and its way to do in one statement what others do in several
}


def test_mongodb_has_every_statement_under_its_name():
    from holdfast.store.mongo.store import STATEMENTS

    assert library.statement_names() - SQL_ONLY - set(STATEMENTS) == set()


def test_mongodb_takes_the_parameters_of_every_statement():
    from holdfast.store.mongo.store import STATEMENTS

    for name in library.statement_names() - SQL_ONLY:
        taken = inspect.signature(STATEMENTS[name]).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
            _, given = library.numbered(name, library.optional(name))
            assert set(given) | library.optional(name) <= set(taken), name


def test_mongodb_has_the_same_migrations():
    from holdfast.store.mongo.schema import MIGRATIONS

    assert [(n, name) for n, name, _ in MIGRATIONS] == [(n, name) for n, name, _ in library.migrations()]
