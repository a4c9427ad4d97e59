import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadId, BadText
from holdfast.ids import check_id, check_text, new_id


def test_new_ids_are_uuid7_and_sort_by_creation():
    ids = [new_id() for _ in range(2000)]
    assert all(uuid.UUID(i).version == 7 and uuid.UUID(i).variant == uuid.RFC_4122 for i in ids)
    assert len(set(ids)) == 2000
    # Within the same quarter of a microsecond the order is left to chance; the prefix never goes back.
    assert [i[:17] for i in ids] == sorted(i[:17] for i in ids)
    assert all(check_id(i) == i for i in ids)


@given(st.text())
def test_an_accepted_id_is_safe_everywhere(value: str):
    try:
        check_id(value)
    except BadId:
        return
    assert value.isascii()
    assert value.isprintable()
    assert not set(value) & set("/\\ %?#\"'<>|*")
    assert value[0].isalnum()


@given(st.text())
def test_accepted_text_can_be_encoded(value: str):
    try:
        size = check_text(value, "text")
    except BadText:
        assert "\x00" in value or any(0xD800 <= ord(c) <= 0xDFFF for c in value)
    else:
        assert size == len(value.encode())


def test_errors_name_what_is_wrong():
    with pytest.raises(BadId, match=r"Invalid session id '\.\./x'"):
        check_id("../x", "session id")
