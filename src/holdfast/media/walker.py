"""Take large content out of the exact text of a JSON document, and put it back. Independent of engines and messages.

It works on the text itself: a string of at least the threshold is replaced by a string that refers to its content, and
no other character changes. The restored text is therefore exactly the original, whatever its fields. A
reference is `"media+sha256://<digest>#<form>"`, where the form is how the bytes are written as a JSON string. A
user's own string that starts with `media+sha256:` gets a `~` after the colon, which is removed on restoring.
"""

import binascii
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from holdfast.media.media_store import MediaContext

_OPENING: Final = '"media+sha256:'
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
# The opening quote of a string never follows a backslash, and is followed only by the content.
_LOOKALIKE = re.compile(r'(?<!\\)"media\+sha256:')
_MARK = re.compile(r'(?<!\\)"media\+sha256:(?:(~)|//([0-9a-f]{64})#([a-z0-9-]+)")')
_MEDIA_TYPE = re.compile(r'\s*,\s*"media_type"\s*:\s*"([\x21\x23-\x5b\x5d-\x7e]{1,127})"')
_BASE64_START = re.compile(r"[A-Za-z0-9+/_-]{1,64}")
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_TO_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_WIDEST = 4  # bytes of a character


@dataclass(frozen=True, slots=True)
class Taken:
    """Content taken out of a text: its bytes, the form in which they were written, and their media type."""

    data: bytes
    form: str
    context: MediaContext


def is_touched(text: str, threshold: int) -> bool:
    """Return whether a text may have to change before it is stored. Costs almost nothing for a short one."""
    size = len(text)
    return (size * _WIDEST >= threshold and (size >= threshold or not text.isascii())) or _OPENING in text


def take_out(text: str, threshold: int) -> list[str | Taken]:
    """Return the text in pieces: text that stays, and content to be stored elsewhere."""
    pieces: list[str | Taken] = []
    at = 0
    for start, end in _long_strings(text, threshold):
        string = text[start:end]
        if end - start < threshold and (string.isascii() or len(string.encode()) < threshold):
            continue
        pieces += (_escaped(text[at:start]), _taken(string, text, end))
        at = end
    pieces.append(_escaped(text[at:]))
    return pieces


def reference(uri: str, form: str) -> str:
    """Return the string that replaces content in this form."""
    return f'"{uri}#{form}"'


def digests(texts: Iterable[str | None]) -> list[str]:
    """Return the digests that these texts refer to, each once."""
    return list(references(texts))


def references(texts: Iterable[str | None]) -> Counter[str]:
    """Return how often these texts refer to each digest."""
    results: Counter[str] = Counter()
    for text in texts:
        if text is not None and _OPENING in text:
            results.update(match[2] for match in _MARK.finditer(text) if match[2])
    return results


def is_changed(text: str) -> bool:
    """Return whether a text has to be restored."""
    return _OPENING in text


def put_back(text: str, contents: Mapping[str, bytes]) -> str:
    """Return the original text, given the contents that it refers to by digest."""

    def restore(match: re.Match[str]) -> str:
        return _OPENING if match[1] else _written(contents[match[2]], match[3], match[0])

    return _MARK.sub(restore, text)


def _long_strings(text: str, threshold: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of strings that may have as many bytes as the threshold."""
    short, at = _short_strings(threshold), 0
    while True:
        skipped = short.match(text, at)
        start = at if skipped is None else skipped.end()
        if start == len(text):
            return
        end = text.find('"', start + 1) + 1
        if not end:
            return  # not valid JSON
        if text.find("\\", start + 1, end) >= 0 and (string := _STRING.match(text, start)):
            end = string.end()
        if (end - start) * _WIDEST >= threshold:
            yield start, end
        at = end


@cache
def _short_strings(threshold: int) -> re.Pattern[str]:
    """Return a pattern that skips as many short strings as possible in one match: a loop over each string is slow."""
    most = threshold // 100  # 16 runs of this many characters, of up to 4 bytes each
    run = rf'[^"\\]{{0,{most}}}+'
    return re.compile(rf'(?:[^"]*+"{run}(?:\\.{run}){{0,15}}+")*+[^"]*+')


def _escaped(text: str) -> str:
    return _LOOKALIKE.sub(f"{_OPENING}~", text) if _OPENING in text else text


def _taken(string: str, text: str, end: int) -> Taken:
    if (decoded := _from_base64(string)) is not None:
        data, form = decoded
        media_type = _MEDIA_TYPE.match(text, end, end + 200)
        return Taken(data, form, MediaContext(media_type=media_type[1]) if media_type else MediaContext())
    plain = MediaContext(media_type="text/plain; charset=utf-8")
    try:
        value = json.loads(string)
        for form, ascii_only in (("text", False), ("ascii", True)):
            if json.dumps(value, ensure_ascii=ascii_only) == string:
                return Taken(value.encode(), form, plain)
    except (ValueError, UnicodeError):  # not in a known form, so it is kept as it is
        pass
    return Taken(string[1:-1].encode(), "json", MediaContext(media_type="application/json"))


def _from_base64(string: str) -> tuple[bytes, str] | None:
    """Return the bytes and the form, if writing them in that form gives exactly this string."""
    if not _BASE64_START.fullmatch(string, 1, min(65, len(string) - 3)):
        return None
    try:
        written = string[1:-1].encode("ascii")
        standard = written.translate(_TO_STANDARD)
        data = binascii.a2b_base64(standard + b"=" * (-len(standard) % 4), strict_mode=True)
    except (UnicodeError, binascii.Error):
        return None
    for form in ("base64", "base64url", "base64-unpadded", "base64url-unpadded"):
        if _base64(data, form) == written:
            return data, form
    return None


def _base64(data: bytes, form: str) -> bytes:
    written = binascii.b2a_base64(data, newline=False)
    if form.startswith("base64url"):
        written = written.translate(_TO_URL_SAFE)
    return written.rstrip(b"=") if form.endswith("unpadded") else written


def _written(data: bytes, form: str, otherwise: str) -> str:
    """Return the string of this content, or the reference if no string can have been taken out in that form."""
    try:
        return _string(data, form) or otherwise
    except UnicodeDecodeError:
        return otherwise


def _string(data: bytes, form: str) -> str | None:
    match form:
        case "text" | "ascii":
            return json.dumps(data.decode(), ensure_ascii=form == "ascii")
        case "json":
            string = f'"{data.decode()}"'
            return string if _STRING.fullmatch(string) else None  # else it would insert more than a string
        case "base64" | "base64url" | "base64-unpadded" | "base64url-unpadded":
            return f'"{_base64(data, form).decode()}"'
        case _:
            return None  # a form of a newer version
