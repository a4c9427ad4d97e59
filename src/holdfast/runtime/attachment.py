"""Attached sessions, whose turns stop when the last watcher leaves.

By default a turn continues whether it is watched or not. A session with `attached` in its metadata is interrupted, or
handed over to continue in the background, when it has not been watched for its grace period.
"""

import json
from typing import Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from holdfast.errors import BadInput
from holdfast.types import Json

GRACE_SECONDS: Final = 180.0
UNWATCHED: Final = "unwatched"
"""The reason recorded for such a hand-over."""


class Attachment(BaseModel):
    """How many seconds a turn continues without a watcher, and what happens then."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grace: float = Field(default=GRACE_SECONDS, ge=1, le=86_400)
    on_unwatched: Literal["handover", "interrupt"] = "handover"


def attachment(metadata: Json, grace: float = GRACE_SECONDS) -> Attachment | None:
    """Return the attachment of a session with this metadata; None if it is not attached. Raises `BadInput`."""
    return parse(json.loads(metadata).get("attached"), grace)


def parse(value: Any, grace: float = GRACE_SECONDS) -> Attachment | None:
    """Parse `true`, or an object with an optional `grace` and `on_unwatched`."""
    if value is None or value is False:
        return None
    if value is True:
        return Attachment(grace=grace)
    if not isinstance(value, dict):
        raise BadInput(problem="attached of the metadata must be true or an object")
    given = cast("dict[str, Any]", value)
    if unknown := given.keys() - Attachment.model_fields.keys():  # each would be an error of its own
        raise BadInput(problem=f"attached.{min(unknown)[:100]} of the metadata: there is no such field")
    try:
        return Attachment.model_validate({"grace": grace, **given})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, ("attached", *first["loc"])))
        raise BadInput(problem=f"{where} of the metadata: {first['msg']}") from None


def detached(metadata: Json) -> Json | None:
    """Return the metadata without `attached`; None if it has none."""
    known = json.loads(metadata)
    return json.dumps(known) if known.pop("attached", None) is not None else None
