"""The content of a message: a list of parts, checked when it is submitted.

Parts come from outside. A file is either inline or at a public HTTP address: a part cannot make the server read its own
network, or use its credentials with a provider. All limits are checked before anything is stored.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
)

from holdfast.errors import BadInput

MOST_PARTS: Final = 1000
MOST_FIELDS: Final = 20
_MOST_METADATA: Final = 2000


def _check_base64(text: str) -> str:
    try:
        base64.b64decode(text.translate(_STANDARD), validate=True)
    except binascii.Error as error:
        message = f"it is not valid base64: {error}"
        raise ValueError(message) from None
    return text


_STANDARD: Final = str.maketrans("-_", "+/")
Label: TypeAlias = Annotated[str, Field(max_length=500)]


def check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a part. Raise `ValueError` if it is too long."""
    if len(json.dumps(metadata)) > _MOST_METADATA:
        message = f"it has more than {_MOST_METADATA} characters"
        raise ValueError(message)
    return metadata


VendorMetadata: TypeAlias = Annotated[dict[str, Any], AfterValidator(check_metadata)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PlainTextPart(_Part):
    """Text in the format of OpenAI's clients. Equivalent to a plain string."""

    type: Literal["text"]
    text: str


class TextContentPart(_Part):
    """Text in Pydantic AI's format."""

    kind: Literal["text-content"]
    content: str


class FilePart(_Part):
    """A file at a public address."""

    kind: Literal["image-url", "audio-url", "video-url", "document-url"]
    url: Annotated[str, Field(pattern=r"^[Hh][Tt][Tt][Pp][Ss]?://", max_length=16_384)]
    media_type: Label | None = None
    identifier: Label | None = None
    vendor_metadata: VendorMetadata | None = None
    force_download: Literal[False] = False


class BinaryPart(_Part):
    """A file in base64."""

    kind: Literal["binary"]
    data: Annotated[str, Field(min_length=1), AfterValidator(_check_base64)]
    media_type: Annotated[Label, Field(pattern=r"^[\w.+-]+/[\w.+-]+")]
    identifier: Label | None = None
    vendor_metadata: VendorMetadata | None = None


class CachePart(_Part):
    """A marker up to which a provider may cache the prompt."""

    kind: Literal["cache-point"]
    ttl: Literal["5m", "1h"] = "5m"


_KINDS: Final = {
    "text-content": "(text)",
    "image-url": "(file)",
    "audio-url": "(file)",
    "video-url": "(file)",
    "document-url": "(file)",
    "binary": "(binary)",
    "cache-point": "(cache)",
}


def _tag(part: Any) -> str | None:
    if isinstance(part, str):
        return "(str)"
    if not isinstance(part, dict):
        return "(openai)" if isinstance(part, PlainTextPart) else _KINDS.get(getattr(part, "kind", ""))
    fields = cast("dict[str, Any]", part)
    if len(fields) > MOST_FIELDS:
        return None  # validating it would report each unknown field as a separate error
    kind = fields.get("kind")
    return "(openai)" if fields.get("type") == "text" else _KINDS.get(kind) if isinstance(kind, str) else None


Part: TypeAlias = Annotated[
    Annotated[str, Tag("(str)")]
    | Annotated[PlainTextPart, Tag("(openai)")]
    | Annotated[TextContentPart, Tag("(text)")]
    | Annotated[FilePart, Tag("(file)")]
    | Annotated[BinaryPart, Tag("(binary)")]
    | Annotated[CachePart, Tag("(cache)")],
    Discriminator(
        _tag,
        custom_error_type="part",
        custom_error_message=(
            'A part must be a string, {"type": "text", "text": …}, or an object whose `kind` is one of '
            + ", ".join(_KINDS)
        ),
    ),
]
Content: TypeAlias = Annotated[list[Part], Field(min_length=1, max_length=MOST_PARTS, fail_fast=True)]
"""The content of a user's message: at least one part."""

_content: Final = TypeAdapter[list[Part]](Content)


def check_content(payload: dict[str, Any]) -> str | list[Any]:
    """Return the text of a message, or its parts as Pydantic AI reads them. Raise `BadInput` with the place of the first mistake."""
    text, content = payload.get("text"), payload.get("content")
    if isinstance(text, str) and content is None:
        return text
    if text is not None or not isinstance(content, list):
        raise BadInput(problem="a message requires either `text` or a list of parts as `content`")
    try:
        parts = _content.validate_python(content)
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False, include_input=False, include_context=False)
        raise BadInput(problem=f"{place_of(('content', *first['loc']))}: {first['msg']}") from None
    return [_plain(part) for part in parts]


def place_of(location: Sequence[int | str]) -> str:
    """Return the place of a mistake as a path, without the names of alternatives, which are in parentheses."""
    return ".".join(str(step) for step in location if not str(step).startswith("("))


def _plain(part: Any) -> Any:
    if isinstance(part, PlainTextPart):
        return part.text
    return part if isinstance(part, str) else part.model_dump(exclude_defaults=True)
