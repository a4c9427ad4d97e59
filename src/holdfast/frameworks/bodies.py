"""The bodies of records: values of a framework as JSON, exactly as it wrote them."""

import json
from typing import Any

from holdfast.errors import (
    BadText,
)
from holdfast.jsontext import parse_json
from holdfast.types import Json


def to_body(value: object) -> Json:
    """Return the body of a record for a value of a framework. If it is not strict JSON, its text is stored as a string."""
    return text_to_body(json.dumps(value))


def text_to_body(text: Json) -> Json:
    """Return the body of a record for the JSON text of a value. It is stored as a string if it is not strict JSON."""
    try:
        is_strict = not isinstance(parse_json(text, "record"), str)
    except BadText:
        is_strict = False
    return text if is_strict else json.dumps(text)


def body_to_text(body: Json) -> Json:
    """Return the text that `text_to_body` was given."""
    return json.loads(body) if body.startswith('"') else body


def from_body(body: Json) -> Any:
    """Return the value that `to_body` was given."""
    value = json.loads(body)
    return json.loads(value) if isinstance(value, str) else value
