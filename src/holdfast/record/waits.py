"""What a tool or a plain agent waits for without a process: a time, or a signal.

A wait is an entry of the ledger beside the steps. If it is not over, the run ends as waiting, and its turn continues at the time, or
when the signal has arrived. Then the tool or function runs again from its top, and the wait returns what it has waited for.
"""

import json
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Self, TypeAlias

from pydantic_ai.exceptions import CallDeferred

from holdfast.errors import BadInput, BudgetReached
from holdfast.ids import check_id, check_time
from holdfast.jsontext import lenient_json
from holdfast.record import ledger
from holdfast.record.ledger import CallRef
from holdfast.store import Store
from holdfast.types import Effect, Json

WaitKind: TypeAlias = Literal["sleep", "signal", "delegate", "budget"]
LONGEST: Final = timedelta(days=3653)
"""The longest wait: ten years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A wait of a tool call or turn: its ledger entry, the time at which it ends, and the signal that ends it before."""

    ref: CallRef
    kind: WaitKind
    until: datetime | None
    name: str | None = None
    questions: tuple[dict[str, Any], ...] = ()
    """The open questions of a delegate."""
    budget: str | None = None
    """The budget that is used up."""

    @classmethod
    def of(cls, effect: Effect) -> Self | None:
        """Return the wait that a ledger entry records; None if it is something else."""
        if ledger.waits_for(effect) != "wait":
            return None
        facts: dict[str, Any] = json.loads(effect.result or "{}")["metadata"]
        until = facts.get("until")
        return cls(
            ref=(effect.run_id, effect.call_id),
            kind=facts["wait"],
            until=None if until is None else datetime.fromisoformat(until),
            name=facts.get("name"),
            questions=tuple(facts.get("questions", ())),
            budget=facts.get("budget"),
        )

    def facts(self) -> dict[str, Any]:
        """Return its kind, its time and its signal, as JSON."""
        until = {} if self.until is None else {"until": self.until.isoformat()}
        named = {"name": self.name, "budget": self.budget}
        return {
            "wait": self.kind,
            **until,
            **{key: value for key, value in named.items() if value is not None},
        }

    def as_effect(self) -> Effect:
        """Return its ledger entry."""
        return Effect(
            run_id=self.ref[0],
            call_id=self.ref[1],
            tool=self.kind,
            result=ledger.deferred("wait", self.facts()),
            attempts=1,
        )

    def is_over(self, now: datetime) -> bool:
        """Return whether its time has come."""
        return self.until is not None and self.until <= now

    def __str__(self) -> str:
        if self.budget is not None:
            return f"the budget of {self.budget}"
        what = {"sleep": "timer", "delegate": "delegate"}.get(self.kind, f"signal {self.name!r}")
        return what if self.until is None else f"{what} until {self.until.isoformat(timespec='seconds')}"


def for_budget(reached: BudgetReached, run_id: str, now: datetime) -> Wait:
    """Return the wait of a run whose budget is used up. It is checked again when the next day begins."""
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    budget = "{budget}: {used} of {limit}".format_map(reached.facts)
    return Wait(ref=(run_id, "~budget"), kind="budget", until=midnight + timedelta(days=1), budget=budget)


class Suspended(BaseException):
    """Raised when the turn must wait. Not an `Exception`, so that agent code does not catch it."""


@contextmanager
def until_suspended() -> Generator[None, None, None]:
    """Run a block until it ends or is suspended, also by a TaskGroup in it."""
    try:
        yield
    except Suspended:
        pass
    except BaseExceptionGroup as group:
        if group.split(Suspended)[1] is not None:
            raise


class Waiting(CallDeferred):
    """Raised in a tool that waits. The call runs again when the wait may be over."""


def checked(
    ref: CallRef, kind: WaitKind, now: datetime, until: datetime | timedelta | None, name: str | None
) -> Wait:
    """Return a wait that begins now. Raises `BadInput` for a time without a time zone or one that is too far ahead."""
    if name is not None:
        check_id(name, "signal name")
    if isinstance(until, timedelta):
        if not timedelta(0) <= until <= LONGEST:
            seconds = f"{until.total_seconds():,.15g} seconds"
            raise BadInput(problem=f"a wait may take 0 seconds to ten years, not {seconds}")
        until = now + until
    if until is not None and check_time(until, "the time to wait for") > now + LONGEST:
        raise BadInput(problem=f"{until.isoformat()} is more than ten years ahead")
    return Wait(ref=ref, kind=kind, until=until, name=name)


async def open_waits(store: Store, session_id: str) -> list[Wait]:
    """Return the waits of a session that have no recorded end, including those of turns that were stopped."""
    waits: list[Wait] = []
    cursor: str | None = None
    while True:
        page = await store.effects(session_id, unresolved=True, cursor=cursor)
        waits += [wait for effect in page.items if (wait := Wait.of(effect)) is not None]
        if (cursor := page.next_cursor) is None:
            return waits


def first(waits: Iterable[Wait]) -> datetime | None:
    """Return the time at which the first of these waits ends; None if none of them has a time."""
    return min((wait.until for wait in waits if wait.until is not None), default=None)


def received(data: Any) -> Json:
    """Return the result of a wait that has received a signal."""
    return lenient_json({"kind": "value", "value": {"data": data}})


OVER: Final = '{"kind":"value","value":null}'
"""The result of a wait whose time has come."""
