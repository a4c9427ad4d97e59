"""Generate ids, and check ids and text from outside."""

import difflib
import os
import re
import time
import uuid
from collections.abc import Collection
from datetime import datetime

from holdfast.errors import BadId, BadInput, BadText, BadUuid

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@=+~-]{0,127}")
_UUID = re.compile(r"[0-9a-f]{8}(-?)[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}", re.IGNORECASE)
_LONGEST_NAME = 256
_LONGEST_RUN_ID = 512
LONGEST_TITLE = 1000
_READ_FOR_TITLE = 1000
_SHOWN_TITLE = 80


def new_id() -> str:
    """Return a new UUIDv7. UUIDs sort by creation time, also within a millisecond."""
    milliseconds, nanoseconds = divmod(time.time_ns(), 1_000_000)
    fraction = nanoseconds * 4096 // 1_000_000
    value = milliseconds << 80 | 0x7 << 76 | fraction << 64 | 0b10 << 62 | int.from_bytes(os.urandom(8)) >> 2
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def check_id(value: str, what: str = "id") -> str:
    """Return `value` if it is safe to use as an id in URLs, in file names and on a terminal."""
    if not isinstance(value, str) or not _ID.fullmatch(value):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadId(what=what, value=value)
    return value


def check_uuid(value: str, what: str) -> str:
    """Return a UUID, given with or without dashes, in the form in which it is stored."""
    if not isinstance(value, str) or not _UUID.fullmatch(value):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadUuid(what=what, value=value)
    return str(uuid.UUID(value))


def is_token(value: str) -> bool:
    """Return whether a text can be a token: an HTTP header transports no other characters."""
    return value.isascii() and value.isprintable()


def check_name(value: str, what: str) -> str:
    """Return `value` if it is a short printable text, such as an owner or the name of an agent or a tool."""
    if not isinstance(value, str) or not value or len(value) > _LONGEST_NAME or not value.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadText(what=what, problem=f"must have 1 to {_LONGEST_NAME} printable characters")
    return value


def check_run_id(value: str) -> str:
    """Return `value` if it can name a run. It may come from another framework, so it is any text that an index can contain."""
    check_text(value, "run id")
    if len(value) > _LONGEST_RUN_ID:
        raise BadText(what="run id", problem=f"has more than {_LONGEST_RUN_ID} characters")
    return value


def check_time(value: datetime, what: str) -> datetime:
    """Return `value` if it names one moment: it has a time zone."""
    if not isinstance(value, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        given = type(value).__name__
        raise BadInput(
            problem=f"{what} must be a datetime with a time zone, such as datetime.now(UTC), not a {given}"
        )
    if value.tzinfo is None:
        raise BadInput(problem=f"{what} has no time zone. Use a time like datetime.now(UTC)")
    return value


def check_title(value: str) -> str:
    """Return `value` if it can be the title of a session."""
    check_text(value, "title")
    if len(value) > LONGEST_TITLE:
        raise BadText(what="title", problem=f"has more than {LONGEST_TITLE} characters")
    return value


def title_from(text: str) -> str:
    """Return the first line of a message, shortened, as the title of its session; empty if the message has no text."""
    lines = (
        "".join(c if c.isprintable() else " " for c in line).strip()
        for line in text.lstrip()[:_READ_FOR_TITLE].splitlines()
    )
    line = next((line for line in lines if line), "")
    return line if len(line) <= _SHOWN_TITLE else f"{line[: _SHOWN_TITLE - 1].rstrip()}…"


def check_text(value: str, what: str) -> int:
    """Return the size of `value` in bytes if every engine can store it exactly."""
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadText(
            what=what,
            problem=f"is a {type(value).__name__}; pass a string, and serialize JSON with json.dumps",
        )
    if "\x00" in value:
        raise BadText(what=what, problem="contains a NUL character; in JSON, escape it as \\u0000")
    if value.isascii():
        return len(value)
    try:
        return len(value.encode())
    except UnicodeEncodeError as error:
        problem = f"contains a lone surrogate at {error.start}; in JSON, write it as an escape"
        raise BadText(what=what, problem=problem) from None


def did_you_mean(name: str, names: Collection[str]) -> str:
    """Return a sentence, with a leading space, that suggests similar names; empty if there are none."""
    close = difflib.get_close_matches(name, names)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def check_choice(value: str, choices: tuple[str, ...], what: str) -> str:
    """Return `value` if it is one of `choices`, else raise `BadInput`."""
    if value not in choices:
        raise BadInput(problem=f"{value!r} is not a valid {what}; use one of {', '.join(choices)}")
    return value
