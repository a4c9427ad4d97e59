"""Messages with the texts of other errors and with sizes in them."""

import inspect
from collections.abc import Mapping
from string import Formatter

_FORMATTER = Formatter()
_KIB = 1024


def without_period(text: object) -> str:
    """Return text that is part of a sentence, such as the message of another error, without the period at its end."""
    shown = str(text)
    return shown if shown.endswith("...") else shown.removesuffix(".")


def fill(template: str, facts: Mapping[str, object]) -> str:
    """Return the template with the facts. A fact that ends with a period does not double the punctuation after it."""
    text = ""
    for literal, name, spec, conversion in _FORMATTER.parse(inspect.cleandoc(template)):
        if literal.startswith(".") and text.endswith(("...", "?", "!")):
            literal = literal[1:]  # noqa: PLW2901
        elif literal.startswith((".", ",", ";")):
            text = without_period(text)
        text += literal
        if name is not None:
            value = _FORMATTER.convert_field(_FORMATTER.get_field(name, (), facts)[0], conversion)
            text += format(value, spec or "")
    return text


def size_text(count: float) -> str:
    """Return a number of bytes with its unit, such as 1.5 MiB."""
    if count < _KIB:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB"):
        count /= _KIB
        if count < _KIB:
            return f"{count:.1f} {unit}"
    return f"{count / _KIB:.1f} GiB"
