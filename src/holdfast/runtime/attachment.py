"""Sessions that are attached to those who watch them: what becomes of a turn when the last of them is gone.

By default a turn goes on whether anybody watches or not. A session with `attached` in its metadata is interrupted, or
handed over to go on in the background, when nobody has watched it for its grace period.
"""

import json
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from holdfast.errors import BadInput
from holdfast.types import Json

GRACE_SECONDS: Final = 180.0
UNWATCHED: Final = "unwatched"
"""The reason of such a hand-over."""


class Attachment(BaseModel):
    """How long a turn goes on when nobody watches, in seconds, and what happens then."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grace: float = Field(default=GRACE_SECONDS, ge=1, le=86_400)
    then: Literal["handover", "interrupt"] = "handover"


def attachment(metadata: Json, grace: float = GRACE_SECONDS) -> Attachment | None:
    """Return how a session with this metadata is attached; None if it is not. Raises `BadInput`."""
    return parse(json.loads(metadata).get("attached"), grace)


def parse(value: Any, grace: float = GRACE_SECONDS) -> Attachment | None:
    """Read `true`, or an object with `grace`, which has a default, and `then`."""
    if value is None or value is False:
        return None
    if value is True:
        return Attachment(grace=grace)
    try:
        return Attachment.model_validate({"grace": grace, **value} if isinstance(value, dict) else value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, ("attached", *first["loc"])))
        raise BadInput(problem=f"{where} of the metadata: {first['msg']}") from None


def detached(metadata: Json) -> Json | None:
    """Return the metadata without it; None if there is nothing to take away."""
    known = json.loads(metadata)
    return json.dumps(known) if known.pop("attached", None) is not None else None
