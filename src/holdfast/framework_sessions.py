"""Recognizes the sessions of other frameworks. Needs none of them, nor the adapters."""

import json
from typing import Final

from holdfast.errors import Conflict
from holdfast.types import Session

NO_WORKER: Final = "send messages with your own program, since no worker of Holdfast runs it"


def framework_of(session: Session) -> str | None:
    """Return the framework whose adapter created a session; None if there is none."""
    framework = json.loads(session.metadata).get("framework")
    return framework if framework == session.agent else None


def refuse_foreign(session: Session, problem: str) -> None:
    """Raise `Conflict` for a session of another framework."""
    framework = framework_of(session)
    if framework is not None:
        raise Conflict(problem=f"session {session.id} is stored by {framework}: {problem}")
