"""Reading the payload of a submission."""

import json
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import UserContent

from holdfast.errors import BadInput
from holdfast.types import Submission

_CONTENT: TypeAdapter[list[UserContent]] = TypeAdapter(list[UserContent])


def parse_payload(submission: Submission) -> dict[str, Any]:
    """Return the payload. Raises `BadInput` if it is not an object."""
    payload = json.loads(submission.payload)
    if not isinstance(payload, dict):
        raise BadInput(problem=f"the payload of {submission.kind} must be an object")
    return payload  # pyright: ignore[reportUnknownVariableType]


def parse_content(submission: Submission) -> str | list[UserContent]:
    """Return the content of a message: its `text`, or the parts of its `content`. Raises `BadInput`."""
    payload = parse_payload(submission)
    text, content = payload.get("text"), payload.get("content")
    if isinstance(text, str) and content is None:
        return text
    if text is None and isinstance(content, list) and content:
        try:
            return _CONTENT.validate_python(content)
        except ValidationError as error:
            first = error.errors()[0]
            raise BadInput(problem=f"`content` has no valid part at {first['loc']}: {first['msg']}") from None
    raise BadInput(problem="a message has either `text` or a list of parts as `content`")
