"""Probes: application code that determines whether a call with an unknown outcome took effect."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Generic, TypeAlias, TypeVar

from holdfast.tasks import start_thread

T = TypeVar("T")
LIMIT_SECONDS = 30.0
"""The default time limit of a probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsettled:
    """A tool call or a step that was started and whose outcome is not recorded."""

    name: str
    """The name of the tool or step."""
    key: str
    """The idempotency key that the interrupted attempt used."""
    arguments: Any = field(repr=False)
    """The arguments of a tool by name, or those of a step in order."""
    summary: str | None = None
    """The summary that the call set with `annotate_effect`."""
    attempts: int = 1
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The call took effect, with this result."""

    result: T


@dataclass(frozen=True, slots=True)
class NotDone:
    """The call had no effect and can run again."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The probe could not determine the outcome. The policy applies."""


ProbeAnswer: TypeAlias = Done[Any] | NotDone | Unknown
Probe: TypeAlias = Callable[[Unsettled], Awaitable[ProbeAnswer] | ProbeAnswer]
"""Determines whether a call took effect. It may run more than once for the same call."""


async def ask_probe(probe: Probe, call: Unsettled, seconds: float) -> tuple[ProbeAnswer, str | None]:
    """Run a probe and return its result. If it raises, times out or returns an invalid value, return `Unknown` and the reason."""
    task = asyncio.ensure_future(_call(probe, call))
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
    if not task.done():
        return Unknown(), f"no answer within {seconds:g} seconds"
    if task.cancelled():
        return Unknown(), "the probe was cancelled"
    if (error := task.exception()) is not None:
        return Unknown(), f"{type(error).__name__}: {error}"
    answer: Any = task.result()
    if not isinstance(answer, Done | NotDone | Unknown):
        return Unknown(), f"a probe must return Done, NotDone or Unknown, not {type(answer).__name__}"
    return answer, None  # pyright: ignore[reportUnknownVariableType]


async def _call(probe: Probe, call: Unsettled) -> Any:
    try:
        answer = (
            probe(call)
            if iscoroutinefunction(probe)
            else await asyncio.wrap_future(start_thread(partial(probe, call)))
        )
        return await answer if isinstance(answer, Awaitable) else answer
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:  # these would end the event loop
        raise RuntimeError(repr(error)) from error
