"""The deadline of a question, and its default: what happens if nobody answers in time.

A deadline is declared by a tool or plain agent. It begins when the question is asked, and is part of the recorded question from then on.
Workers apply it (`runtime/waiting_turn.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast, get_args

from pydantic_ai.tools import ToolDefinition

from holdfast.approval import Default
from holdfast.errors import BadInput
from holdfast.ids import check_choice, check_time
from holdfast.record.ledger import Policy
from holdfast.record.waits import LONGEST

MOST_REMINDERS: Final = 10
"""How many reminders a question gets. Then it waits without a deadline."""
_FACTS: Final = ("deadline", "default", "interval", "reminders")
"""The facts of a recorded question that belong to its deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A deadline as it is declared: a time, or a duration that begins when the question is asked."""

    after: datetime | timedelta
    default: Default
    what: str
    """Whose deadline it is, for errors."""

    @classmethod
    def checked(cls, after: object, default: object, *, what: str) -> "Deadline":
        """Return a deadline for a question. Raises `BadInput` if it is not valid at any time."""
        if isinstance(after, timedelta):
            if not timedelta(0) < after <= LONGEST:
                raise BadInput(
                    problem=f"the deadline of {what} must be more than 0 seconds and at most ten years, not {after}"
                )
        elif isinstance(after, datetime):
            check_time(after, f"the deadline of {what}")
        else:
            raise BadInput(
                problem=f"the deadline of {what} must be a timedelta or a datetime, not {type(after).__name__}"
            )
        check_choice(cast("str", default), get_args(Default), f"default of {what}")
        return cls(after=after, default=cast("Default", default), what=what)

    @classmethod
    def of_tool(cls, tool: ToolDefinition, policy: Policy) -> "Deadline | None":
        """Return the deadline that a tool declares as `approval` in its metadata; None if it has none. Raises `BadInput`."""
        given: Any = (tool.metadata or {}).get("approval")
        if given is None:
            return None
        what = f"tool {tool.name!r}"
        facts: dict[str, Any] = dict(cast("Mapping[str, Any]", given)) if isinstance(given, Mapping) else {}
        if facts.keys() != {"deadline", "default"}:
            raise BadInput(
                problem=f"`approval` in the metadata of {what} must be an object with a `deadline` and a `default`, and nothing else"
            )
        if isinstance(facts["deadline"], datetime):
            raise BadInput(
                problem=f"the deadline of {what} must be a timedelta: it begins with each question"
            )
        if facts["default"] == "approve" and policy == "ask":
            raise BadInput(
                problem=f"{what} has the recovery policy 'ask' and the default 'approve', which would repeat a call that may have taken"
                " effect. Use the default deny, fail or remind"
            )
        return cls.checked(facts["deadline"], facts["default"], what=what)

    def facts(self, now: datetime) -> dict[str, Any]:
        """Return the deadline of a question that is asked now, as part of the question. Raises `BadInput` if its time is not ahead."""
        at = now + self.after if isinstance(self.after, timedelta) else self.after
        if at <= now:
            raise BadInput(problem=f"the deadline of {self.what}, {at.isoformat()}, is in the past")
        if at > now + LONGEST:
            raise BadInput(
                problem=f"the deadline of {self.what}, {at.isoformat()}, is more than ten years ahead"
            )
        facts: dict[str, Any] = {"deadline": at.isoformat(), "default": self.default}
        if self.default == "remind":
            facts["interval"] = (at - now).total_seconds()
        return facts


def deadline_of(question: Mapping[str, Any]) -> datetime | None:
    """Return the deadline of a recorded question, or the time of its next reminder; None if it waits without one."""
    at = question.get("deadline")
    return None if at is None else datetime.fromisoformat(at)


def facts_of(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a recorded question that belong to its deadline."""
    return {name: question[name] for name in _FACTS if name in question}


def reminded(question: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return a question after one more reminder, with the time of the next one. Intervals that passed unnoticed get none."""
    number, at = question.get("reminders", 0) + 1, deadline_of(question)
    upcoming = None
    if number < MOST_REMINDERS and at is not None:
        interval = timedelta(seconds=question["interval"])
        upcoming = (at + interval * ((now - at) // interval + 1)).isoformat()
    return {**question, "reminders": number, "deadline": upcoming}
