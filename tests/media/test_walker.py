"""Large content is taken out of a text and put back to the letter, whatever the text is."""

import base64
import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.media import walker
from holdfast.media.walker import Taken

THRESHOLD = 128
pieces = st.sampled_from(
    ["a", "é", "😀", '"', "\\", "\n", "\x00", "\u2028", "media+sha256:", "media+sha256:~", "A" * 70, " "]
)
text = st.one_of(
    st.lists(pieces, max_size=12).map("".join),
    st.text(max_size=300),
    st.binary(max_size=300).map(lambda data: base64.b64encode(data).decode()),
    st.binary(max_size=300).map(lambda data: base64.urlsafe_b64encode(data).decode()),
    st.binary(max_size=300).map(lambda data: base64.urlsafe_b64encode(data).decode().rstrip("=")),
    st.just("media+sha256://" + "0" * 64 + "#text"),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


def moved(written: str, threshold: int = THRESHOLD) -> tuple[str, dict[str, bytes]]:
    contents: dict[str, bytes] = {}
    parts: list[str] = []
    for piece in walker.take_out(written, threshold):
        if isinstance(piece, Taken):
            digest = hashlib.sha256(piece.data).hexdigest()
            contents[digest] = piece.data
            parts.append(walker.reference(f"media+sha256://{digest}", piece.form))
        else:
            parts.append(piece)
    return "".join(parts), contents


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(value=values, ascii_only=st.booleans(), compact=st.booleans())
def test_every_text_comes_back_to_the_letter(value: Any, ascii_only: bool, compact: bool):
    written = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":") if compact else None)
    short, contents = moved(written)
    assert set(walker.digests([short])) == set(contents)
    assert walker.put_back(short, contents) == written
    # What is stored is JSON as well, and holds nothing that is large.
    json.loads(short)
    assert all(
        len(found.encode("utf-8", "surrogatepass")) < THRESHOLD + 2 for found in strings(json.loads(short))
    )
    if not walker.is_touched(written, THRESHOLD):
        assert short == written


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [json.dumps(value, ensure_ascii=False)]
    if isinstance(value, dict):
        return [s for pair in value.items() for item in pair for s in strings(item)]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [s for item in value for s in strings(item)]  # pyright: ignore[reportUnknownVariableType]
    return []


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "base64": base64.b64encode,
    "base64url": base64.urlsafe_b64encode,
    "base64-unpadded": lambda data: base64.b64encode(data).rstrip(b"="),
    "base64url-unpadded": lambda data: base64.urlsafe_b64encode(data).rstrip(b"="),
}


@pytest.mark.parametrize("form", FORMS)
def test_binary_is_stored_as_bytes(form: str):
    data = b"\xfb\xff\xfe" + os.urandom(100_001)
    written = json.dumps(
        {"data": FORMS[form](data).decode(), "media_type": "image/png"}, separators=(",", ":")
    )
    (_, taken, _) = walker.take_out(written, 65536)
    assert isinstance(taken, Taken)
    assert (taken.data, taken.form, taken.context.media_type) == (data, form, "image/png")


@pytest.mark.parametrize(
    "string",
    [
        base64.b64encode(os.urandom(90_000)).decode() + "\n",  # with a line break
        base64.b64encode(os.urandom(90_001)).decode()[:-2] + "B=",  # bits that no encoder leaves
        base64.b64encode(os.urandom(90_000)).decode() + "-_+/",  # of both alphabets
        "=" * 90_000,
        "\ud800" + "x" * 90_000,
        'say "hello" ' * 9000,
    ],
)
def test_what_only_looks_like_base64_comes_back_too(string: str):
    written = json.dumps([string])
    short, contents = moved(written, 65536)
    assert len(short) < 200
    assert walker.put_back(short, contents) == written


def test_a_short_text_is_not_looked_at():
    assert not walker.is_touched("x" * 65535, 65536)
    assert walker.is_touched("x" * 65536, 65536)
    assert walker.is_touched("é" * 32768, 65536)
    assert walker.is_touched('{"a":"media+sha256:"}', 65536)


def test_a_reference_of_a_newer_version_is_left_as_it_is():
    written = f'["media+sha256://{"0" * 64}#gzip"]'
    assert walker.put_back(written, {"0" * 64: b""}) == written


@pytest.mark.parametrize("broken", ['"', '{"a', '["' + "x" * 1000, '"\\'])
def test_what_is_not_json_does_not_hang(broken: str):
    assert "".join(str(piece) for piece in walker.take_out(broken, THRESHOLD)) == broken


@pytest.mark.parametrize(
    ("form", "data"), [("json", b'x"},{"y":"z'), ("json", b"x\\"), ("text", b"\xff"), ("json", b"\xff")]
)
def test_content_that_is_no_string_in_its_form_is_not_put_back(form: str, data: bytes):
    """An archive may refer to any content: it must not become more than one string."""
    digest = "0" * 64
    written = json.dumps([f"media+sha256://{digest}#{form}"])
    assert walker.put_back(written, {digest: data}) == written
