"""The content of a message, as it is checked when it is submitted."""

from typing import Any

import pytest

from holdfast.content import MOST_PARTS, check_content
from holdfast.errors import BadInput


def test_parts_that_agents_can_read():
    parts = [
        "plain",
        {"type": "text", "text": "as OpenAI's clients send it"},
        {"kind": "text-content", "content": "as Pydantic AI writes it"},
        {"kind": "image-url", "url": "HTTPS://example.com/a.png", "media_type": "image/png"},
        {"kind": "binary", "data": "_-8=", "media_type": "image/png", "identifier": "a"},
        {"kind": "cache-point"},
    ]
    assert check_content({"content": parts}) == ["plain", "as OpenAI's clients send it", *parts[2:]]
    assert check_content({"text": ""}) == ""


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "either `text` or a list"),
    ({"text": 1}, "either `text` or a list"),
    ({"text": "a", "content": ["a"]}, "either `text` or a list"),
    ({"content": "a"}, "either `text` or a list"),
    ({"content": []}, "content: "),
    ({"content": ["a"] * (MOST_PARTS + 1)}, "content: "),
    ({"content": ["a", [1]]}, r"content\.1: A part must be"),
    (
        {"content": [{"kind": "image-url", "url": "http://a"} | {str(n): n for n in range(100)}]},
        r"A part must be",
    ),
    (
        {"content": [{"kind": "image-url", "url": "http://a", "vendor_metadata": {"a": "x" * 3000}}]},
        r"content\.0\.vendor_metadata: ",
    ),
    ({"content": [{"kind": ["binary"]}]}, r"content\.0: A part must be"),
    ({"content": [{"kind": "binary", "data": "", "media_type": "image/png"}]}, r"content\.0\.data: "),
    ({"content": [{"kind": "binary", "data": "aGk=", "media_type": "x"}]}, r"content\.0\.media_type: "),
    ({"content": [{"kind": "image-url", "url": "file:///etc/passwd"}]}, r"content\.0\.url: "),
    ({"content": [{"kind": "image-url", "url": "http://a", "force_download": True}]}, r"force_download: "),
    ({"content": [{"kind": "text-content", "content": "a", "metadata": {}}]}, r"content\.0\.metadata: "),
]


@pytest.mark.parametrize(("payload", "problem"), BAD)
def test_parts_that_are_refused(payload: dict[str, Any], problem: str):
    with pytest.raises(BadInput, match=problem):
        check_content(payload)


def test_many_mistakes_cost_no_more_than_one():
    with pytest.raises(BadInput, match=r"content\.0: "):
        check_content({"content": [1] * 1_000_000})
