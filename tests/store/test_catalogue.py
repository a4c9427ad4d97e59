"""The plain statements, as texts for the SQL engines and as filters for MongoDB."""

import inspect
import re
from pathlib import Path

import pytest
from bson import MaxKey

from holdfast.store import mongo
from holdfast.store.catalogue import PLAIN, Read, items
from holdfast.store.mongo.catalogue import filter_of
from holdfast.store.sql import catalogue, library
from holdfast.store.write import ARMS
from holdfast.store.write import NUMBERED as WITH_SEQ


def _words(name: str, *given: str, dialect: library.Dialect = "sqlite") -> str:
    return " ".join(library.text(name, dialect, frozenset(given)).split())


def test_a_read_names_its_columns_order_and_limit():
    assert _words("chunks") == (
        "SELECT body FROM blob_chunks WHERE blob_id = :id AND number >= :first ORDER BY number LIMIT :limit"
    )


def test_an_optional_item_is_omitted_unless_its_parameter_is_given():
    assert _words("cursors") == (
        "SELECT consumer, seq, at FROM cursors WHERE session_id = :session_id ORDER BY consumer LIMIT :limit"
    )
    assert "AND consumer > :after ORDER BY" in _words("cursors", "after")
    assert "priority FROM" in _words("submissions")
    assert "priority , payload FROM" in _words("submissions", "payloads")
    assert _words("blob_references", "sha256").startswith(
        "SELECT session_id, sha256 FROM blob_references WHERE TRUE AND sha256 = :sha256 ORDER"
    )
    assert _words("update_session", "hold") == (
        "UPDATE sessions SET active_at = active_at , hold = :hold WHERE id = :id RETURNING id"
    )


def test_an_insert_replaces_a_row_with_its_key():
    assert _words("set_credential") == (
        "INSERT INTO credentials (session_id, name, sealed, expires_at)"
        " VALUES (:session_id, :name, :sealed, now_us() + :ttl_us)"
        " ON CONFLICT (session_id, name) DO UPDATE SET sealed = excluded.sealed, expires_at = excluded.expires_at"
    )


def test_a_limited_delete_follows_the_key():
    assert _words("purge_outputs") == (
        "DELETE FROM outputs WHERE command_id = :command_id AND (command_id, number) IN ("
        "SELECT command_id, number FROM outputs WHERE command_id = :command_id"
        " ORDER BY command_id, number LIMIT :limit) RETURNING 1 AS gone"
    )


def test_tables_with_numbers_are_read_and_written_by_lookups():
    assert "WHERE session = (SELECT x.number FROM heads x" in _words("segments")
    text = _words("insert_event")
    assert text.startswith("INSERT INTO events (session, seq, kind, run, step, at, payload) VALUES ((SELECT")
    assert "FROM run_numbers" in text
    assert "(run, call_id) IN (SELECT run, call_id FROM effects" in _words("delete_effects")


def test_a_list_is_passed_as_each_engine_accepts_it():
    assert "id IN (SELECT value FROM json_each(:ids))" in _words("expire_holders")
    assert "id = ANY(CAST(:ids AS text[]))" in _words("expire_holders", dialect="postgres")


@pytest.mark.parametrize("text", ["a == b", "a, b.c", "a = :b or c"])
def test_an_item_that_is_not_understood_is_an_error(text: str):
    with pytest.raises(ValueError, match=r"catalogue\.py"):
        items(text)


def test_a_statement_is_in_one_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(catalogue, "PLAIN", {"events": Read("events")})
    with pytest.raises(ValueError, match=r"events .*catalogue\.py"):
        library._sources.__wrapped__("sqlite")  # pyright: ignore[reportPrivateUsage]
    written = "\n".join(path.read_text() for path in Path(inspect.getfile(mongo)).parent.glob("*.py"))
    assert set(re.findall(r"^async def (\w+)", written, re.MULTILINE)) & set(PLAIN) == set()


def test_an_unknown_statement_is_an_error_that_names_both_places():
    with pytest.raises(LookupError, match=r"store/catalogue\.py.*\.sql file"):
        library.text("no_such_statement", "sqlite")


def test_mongodb_uses_the_whole_key():
    params = {"session_id": "s", "position": 3, "now": None}
    assert filter_of("submissions", "session_id, position, ended_at is null", params, "") == {
        "_id": {"session_id": "s", "position": 3},
        "ended_at": None,
    }
    assert filter_of("holders", "id in :ids", {"ids": ["a"]}, "") == {"_id": {"$in": ["a"]}}


def test_mongodb_reads_a_range_of_keys_in_their_order():
    params = {"session_id": "s", "after": "c"}
    where = "session_id, consumer > :after if after"
    assert filter_of("cursors", where, params, "consumer") == {
        "_id": {
            "$gt": {"session_id": "s", "consumer": "c"},
            "$lt": {"session_id": "s", "consumer": MaxKey()},
        }
    }
    assert filter_of("cursors", where, {"session_id": "s"}, "consumer") == {
        "_id": {"$gt": {"session_id": "s"}, "$lt": {"session_id": "s", "consumer": MaxKey()}}
    }


def test_mongodb_uses_other_indexes_in_another_order():
    params = {"session_id": "s"}
    expected = {"session_id": "s", "state": "queued"}
    assert filter_of("submissions", "session_id, state = 'queued'", params, "lane, position") == expected


@pytest.mark.parametrize("name", sorted(set(ARMS) - {"drop_drafts", "refer_blobs"}))
def test_the_arms_of_postgresql_use_every_column(name: str):
    used = set(re.findall(r"\brows\.(\w+)", library.text(name, "postgres")))
    wanted = {column for column, _ in ARMS[name]} | ({"head_seq"} if name in WITH_SEQ else set[str]())
    assert used | {"session", "session_id"} == wanted | {"session", "session_id"}
