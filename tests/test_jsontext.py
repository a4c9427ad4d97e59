import json
import math
from typing import Any

import pytest

from holdfast.errors import BadInput, BadText
from holdfast.jsontext import (
    DEEPEST,
    MOST_VALUES,
    lenient_json,
    parse_json,
    parse_object,
    read_json,
    strict_json,
)


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize("text", ["NaN", '{"a": [-Infinity]}', "1e999", "9" * 5000, "{", ""])
def test_text_that_is_not_strict_json_is_refused(text: str):
    with pytest.raises(BadText, match="is not valid JSON"):
        parse_json(text, "state")


@pytest.mark.parametrize("levels", [DEEPEST + 1, 300, 100_000])
def test_nesting_is_limited(levels: int):
    assert parse_json(nested(DEEPEST), "state")
    with pytest.raises(BadText, match=f"more than {DEEPEST} levels"):
        parse_json(nested(levels), "state")


@pytest.mark.parametrize("text", ["[]", "null", '"a"', "1"])
def test_an_object_is_required_where_one_is_read(text: str):
    with pytest.raises(BadText, match="is not a JSON object"):
        parse_object(text, "metadata")


def test_nan_from_outside_is_an_error_and_from_an_agent_becomes_null():
    value: dict[str, Any] = {"a": [math.nan, math.inf, 1.5], "b": "NaN"}
    with pytest.raises(BadInput, match="cannot be written as JSON"):
        strict_json(value, "state")
    assert json.loads(lenient_json(value)) == {"a": [None, None, 1.5], "b": "NaN"}


def test_lone_surrogates_are_replaced_when_stored_text_is_sent():
    assert read_json(r'{"a": "\ud800", "b": "\ud83d\ude00"}') == {"a": "?", "b": "\U0001f600"}


def test_a_text_with_very_many_values_is_refused_before_it_is_parsed():
    many = "[" + "[]," * (MOST_VALUES + 1) + "1]"
    with pytest.raises(BadText, match="has more than 100,000 values"):
        parse_json(many, "state")
    unclosed = "," * (MOST_VALUES + 1) + '"' + '\\"' * 1_000_000
    with pytest.raises(BadText, match="has more than"):
        parse_json(unclosed, "state")
    prose = json.dumps({"text": 'a, b, [c] {d} \\ "e" ' * MOST_VALUES})
    assert parse_json(prose, "state") == json.loads(prose)
    assert len(parse_json(json.dumps([0] * (MOST_VALUES - 1)), "state")) == MOST_VALUES - 1


def test_nesting_counts_as_values():
    """A list in a list costs as much as two numbers, and has no comma."""
    many = "[" + ",".join(["[" * 90 + "]" * 90] * 2000) + "]"
    with pytest.raises(BadText, match="has more than 100,000 values"):
        parse_json(many, "state")


def test_a_number_with_very_many_digits_is_refused():
    assert parse_json("1" * 310, "state") == int("1" * 310)
    with pytest.raises(BadText, match="a number is too large"):
        parse_json("1" * 311, "state")
